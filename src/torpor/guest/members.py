"""The members of a tar archive, read from a pipe one after the other."""

import errno
import os
from collections.abc import Iterator

from torpor.guest import tar
from torpor.guest.tar import BLOCK, ArchiveError, Member

AHEAD = 64 << 10
PIECE = 1 << 20
GNU_NAME, GNU_TARGET = "L", "K"
EXTENDED, EXTENDED_OF_SUN, EXTENDED_FOR_ALL = "x", "X", "g"
VOLUME, CONTINUED, OLD_DIRECTORY = "V", "M", "D"


class Source:
    """Takes bytes from a pipe; what it has read ahead is used first."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._ahead = memoryview(b"")
        self._splices = True

    def take(self, size: int) -> bytes:
        """Return exactly ``size`` bytes; nothing if there are none at all. Raises
        :exc:`ArchiveError` if it ends before."""
        if size <= len(self._ahead):
            taken = bytes(self._ahead[:size])
            self._ahead = self._ahead[size:]
            return taken
        parts = [bytes(self._ahead)]
        got = len(parts[0])
        self._ahead = memoryview(b"")
        while got < size:
            data = os.read(self._fd, AHEAD)
            if not data:
                if not got:
                    return b""
                raise ArchiveError("the archive ends in the middle")
            use = min(len(data), size - got)
            parts.append(data[:use])
            self._ahead = memoryview(data)[use:]
            got += use
        return b"".join(parts)

    def copy_to(self, file: int, offset: int, size: int) -> None:
        """Write the next ``size`` bytes at ``offset`` of a file."""
        while size and self._ahead:
            part = self._ahead[:size]
            written = os.pwrite(file, part, offset)
            self._ahead = self._ahead[written:]
            offset += written
            size -= written
        while size:
            moved = self._move(file, offset, size)
            if not moved:
                raise ArchiveError("the archive ends in the middle")
            offset += moved
            size -= moved

    def _move(self, file: int, offset: int, size: int) -> int:
        if self._splices and size > AHEAD:
            try:
                return os.splice(self._fd, file, size, offset_dst=offset)
            except OSError as error:
                if error.errno != errno.EINVAL:  # no pipe, or a file system that cannot
                    raise
                self._splices = False
        data = memoryview(os.read(self._fd, min(size, PIECE)))
        written = 0
        while written < len(data):
            written += os.pwrite(file, data[written:], offset + written)
        return len(data)

    def skip(self, size: int) -> None:
        """Pass over the content of a member, and what fills its last block."""
        left = size + -size % BLOCK
        while left:
            left -= len(self.take_needed(min(left, AHEAD)))

    def skip_padding(self, size: int) -> None:
        """Pass over what fills the last block of ``size`` bytes."""
        self.take_needed(-size % BLOCK)

    def take_needed(self, size: int) -> bytes:
        """Return exactly ``size`` bytes. Raises :exc:`ArchiveError`."""
        data = self.take(size)
        if len(data) < size:
            raise ArchiveError("the archive ends in the middle")
        return data

    def drain(self) -> None:
        """Take all that still comes, so that whoever writes it can end."""
        self._ahead = memoryview(b"")
        while os.read(self._fd, AHEAD):
            pass


def read_members(source: Source) -> Iterator[Member]:
    """Yield the members of an archive, up to its end; each content is taken before the next.

    An end without the blocks of zeros that mark it is taken for one if it is between members.
    Raises :exc:`ArchiveError`.
    """
    for_all: dict[bytes, bytes] = {}
    records: list[tuple[bytes, bytes]] = []
    names: dict[str, bytes] = {}
    first = True
    while (block := source.take(BLOCK)) and block != tar.ZERO:
        first = False
        member = tar.parse_block(block)
        if member.type in (EXTENDED, EXTENDED_OF_SUN, EXTENDED_FOR_ALL, GNU_NAME, GNU_TARGET):
            data = _take_text(source, member)
            if member.type in (GNU_NAME, GNU_TARGET):
                names[member.type] = data.rstrip(b"\0")
            elif member.type == EXTENDED_FOR_ALL:
                for_all.update(tar.parse_records(data))
            else:
                records += tar.parse_records(data)
            continue
        if member.type == tar.GNU_SPARSE:
            _read_old_map(source, block, member)
        member.name = names.get(GNU_NAME, member.name)
        member.target = names.get(GNU_TARGET, member.target)
        tar.apply_records(member, [*for_all.items(), *records])
        if dict(records).get(b"GNU.sparse.major") == b"1":
            _read_map(source, member)
        records, names = [], {}
        yield from _check(source, member)
    if first and not block:
        raise ArchiveError("there is nothing: an archive has at least its end")
    if records or names:
        raise ArchiveError("the archive ends in the middle")


def _check(source: Source, member: Member) -> Iterator[Member]:
    """Yield a member that makes sense, and see that nothing of it is left behind."""
    if b"\0" in member.name or b"\0" in member.target:
        raise ArchiveError("a name with a null character")
    if member.type == CONTINUED:
        raise ArchiveError("the archive goes on from one that is not here")
    if member.type == VOLUME:
        source.skip(member.stored)
        return
    if member.type == OLD_DIRECTORY:
        member.type = tar.DIRECTORY
    if member.type not in (tar.DIRECTORY, *tar.FILES) and member.type in "123456":
        member.stored = member.size = 0  # as in an archive of cpio's kind, where it means nothing
    if member.map is not None and member.type in tar.FILES:
        _check_map(member)
    else:
        member.map = None
    yield member


def _check_map(member: Member) -> None:
    last = 0
    for offset, size in member.map or ():
        if offset < last or offset + size > member.size:
            raise ArchiveError("a map of a sparse file that makes no sense")
        last = offset + size
    if sum(size for _, size in member.map or ()) != member.stored:
        raise ArchiveError("a map of a sparse file that does not fit what is stored")


def _take_text(source: Source, member: Member) -> bytes:
    if member.stored > tar.MAX_RECORDS:
        raise ArchiveError("an extended header that is too long")
    data = source.take_needed(member.stored)
    source.skip_padding(member.stored)
    return data


def _read_map(source: Source, member: Member) -> None:
    """Read the map of version 1.0, which stands before the data and counts as stored."""
    text = b""
    numbers: list[int] = []
    wanted = 1
    while len(numbers) < wanted:
        if len(text) > tar.MAX_RECORDS:
            raise ArchiveError("a map of a sparse file that is too long")
        text += source.take_needed(BLOCK)
        member.stored -= BLOCK
        *lines, text = text.split(b"\n")
        numbers += [tar.parse_decimal(line) for line in lines[: wanted - len(numbers)]]
        if len(numbers) == 1 and wanted == 1:
            wanted += 2 * numbers[0]
            numbers += [tar.parse_decimal(line) for line in lines[1:wanted]]
        if wanted > tar.MAX_RECORDS // 8:
            raise ArchiveError("a map of a sparse file that is too long")
    if member.stored < 0:
        raise ArchiveError("a map of a sparse file that is longer than what is stored")
    member.map = tar.pairs(numbers[1:])


def _read_old_map(source: Source, block: bytes, member: Member) -> None:
    """Read the map of GNU's old sparse files, which follows in blocks of its own."""
    member.size = tar.parse_number(block[483:495])
    numbers = _old_ranges(block[386:482])
    more = block[482]
    while more:
        block = source.take_needed(BLOCK)
        numbers += _old_ranges(block[:504])
        more = block[504]
        if len(numbers) > tar.MAX_RECORDS // 12:
            raise ArchiveError("a map of a sparse file that is too long")
    member.map = tar.pairs(numbers)


def _old_ranges(text: bytes) -> list[int]:
    found: list[int] = []
    for start in range(0, len(text), 24):
        if not text[start]:
            break
        found += [tar.parse_number(text[start : start + 12])]
        found += [tar.parse_number(text[start + 12 : start + 24])]
    return found
