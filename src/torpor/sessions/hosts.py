"""The host as the control plane sees it: a small interface, and plain data across it.

No path and no process id crosses it, so that a host can be another computer.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from torpor.images.references import Reference
from torpor.network.decisions import Decision
from torpor.vm import GuestAgent, Statistics
from torpor.vm.usage import Usage

SESSION, OPERATION = "torpor.session", "torpor.operation"
"""Labels of machines and snapshots: whose they are, and which operation made them."""

StartEvent = Literal["create", "resume", "fork", "rollback"]


@dataclass(frozen=True)
class Start:
    """What a new session starts from: the golden snapshot of an image at a size, and what the
    image says of commands in it."""

    snapshot: str
    defaults: dict[str, Any]


@dataclass(frozen=True)
class Built:
    """An image that a host has made of what a registry has: the digest of that manifest, the bytes
    that its disk has and those of its files, how many these are, and what should be known of it."""

    manifest: str
    size_bytes: int
    content_bytes: int
    files: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Wall:
    """What a machine may reach: the policy ``egress`` in its normal form, None for all that is
    public. ``names`` are what the wall had written down of the session before, None if nothing;
    ``packages`` are the rules that the preset of this name stands for in the session's image."""

    egress: str | dict[str, Any] | None = None
    names: str | None = None
    packages: tuple[str, ...] = ()


PUBLIC = Wall()


@dataclass(frozen=True)
class Counted:
    """What a ``session`` had to do with a ``host`` (a name, or an address) since its ``wall`` was
    built: numbers that only grow. A wall may stand longer than a ``machine`` behind it, and there
    may be none at the moment. An empty host is many that are counted together."""

    session: str
    wall: str
    machine: str | None
    host: str
    connections: int
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class Running:
    """A machine that runs. ``not_mounted`` is why its disk could not be mounted, ``no_network`` why
    it has no network, or None."""

    id: str
    boot_id: str
    snapshot: str | None
    labels: Mapping[str, str]
    not_mounted: str | None = None
    no_network: str | None = None


@dataclass(frozen=True)
class Kept:
    """A snapshot that the host has. ``memory`` says whether it can be thawed, and is not of files
    alone. ``disk`` is the disk that it was taken with; None too if that was a machine's own
    copy. ``names`` are what the wall wrote down when it was taken; not known later."""

    id: str
    labels: Mapping[str, str]
    parent: str | None
    stored_bytes: int
    durable: bool
    memory: bool
    disk: str | None = None
    names: str | None = None


@dataclass(frozen=True)
class DiskState:
    """A disk that outlives machines: ``size_bytes`` that it can hold, ``stored_bytes`` that it
    takes. What it holds is that of ``saved_at`` (None: no machine has written it yet), and survives
    a power cut if it is ``durable``."""

    id: str
    size_bytes: int
    stored_bytes: int
    saved_at: datetime | None
    durable: bool


@dataclass(frozen=True)
class End:
    """A machine that ended by itself. ``cause`` as in :class:`torpor.vm.MachineDiedError`,
    ``files`` is the snapshot in which its disk was kept."""

    machine: str
    cause: str
    why: str
    files: str | None


@dataclass(frozen=True)
class Inventory:
    """What a host has when a program begins to use it, looked through once.

    ``kept`` are the snapshots that sessions have, by id: those with a label of a session.
    ``unreadable`` are those that do not even say whose they are and never became durable: what a
    power cut leaves of one that was just being written. ``ended`` says what became of machines that
    an earlier program had left, and that do not run.
    """

    kept: Mapping[str, Kept]
    unreadable: Sequence[str]
    ended: Mapping[str, End]


@dataclass(frozen=True)
class Facts:
    """What a host is and what it has, in words and bytes. ``jail_missing`` are the parts of the
    jail that it does not allow, each with the reason. ``wall_missing`` is why it can build no wall,
    so that machines have no network; None if it can."""

    name: str
    accelerator: str
    why: str
    qemu: str
    jail_missing: tuple[str, ...]
    memory: int
    free_memory: int
    free_disk: int
    stored: int
    wall_missing: str | None = None


class MachineHost(Protocol):
    """Runs machines. Its methods raise :exc:`torpor.vm.VmError`, those that make images
    :exc:`torpor.images.ImageError` too."""

    async def image_start(
        self, image: str, size: str, report: Callable[[str], Awaitable[None]]
    ) -> Start:
        """Return what a machine of an image at a size starts from; make it if it is missing, and
        report each step in words."""

    def check_image(self, image: str) -> None:
        """Raise an error if there is no such image."""

    async def build_image(
        self, source: Reference, name: str, size: str, report: Callable[[str], Awaitable[None]]
    ) -> Built:
        """Make an image of what a registry has, in place of one of the same name, and boot it once
        at a size; report each step in words. Cancelled, it may leave the image."""

    async def image_names(self) -> list[str]:
        """Return the names of the images that were built or imported."""

    async def forget_image(self, name: str) -> None:
        """Remove an image that was built, if it is there. What came from it stays whole."""

    async def start(
        self,
        snapshot: str,
        labels: Mapping[str, str],
        event: StartEvent,
        hostname: str | None = None,
        disk: str | None = None,
        wall: Wall = PUBLIC,
    ) -> Running:
        """Start a machine from a snapshot; with ``hostname`` as a new one, with an identity of its
        own. A snapshot of files alone is booted. What it may reach is decided by ``wall`` from its
        first packet on.

        ``disk`` is the disk that the machine is to have, mounted before anything of the user's
        runs. A snapshot that was taken with a disk is always started with that as it was then: with
        the same ``disk``, which holds that from then on, or without, as a copy of the machine's
        own."""

    def check_wall(self, egress: str | dict[str, Any] | None) -> str | None:
        """Raise :exc:`torpor.vm.HostError` if no machine can be kept to a policy here. Return what
        is to be known of one that has it, in words, None if it is all as it should be."""

    async def set_wall(self, machine: str, wall: Wall) -> int:
        """Have a machine be kept to another policy from now on, and return how many connections
        that has cut. Of a machine that an earlier program has left nothing comes out until this
        was called. ``names`` count only then."""

    def names(self, machine: str) -> str | None:
        """Return what the wall has written down of a machine and needs again when its session goes
        on, None if there is nothing."""

    def traffic(self) -> Sequence[Counted]:
        """Return what all machines have sent and received, wall by wall and host by host. A wall
        that stands no longer is in it once more, and then not again."""

    def on_decision(self, call: Callable[[str, Decision], None]) -> None:
        """Call ``call`` with each decision of the wall from now on, and the session that it is
        about. It must not take long."""

    async def make_disk(self, disk: str, size_bytes: int) -> DiskState:
        """Make a disk with an empty file system. The same once more changes nothing."""

    async def remove_disk(self, disk: str) -> None:
        """Remove a disk, if there is one. Snapshots keep what they have of it. An error if a
        machine has it."""

    def disk(self, disk: str) -> DiskState | None:
        """Return what there is of a disk, None if it is gone or cannot be read."""

    async def release_disk(self, machine: str, disk: str) -> DiskState:
        """Let a disk hold what a machine has made of it, durably, and end the machine. If there is
        no such machine any more, the disk holds what was kept of it."""

    async def freeze(
        self,
        machine: str,
        snapshot: str,
        labels: Mapping[str, str],
        *,
        stop: bool,
        children: int = 1,
    ) -> Kept:
        """Freeze a machine into a new snapshot of this id; ``stop`` ends it."""

    async def end(self, machine: str) -> None:
        """End a machine, if there is one."""

    def running(self) -> dict[str, Running]:
        """Return the machines that run, by id."""

    async def agent(self, machine: str) -> GuestAgent:
        """Return the guest agent of a machine, attached."""

    def held(self, machine: str) -> str | None:
        """Return why a machine is held at the moment (its disk is full), or None."""

    async def usage(self, machine: str) -> Usage:
        """Return what a machine uses, cheaply. Raises OSError if it is gone."""

    async def statistics(self, machine: str) -> Statistics:
        """Return all that is known of what a machine uses."""

    def disk_bytes(self, machine: str) -> int:
        """Return what the machine's own layer takes."""

    def on_end(self, call: Callable[[End], None]) -> None:
        """Call ``call`` with each machine that ends without having been asked to."""

    def on_reboot(self, call: Callable[[Running], None]) -> None:
        """Call ``call`` with each machine that was rebooted from inside and runs again."""

    def inventory(self) -> Inventory:
        """Return what there is, and what became of what is gone."""

    def found(self, snapshot: str) -> Kept | None:
        """Return a snapshot, or None if it is gone or cannot be read."""

    async def durable(self, snapshot: str, *, hurry: bool = True) -> None:
        """Return when a snapshot survives a power cut. Without ``hurry`` nobody waits for that, and
        what others wait for may go first."""

    async def verify(self, snapshot: str) -> None:
        """Raise an error if a snapshot is not complete, or not as it was written."""

    async def remove(self, snapshot: str) -> None:
        """Remove a snapshot, if there is one, and what only it needed."""

    def memory_needed(self, snapshot: str) -> int:
        """Return the bytes of memory that a machine takes as soon as it is started from it."""

    def free_memory(self) -> int:
        """Return the bytes of memory that can be had now."""

    async def facts(self) -> Facts:
        """Return what this host is and has."""
