"""Files."""

from typing import Self

from pydantic import Field, model_validator

from torpor.api.schemas.body import Answered, Asked
from torpor.vm import FileStatus, readable


class FileBody(Answered):
    """What there is under a name."""

    type: str = Field(
        description="file, directory, link, fifo, socket, block, character or unknown.",
        examples=["file"],
    )
    mode: str = Field(description="Its permission bits, in octal digits.", examples=["0644"])
    size: int = Field(description="Its length, in bytes.", examples=[12])
    stored: int = Field(description="What is stored of it, in bytes.", examples=[4096])
    uid: int = Field(examples=[0])
    gid: int = Field(examples=[0])
    mtime_ns: int = Field(
        description="When its content changed last, in nanoseconds since 1970.",
        examples=[1777881942120000000],
    )
    links: int = Field(description="How many names it has.", examples=[1])
    inode: int = Field(examples=[131])
    device: int = Field(examples=[65024])
    target: str | None = Field(None, description="Where a symbolic link leads to.")

    @classmethod
    def of(cls, status: FileStatus) -> Self:
        """Return a status as it is shown."""
        return cls(
            type=status.type,
            mode=f"{status.mode & 0o7777:04o}",
            size=status.size,
            stored=status.stored,
            uid=status.uid,
            gid=status.gid,
            mtime_ns=status.mtime_ns,
            links=status.links,
            inode=status.inode,
            device=status.device,
            target=None if status.target is None else readable(status.target),
        )


class OneFile(Answered):
    """What there is under a name."""

    file: FileBody


class Entry(Answered):
    """Something in a directory."""

    path: str = Field(description="Its path from there.", examples=["src/main.py"])
    file: FileBody | None = Field(None, description="Left out if it is not known.")
    sha256: str | None = Field(None, description="The SHA-256 of a file's content.")
    error: str | None = Field(None, description="Why something of it is not known.")


class Entries(Answered):
    """Some of what is in a directory, sorted by path."""

    entries: list[Entry]
    next_page_token: str = Field(
        description="Names the next page as `page_token`; empty when there are no more.",
        examples=[""],
    )


class MoveBody(Asked):
    """From which name to which."""

    from_: str = Field(alias="from", min_length=1, examples=["/srv/report.tmp"])
    to: str = Field(min_length=1, examples=["/srv/report.txt"])
    replace: bool = Field(True, description="Whether what has the new name is replaced.")


class DirectoryBody(Asked):
    """A directory that is to be."""

    path: str = Field(min_length=1, examples=["/srv/results"])
    mode: str = Field(
        "0755", pattern="^[0-7]{3,4}$", description="Its permission bits, in octal digits."
    )
    parents: bool = Field(
        False, description="Make those above it too, and be content with one that is there."
    )


class LinkBody(Asked):
    """A symbolic link that is to be."""

    path: str = Field(min_length=1)
    target: str = Field(min_length=1)


class ChangeBody(Asked):
    """What of a file is to be different."""

    path: str = Field(min_length=1, examples=["/srv/run.sh"])
    mode: str | None = Field(None, pattern="^[0-7]{3,4}$", examples=["0755"])
    owner: str | None = Field(None, description="`user` or `user:group`.", examples=["nobody"])
    size: int | None = Field(None, ge=0, description="Cut or lengthen it to this many bytes.")
    mtime_ns: int | None = Field(None, description="Nanoseconds since 1970.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if all(v is None for v in (self.mode, self.owner, self.size, self.mtime_ns)):
            raise ValueError("nothing is to be different")
        return self


class Written(Answered):
    """A file that was written."""

    size: int = Field(description="Its length in bytes.", examples=[12])


class Unpacked(Answered):
    """An archive that was unpacked."""

    members: int = Field(description="What was made.", examples=[3])
    attributes: int = Field(description="Attributes of these that could not be given.")
    skipped: int = Field(description="Members of kinds that are not made.")


class WatchEvent(Answered):
    """A change: the `data` of a frame of a watch."""

    event: str = Field(
        description="`ready` first; `overflow` when something may have been missed; else what"
        " happened.",
        examples=["modified"],
    )
    path: str = Field("", examples=["src/main.py"])
