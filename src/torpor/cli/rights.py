"""May this user read and write the memory of another process, as a freeze and a thaw must?

Found out by doing it, to a process in the jail that machines run in. What decides is ptrace(2),
"Ptrace access mode checking", and Yama's ``kernel.yama.ptrace_scope`` (admin-guide/LSM/Yama.rst):
at 1, only ancestors and those with CAP_SYS_PTRACE over the target may. Who made a user namespace
has that over all in it, which is what lets a restarted program adopt the machines of an earlier
one.
"""

import asyncio
import json
import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from torpor.vm.jail import FIRST_UID, Jail
from torpor.vm.pages import PAGE, Mapping, Run, read_pages, write_pages
from torpor.vm.processes import ProcessId, identify

START_LIMIT = 5.0
LIFE = "20"
"""Seconds that the process lives at most, should we die before we end it."""


async def refusal(jail: Jail, *, stranger: bool) -> str | None:
    """Return why we may not use the memory of a process in ``jail``, or None if we may.

    ``stranger``: of one that does not descend from us, as after a restart.
    """
    sleep = Path(shutil.which("sleep") or "/bin/sleep")
    jail = replace(jail, seccomp=False, seen=(*jail.seen, sleep))
    return await asyncio.to_thread(_refusal, jail, sleep, stranger)


def _refusal(jail: Jail, sleep: Path, stranger: bool) -> str | None:
    reader, writer = os.pipe()
    try:
        command = jail.wrap([str(sleep), LIFE], uid=FIRST_UID, info_fd=writer, kvm=False)
        started = _start(command, writer, stranger=stranger)
    finally:
        os.close(writer)
    try:
        process = _find(reader, started, jail, stranger=stranger)
    finally:
        os.close(reader)
    try:
        if process is None or not _sleeps(process):
            return "the process to try it on did not start"
        return _try(process)
    finally:
        if process is not None:
            process.kill()
        _end(started)


def _start(command: list[str], writer: int, *, stranger: bool) -> subprocess.Popen[bytes]:
    # A shell that ends at once leaves its child to PID 1.
    line = ["sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "sh", *command] if stranger else command
    return subprocess.Popen(
        line,
        pass_fds=(writer,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def _find(
    reader: int, started: subprocess.Popen[bytes], jail: Jail, *, stranger: bool
) -> ProcessId | None:
    """Return the process, which may not be through the jail yet."""
    if jail.namespaces:
        said = b""  # bubblewrap writes an object in pieces, or nothing if it fails
        while b"}" not in said and (data := os.read(reader, 4096)):
            said += data
        try:
            pid = int(json.loads(said)["child-pid"])
        except (ValueError, KeyError):
            return None
    elif stranger:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
    else:
        pid = started.pid
    return identify(pid)


def _sleeps(process: ProcessId) -> bool:
    """Wait until the jail has been built and its program runs."""
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline and process.alive():
        try:
            if Path(f"/proc/{process.pid}/comm").read_text().strip() == "sleep":
                return True
        except OSError:
            return False
        time.sleep(0.005)
    return False


def _try(process: ProcessId) -> str | None:
    try:
        mapping = _writable_page(process.pid)
        buffer = bytearray(PAGE)
        read_pages(mapping, [Run(0, 1)], buffer)
        write_pages(mapping, [Run(0, 1)], buffer)
        with open(f"/proc/{process.pid}/pagemap", "rb", buffering=0) as pagemap:
            pagemap.seek(mapping.start // PAGE * 8)
            pagemap.read(8)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def _writable_page(pid: int) -> Mapping:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, mode = line.split()[:2]
        if mode.startswith("rw"):
            start = int(span.split("-")[0], 16)
            return Mapping(pid, start, start + PAGE)
    raise OSError(f"process {pid} has no memory to write")


def _end(started: subprocess.Popen[bytes]) -> None:
    started.kill()
    if started.stdout is not None:
        started.stdout.close()
    started.wait()
