"""Starting QEMU: descriptors opened, jail built, process found."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torpor.vm.accelerator import Accelerator
from torpor.vm.disk import Layer
from torpor.vm.errors import LaunchError
from torpor.vm.jail import Jail
from torpor.vm.processes import ProcessId, identify
from torpor.vm.qemu import TOP_MODES, Descriptors, Kernel, command_line
from torpor.vm.qmp import listen_unix
from torpor.vm.shape import Shape

MONITOR, AGENT, CONSOLE = "monitor", "agent", "console"
SAID = "qemu.log"
TRACE = "trace.log"
"""What QEMU's trace points wrote: few lines, in a file of their own, because they are read when
nobody was there to hear them (:mod:`torpor.vm.endings`)."""
START_LIMIT = 30.0


@dataclass(frozen=True)
class Boot:
    """What a cold boot starts from, and what else its kernel is told."""

    kernel: Path
    initramfs: Path
    arguments: str = ""


@dataclass(frozen=True)
class Parts:
    """What a machine is put together from. ``memory`` is a descriptor of its base, if any."""

    shape: Shape
    accelerator: Accelerator
    memory: int | None
    layers: tuple[tuple[Layer, Path], ...]
    top: tuple[Layer, Path]
    tools: Path
    boot: Boot | None


@dataclass(frozen=True)
class Launched:
    """QEMU's process, and the child of ours that is or leads to it and must be reaped."""

    process: ProcessId
    child: subprocess.Popen[bytes]


async def launch(directory: Path, name: str, parts: Parts, jail: Jail, uid: int) -> Launched:
    """Start QEMU for the machine whose directory is given.

    Its sockets are in ``directory``; what it says on standard error goes to ``qemu.log`` there.
    Raises :exc:`LaunchError`.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(_listen(directory, n)) for n in (MONITOR, AGENT, CONSOLE)]

        def opened(path: Path, flags: int = os.O_RDONLY) -> int:
            fd = os.open(path, flags | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            return fd

        descriptors = Descriptors(
            memory=parts.memory,
            monitor=sockets[0].fileno(),
            agent=sockets[1].fileno(),
            console=sockets[2].fileno(),
            layers=tuple(opened(path) for _, path in parts.layers),
            top=(opened(parts.top[1], TOP_MODES[0]), opened(parts.top[1], TOP_MODES[1])),
            tools=opened(parts.tools),
        )
        kernel = None
        if parts.boot is not None:
            kernel = Kernel(
                opened(parts.boot.kernel), opened(parts.boot.initramfs), parts.boot.arguments
            )
        layers = tuple(layer for layer, _ in parts.layers)
        line = command_line(
            name, parts.shape, parts.accelerator, layers, parts.top[0], descriptors, kernel
        )
        inherited = descriptors.all() + ((kernel.image, kernel.initramfs) if kernel else ())
        # QEMU opens it by its descriptor's name, which asks for the right to write to it. The
        # directory lets nobody else in.
        trace = opened(directory / TRACE, os.O_WRONLY | os.O_CREAT)
        os.fchmod(trace, 0o666)
        line += ["-D", f"/proc/self/fd/{trace}"]
        inherited += (trace,)
        said = opened(directory / SAID, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        kvm = parts.accelerator.name == "kvm"
        return await _spawn(jail, line, inherited, uid, kvm=kvm, said=said, log=directory / SAID)


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
    said: int,
    log: Path,
) -> Launched:
    reader, writer = os.pipe()
    try:
        command = jail.wrap(line, uid=uid, info_fd=writer, kvm=kvm)
        # Not asyncio's: on Python 3.11 that keeps a thread for each child as long as it lives.
        child = await asyncio.to_thread(
            subprocess.Popen,
            command,
            pass_fds=(*inherited, writer),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        os.close(writer)
        writer = -1
        try:
            pid = await _child_pid(reader) if jail.namespaces else child.pid
        except BaseException:
            child.kill()  # also ends the thread that reads what it was to say
            raise
    except FileNotFoundError as error:
        raise LaunchError(
            f"{error.filename} is not installed.", todo="Run `torpor doctor`."
        ) from None
    finally:
        os.close(reader)
        if writer >= 0:
            os.close(writer)
    found = identify(pid) if pid is not None else None
    if found is None:
        child.kill()
        await asyncio.to_thread(child.wait)
        raise LaunchError(
            f"QEMU did not start: {log.read_text(errors='replace').strip()[-2000:] or 'no word'}"
        )
    return Launched(found, child)


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
