"""Running other programs: found by name, ended with us, their last words in the error."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import IO, cast

from torpor.images.errors import NOTHING_VISIBLE, ImageError, disk_full
from torpor.vm.programs import end_group, start_group

# An ordinary user's PATH lacks the directories where mkfs.ext4 and its like are.
SEARCH = ":".join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
TAIL_LINES = 25
END_GRACE_S = 10.0

PACKAGE_OF = {
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "debugfs": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "fakeroot": "fakeroot",
    "tar": "tar",
    "fallocate": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "sync": "coreutils",
    "prlimit": "util-linux",
    "bwrap": "bubblewrap",
}


def find_program(name: str) -> str:
    """The path of a program. Raises ImageError naming the Debian package that has it."""
    if "/" in name:
        return name
    found = shutil.which(name, path=SEARCH)
    if found is None:
        package = PACKAGE_OF.get(name, name)
        raise ImageError(
            f"The program {name} is not on this machine.",
            "Nothing was changed.",
            f"Install the package {package} (apt-get install {package}) and try again.",
        )
    return found


def ignore_line(line: str) -> None:
    """The default of `run`'s on_line."""


async def run(
    program: str,
    *arguments: str,
    lock: int | None,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = ignore_line,
    end_by: signal.Signals = signal.SIGTERM,
    advice: str = "Run the same command again; if it fails again, the lines above say why.",
    called: str = "",
) -> None:
    """Run a program to its end; `on_line` gets its lines (stdout and stderr in one).

    `called` is what an error calls it, if it only leads to another one.

    Raises ImageError with the last lines if it fails. If this task is cancelled or this process
    dies, the program gets `end_by`; until it has ended it holds `lock`, so nobody takes its
    directory for abandoned (None: for a program that surely ends with us).
    """
    path = find_program(program)
    process = await start_group(
        # The program would outlive a SIGKILL of ours and go on filling the disk.
        find_program("setpriv"),
        "--pdeathsig",
        end_by.name.removeprefix("SIG"),
        path,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PATH": SEARCH, "LC_ALL": "C.UTF-8", **(environment or {})},
        pass_fds=() if lock is None else (lock,),
    )
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        async for line in _lines(cast(asyncio.StreamReader, process.stdout)):
            tail.append(line)
            on_line(line)
        status = await process.wait()
    except BaseException:
        await end_group(process, end_by, END_GRACE_S)
        raise
    if status != 0:
        said = "\n".join(f"    {line}" for line in tail)
        if "No space left on device" in said or "Disk quota exceeded" in said:
            raise disk_full("the cache or the temporary files")
        name = called or Path(path).name
        how = f"status {status}" if status > 0 else f"signal {-status}"
        raise ImageError(
            f"{name} failed ({how}). It said:\n{said}",
            NOTHING_VISIBLE,
            advice,
        )


class Words:
    """What a program says on a pipe: the first ``most`` bytes are kept. The rest is read all the
    same, or the program would wait for ever with what it was started for half done."""

    def __init__(self, pipe: IO[bytes], most: int) -> None:
        self._pipe = pipe
        self._most = most
        self._kept = b""
        self._reading = threading.Thread(target=self._read, name="words")
        self._reading.start()

    def _read(self) -> None:
        while piece := self._pipe.read1(1 << 16):  # type: ignore[attr-defined]
            self._kept += piece[: self._most - len(self._kept)]

    def text(self) -> str:
        """Return what was said, once the program has ended."""
        self._reading.join()
        return self._kept.decode("utf-8", "replace").strip()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines that are not empty; a carriage return ends one too (progress bars)."""
    pending = b""
    while chunk := await stream.read(65536):
        *lines, pending = re.split(rb"[\r\n]", pending + chunk)
        for line in lines:
            if text := line.decode("utf-8", "replace").strip():
                yield text
    if text := pending.decode("utf-8", "replace").strip():
        yield text
