"""Files in a session's machine. A paused session is woken by all of them.

Paths are absolute. ``user`` is as whom it is done; root if nothing else is said.
"""

from torpor.client import fields
from torpor.client.call import JSON, LONG, Answer, Call, Content, document, nothing, path, query
from torpor.client.machine_records import FileEntry, FileStatus, file_entry, file_status
from torpor.client.records import Page

BYTES = {"content-type": "application/octet-stream"}
TAR = {"content-type": "application/x-tar"}


def read_file(session: str, file: str, *, user: str | None = None) -> Call[bytes]:
    """Return the content of a file. A large one is for ``read_file_pieces``."""
    return Call(
        "GET",
        path("sessions", session, "files", "content"),
        _body,
        query=query(path=file, user=user),
        seconds=LONG,
    )


def read_file_pieces(
    session: str, file: str, *, offset: int = 0, user: str | None = None
) -> Call[None]:
    """Yield the content of a file from ``offset`` on, in pieces."""
    return Call(
        "GET",
        path("sessions", session, "files", "content"),
        nothing,
        query=query(path=file, user=user),
        headers={"range": f"bytes={offset}-"} if offset else {},
        seconds=LONG,
    )


def write_file(
    session: str,
    file: str,
    content: Content,
    *,
    mode: int | None = None,
    parents: bool = False,
    atomic: bool = False,
    user: str | None = None,
) -> Call[None]:
    """Make ``file`` a file with ``content``: bytes, or pieces of them.

    ``parents`` makes directories that are missing; ``atomic`` replaces at the end and at once, so
    that nobody sees half.
    """
    return Call(
        "PUT",
        path("sessions", session, "files", "content"),
        nothing,
        query=query(
            path=file,
            mode=None if mode is None else f"{mode:04o}",
            parents=parents,
            atomic=atomic,
            user=user,
        ),
        headers=BYTES,
        content=content,
        seconds=LONG,
    )


def remove_file(
    session: str, file: str, *, recursive: bool = False, user: str | None = None
) -> Call[None]:
    """Remove a file or an empty directory; ``recursive``: with all that is in it."""
    return Call(
        "DELETE",
        path("sessions", session, "files"),
        nothing,
        query=query(path=file, recursive=recursive, user=user),
        seconds=LONG,
        gone_is_done=True,
    )


def get_file_status(session: str, file: str, *, user: str | None = None) -> Call[FileStatus]:
    """Return the status of a file, of a link itself. Raises :exc:`NotFoundError`."""
    return Call(
        "GET",
        path("sessions", session, "files", "status"),
        _status,
        query=query(path=file, user=user),
        seconds=LONG,
    )


def list_files(
    session: str,
    directory: str,
    *,
    recursive: bool = False,
    sha256: bool = False,
    after: str | None = None,
    user: str | None = None,
) -> Call[Page[FileEntry]]:
    """Return what is in a directory; ``recursive``: below it; ``sha256``: with the sums of files.
    :attr:`Page.next` is the ``after`` of the following page."""
    return Call(
        "GET",
        path("sessions", session, "files", "list"),
        _entries,
        query=query(
            path=directory, recursive=recursive, sha256=sha256, page_token=after, user=user
        ),
        seconds=LONG,
    )


def move_file(session: str, file: str, to: str, *, user: str | None = None) -> Call[None]:
    """Give a file another name in the same file system."""
    return Call(
        "POST",
        path("sessions", session, "files", "move"),
        nothing,
        query=query(user=user),
        headers=JSON,
        content=document(**{"from": file, "to": to}),
        seconds=LONG,
        repeat="unsent",
    )


def make_directory(
    session: str,
    directory: str,
    *,
    mode: int | None = None,
    parents: bool = False,
    user: str | None = None,
) -> Call[None]:
    """Make a directory; ``parents`` makes those above it too, and is content with one that is
    there."""
    return Call(
        "POST",
        path("sessions", session, "files", "directory"),
        nothing,
        query=query(user=user),
        headers=JSON,
        content=document(path=directory, mode=mode, parents=parents or None),
        seconds=LONG,
        repeat="always" if parents else "unsent",
    )


def read_archive_pieces(session: str, file: str, *, user: str | None = None) -> Call[None]:
    """Yield a file or a tree as a tar archive, in pieces."""
    return Call(
        "GET",
        path("sessions", session, "files", "archive"),
        nothing,
        query=query(path=file, user=user),
        seconds=LONG,
    )


def write_archive(
    session: str, directory: str, archive: Content, *, user: str | None = None
) -> Call[None]:
    """Unpack a tar archive below a directory."""
    return Call(
        "PUT",
        path("sessions", session, "files", "archive"),
        nothing,
        query=query(path=directory, user=user),
        headers=TAR,
        content=archive,
        seconds=LONG,
    )


def watch(
    session: str, file: str, *, recursive: bool = False, user: str | None = None
) -> Call[None]:
    """Describe the stream of what happens to a file."""
    return Call(
        "GET",
        path("sessions", session, "files", "watch"),
        nothing,
        query=query(path=file, recursive=recursive, user=user),
        headers={"accept": "text/event-stream"},
        seconds=LONG,
    )


def _body(answer: Answer) -> bytes:
    return answer.body


def _status(answer: Answer) -> FileStatus:
    said = answer.json()
    return file_status(fields.part(said, "status") if "status" in said else said)


def _entries(answer: Answer) -> Page[FileEntry]:
    said = answer.json()
    return Page(
        fields.parts(said, "entries", file_entry), fields.perhaps_text(said, "next_page_token")
    )
