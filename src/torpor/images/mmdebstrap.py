"""Getting Debian packages by mmdebstrap: as a tar archive, with its progress told."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torpor.images.apt import Source, apt_network_options, debian_sources
from torpor.images.errors import NOTHING_VISIBLE, ImageError
from torpor.images.programs import find_program, run
from torpor.images.progress import Report, Step
from torpor.images.stages import Building

# mmdebstrap sets times that are later than this back to it, so that two builds are the same.
SOURCE_DATE_EPOCH = "1700000000"
# Its temporary tree is large, and /tmp is in memory on Debian 13.
TEMPORARY = os.environ.get("TMPDIR", "/var/tmp")  # noqa: S108 - only mkdtemp works in it
# As root, mmdebstrap mounts /proc, /sys and parts of /dev below its temporary tree, and on TERM its
# children go on. In namespaces of its own, the mounts are nobody else's and the children end with
# it. An ordinary user's mmdebstrap makes its own namespaces; if we are killed it finishes what it
# is at and removes its tree, and as it holds the lock, the next build waits so long.
CONTAINED = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")

FAILURE_ADVICE = (
    "If it could not reach the mirror: see that `apt-get update` works on this host, and that "
    "the proxy is set in apt's configuration. If it lacks a key: install the package "
    "debian-archive-keyring. If it could not pick a mode: an ordinary user needs the package "
    "uidmap and user namespaces; root needs neither. Then run the same command again."
)

UNITS = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3}
SIZE = re.compile(r"([\d.,]+) (B|kB|MB|GB)\b")
STAGE_NAMES = {
    "running apt-get update": "reading package lists",
    "downloading packages": "downloading packages",
    "extracting archives": "extracting packages",
    "installing essential": "installing essential packages",
    "installing remaining": "installing packages",
    "creating tarball": "packing",
}


async def make_tar(
    building: Building,
    out: Path,
    *,
    variant: str,
    suite: str,
    packages: Sequence[str],
    report: Report,
    options: Sequence[str] = (),
) -> None:
    """Make a tar of these packages and what they depend on. Raises ImageError.

    Variant "extract" only unpacks them (no package script runs), "minbase" makes a whole system.
    Works as root and as an ordinary user: mmdebstrap then makes a user namespace of its own.
    """
    if platform.machine() != "x86_64":
        raise ImageError(
            f"This host is {platform.machine()}; images are made for x86_64 only.",
            "Nothing was changed.",
            "Use an x86_64 host.",
        )
    sources = await asyncio.to_thread(debian_sources, suite)
    network = apt_network_options(await _apt_config(building))
    progress = Progress(report)
    root = os.geteuid() == 0
    with _temporary(building, root) as temporary:
        await run(
            *(("unshare", *CONTAINED, "--") if root else ()),
            find_program("mmdebstrap"),
            "--verbose",
            "--mode=auto",
            f"--variant={variant}",
            "--format=tar",
            f"--include={','.join(packages)}",
            *(f"--aptopt={option.rstrip(';')}" for option in network),
            *options,
            suite,
            str(out),
            *mirror_lines(sources, temporary),
            lock=building.lock,
            environment={"SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, "TMPDIR": str(temporary)},
            on_line=progress.line,
            end_by=signal.SIGKILL if root else signal.SIGTERM,
            advice=FAILURE_ADVICE,
        )
    if not out.is_file():
        raise ImageError(
            "mmdebstrap ended well but made no archive.",
            NOTHING_VISIBLE,
            "Run the same command again.",
        )


async def _apt_config(building: Building) -> str:
    lines: list[str] = []
    await run("apt-config", "dump", lock=building.lock, on_line=lines.append)
    return "\n".join(lines)


@contextmanager
def _temporary(building: Building, root: bool) -> Iterator[Path]:
    """A directory for mmdebstrap's tree, to be seen by the root of its user namespace too."""
    if root:
        directory = building.path / "tmp"
        directory.mkdir()
        # It goes with the building directory if this process does not come so far.
        yield directory
        shutil.rmtree(directory)
    else:
        # A home directory may be closed to that root.
        with tempfile.TemporaryDirectory(
            dir=TEMPORARY, prefix="torpor.", ignore_cleanup_errors=True
        ) as name:
            Path(name).chmod(0o755)
            yield Path(name)


def mirror_lines(sources: Sequence[Source], directory: Path) -> list[str]:
    """The sources as mmdebstrap's MIRROR arguments; a key's text goes into a file."""
    lines: list[str] = []
    for number, source in enumerate(sources):
        options = dict(source.options)
        if "BEGIN PGP" in source.signed_by:
            key = directory / f"{number}.asc"
            key.write_text(source.signed_by)
            options["signed-by"] = str(key)
        elif source.signed_by:
            options["signed-by"] = ",".join(source.signed_by.split())
        in_brackets = " ".join(f"{name}={value}" for name, value in options.items())
        in_brackets = f" [{in_brackets}]" if in_brackets else ""
        components = " ".join(source.components)
        lines.append(f"deb{in_brackets} {source.uri} {source.suite} {components}")
    return lines


class Progress:
    """Turns the lines of mmdebstrap and apt into steps: stages, and bytes while downloading."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._stage = ""
        self._done = 0
        self._total: int | None = None

    def line(self, line: str) -> None:
        if line.startswith("I: "):
            for start, name in STAGE_NAMES.items():
                if line[3:].startswith(start):
                    self._stage, self._done, self._total = name, 0, None
                    self._report(Step(name))
        elif line.startswith("Need to get "):
            self._total = _size(line)
        elif line.startswith("Get:") and self._total:
            self._done = min(self._done + _size(line), self._total)
            self._report(Step(self._stage, self._done, self._total, "bytes"))
        elif line.startswith("Setting up "):
            self._done += 1
            self._report(Step(self._stage, self._done, None, "packages"))


def _size(line: str) -> int:
    """The last size named in a line of apt, in bytes; 0 if there is none."""
    found = SIZE.findall(line)
    if not found:
        return 0
    number, unit = found[-1]
    return int(float(number.replace(",", "")) * UNITS[unit])
