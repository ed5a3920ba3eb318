"""Files in a session's machine. A paused session is woken by all of them.

Paths are absolute. ``user`` is as whom it is done; root if nothing else is said.
"""

from torpor.client import fields
from torpor.client.call import JSON, LONG, Answer, Call, Content, document, nothing, path, query
from torpor.client.machine_records import (
    FileEntry,
    FileStatus,
    Unpacked,
    file_entry,
    file_status,
    unpacked,
)
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
) -> Call[int]:
    """Make ``file`` a file with ``content``, bytes or pieces of them; return its size.

    ``parents`` makes directories that are missing; ``atomic`` replaces at the end and at once, so
    that nobody sees half.
    """
    return Call(
        "PUT",
        path("sessions", session, "files", "content"),
        lambda answer: fields.number(answer.json(), "size"),
        query=query(
            path=file,
            mode=_octal(mode),
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


def get_file_status(
    session: str, file: str, *, follow: bool = False, user: str | None = None
) -> Call[FileStatus]:
    """Return the status of a file; ``follow``: of what a link leads to. Raises
    :exc:`NotFoundError`."""
    return Call(
        "GET",
        path("sessions", session, "files", "status"),
        lambda answer: file_status(fields.part(answer.json(), "file")),
        query=query(path=file, follow=follow, user=user),
        seconds=LONG,
    )


def list_files(
    session: str,
    directory: str,
    *,
    recursive: bool = False,
    sha256: bool = False,
    limit: int | None = None,
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
            path=directory,
            recursive=recursive,
            sha256=sha256,
            page_size=limit,
            page_token=after,
            user=user,
        ),
        seconds=LONG,
    )


def move_file(
    session: str, file: str, to: str, *, replace: bool = True, user: str | None = None
) -> Call[None]:
    """Give a file another name in the same file system; what has that name is replaced, or
    (:exc:`ConflictError`) not."""
    return Call(
        "POST",
        path("sessions", session, "files", "move"),
        nothing,
        query=query(user=user),
        headers=JSON,
        content=document(**{"from": file, "to": to, "replace": replace}),
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
        content=document(path=directory, mode=_octal(mode), parents=parents),
        seconds=LONG,
        repeat="always" if parents else "unsent",
    )


def make_link(session: str, file: str, target: str, *, user: str | None = None) -> Call[None]:
    """Make a symbolic link that leads to ``target``."""
    return Call(
        "POST",
        path("sessions", session, "files", "link"),
        nothing,
        query=query(user=user),
        headers=JSON,
        content=document(path=file, target=target),
        seconds=LONG,
        repeat="unsent",
    )


def change_file(
    session: str,
    file: str,
    *,
    mode: int | None = None,
    owner: str | None = None,
    size: int | None = None,
    mtime_ns: int | None = None,
    user: str | None = None,
) -> Call[None]:
    """Change what is given of a file; ``owner`` is ``user`` or ``user:group``."""
    return Call(
        "PATCH",
        path("sessions", session, "files"),
        nothing,
        query=query(user=user),
        headers=JSON,
        content=document(path=file, mode=_octal(mode), owner=owner, size=size, mtime_ns=mtime_ns),
        seconds=LONG,
    )


def read_archive_pieces(
    session: str, file: str, *, name: str | None = None, user: str | None = None
) -> Call[None]:
    """Yield a file or a tree as a tar archive, in pieces, under ``name`` (its own if None; ``.``
    for no leading directory)."""
    return Call(
        "GET",
        path("sessions", session, "files", "archive"),
        nothing,
        query=query(path=file, name=name, user=user),
        seconds=LONG,
    )


def write_archive(
    session: str,
    directory: str,
    archive: Content,
    *,
    owner: str | None = None,
    parents: bool = False,
    user: str | None = None,
) -> Call[Unpacked]:
    """Unpack a tar archive below a directory. Owners are those in the archive, or all ``owner``
    (``user`` or ``user:group``); ``parents`` makes the directory."""
    return Call(
        "PUT",
        path("sessions", session, "files", "archive"),
        lambda answer: unpacked(answer.json()),
        query=query(path=directory, owner=owner, parents=parents, user=user),
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


def _octal(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:04o}"


def _body(answer: Answer) -> bytes:
    return answer.body


def _entries(answer: Answer) -> Page[FileEntry]:
    said = answer.json()
    return Page(
        fields.parts(said, "entries", file_entry), fields.perhaps_text(said, "next_page_token")
    )
