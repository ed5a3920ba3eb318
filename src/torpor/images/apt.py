"""Where this host gets Debian packages from: its own apt configuration, mapped to a suite.

No registry address is written here. On a Debian host the mirrors and keyrings are those of
sources.list(5), in both of its formats; elsewhere there are none and mmdebstrap takes its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ARCHITECTURE = "amd64"
POCKETS = ("", "-updates", "-security")
SUITE = re.compile(r"(?P<base>[a-z]+)(?P<pocket>|-updates|-security)$")
PROXY_OR_CA = re.compile(
    r"Acquire::(https?|ftp)::\S*"
    r"(Proxy|Proxy-Auto-Detect|ProxyAutoDetect|CaInfo|CaPath|SslCert|SslKey|Verify-Peer|Verify-Host)\b"
    r"|Acquire::(Retries|ForceIPv4|ForceIPv6|https?::Timeout)\b"
)


@dataclass(frozen=True)
class Source:
    """One place that has packages. `signed_by`: a keyring's path, a key's text, or nothing."""

    uri: str
    suite: str
    components: tuple[str, ...]
    signed_by: str = ""
    options: tuple[tuple[str, str], ...] = ()


def debian_sources(
    suite: str, etc: Path = Path("/etc/apt"), lists: Path = Path("/var/lib/apt/lists")
) -> tuple[Source, ...]:
    """The sources that this host has for a Debian suite, with -updates and -security.

    Entries for the suite itself are preferred; else those of the host's own suite are mapped
    (a Debian mirror carries all suites). Empty on a host that is not Debian.
    """
    debian = [s for s in read_sources(etc) if "main" in s.components and _is_debian(s, lists)]
    exact = [s for s in debian if _base(s.suite) == suite]
    mapped: dict[tuple[str, str], Source] = {}
    for source in exact or debian:
        match = SUITE.match(source.suite)
        if match is None:
            continue
        name = suite + match["pocket"]
        for uri in _expand_mirror_list(source.uri):
            found = replace(source, uri=uri, suite=name, components=("main",))
            mapped.setdefault((uri, name), found)
    if not any(found.suite == suite for found in mapped.values()):
        return ()
    return tuple(sorted(mapped.values(), key=lambda s: POCKETS.index(s.suite[len(suite) :])))


def read_sources(etc: Path) -> list[Source]:
    """All `deb` entries of sources.list and sources.list.d, one for each URI and suite."""
    found: list[Source] = []
    for path in [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))]:
        if not path.is_file():
            continue
        text = path.read_text(errors="replace")
        if path.suffix == ".list":
            found += parse_list(text)
        elif path.suffix == ".sources":
            found += parse_deb822(text)
    return found


def parse_list(text: str) -> list[Source]:
    """The one-line format: `deb [option=value ...] uri suite component ...`."""
    found: list[Source] = []
    for line in text.splitlines():
        match = re.match(
            r"\s*deb\s+(?:\[(?P<options>[^]]*)\]\s*)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<rest>[^#]*)",
            line,
        )
        if match is None:
            continue
        options = dict(
            part.split("=", 1) for part in (match["options"] or "").split() if "=" in part
        )
        architectures = options.get("arch", ARCHITECTURE).split(",")
        if ARCHITECTURE in architectures:
            components = tuple(match["rest"].split())
            found.append(
                Source(
                    match["uri"],
                    match["suite"],
                    components,
                    options.get("signed-by", ""),
                    _kept(options),
                )
            )
    return found


def parse_deb822(text: str) -> list[Source]:
    """The deb822 format: paragraphs of `Field: value`, continued by indented lines."""
    found: list[Source] = []
    for fields in _paragraphs(text):
        if "deb" not in fields.get("types", "").split():
            continue
        if fields.get("enabled", "yes").strip().lower() in ("no", "false", "off", "0"):
            continue
        if ARCHITECTURE not in fields.get("architectures", ARCHITECTURE).split():
            continue
        signed_by = fields.get("signed-by", "").strip()
        if "BEGIN PGP" in signed_by:
            # In deb822 an empty line of the key is written as a single dot.
            lines = (line.strip() for line in signed_by.splitlines())
            signed_by = "\n".join("" if line == "." else line for line in lines) + "\n"
        components = tuple(fields.get("components", "").split())
        for uri in fields.get("uris", "").split():
            found += [
                Source(uri, suite, components, signed_by, _kept(fields))
                for suite in fields.get("suites", "").split()
            ]
    return found


def apt_network_options(dump: str) -> list[str]:
    """Proxy, CA and retry settings in the output of `apt-config dump`, as apt takes them."""
    return [
        line.strip()
        for line in dump.splitlines()
        if PROXY_OR_CA.match(line) and not line.rstrip().endswith(' "";')
    ]


def _paragraphs(text: str) -> Iterable[Mapping[str, str]]:
    fields: dict[str, str] = {}
    name = ""
    for line in [*text.splitlines(), ""]:
        if line.startswith("#"):
            continue
        if not line.strip():
            if fields:
                yield fields
            fields, name = {}, ""
        elif line[0] in " \t" and name:
            fields[name] += "\n" + line.strip()
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()


def _kept(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The options that decide whether apt takes a mirror at all."""
    kept = ("trusted", "check-valid-until")
    return tuple((name, options[name].strip()) for name in kept if name in options)


def _is_debian(source: Source, lists: Path) -> bool:
    """Whether this is Debian itself and not somebody's packages for Debian.

    What apt downloaded says so for certain; on a host without lists the keyring does, or else
    the customary end of the address.
    """
    stem = re.sub(r"^[a-z+]+:/*", "", source.uri.rstrip("/")).replace("/", "_")
    for name in ("InRelease", "Release"):
        release = lists / f"{stem}_dists_{source.suite.replace('/', '_')}_{name}"
        if release.is_file():
            return bool(re.search(r"^Origin: Debian$", release.read_text(errors="replace"), re.M))
    if source.signed_by:
        return "debian-archive" in source.signed_by
    return re.search(r"/debian(-security)?/*$", source.uri) is not None or (
        source.uri.startswith("mirror+file:") and "/debian" in source.uri
    )


def _base(suite: str) -> str:
    match = SUITE.match(suite)
    return match["base"] if match else ""


def _expand_mirror_list(uri: str) -> list[str]:
    """Debian's cloud images name a file that holds the mirrors: it is not there in an image."""
    if not uri.startswith("mirror+file:"):
        return [uri]
    path = Path("/" + uri.removeprefix("mirror+file:").lstrip("/"))
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    return [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
