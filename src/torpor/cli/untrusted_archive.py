"""What of an archive that came out of a machine is unpacked here: nothing outside of its place.

Python's filter ("data") judges each member by what is on the disk then, and versions before
3.11.13, 3.12.11 and 3.13.4 lose sight of links whose paths are too long (CVE-2025-4517). So two
things do not rest on it: no member is written through a link of the archive, which no honest
archive asks for; and each link is judged again when all of them are known, without asking the disk.
"""

import posixpath
import tarfile
from pathlib import Path
from typing import Self

MOST_FOLLOWED = 40
"""As Linux follows symbolic links on the way to a file."""

MOST_EXTRAS = 1 << 20
"""Bytes of an extended header or a long name; Python's module takes any."""
_EXTRAS = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
NOT_SOUND = (tarfile.TarError, KeyError, ValueError, OverflowError, RecursionError)
"""What Python's module raises for an archive that is none."""

Parts = tuple[str, ...]


class Member(tarfile.TarInfo):
    """A member whose extended headers are of bounded size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return what a header says. Raises tarfile.TarError."""
        found = super().frombuf(buf, encoding, errors)
        if found.type in _EXTRAS and not 0 <= found.size <= MOST_EXTRAS:
            raise tarfile.ReadError(f"an extended header has {found.size} bytes")
        return found


class Checked:
    """The filter of one archive; ``left_out`` are the names of the members that it has refused."""

    def __init__(self) -> None:
        self.left_out: list[str] = []
        self._targets: dict[Parts, str] = {}
        self._hard: set[Parts] = set()

    def __call__(self, member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        """Return what is unpacked of a member, None if it is left out."""
        try:
            found = tarfile.data_filter(member, path)
        except tarfile.FilterError:
            found = None
        place = _parts(found.name) if found is not None else ()
        if found is None or self._goes_by_a_link(place):
            self.left_out.append(member.name)
            return None
        if found.issym():
            self._targets[place] = found.linkname
        elif found.islnk():
            self._hard.add(place)
            same = self._targets.get(_parts(found.linkname))
            if (
                same is not None
            ):  # another name for a symbolic link, which leads elsewhere from here
                self._targets[place] = same
        return found

    def _goes_by_a_link(self, place: Parts) -> bool:
        above = (place[:count] for count in range(1, len(place) + 1))
        return any(each in self._targets or each in self._hard for each in above)

    def remove_links_out(self, root: Path) -> None:
        """Remove the links below ``root`` that lead out of it, now that all of them are known."""
        for place in self._targets:
            link = root.joinpath(*place)
            if self._leads_out(place) and link.is_symlink():
                link.unlink()
                self.left_out.append("/".join(place))

    def _leads_out(self, place: Parts) -> bool:
        found = list(place[:-1])
        todo, followed = [place[-1]], 0
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            if name == "..":
                if not found:
                    return True
                found.pop()
                continue
            target = self._targets.get((*found, name))
            if target is None:
                found.append(name)
                continue
            followed += 1
            if target.startswith("/"):
                return True
            if followed > MOST_FOLLOWED:
                return False  # it leads nowhere
            todo += target.split("/")[::-1]
        return False


def _parts(name: str) -> Parts:
    return tuple(part for part in posixpath.normpath(name).split("/") if part not in ("", "."))
