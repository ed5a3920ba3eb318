"""The file that a snapshot travels in: its parts, packed and checked (``docs/snapshots.md``).

header    64 bytes, index: JSON and its SHA-256
pieces    64 bytes of header each, then a zstd frame: a table of runs and their blocks
trailer   64 bytes: how many pieces, and a SHA-256 over header, index and the headers of all pieces

Nothing that a file says is believed before it was checked, and nothing that it says makes the
reader take more memory than a few pieces do.
"""

import hashlib
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from pydantic import ConfigDict, TypeAdapter, ValidationError

from torpor.vm.base import BLOCK
from torpor.vm.errors import SnapshotError
from torpor.vm.manifest import VERSIONS, Manifest

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

BLOCKS = 64
"""Blocks in a piece at most: 4 MiB."""
MOST_INDEX = 1 << 20
LEVEL = 3
_WINDOW_LOG = 23
_HEADER = struct.Struct("<8sIIQ36x")
_PIECE = struct.Struct("<4sIIII8x32s")
_TRAILER = struct.Struct("<8sQ12x32s")
_CRC = struct.Struct("<I")
_RUN = struct.Struct("<II")
_MAGIC, _PIECE_MAGIC, _TRAILER_MAGIC = b"TORPORSX", b"PART", b"TORPORSE"
HEAD = 64
"""Bytes of each header, checksum included."""
_MOST_RAW = BLOCKS * (_RUN.size + BLOCK)
_MOST_PACKED = _MOST_RAW + (_MOST_RAW >> 8) + 1024


@dataclass(frozen=True)
class File:
    """One file of the snapshot: its store path, or its name in the snapshot's directory.

    ``blocks`` of its blocks of 64 KiB are not all zeros. ``sha256`` is its digest
    (:func:`torpor.vm.base.digest_base`). One that was ``left_out`` has no pieces.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    size: int
    blocks: int
    sha256: str
    left_out: bool


@dataclass(frozen=True)
class Index:
    """What is in the file."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    manifest: Manifest
    files: tuple[File, ...]


@dataclass(frozen=True)
class Piece:
    """The header of a piece: blocks of file number ``file``, in ``runs`` runs, ``raw`` bytes that
    are ``packed`` ones in the file, which have the digest ``sha256``."""

    file: int
    runs: int
    raw: int
    packed: int
    sha256: bytes

    @property
    def blocks(self) -> int:
        """How many blocks it holds."""
        return (self.raw - self.runs * _RUN.size) // BLOCK

    def write(self) -> bytes:
        """Return its bytes."""
        return _sealed(
            _PIECE.pack(_PIECE_MAGIC, self.file, self.runs, self.raw, self.packed, self.sha256)
        )


@dataclass(frozen=True)
class Trailer:
    """The end: the number of pieces, and the digest of all that stands before but their content."""

    pieces: int
    sha256: bytes

    def write(self) -> bytes:
        """Return its bytes."""
        return _sealed(_TRAILER.pack(_TRAILER_MAGIC, self.pieces, self.sha256))


def object_name(name: str, digest: str) -> str:
    """Return what a base or layer is called that lies in a store by its content alone: ``name`` is
    its store path, whatever it is called there."""
    part, _, file = name.partition("/")
    return f"{part}/{digest}.{file.rpartition('.')[2]}"


class CutOffError(SnapshotError):
    """An exported snapshot ends early: it may still be on its way."""


def wrong(what: str) -> SnapshotError:
    """Return the error of a file that is not a whole exported snapshot."""
    return SnapshotError(
        f"The file is not a whole exported snapshot: {what}.",
        state="Nothing was added to the store.",
        todo="Copy or export it again.",
    )


def _sealed(head: bytes) -> bytes:
    return head + _CRC.pack(zlib.crc32(head))


def _unsealed(head: bytes, what: str) -> bytes:
    if _CRC.unpack_from(head, HEAD - _CRC.size)[0] != zlib.crc32(head[: HEAD - _CRC.size]):
        raise wrong(f"{what} is damaged")
    return head


def read_exactly(source: BinaryIO, count: int, what: str) -> bytes:
    """Return the next ``count`` bytes. Raises :exc:`SnapshotError` if there are fewer."""
    found = bytearray()
    while len(found) < count:
        more = source.read(count - len(found))
        if not more:
            raise CutOffError(
                f"The exported snapshot ends in {what}: it is not all there.",
                state="The snapshot was not added to the store. What came of it is kept.",
                todo="Get the whole file, and import it again.",
            )
        found += more
    return bytes(found)


# The beginning


def write_beginning(index: Index) -> bytes:
    """Return header and index."""
    text = TypeAdapter(Index).dump_json(index)
    if len(text) > MOST_INDEX:
        raise SnapshotError(
            f"Snapshot {index.manifest.id} has too many or too long labels to be exported.",
            state="Nothing was written.",
        )
    return (
        _sealed(_HEADER.pack(_MAGIC, index.manifest.version, BLOCK, len(text)))
        + text
        + hashlib.sha256(text).digest()
    )


def read_beginning(source: BinaryIO) -> tuple[Index, bytes]:
    """Return the index, and header and index as they stand. Raises :exc:`SnapshotError`."""
    head = read_exactly(source, HEAD, "its header")
    magic, version, block, length = _HEADER.unpack_from(head)
    if magic != _MAGIC:
        raise wrong("it does not begin as one")
    _unsealed(head, "its header")
    if version not in VERSIONS:  # that of the manifest in it
        raise SnapshotError(
            f"The file has version {version}; this Torpor reads version"
            f" {', '.join(map(str, VERSIONS))}.",
            state="Nothing was added to the store.",
            todo="Import it with the Torpor that wrote it, or with a newer one.",
        )
    if block != BLOCK or length > MOST_INDEX:
        raise wrong("its header is out of bounds")
    text = read_exactly(source, length, "its index")
    digest = read_exactly(source, 32, "its index")
    if hashlib.sha256(text).digest() != digest:
        raise wrong("its index is damaged")
    try:
        index = TypeAdapter(Index).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the index"
        raise wrong(f"{where}: {first['msg']}") from None
    return index, head + text + digest


# Pieces


def read_next(source: BinaryIO) -> tuple[Piece | Trailer, bytes]:
    """Return the next header, of a piece or the trailer, and its bytes.

    Raises :exc:`SnapshotError`.
    """
    head = _unsealed(read_exactly(source, HEAD, "a piece"), "a piece's header")
    if head.startswith(_TRAILER_MAGIC):
        _, count, digest = _TRAILER.unpack_from(head)
        return Trailer(count, digest), head
    magic, file, runs, raw, packed, digest = _PIECE.unpack_from(head)
    if (
        magic != _PIECE_MAGIC
        or not 1 <= runs <= BLOCKS
        or not runs * (_RUN.size + BLOCK) <= raw <= runs * _RUN.size + BLOCKS * BLOCK
        or (raw - runs * _RUN.size) % BLOCK
        or not 1 <= packed <= _MOST_PACKED
    ):
        raise wrong("a piece's header is out of bounds")
    return Piece(file, runs, raw, packed, digest), head


def pack(file: int, blocks: Sequence[int], content: bytes) -> tuple[Piece, bytes]:
    """Return a piece and its packed content: ``blocks`` in order, which ``content`` holds."""
    runs: list[list[int]] = []
    for block in blocks:
        if runs and runs[-1][0] + runs[-1][1] == block:
            runs[-1][1] += 1
        else:
            runs.append([block, 1])
    raw = b"".join(_RUN.pack(*run) for run in runs) + content
    packed = zstd.compress(raw, level=LEVEL)
    return Piece(file, len(runs), len(raw), len(packed), hashlib.sha256(packed).digest()), packed


def unpack(piece: Piece, packed: bytes) -> tuple[list[tuple[int, int]], memoryview]:
    """Return the runs (first block, count) of a piece, in order, and their content.

    Raises :exc:`SnapshotError`; takes no more memory than a piece may have.
    """
    if hashlib.sha256(packed).digest() != piece.sha256:
        raise wrong("a piece is damaged")
    limits: dict[int, int] = {zstd.DecompressionParameter.window_log_max: _WINDOW_LOG}
    reader = zstd.ZstdDecompressor(options=limits)
    try:
        raw = reader.decompress(packed, max_length=piece.raw + 1)
    except zstd.ZstdError as error:
        raise wrong(f"a piece cannot be unpacked ({error})") from None
    if len(raw) != piece.raw or not reader.eof or reader.unused_data:
        raise wrong("a piece does not hold what its header says")
    table = piece.runs * _RUN.size
    runs = list(_RUN.iter_unpack(raw[:table]))
    end = 0
    for first, count in runs:
        if first < end or not count:
            raise wrong("the blocks of a piece are not in order")
        end = first + count
    if sum(count for _, count in runs) * BLOCK != piece.raw - table:
        raise wrong("a piece does not hold the blocks that it names")
    return runs, memoryview(raw)[table:]
