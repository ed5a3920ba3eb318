"""QMP, QEMU's control protocol, over a UNIX socket. The only module that knows its commands'
names."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from qemu.qmp import EventListener, ExecuteError, Message, QMPClient, QMPError

from torpor.vm.channel import plain
from torpor.vm.disk import Layer, layer_node, node_name
from torpor.vm.errors import VmError

# The library logs what it also raises.
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL + 1)

ANSWER_LIMIT = 60.0
"""Seconds that QEMU may take for a command; a flush to a busy disk takes several."""
ENDS = ("SHUTDOWN", "RESET", "STOP", "RESUME", "BLOCK_IO_ERROR", "GUEST_PANICKED")

MAX_SAID = 2000
EVENTS_KEPT = 100
"""News of a migration that wait to be read; what a QEMU that was taken over sends beyond is lost.
(The library's own queue has no end.)"""

MOST_SAID, WITHIN, LEAST = 16 << 20, 10.0, 1 << 10
"""Bytes within so many seconds before the monitor ends, a message counted as ``LEAST`` at least: to
read one takes some 40 us of this program's time, which all machines share. A QEMU whose disk is
full sends a few hundred at once."""

_UNLIMITED = 1 << 50
"""Bytes a second that no disk reaches."""


class QmpError(VmError):
    """QEMU refused a command or went away."""


class _Client(QMPClient):
    """A client that ends when it is flooded, with events or with answers that nobody waits for."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.flooded = False
        self._said = 0
        self._since = time.monotonic()

    async def _readline(self) -> bytes:
        line = await super()._readline()
        now = time.monotonic()
        if now - self._since > WITHIN:
            self._said, self._since = 0, now
        self._said += max(len(line), LEAST)
        if self._said > MOST_SAID:
            self.flooded = True
            raise QMPError("too much is said")
        return line


@contextlib.contextmanager
def _understood(command: str) -> Iterator[None]:
    """An answer that has another form than QEMU's comes from one that was taken over."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise QmpError(f"QEMU's answer to {command} is none: {error!r}.") from None


def _count(said: object) -> int:
    if type(said) is not int or not 0 <= said < 1 << 63:
        raise ValueError(str(said)[:100])
    return said


class Qmp:
    """A connected monitor of one machine."""

    def __init__(self, client: _Client) -> None:
        self._client = client
        self._migrations: asyncio.Queue[object] = asyncio.Queue(EVENTS_KEPT)
        client.register_listener(EventListener("MIGRATION", self._keep_migration))

    @classmethod
    async def connect(
        cls, sock: socket.socket, on_event: Callable[[str, dict[str, Any]], None]
    ) -> "Qmp":
        """Negotiate on a connected socket, which this object then owns. Raises :exc:`QmpError`.

        ``on_event`` gets the name and data of the events that tell of a machine's end or stop.
        """
        client = _Client("torpor")
        # The library's own listener would keep every event until somebody read it: nobody does.
        client.events.event_filter = lambda _: False

        def tell(event: Message) -> bool:
            data = event.get("data")
            on_event(str(event["event"]), dict(data) if isinstance(data, dict) else {})
            return False  # heard: nothing is queued, so nothing has to be read

        ends = EventListener(ENDS, tell)
        client.register_listener(ends)
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                await client.connect(sock)
        except TimeoutError:
            raise QmpError(
                f"QEMU's monitor did not answer within {ANSWER_LIMIT:g} s.",
                todo="Look whether its process is stopped.",
            ) from None
        except (QMPError, ValueError, RecursionError) as error:
            raise QmpError(f"QEMU's monitor does not answer: {error}.") from error
        return cls(client)

    def _keep_migration(self, event: Message) -> bool:
        data = event.get("data")
        if isinstance(data, dict) and not self._migrations.full():
            self._migrations.put_nowait(data.get("status"))
        return False  # kept here

    async def execute(self, command: str, **arguments: object) -> Any:
        """Run one command; underscores in argument names stand for hyphens. Raises
        :exc:`QmpError`."""
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        try:
            async with asyncio.timeout(ANSWER_LIMIT):
                return await self._client.execute(command, named)
        except TimeoutError:
            raise QmpError(
                f"QEMU did not answer {command} within {ANSWER_LIMIT:g} s.",
                todo="Look whether its process is stopped, or the disk does not answer.",
            ) from None
        except ExecuteError as error:
            said = plain(str(error), MAX_SAID)
            raise QmpError(f"QEMU refused {command}: {said}.") from error
        except (QMPError, KeyError, TypeError, ValueError, RecursionError) as error:
            if self._client.flooded:
                raise QmpError(
                    "The monitor of the machine was ended: its QEMU floods it.",
                    todo="End the machine: its QEMU may have been taken over.",
                ) from None
            raise QmpError(f"QEMU went away during {command}.") from error

    async def disconnect(self) -> None:
        """End the connection; the machine is not touched."""
        try:
            await self._client.disconnect()
        except (QMPError, OSError, EOFError, ValueError, TypeError, KeyError, RecursionError):
            return  # it was lost already; the library tells again to what, also what no QEMU says

    async def stop(self) -> None:
        """Stop the vCPUs; QEMU flushes every block node on the way."""
        await self.execute("stop")

    async def cont(self) -> None:
        """Let the vCPUs run."""
        await self.execute("cont")

    async def status(self) -> str:
        """QEMU's own word for the state of the machine."""
        with _understood("query-status"):
            return str((await self.execute("query-status"))["status"])

    async def add_fd(self, owner: str, *fds: int) -> int:
        """Hand descriptors over into a new set and return its number, for ``/dev/fdset/<n>``.

        ``owner`` is a word by which :meth:`release` finds them again. QEMU chooses the number: a
        program before this one may have left sets, and in one of theirs QEMU would find our files
        when it opens theirs again.
        """
        said: dict[str, object] = {}
        for fd in fds:
            self._client.send_fd_scm(fd)
            answer = await self.execute("add-fd", opaque=owner, **said)
            with _understood("add-fd"):
                said = {"fdset_id": _count(answer["fdset-id"])}
        return _count(said["fdset_id"])

    async def release(self, owner: str) -> None:
        """Make QEMU close the descriptors that ``owner`` was given, but for what it uses of
        them."""
        with _understood("query-fdsets"):
            for fdset in await self.execute("query-fdsets"):
                if any(fd.get("opaque") == owner for fd in fdset["fds"]):
                    await self.execute("remove-fd", fdset_id=fdset["fdset-id"])

    async def save_devices(self, fdset: int) -> None:
        """Write the state of devices and CPUs, without RAM, to the write-only descriptor in a set.

        The machine must be stopped. The command is named for Xen and works without it;
        ``live=false`` keeps the disks active (``migration/savevm.c``,
        ``qmp_xen_save_devices_state``).
        """
        await self.execute("xen-save-devices-state", filename=f"/dev/fdset/{fdset}", live=False)

    async def load_devices(self, fd: int, limit: float) -> None:
        """Load what :meth:`save_devices` or :meth:`save_full` wrote; QEMU was started with
        ``-incoming defer -S``."""
        await self._prepare_migration(fd)
        await self.execute("migrate-incoming", uri="fd:state")
        await self._migrated(limit, "QEMU could not load the saved state.")

    async def save_full(self, fd: int, limit: float) -> None:
        """Write all of memory and the devices to ``fd`` as fast as QEMU can. Raises TimeoutError.

        Only :mod:`torpor.vm.full_save` wants this.
        """
        await self._prepare_migration(fd)
        await self.execute("migrate-set-parameters", max_bandwidth=_UNLIMITED)
        await self.execute("migrate", uri="fd:state")
        await self._migrated(limit, "QEMU could not save the machine.")

    async def _prepare_migration(self, fd: int) -> None:
        await self.execute(
            "migrate-set-capabilities", capabilities=[{"capability": "events", "state": True}]
        )
        self._client.send_fd_scm(fd)
        await self.execute("getfd", fdname="state")

    async def _migrated(self, limit: float, otherwise: str) -> None:
        async with asyncio.timeout(limit):
            while True:
                status = await self._migrations.get()
                if status == "completed":
                    return
                if status == "failed":
                    raise QmpError(otherwise)

    async def vcpu_threads(self) -> list[int]:
        """Return the numbers of the vCPUs' threads, in QEMU's own PID namespace."""
        with _understood("query-cpus-fast"):
            return [_count(cpu["thread-id"]) for cpu in await self.execute("query-cpus-fast")]

    async def disk_counts(self, device: str) -> tuple[int, int, int, int]:
        """Return the bytes read, reads, bytes written and writes of the virtio disk with the qdev
        id ``device``."""
        with _understood("query-blockstats"):
            for block in await self.execute("query-blockstats"):
                if device in str(block.get("qdev", "")).split("/"):
                    stats = block["stats"]
                    return (
                        _count(stats["rd_bytes"]),
                        _count(stats["rd_operations"]),
                        _count(stats["wr_bytes"]),
                        _count(stats["wr_operations"]),
                    )
        raise QmpError(f"QEMU has no disk {device}.")

    async def disk_top(self, device: str) -> str:
        """Return the node name of the top layer under the virtio disk with the qdev id
        ``device``."""
        with _understood("query-block"):
            for block in await self.execute("query-block"):
                if device in str(block.get("qdev", "")).split("/"):
                    return str(block["inserted"]["node-name"])
        raise QmpError(f"QEMU has no disk {device}.")

    async def add_layer(self, layer: Layer, *fds: int) -> None:
        """Make an empty layer known, not yet over any disk; ``fds`` open it in ``TOP_MODES``."""
        fdset = await self.add_fd(layer.id, *fds)
        await self.execute("blockdev-add", **layer_node(layer, fdset))

    async def put_layers(self, layers: Sequence[tuple[Layer, Layer]]) -> None:
        """Put known layers over the top ones of disks: from now on QEMU writes only to them.

        Each is given with the one that it comes over; all of it is done at one moment, or nothing.
        """
        actions = [
            {
                "type": "blockdev-snapshot",
                "data": {"node": node_name(over), "overlay": node_name(layer)},
            }
            for layer, over in layers
        ]
        await self.execute("transaction", actions=actions)

    async def announce_size(self, top: Layer) -> None:
        """Have the guest look at how large the disk with this layer on top is.

        It was frozen with another disk in the same place. To resize a node to the size that it has
        changes nothing but that (``hw/block/virtio-blk.c``, ``virtio_blk_resize``).
        """
        await self.execute("block_resize", node_name=node_name(top), size=top.size)

    async def drop_layer(self, layer: Layer) -> None:
        """Forget a known layer that is over no disk."""
        await self.execute("blockdev-del", node_name=node_name(layer))
        await self.release(layer.id)


def connect_unix(directory: int, name: str) -> socket.socket:
    """Connect to the socket ``name`` in the directory behind a descriptor. Raises OSError, and
    never waits: a QEMU that accepts no connections would have all machines wait.

    Through ``/proc/self/fd``, because a socket's address holds 107 bytes and paths are longer.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.setblocking(False)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{name}")
    except BaseException:
        sock.close()
        raise
    return sock


def listen_unix(directory: int, name: str) -> socket.socket:
    """Make and listen on the socket ``name`` in the directory behind a descriptor."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(f"/proc/self/fd/{directory}/{name}")
        Path(f"/proc/self/fd/{directory}/{name}").chmod(0o600)
        sock.listen(4)
    except BaseException:
        sock.close()
        raise
    return sock
