"""What is written down of snapshots and machines, strictly read back (``docs/snapshots.md``)."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Strict, TypeAdapter, ValidationError

from torpor.vm.accelerator import Accelerator
from torpor.vm.disk import Layer
from torpor.vm.errors import SnapshotError
from torpor.vm.processes import ProcessId
from torpor.vm.shape import Shape

VERSION = 1
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


@dataclass(frozen=True)
class Manifest:
    """A snapshot. It never changes once its directory is visible.

    ``memory`` is None for a snapshot of the disk alone. ``disk`` is the chain, bottom first.
    ``stored_bytes`` is what this snapshot added to the store, ``allocated_bytes`` what the machine
    was promised: memory and virtual disk. ``sizes`` are those of the files that it added.
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


@dataclass(frozen=True)
class Entry:
    """What is asked of a snapshot again and again, and never changes: a part of its manifest.

    ``memory`` says whether it can be thawed, and is not of files alone.
    """

    id: str
    parent: str | None
    labels: dict[str, str]
    stored_bytes: int
    memory: bool

    @classmethod
    def of(cls, found: Manifest) -> "Entry":
        """Return the entry of a manifest."""
        memory = found.memory is not None
        return cls(found.id, found.parent, found.labels, found.stored_bytes, memory)


@dataclass(frozen=True)
class Sums:
    """The SHA-256 sums of everything that a snapshot needs, by path in the store.

    Written last, after all of it was forced to disk: a snapshot with sums is durable. ``disk`` is
    the chain to use from now on: that of the manifest, or a shorter one that reads the same.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    files: dict[str, str]
    disk: tuple[Layer, ...]


@dataclass(frozen=True)
class MachineRecord:
    """What must be known to adopt a machine again, or to clean up after it.

    ``memory_file`` is device and inode of the file that its memory maps. ``ready`` says that its
    agent has been woken, ``ending`` names the snapshot with which it was to stop. ``rebooting``
    says that it is being started from its disk again, ``removing`` that it was to end for good.
    ``boots`` counts its reboots. ``labels`` are whose machine it is, in words of who started it.
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

    def uses(self) -> Iterator[str]:
        """Yield the store paths that the machine needs."""
        if self.base is not None:
            yield f"bases/{self.base}.mem"
        for layer in (*self.layers, self.top, self.tools):
            yield f"layers/{layer.file_name}"


def file_names(found: Manifest, disk: Iterable[Layer]) -> Iterator[str]:
    """Yield the names of all files of a snapshot with this disk, as its sums have them."""
    yield MANIFEST
    if found.memory is not None:
        yield DEVICES
        if found.memory.delta:
            yield DELTA
    yield from reachable(found, disk)


def reachable(found: Manifest, disk: Iterable[Layer]) -> Iterator[str]:
    """Yield the store paths of the bases and layers that a snapshot with this disk needs."""
    if found.memory is not None:
        yield f"bases/{found.memory.base}.mem"
    for layer in (*disk, found.tools):
        yield f"layers/{layer.file_name}"


T = TypeVar("T", Manifest, Sums, MachineRecord)


_HEAD = TypeAdapter(dict[str, Any])
_adapters: dict[str, TypeAdapter[Any]] = {}


def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    # Made once: to make one takes 4 ms, to read a manifest with it 0.1 ms.
    if kind.__name__ not in _adapters:
        _adapters[kind.__name__] = TypeAdapter(kind)
    return _adapters[kind.__name__]


def write(value: Manifest | Sums | MachineRecord) -> bytes:
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
            _check_version(_HEAD.validate_json(text).get("version", VERSION), name)
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the document"
        raise SnapshotError(
            f"{name} is damaged: {where}: {first['msg']}.", state="Nothing was changed."
        ) from None
    _check_version(getattr(found, "version", VERSION), name)
    return found


def _check_version(version: Any, name: str) -> None:
    if version != VERSION:
        raise SnapshotError(
            f"{name} has version {version!r}; this Torpor reads version {VERSION}.",
            state="Nothing was changed.",
            todo="Use the Torpor that wrote it.",
        )


def write_record(directory: Path, record: MachineRecord) -> None:
    """Write a machine's record by rename."""
    new = directory / f".{RECORD}"
    new.write_bytes(write(record))
    new.replace(directory / RECORD)
