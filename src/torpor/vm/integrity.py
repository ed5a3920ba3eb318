"""Whether the files of a snapshot are those that were saved."""

import os
from pathlib import Path

from torpor.vm.accelerator import host_boot_id
from torpor.vm.base import digest_base
from torpor.vm.errors import SnapshotError
from torpor.vm.manifest import Manifest


class Digests:
    """The digests of files, each read once while its inode, size and time stay the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], str] = {}

    def of(self, fd: int) -> str:
        """Return the digest of an open file (:func:`torpor.vm.base.digest_base`)."""
        s = os.fstat(fd)
        key = (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns)  # ctime changes with each hard link
        if key not in self._known:
            self._known[key] = digest_base(fd)
        return self._known[key]

    def check(
        self, snapshot: str, name: str, file: Path, wanted: str | None, size: int | None
    ) -> None:
        """Raise :exc:`SnapshotError` if a file has not the digest and size that it should have."""
        try:
            with open(file, "rb", buffering=0) as opened:
                found = os.fstat(opened.fileno()).st_size
                if size is not None and found != size:
                    raise damaged(snapshot, name, f"has {found} bytes, not {size}")
                if wanted is not None and self.of(opened.fileno()) != wanted:
                    raise damaged(snapshot, name, "does not have the content that was saved")
        except OSError as error:
            raise damaged(snapshot, name, why(error)) from None


def check_boot(found: Manifest) -> None:
    """Refuse a snapshot without sums whose files may not have reached the disk in time."""
    if found.host_boot_id != host_boot_id():
        raise SnapshotError(
            f"Snapshot {found.id} was not made durable before the host went down.",
            state="Nothing was changed.",
            todo="Use an older snapshot.",
        )


def not_durable(snapshot: str) -> SnapshotError:
    """Return the error of a snapshot whose sums are wanted and not there yet."""
    return SnapshotError(
        f"Snapshot {snapshot} is not durable yet.",
        state="Nothing was changed.",
        todo="Wait until it is, then try again.",
    )


def unknown(snapshot: str) -> SnapshotError:
    """Return the error of a snapshot that is not there."""
    return SnapshotError(f"There is no snapshot {snapshot!r}.", state="Nothing was changed.")


def damaged(snapshot: str, name: str, what: str) -> SnapshotError:
    """Return the error of a file of a snapshot that is not what was saved."""
    return SnapshotError(
        f"Snapshot {snapshot} is damaged: {name} {what}.",
        state="Nothing was started or changed; snapshots without this file are well.",
        todo="Use another snapshot, or restore the file from a backup.",
    )


def why(error: OSError) -> str:
    """Return what is wrong with a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return "is missing"
    return f"cannot be read ({error.strerror})"
