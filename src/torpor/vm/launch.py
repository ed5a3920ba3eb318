"""Starting QEMU: descriptors opened, jail built, limits set, process found."""

import asyncio
import contextlib
import ctypes
import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.vm.accelerator import Accelerator
from torpor.vm.cgroups import Group, make_group
from torpor.vm.errors import LaunchError
from torpor.vm.jail import Jail
from torpor.vm.limits import Limits, limits_for
from torpor.vm.manifest import Drive
from torpor.vm.processes import ProcessId, identify
from torpor.vm.qemu import (
    TOP_MODES,
    Descriptors,
    DriveFiles,
    Kernel,
    command_line,
    maps_read_only,
)
from torpor.vm.qmp import listen_unix
from torpor.vm.said import Said
from torpor.vm.seccomp import filter_file
from torpor.vm.shape import Shape
from torpor.vm.wire import Wire

MONITOR, AGENT, CONSOLE = "monitor", "agent", "console"
TRACE = "trace.log"
"""What QEMU's trace points wrote: few lines, in a file of their own, because they are read when
nobody was there to hear them (:mod:`torpor.vm.endings`)."""
START_LIMIT = 30.0
_LIBC = ctypes.CDLL(None)
_KEYCTL, _JOIN_SESSION_KEYRING = 250, 1  # x86-64; linux/keyctl.h


@dataclass(frozen=True)
class Boot:
    """What a cold boot starts from, and what else its kernel is told."""

    kernel: Path
    initramfs: Path
    arguments: str = ""


@dataclass(frozen=True)
class Parts:
    """What a machine is put together from. ``memory`` is a descriptor of its base, if any; the
    first of ``drives`` is the root disk. ``wire`` is its network card's, if it has one."""

    shape: Shape
    accelerator: Accelerator
    memory: int | None
    drives: tuple["DriveParts", ...]
    tools: Path
    boot: Boot | None
    wire: Wire | None = None


@dataclass(frozen=True)
class DriveParts:
    """A disk, and where the files of its layers are, bottom first."""

    drive: Drive
    layers: tuple[Path, ...]
    top: Path


@dataclass(frozen=True)
class Launched:
    """QEMU's process, the child of ours that is or leads to it and must be reaped, and its control
    group, if there is one."""

    process: ProcessId
    child: subprocess.Popen[bytes]
    group: Group | None


async def launch(directory: Path, name: str, parts: Parts, jail: Jail, uid: int) -> Launched:
    """Start QEMU for the machine whose directory is given.

    Its sockets are in ``directory``, and the pipe for what it says (:mod:`torpor.vm.said`). Raises
    :exc:`LaunchError`.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(_listen(directory, n)) for n in (MONITOR, AGENT, CONSOLE)]

        def opened(path: Path, flags: int = os.O_RDONLY) -> int:
            fd = os.open(path, flags | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            return fd

        descriptors = Descriptors(
            memory=_opened_anew(parts, opened),
            monitor=sockets[0].fileno(),
            agent=sockets[1].fileno(),
            console=sockets[2].fileno(),
            drives=tuple(
                DriveFiles(
                    tuple(opened(path) for path in each.layers),
                    (opened(each.top, TOP_MODES[0]), opened(each.top, TOP_MODES[1])),
                )
                for each in parts.drives
            ),
            tools=opened(parts.tools),
            card=None if parts.wire is None else parts.wire.tap,
        )
        kernel = None
        if parts.boot is not None:
            kernel = Kernel(
                opened(parts.boot.kernel), opened(parts.boot.initramfs), parts.boot.arguments
            )
        drives = tuple(each.drive for each in parts.drives)
        line = command_line(name, parts.shape, parts.accelerator, drives, descriptors, kernel)
        inherited = descriptors.all() + ((kernel.image, kernel.initramfs) if kernel else ())
        # QEMU opens it by its descriptor's name, which asks for the right to write to it. The
        # directory lets nobody else in.
        trace = opened(directory / TRACE, os.O_WRONLY | os.O_CREAT)
        os.fchmod(trace, 0o666)
        line += ["-D", f"/proc/self/fd/{trace}"]
        inherited += (trace,)
        said = Said(directory)
        said.open()
        stack.callback(said.close)
        sealed = parts.boot is not None or not maps_read_only(parts.accelerator.qemu_version)
        largest = max(drive.top.size for drive in drives)
        limits = limits_for(parts.shape, parts.accelerator, largest, sealed=sealed)
        group = make_group(jail.groups, name, limits) if jail.groups is not None else None
        kvm = parts.accelerator.name == "kvm"
        try:
            return await _spawn(
                jail,
                line,
                inherited,
                uid,
                kvm=kvm,
                said=said,
                limits=limits,
                group=group,
                wire=parts.wire,
            )
        except BaseException:
            if group is not None:
                await asyncio.shield(group.remove())
            raise


def _opened_anew(parts: Parts, opened: Callable[[Path, int], int]) -> int | None:
    """Open the base again: descriptors that were duplicated share their flags, which QEMU can
    change for all who have one."""
    if parts.memory is None:
        return None
    mode = os.O_RDONLY if maps_read_only(parts.accelerator.qemu_version) else os.O_RDWR
    return opened(Path(f"/proc/self/fd/{parts.memory}"), mode)


@contextmanager
def _listen(directory: Path, name: str) -> Iterator[socket.socket]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with listen_unix(fd, name) as sock:
            yield sock
    finally:
        os.close(fd)


async def _spawn(
    jail: Jail,
    line: list[str],
    inherited: tuple[int, ...],
    uid: int,
    *,
    kvm: bool,
    said: Said,
    limits: Limits,
    group: Group | None,
    wire: Wire | None,
) -> Launched:
    reader, writer = os.pipe()
    held, gate = _gate()
    words = said.writing_end()
    calls = filter_file()
    try:
        command = jail.wrap(
            line,
            uid=uid,
            info_fd=writer,
            kvm=kvm,
            limits=limits,
            gate=held,
            calls=calls,
            wire=wire,
        )
        # Not asyncio's: on Python 3.11 that keeps a thread for each child as long as it lives.
        child = await asyncio.to_thread(
            _started,
            command,
            pass_fds=(*inherited, writer, held, calls),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            start_new_session=True,
        )
        os.close(writer)
        writer = -1
        try:
            pid = await _admitted(reader, child.pid, group, namespaces=jail.namespaces)
            os.write(gate, b"\n" * 8)  # in its group and under its limits: QEMU may start
        except BaseException:
            child.kill()  # also ends the thread that reads what it was to say
            raise
    except FileNotFoundError as error:
        raise LaunchError(
            f"{error.filename} is not installed.", todo="Run `torpor doctor`."
        ) from None
    finally:
        for fd in (reader, writer, held, gate, words, calls):
            if fd >= 0:
                os.close(fd)
    found = identify(pid) if pid is not None else None
    if found is None:
        child.kill()
        await asyncio.to_thread(child.wait)
        raise LaunchError(f"QEMU did not start: {said.text(2000) or 'no word'}")
    return Launched(found, child, group)


def _started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    # A session keyring is handed down to children whatever user they become, so what is in ours
    # (keyrings(7)) stays ours only if they have another. It belongs to this thread; where the call
    # is refused, children are refused it too.
    _LIBC.syscall(_KEYCTL, _JOIN_SESSION_KEYRING, None)
    return subprocess.Popen(command, **options)


def _gate() -> tuple[int, int]:
    """Return a descriptor that a process can wait to read from, and the one to let it go on with.

    Should we die in between, it waits for ever, and whoever comes next finds and ends it: it has
    the pipe open for writing itself, so there is no end to be read.
    """
    reader, writer = os.pipe()
    try:
        return os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_CLOEXEC), writer
    finally:
        os.close(reader)


async def _admitted(
    reader: int, child: int, group: Group | None, *, namespaces: bool
) -> int | None:
    """Put what we have started into its group while it builds the jail; return QEMU's number."""
    joined = asyncio.ensure_future(_join(group, child))
    try:
        pid = await _child_pid(reader) if namespaces else child
    finally:
        await joined
    if pid is not None and pid != child:
        await _join(group, pid)  # it may have been made just before
    return pid


async def _join(group: Group | None, pid: int) -> None:
    if group is not None:
        with contextlib.suppress(ProcessLookupError):  # it has ended: that is told elsewhere
            await asyncio.to_thread(group.join, pid)


async def _child_pid(reader: int) -> int | None:
    # bubblewrap writes {"child-pid": n, ...}; nothing if it fails before.
    def read() -> bytes:
        text = b""
        while data := os.read(reader, 4096):
            text += data
            if b"}" in text:
                break
        return text

    async with asyncio.timeout(START_LIMIT):
        text = await asyncio.to_thread(read)
    with contextlib.suppress(ValueError, KeyError):
        return int(json.loads(text)["child-pid"])
    return None
