"""The headers of tar archives, both ways: POSIX pax (IEEE 1003.1, pax, "pax Interchange Format")
as it is written here, and also ustar, v7 and GNU's own as they are read.

The standard library's ``tarfile`` reads sparse files but writes none, loads a dozen modules, and
copies data through Python.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

BLOCK = 512
ZERO = bytes(BLOCK)
MAX_RECORDS = 16 << 20
"""Bytes of one extended header, or of one map of a sparse file, that are read."""

FILE, HARD_LINK, LINK, CHARACTER, BLOCK_DEVICE, DIRECTORY, FIFO = "0123456"
OLD_FILE, CONTIGUOUS, GNU_SPARSE = "\0", "7", "S"
FILES = (FILE, OLD_FILE, CONTIGUOUS, GNU_SPARSE)
"""The types that are files with content."""

_NUMBER = re.compile(rb"[ \0]*([0-7]*)[ \0]*")
_RECORD = re.compile(rb"(\d{1,20}) ")
_TIME = re.compile(rb"(-?)(\d{1,18})(?:\.(\d*))?")
_DECIMAL = re.compile(rb"\d{1,20}")
SECOND = 1_000_000_000
NUMBERS = {
    b"uid": ("uid",),
    b"gid": ("gid",),
    b"size": ("stored", "size"),
    b"GNU.sparse.size": ("size",),  # after "size", which is of what is stored
    b"GNU.sparse.realsize": ("size",),
}
"""Records that are numbers, and of what."""


class ArchiveError(ValueError):
    """Something that is no tar archive, or one that is not unpacked."""


@dataclass
class Member:
    """What the headers say of one thing in an archive. Names are as bytes.

    ``stored`` is how many bytes of it follow its header, ``size`` how many there are with holes.
    ``map`` has the ranges of a sparse file that were stored, in order: offset and size of each.
    """

    name: bytes
    type: str
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    stored: int = 0
    size: int = 0
    target: bytes = b""
    major: int = 0
    minor: int = 0
    xattrs: dict[str, bytes] = field(default_factory=dict)
    map: list[tuple[int, int]] | None = None


# Writing


def encode_header(member: Member) -> bytes:
    """Return the header of a member as pax writes it: what does not fit into the old fields comes
    before it as an extended header."""
    records: list[tuple[bytes, bytes]] = []
    header_name = member.name
    if member.map is not None:
        # What reads no sparse files gets the stored bytes under this name, as from GNU tar.
        header_name = _beside(member.name, b"GNUSparseFile.0")
        records += [
            (b"GNU.sparse.major", b"1"),
            (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.name", member.name),
            (b"GNU.sparse.realsize", b"%d" % member.size),
        ]
    elif not _fits(member.name):
        records.append((b"path", member.name))
    if not _fits(member.target):
        records.append((b"linkpath", member.target))
    for key, number, digits in (
        (b"uid", member.uid, 7),
        (b"gid", member.gid, 7),
        (b"size", member.stored, 11),
    ):
        if number >= 8**digits:
            records.append((key, b"%d" % number))
    seconds, rest = divmod(member.mtime_ns, SECOND)
    if rest or not 0 <= seconds < 8**11:
        records.append((b"mtime", _encode_time(member.mtime_ns)))
    for name, value in member.xattrs.items():
        records.append((b"SCHILY.xattr." + _encode_key(name), value))
    block = _block(member, header_name, seconds if 0 <= seconds < 8**11 else 0)
    return encode_records(records, member.name) + block if records else block


def encode_map(ranges: Sequence[tuple[int, int]]) -> bytes:
    """Return the map of a sparse file, version 1.0, as it stands before its data."""
    text = b"".join([b"%d\n" % len(ranges), *(b"%d\n%d\n" % each for each in ranges)])
    return text + padding(len(text))


def padding(size: int) -> bytes:
    """Return the zeros that fill the last block of ``size`` bytes."""
    return bytes(-size % BLOCK)


def encode_records(records: list[tuple[bytes, bytes]], name: bytes) -> bytes:
    """Return an extended header for the member ``name``."""
    names = (b"path", b"linkpath", b"GNU.sparse.name")
    if not all(_is_text(value) for key, value in records if key in names):
        # POSIX: else values are UTF-8, and these are not.
        records = [(b"hdrcharset", b"BINARY"), *records]
    data = b"".join(_encode_record(key, value) for key, value in records)
    header = Member(_beside(name, b"PaxHeaders")[:100], "x", stored=len(data))
    if len(data) >= 8**11:
        raise ArchiveError("the attributes of a file are too large for an archive")
    return _block(header, header.name, 0) + data + padding(len(data))


def _encode_record(key: bytes, value: bytes) -> bytes:
    rest = len(key) + len(value) + 3  # space, "=", line feed
    size = rest + len(str(rest))
    size = rest + len(str(size))
    return b"%d %s=%s\n" % (size, key, value)


def _encode_time(time_ns: int) -> bytes:
    sign = b"-" if time_ns < 0 else b""
    seconds, rest = divmod(abs(time_ns), SECOND)
    return b"%s%d.%09d" % (sign, seconds, rest)


def _encode_key(name: str) -> bytes:
    # As GNU tar has it (xheader.c, xattr_encode_keyword).
    return os.fsencode(name).replace(b"%", b"%25").replace(b"=", b"%3D")


def _decode_key(name: bytes) -> str:
    return os.fsdecode(name.replace(b"%3D", b"=").replace(b"%25", b"%"))


def _fits(name: bytes) -> bool:
    return len(name) <= 100 and name.isascii()


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _beside(name: bytes, directory: bytes) -> bytes:
    above, _, last = name.rstrip(b"/").rpartition(b"/")
    return b"/".join(part for part in (above, directory, last) if part)


def _block(member: Member, name: bytes, seconds: int) -> bytes:
    block = bytearray(BLOCK)
    # A name that did not fit is in the extended header; what is here is for who cannot read that.
    short = name[:100]
    block[: len(short)] = short
    for offset, digits, number in (
        (100, 7, member.mode & 0o7777),
        (108, 7, member.uid if member.uid < 8**7 else 0),
        (116, 7, member.gid if member.gid < 8**7 else 0),
        (124, 11, member.stored if member.stored < 8**11 else 0),
        (136, 11, seconds),
        (329, 7, member.major),
        (337, 7, member.minor),
    ):
        block[offset : offset + digits] = b"%0*o" % (digits, number)
    block[156:157] = member.type.encode("ascii")
    target = member.target[:100]
    block[157 : 157 + len(target)] = target
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


# Reading


def parse_block(block: bytes) -> Member:
    """Return what one header block says. Raises :exc:`ArchiveError`."""
    given = parse_number(block[148:156])
    blank = block[:148] + b" " * 8 + block[156:]
    total = sum(blank)
    # Some old tars took bytes as signed. Rarely needed, and slow: only if the other does not fit.
    if given != total and given != total - 256 * sum(byte > 127 for byte in blank):
        raise ArchiveError("a header with a wrong checksum: this is no tar archive, or damaged")
    size = parse_number(block[124:136])
    name = _until_zero(block[:100])
    kind = chr(block[156])
    if block[257:263] == b"ustar\0" and (prefix := _until_zero(block[345:500])):
        name = prefix + b"/" + name
    if kind == OLD_FILE and name.endswith(b"/"):
        kind = DIRECTORY  # of the seventh edition, which had no type for it
    member = Member(
        name,
        kind,
        parse_number(block[100:108]) & 0o7777,
        parse_number(block[108:116]),
        parse_number(block[116:124]),
        parse_number(block[136:148]) * SECOND,
        size,
        size,
        _until_zero(block[157:257]),
    )
    if kind in (CHARACTER, BLOCK_DEVICE):
        member.major, member.minor = parse_number(block[329:337]), parse_number(block[337:345])
    if size < 0:
        raise ArchiveError("a member of a size below nothing")
    return member


def _until_zero(text: bytes) -> bytes:
    return text.split(b"\0", 1)[0]


def parse_number(text: bytes) -> int:
    """Return a number of a header: octal digits, or GNU's base 256. Raises
    :exc:`ArchiveError`."""
    if text[0] & 0x80:
        number = int.from_bytes(text, "big")
        bits = 8 * len(text)
        # The top bit marks the form; the next is the sign.
        if text[0] & 0x40:
            return number - (1 << bits)
        return number - (1 << (bits - 1))
    found = _NUMBER.match(text)
    if found is None or (found.end() < len(text) and text[found.end()] not in b"\0 "):
        raise ArchiveError("a number in a header that is none")
    return int(found[1] or b"0", 8)


def parse_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of an extended header. Raises :exc:`ArchiveError`."""
    offset = 0
    while offset < len(data):
        found = _RECORD.match(data, offset)
        end = offset + int(found[1]) if found is not None else 0
        if found is None or not found.end() < end <= len(data) or data[end - 1] != 0x0A:
            raise ArchiveError("an extended header that is none")
        key, equals, value = data[found.end() : end - 1].partition(b"=")
        if not equals:
            raise ArchiveError("an extended header that is none")
        yield key, value
        offset = end


def apply_records(member: Member, records: Sequence[tuple[bytes, bytes]]) -> None:
    """Put what extended headers say in place of what the block says. Raises
    :exc:`ArchiveError`."""
    said = dict(records)
    member.name = said.get(b"GNU.sparse.name", said.get(b"path", member.name))
    member.target = said.get(b"linkpath", member.target)
    for key, names in NUMBERS.items():
        if key in said:
            for name in names:
                setattr(member, name, parse_decimal(said[key]))
    if b"mtime" in said:
        member.mtime_ns = parse_time(said[b"mtime"])
    prefix = b"SCHILY.xattr."
    for key, value in said.items():
        if key.startswith(prefix):
            member.xattrs[_decode_key(key.removeprefix(prefix))] = value
    numbers = said.get(b"GNU.sparse.map", b"").split(b",")  # version 0.1
    if b"GNU.sparse.numbytes" in said:  # version 0.0 says each number in a record
        ranges = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")
        numbers = [value for key, value in records if key in ranges]
    if numbers != [b""]:
        member.map = pairs([parse_decimal(each) for each in numbers])


def pairs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges that stand in a map as numbers. Raises :exc:`ArchiveError`."""
    if len(numbers) % 2:
        raise ArchiveError("a map of a sparse file that ends in the middle")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def parse_decimal(text: bytes) -> int:
    """Return a decimal number. Raises :exc:`ArchiveError`."""
    if not _DECIMAL.fullmatch(text):
        raise ArchiveError("a number in an extended header that is none")
    return int(text)


def parse_time(text: bytes) -> int:
    """Return nanoseconds of decimal seconds, rounded down. Raises :exc:`ArchiveError`."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ArchiveError("a time in an extended header that is none")
    value = int(found[2]) * SECOND + int((found[3] or b"")[:9].ljust(9, b"0"))
    return -value if found[1] else value
