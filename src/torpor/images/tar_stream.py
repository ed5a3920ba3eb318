"""Reading the headers of a tar archive as it streams by, strictly.

The forms: ustar (POSIX.1-2001, "pax"), and what GNU tar adds: long names, numbers in base 256,
sparse files. What is not understood is refused, not passed over, so that nobody who reads the
same bytes after us sees other files than we did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torpor.images.errors import HostileImageError

BLOCK = 512
ZEROS = bytes(BLOCK)
MAX_EXTRAS = 1 << 20
"""Bytes of one extended header, or of one long name."""
MAX_IN_A_ROW = 8
MAX_SPARSE_MAP = 4096
"""Blocks."""
KINDS: Mapping[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"S": "file",
    b"1": "hard link",
    b"2": "symlink",
    b"3": "char",
    b"4": "block",
    b"5": "dir",
    b"6": "fifo",
}
Kind = Literal["file", "hard link", "symlink", "char", "block", "dir", "fifo"]
XATTR, ACL = b"SCHILY.xattr.", b"SCHILY.acl."


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of an archive.

    ``size`` is what the file has when it is unpacked, ``stored`` what it takes in the archive;
    ``sparse`` says that what is stored is not its content, byte by byte;
    ``link`` is the target of a link, ``device`` major and minor number, ``mtime`` in seconds;
    ``acl`` says that it had an access control list in the form of star, which is not read.
    """

    name: bytes
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: int
    size: int = 0
    stored: int = 0
    sparse: bool = False
    link: bytes = b""
    device: tuple[int, int] = (0, 0)
    xattrs: Mapping[str, bytes] = field(default_factory=dict)
    acl: bool = False


class Reader:
    """Takes bytes from chunks; holds no more than one chunk and what is taken at once.

    ``sink`` gets all that is taken or passed over, in order.
    """

    def __init__(
        self, chunks: Iterator[bytes], sink: Callable[[bytes | memoryview], None] | None = None
    ) -> None:
        self._chunks = chunks
        self._sink = sink
        self._chunk = b""
        self._at = 0
        self.position = 0
        """How many bytes have been taken or passed over."""

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes, or nothing at the end. Raises HostileImageError if the
        end comes between."""
        parts = [bytes(piece) for piece in self._pieces(count)]
        taken = parts[0] if len(parts) == 1 else b"".join(parts)
        if taken and len(taken) < count:
            raise _broken("it ends in the middle of a file")
        return taken

    def skip(self, count: int) -> None:
        """Pass over ``count`` bytes. Raises HostileImageError if there are fewer."""
        if sum(map(len, self._pieces(count))) < count:
            raise _broken("it ends in the middle of a file")

    def drain(self) -> None:
        """Pass over all that is left."""
        for _ in self._pieces(1 << 63):
            pass

    def _pieces(self, count: int) -> Iterator[memoryview]:
        while count:
            if self._at == len(self._chunk):
                self._chunk, self._at = next(self._chunks, b""), 0
                if not self._chunk:
                    return
            piece = memoryview(self._chunk)[self._at : self._at + count]
            self._at += len(piece)
            self.position += len(piece)
            count -= len(piece)
            if self._sink is not None:
                self._sink(piece)
            yield piece


def entries(reader: Reader) -> Iterator[Entry]:
    """Yield the members of an archive. Raises HostileImageError for what is no sound archive.

    The content of each is passed over when the next is asked for. What follows the archive's end
    is left in the reader.
    """
    extras: dict[bytes, bytes] = {}
    in_a_row = 0
    while (block := reader.take(BLOCK)) and block != ZEROS:
        _check_sum(block)
        flag = block[156:157]
        stored = _number(block[124:136], "size")
        in_a_row = in_a_row + 1 if flag in b"xgLK" else 0
        if in_a_row > MAX_IN_A_ROW:
            raise _broken(f"it has more than {MAX_IN_A_ROW} extended headers for one file")
        if flag == b"x":
            extras.update(_records(_extra(reader, stored)))
        elif flag == b"g":
            _only_comments(_records(_extra(reader, stored)))
        elif flag in (b"L", b"K"):
            key = b"path" if flag == b"L" else b"linkpath"
            extras[key] = _extra(reader, stored).rstrip(b"\0")
        else:
            entry = _entry(block, flag, stored, extras)
            if flag == b"S":
                _skip_sparse_map(reader, block)
            extras = {}
            yield entry
            reader.skip(-(-entry.stored // BLOCK) * BLOCK)


def _entry(block: bytes, flag: bytes, stored: int, extras: Mapping[bytes, bytes]) -> Entry:
    kind = KINDS.get(flag)
    if kind is None:
        raise _broken(f"it has an entry of the unknown type {flag!r}")
    name = _text(block[0:100])
    if block[257:265] == b"ustar\x0000" and block[345]:
        name = _text(block[345:500]) + b"/" + name
    name = extras.get(b"GNU.sparse.name", extras.get(b"path", name))
    link = extras.get(b"linkpath", _text(block[157:257]))
    if flag in (b"0", b"\0") and name.endswith(b"/"):
        kind = "dir"  # as the first tars wrote it
    stored = _decimal(extras, b"size", stored)
    if kind == "dir" and stored:
        # Some read what follows as its content, others as the next entry.
        raise _broken("it has a directory with content")
    if kind != "file":
        stored = 0  # a size there says nothing; nothing follows
    size = stored if kind == "file" else 0
    if flag == b"S":
        size = _number(block[483:495], "real size")
    for key in (b"GNU.sparse.realsize", b"GNU.sparse.size"):
        size = _decimal(extras, key, size)
    if b"\0" in name or b"\0" in link or not name:
        raise _broken(f"it has the impossible name {name!r}")
    return Entry(
        name=name,
        kind=kind,
        mode=_number(block[100:108], "mode") & 0o7777,
        uid=_identity(_decimal(extras, b"uid", _number(block[108:116], "uid"))),
        gid=_identity(_decimal(extras, b"gid", _number(block[116:124], "gid"))),
        mtime=_seconds(extras.get(b"mtime"), block[136:148]),
        size=size,
        stored=stored,
        sparse=flag == b"S" or any(key.startswith(b"GNU.sparse.") for key in extras),
        link=link if kind in ("symlink", "hard link") else b"",
        device=(_number(block[329:337], "major"), _number(block[337:345], "minor"))
        if kind in ("char", "block")
        else (0, 0),
        xattrs={
            key[len(XATTR) :].decode("utf-8", "surrogateescape"): value
            for key, value in extras.items()
            if key.startswith(XATTR)
        },
        acl=any(key.startswith(ACL) for key in extras),
    )


def _check_sum(block: bytes) -> None:
    wanted = _number(block[148:156], "checksum")
    rest = block[:148] + b" " * 8 + block[156:]
    total = sum(rest)
    # Some tars of old summed signed bytes.
    if wanted != total and wanted != total - 256 * sum(byte > 127 for byte in rest):
        raise _broken("a header's checksum is wrong")


def _text(raw: bytes) -> bytes:
    return raw.partition(b"\0")[0]


def _number(raw: bytes, what: str, *, signed: bool = False) -> int:
    """A number in octal digits, or in base 256 if the first bit says so."""
    if raw[0] & 0x80:
        value = int.from_bytes(raw, "big") & ((1 << (8 * len(raw) - 1)) - 1)
        if raw[0] & 0x40:
            value -= 1 << (8 * len(raw) - 1)
    else:
        digits = raw.strip(b" \0")
        if digits.strip(b"01234567"):
            raise _broken(f"a {what} is {raw!r}")
        value = int(digits or b"0", 8)
    if (value < 0 and not signed) or value >= 1 << 63:
        raise _broken(f"a {what} is {value}")
    return value


def _decimal(extras: Mapping[bytes, bytes], key: bytes, otherwise: int) -> int:
    raw = extras.get(key)
    if raw is None:
        return otherwise
    if not raw.isdigit() or len(raw) > 19 or int(raw) >= 1 << 63:
        raise _broken(f"a {key.decode()} is {raw[:40]!r}")
    return int(raw)


def _identity(number: int) -> int:
    if number > 0xFFFF_FFFE:
        raise _broken(f"a file belongs to user or group {number}")
    return number


def _seconds(extended: bytes | None, raw: bytes) -> int:
    if extended is None:
        return _number(raw, "time", signed=True)
    whole, _, fraction = extended.partition(b".")
    digits = whole.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 12 or (fraction and not fraction.isdigit()):
        raise _broken(f"a time is {extended[:40]!r}")
    past = whole.startswith(b"-") and fraction.strip(b"0") != b""
    return int(whole) - past


def _extra(reader: Reader, size: int) -> bytes:
    if size > MAX_EXTRAS:
        raise HostileImageError(
            f"A layer has an extended header of {size} bytes; {MAX_EXTRAS} are the most."
        )
    content = reader.take(-(-size // BLOCK) * BLOCK)
    return content[:size]


def _records(content: bytes) -> dict[bytes, bytes]:
    """The records of an extended header: "length key=value\\n", the length counting all of it."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(content):
        space = content.find(b" ", at, at + 8)
        digits = content[at:space] if space > 0 else b""
        if not digits.isdigit():
            raise _broken("an extended header has no length where one should be")
        end = at + int(digits)
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        if end > len(content) or end <= space or not equals or content[end - 1 : end] != b"\n":
            raise _broken("an extended header has a record that is not sound")
        found[key] = value
        at = end
    return found


def _only_comments(records: Mapping[bytes, bytes]) -> None:
    if set(records) - {b"comment"}:
        raise _broken("it has a global header, which layers do not use")


def _skip_sparse_map(reader: Reader, block: bytes) -> None:
    more, blocks = block[482], 0
    while more:
        more = (reader.take(BLOCK) or ZEROS)[504]
        blocks += 1
        if blocks > MAX_SPARSE_MAP:
            raise _broken("a sparse file has too many parts")


def _broken(why: str) -> HostileImageError:
    return HostileImageError(f"A layer is not a sound tar archive: {why}.")
