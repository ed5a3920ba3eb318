"""Which hosts an image's own package tools are set up to use, read from their configurations.

Each reader takes the text of one file and returns rules, as a policy has them: ``host`` where the
port is the scheme's own, ``host:port`` where it is not. They read, and follow nothing: hosts that
an index links or redirects to are for whoever can ask it. What cannot be understood is left out: a
tool that cannot read its own file uses no host of it either.
"""

import configparser
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from torpor.network.errors import PolicyError
from torpor.network.rules import read_rule

_PORTS: Final = {"http": 80, "https": 443, "ssh": 22, "git": 9418}


def url_rule(url: str) -> str | None:
    """Return the rule for the host of a URL; None if it is none that is reached over a network, or
    its host cannot be in a rule."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    # cargo's sparse+https, pip's git+https
    scheme = parts.scheme.rpartition("+")[2].lower()
    if not host or scheme not in _PORTS:
        return None
    port = port or _PORTS[scheme]
    web = port in (80, 443)
    # An address is no name, and a rule for one says its port.
    literal = re.fullmatch(r"[0-9.]+", host)
    try:
        return read_rule("", host if web and not literal else f"{host}:{port}").written
    except PolicyError:
        return None


def pip_rules(text: str) -> tuple[str, ...]:
    """Read a ``pip.conf``: its indexes and where it finds links, in all sections."""
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        parser.read_string(text)
    except configparser.Error:
        return ()
    keys = ("index-url", "extra-index-url", "find-links", "index", "proxy")
    return _rules(
        word
        for section in parser.sections()
        for key, value in parser.items(section)
        if key.replace("_", "-") in keys
        for word in (value or "").split()
    )


def npm_rules(text: str) -> tuple[str, ...]:
    """Read an ``.npmrc``: its registry, those of scopes, and proxies."""
    return _rules(
        value.strip("\"'")
        for key, value in _assignments(text, "#;")
        if re.fullmatch(r"(?:@[^:]+:)?registry|(?:https?-)?proxy", key)
    )


def apt_rules(text: str) -> tuple[str, ...]:
    """Read a ``sources.list``, a ``.sources`` file (deb822) or an ``apt.conf``: archives and
    proxies. Sources that are disabled are left out."""
    return _rules((*_one_line_sources(text), *_stanza_sources(text), *_apt_proxies(text)))


def cargo_rules(text: str) -> tuple[str, ...]:
    """Read a cargo ``config.toml``: registries, sources that replace others, and the proxy."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return ()
    found = [
        table.get(key)
        for tables in (_table(said, "registries"), _table(said, "source"))
        for table in tables.values()
        if isinstance(table, dict)
        for key in ("index", "registry", "git")
    ]
    found += [_table(said, "registry").get("index"), _table(said, "http").get("proxy")]
    return _rules(each for each in found if isinstance(each, str))


def go_rules(text: str) -> tuple[str, ...]:
    """Read a file of Go's environment (``go env GOENV``): module proxies and the checksum
    database."""
    return _rules(url for key, value in _assignments(text, "#") for url in _go_urls(key, value))


_VARIABLES: Final = re.compile(
    r"PIP_(?:INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS)"
    r"|UV_(?:DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL)"
    r"|(?i:npm_config_(?:@[^:]+:)?registry)"
    r"|CARGO_REGISTRIES_\w+_INDEX"
)


def variable_rules(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Read the variables of an image, by which the same tools are set up without a file."""
    return _rules(
        url
        for key, value in variables.items()
        # uv has names before its indexes: name=https://index.example
        for url in (
            *(re.sub(r"^[\w-]+=", "", each) for each in value.split() if _VARIABLES.fullmatch(key)),
            *_go_urls(key, value),
        )
    )


def _go_urls(key: str, value: str) -> list[str]:
    if key == "GOPROXY":
        return re.split(r"[,|]", value)
    if key == "GOSUMDB":
        # A name, or a name with its key, or with its key and the URL that serves it.
        words = value.split()
        name = words[0].partition("+")[0] if words else ""
        return words[1:2] or ([f"https://{name}"] if name != "off" else [])
    return []


def _rules(urls: Iterable[str]) -> tuple[str, ...]:
    rules = (url_rule(url) for url in urls)
    return tuple(dict.fromkeys(rule for rule in rules if rule))


def _assignments(text: str, comments: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, sign, value = line.partition("=")
        if sign and key.strip() and key.strip()[0] not in comments:
            yield key.strip(), value.strip()


def _table(said: dict[str, Any], key: str) -> dict[str, Any]:
    table = said.get(key)
    return table if isinstance(table, dict) else {}


# apt


def _one_line_sources(text: str) -> Iterator[str]:
    """``deb [options] uri suite component``, see sources.list(5)."""
    for line in text.splitlines():
        found = re.match(r"\s*deb(?:-src)?\s+(?:\[[^\]]*\]\s*)?([^\s\[#]+)", line)
        if found:
            yield found[1]


def _stanza_sources(text: str) -> Iterator[str]:
    for stanza in re.split(r"\n[ \t]*\n", text):
        lines = [line for line in stanza.splitlines() if not line.lstrip().startswith("#")]
        fields: dict[str, str] = {}
        key = ""
        for line in lines:
            name, colon, value = line.partition(":")
            if line[:1].isspace():
                fields[key] = f"{fields.get(key, '')} {line}"
            elif colon:
                key = name.strip().lower()
                fields[key] = value
        if fields.get("enabled", "").strip().lower() not in ("no", "false", "without", "off"):
            yield from fields.get("uris", "").split()


def _apt_proxies(text: str) -> Iterator[str]:
    for found in re.finditer(r"(?i)\bproxy\s+\"([^\"]+)\"", text):
        yield found[1]
    # Written with its whole name, one line has it; in braces, the name is the block's.
    for found in re.finditer(r"(?i)\bproxy::[\w.-]+\s+\"([^\"]+)\"", text):
        yield found[1]
