"""What is written down of snapshots and machines, strictly read back (``docs/snapshots.md``)."""

import contextlib
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, Strict, TypeAdapter, ValidationError

from torpor.vm.accelerator import Accelerator
from torpor.vm.disk import Layer
from torpor.vm.errors import SnapshotError
from torpor.vm.processes import ProcessId
from torpor.vm.shape import Shape

VERSION, WITH_DISKS, WITH_CARD = 1, 2, 3
"""The version of what has a root disk alone, which it has had from the first, of what has disks in
the slots of its machine too, and of what has a network card, with or without such disks."""
VERSIONS = (VERSION, WITH_DISKS, WITH_CARD)
Version = Annotated[int, Strict()]
"""The version that a document says it has: a number, and not a text that looks like one."""
MANIFEST, DEVICES, DELTA, SUMS = "manifest.json", "devices", "memory.delta", "sums.json"
KEPT = "kept"
RECORD = "machine.json"
"""The file of a machine's record, in its directory."""


@dataclass(frozen=True)
class Memory:
    """The memory of a snapshot: base ``base``, and a delta over it if ``delta``."""

    base: str
    delta: bool


@dataclass(frozen=True)
class GuestVersions:
    """What runs inside: the kernel's release, and the digest of the tools disk with the agent."""

    kernel: str
    tools: str


Slot = Literal["workspace", "spare"]
"""A place for a disk that a machine has from the first (:data:`torpor.vm.qemu.SLOTS`)."""


@dataclass(frozen=True)
class KeptDisk:
    """A disk beside the root disk, in a snapshot: where it is in the machine, and its chain, bottom
    first.

    ``disk`` is the disk that outlives machines of which this is the content; None if it is the
    machine's own copy of one, which goes with it.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    slot: Slot
    disk: str | None
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class AttachedDisk:
    """A disk beside the root disk, in a machine: as :class:`KeptDisk`, with the layer on top that
    the machine writes."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    slot: Slot
    disk: str | None
    layers: tuple[Layer, ...]
    top: Layer


@dataclass(frozen=True)
class Disks:
    """The chains of all disks, each bottom first: the root disk's, and what is in slots."""

    root: tuple[Layer, ...]
    slots: tuple[KeptDisk, ...] = ()

    def chains(self) -> Iterator[tuple[Layer, ...]]:
        """Yield each chain, the root disk's first."""
        yield self.root
        for each in self.slots:
            yield each.layers

    def layers(self) -> Iterator[Layer]:
        """Yield all layers."""
        for chain in self.chains():
            yield from chain

    @property
    def depth(self) -> int:
        """The layers of the deepest chain."""
        return max(map(len, self.chains()))


@dataclass(frozen=True)
class Drive:
    """A disk that a machine writes: the layers below, bottom first, and the one on top. ``slot`` is
    where it is, and the name of its device; the root disk's is :data:`ROOT`."""

    slot: str
    layers: tuple[Layer, ...]
    top: Layer


ROOT = "root"
More = Annotated[tuple[KeptDisk, ...], Field(exclude_if=operator.not_)]
"""Disks in slots; where there are none, nothing is written of them."""


Card = Annotated[bool, Field(exclude_if=operator.not_)]
"""Whether there is a network card; where there is none, nothing is written of it."""


def version_with(disks: tuple[object, ...], *, card: bool) -> int:
    """Return the version of a document with these disks in slots, and perhaps a network card."""
    if card:
        return WITH_CARD
    return WITH_DISKS if disks else VERSION


@dataclass(frozen=True)
class Manifest:
    """A snapshot. It never changes once its directory is visible.

    ``memory`` is None for a snapshot of the disks alone. ``disk`` is the root disk's chain, bottom
    first, ``disks`` are those in slots. ``card`` says that the machine has a network card.
    ``stored_bytes`` is what this snapshot added to the store, ``allocated_bytes`` what the machine
    was promised: memory and virtual disks. ``sizes`` are those of the files that it added.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    version: Version
    id: str
    created_at: str
    parent: str | None
    generation: int
    shape: Shape
    accelerator: str
    qemu_version: tuple[int, int, int]
    cpu: str
    guest: GuestVersions
    guest_boot_id: str
    host_boot_id: str
    memory: Memory | None
    disk: tuple[Layer, ...]
    tools: Layer
    sizes: dict[str, int]
    stored_bytes: int
    allocated_bytes: int
    labels: dict[str, str]
    disks: More = ()
    card: Card = False

    @property
    def first(self) -> Disks:
        """Its disks as they were when it was made."""
        return Disks(self.disk, self.disks)


@dataclass(frozen=True)
class Entry:
    """What is asked of a snapshot again and again, and never changes: a part of its manifest.

    ``memory`` says whether it can be thawed, and is not of files alone. ``disk`` is the disk that
    outlives machines with which it was taken.
    """

    id: str
    parent: str | None
    labels: dict[str, str]
    stored_bytes: int
    memory: bool
    disk: str | None = None

    @classmethod
    def of(cls, found: Manifest) -> "Entry":
        """Return the entry of a manifest."""
        memory = found.memory is not None
        disk = next((each.disk for each in found.disks if each.disk is not None), None)
        return cls(found.id, found.parent, found.labels, found.stored_bytes, memory, disk)


@dataclass(frozen=True)
class Sums:
    """The SHA-256 sums of everything that a snapshot needs, by path in the store.

    Written last, after all of it was forced to disk: a snapshot with sums is durable. ``disk`` and
    ``disks`` have the chains to use from now on: those of the manifest, or shorter ones that read
    the same.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    files: dict[str, str]
    disk: tuple[Layer, ...]
    disks: More = ()

    @property
    def now(self) -> Disks:
        """The disks as they are to be used."""
        return Disks(self.disk, self.disks)


@dataclass(frozen=True)
class MachineRecord:
    """What must be known to adopt a machine again, or to clean up after it.

    ``memory_file`` is device and inode of the file that its memory maps. ``ready`` says that its
    agent has been woken, ``ending`` names the snapshot with which it was to stop. ``rebooting``
    says that it is being started from its disk again, ``removing`` that it was to end for good.
    ``boots`` counts its reboots. ``labels`` are whose machine it is, in words of who started it.
    ``disks`` are those in its slots. ``card`` says that it has a network card.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    version: Version
    id: str
    name: str
    process: ProcessId | None
    uid: int
    shape: Shape
    accelerator: Accelerator
    guest: GuestVersions
    base: str | None
    memory_file: tuple[int, int]
    layers: tuple[Layer, ...]
    top: Layer
    tools: Layer
    snapshot: str | None
    generation: int
    guest_boot_id: str
    ready: bool = False
    ending: str | None = None
    rebooting: bool = False
    removing: bool = False
    boots: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    disks: Annotated[tuple[AttachedDisk, ...], Field(exclude_if=operator.not_)] = ()
    card: Card = False

    @property
    def drives(self) -> tuple[Drive, ...]:
        """All disks that it writes, the root disk first."""
        more = (Drive(each.slot, each.layers, each.top) for each in self.disks)
        return (Drive(ROOT, self.layers, self.top), *more)

    @property
    def largest(self) -> int:
        """The virtual bytes of its largest disk."""
        return max(drive.top.size for drive in self.drives)

    @property
    def own_disk(self) -> str | None:
        """The disk that outlives it and that it has, or None."""
        return next((each.disk for each in self.disks if each.disk is not None), None)

    def chains(self, tops: Mapping[str, Layer]) -> Disks:
        """Return its disks as a snapshot has them, with those of its layers on top that ``tops``
        has, by slot."""

        def chain(drive: Drive | AttachedDisk) -> tuple[Layer, ...]:
            return (*drive.layers, drive.top) if drive.slot in tops else drive.layers

        kept = (KeptDisk(each.slot, each.disk, chain(each)) for each in self.disks)
        return Disks(chain(self.drives[0]), tuple(kept))

    def with_tops(self, tops: Mapping[str, Layer]) -> "MachineRecord":
        """Return the record with new layers over those on top, by slot."""
        new = replace(
            self,
            disks=tuple(
                replace(each, layers=(*each.layers, each.top), top=tops[each.slot])
                if each.slot in tops
                else each
                for each in self.disks
            ),
        )
        if ROOT in tops:
            new = replace(new, layers=(*self.layers, self.top), top=tops[ROOT])
        return new

    def uses(self) -> Iterator[str]:
        """Yield the store paths that the machine needs."""
        if self.base is not None:
            yield f"bases/{self.base}.mem"
        for drive in self.drives:
            for layer in (*drive.layers, drive.top):
                yield f"layers/{layer.file_name}"
        yield f"layers/{self.tools.file_name}"


def file_names(found: Manifest, disks: Disks) -> Iterator[str]:
    """Yield the names of all files of a snapshot with these disks, as its sums have them."""
    yield MANIFEST
    if found.memory is not None:
        yield DEVICES
        if found.memory.delta:
            yield DELTA
    yield from reachable(found, disks)


def reachable(found: Manifest, disks: Disks) -> Iterator[str]:
    """Yield the store paths of the bases and layers that a snapshot with these disks needs."""
    if found.memory is not None:
        yield f"bases/{found.memory.base}.mem"
    for layer in (*disks.layers(), found.tools):
        yield f"layers/{layer.file_name}"


T = TypeVar("T")
_WRITTEN: dict[type[Any], tuple[int, ...]] = {
    Manifest: VERSIONS,
    MachineRecord: VERSIONS,
}
"""The versions of each kind that are read here; those of others have the first alone."""


_HEAD = TypeAdapter(dict[str, Any])
_adapters: dict[str, TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    # Made once: to make one takes 4 ms, to read a manifest with it 0.1 ms.
    if kind.__name__ not in _adapters:
        _adapters[kind.__name__] = TypeAdapter(kind)
    return _adapters[kind.__name__]


def write(value: object) -> bytes:
    """Return ``value`` as JSON."""
    return _adapter(type(value)).dump_json(value, indent=1)


def read(kind: type[T], file: Path) -> T:
    """Return what :func:`write` wrote to ``file``. Raises :exc:`SnapshotError` and OSError."""
    return parse(kind, file.read_bytes(), file.name)


def parse(kind: type[T], text: bytes, name: str) -> T:
    """Return what ``text`` describes. Raises :exc:`SnapshotError`."""
    try:
        found: T = _adapter(kind).validate_json(text)
    except ValidationError as error:
        with contextlib.suppress(ValidationError):  # of another version, all may be different
            _check_version(kind, _HEAD.validate_json(text).get("version", VERSION), name)
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise SnapshotError(
            f"{name} is damaged: {where}: {first['msg']}.", state="Nothing was changed."
        ) from None
    version = getattr(found, "version", VERSION)
    _check_version(kind, version, name)
    if isinstance(found, Manifest | MachineRecord) and version != version_with(
        found.disks, card=found.card
    ):
        raise SnapshotError(
            f"{name} is damaged: version {version} does not go with its disks and its card.",
            state="Nothing was changed.",
        )
    return found


def _check_version(kind: type[Any], version: Any, name: str) -> None:
    known = _WRITTEN.get(kind, (VERSION,))
    if type(version) is not int or version not in known:
        raise SnapshotError(
            f"{name} has version {version!r}; this Torpor reads version"
            f" {', '.join(map(str, known))}.",
            state="Nothing was changed.",
            todo="Use the Torpor that wrote it.",
        )


def write_record(directory: Path, record: MachineRecord) -> None:
    """Write a machine's record by rename."""
    new = directory / f".{RECORD}"
    new.write_bytes(write(record))
    new.replace(directory / RECORD)
