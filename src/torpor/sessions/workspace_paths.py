"""Paths in a session's workspace, the directory that files are brought to and fetched from.

What is said is looked at as text alone: a symbolic link in the machine may lead out of the
workspace, and where to is the business of the machine's own users.
"""

from typing import Literal
from urllib.parse import quote, unquote_to_bytes

from torpor.images.workspace import WORKSPACE
from torpor.sessions.errors import InvalidError

ROOT = WORKSPACE
LONGEST, LONGEST_NAME = 4095, 255
"""Bytes of a path, and of one name in it, that Linux takes (PATH_MAX with its NUL, NAME_MAX)."""

Encoding = Literal["percent"]


def resolve(said: str | bytes, encoding: Encoding | None = None) -> bytes:
    """Return the absolute path in the machine that ``said`` names: what does not begin with a slash
    begins at the workspace.

    A text stands for its bytes in UTF-8, or, as ``percent``, for those that it has
    percent-encoded. Raises :exc:`InvalidError` for what names nothing, or leads out of the
    workspace.
    """
    path = _bytes(said, encoding)
    if not path or b"\0" in path:
        raise _wrong(path, "it names nothing" if not path else "it has a NUL in it")
    root = ROOT.split(b"/")[1:]
    names = [name for name in path.split(b"/") if name not in (b"", b".")]
    if path.startswith(b"/"):
        if names[: len(root)] != root:
            raise _wrong(path, f"it is not below {ROOT.decode()}")
        names = names[len(root) :]
    below: list[bytes] = []
    for name in names:
        if name != b"..":
            below.append(name)
        elif below:
            below.pop()
        else:
            raise _wrong(path, f"it leads out of {ROOT.decode()}")
    found = b"/".join((ROOT, *below))
    if len(found) > LONGEST or any(len(name) > LONGEST_NAME for name in below):
        raise _wrong(path[:60], f"it is longer than {LONGEST} bytes, or a name in it than 255")
    return found


def resolve_file(said: str | bytes, encoding: Encoding | None = None) -> bytes:
    """Return the path that ``said`` names, as :func:`resolve`, which is to be a file's. Raises
    :exc:`InvalidError` for the workspace itself too."""
    found = resolve(said, encoding)
    if found == ROOT:
        raise _wrong(found, "it is the workspace itself, and not a file in it")
    return found


def encoded(path: bytes) -> str:
    """Return a path percent-encoded, as :func:`decoded` reads it."""
    return quote(path)


def decoded(path: str) -> bytes:
    """Return the path that :func:`encoded` has written."""
    return unquote_to_bytes(path)


def _bytes(said: str | bytes, encoding: Encoding | None) -> bytes:
    if isinstance(said, bytes):
        return said
    try:
        return said.encode() if encoding is None else unquote_to_bytes(said.encode())
    except UnicodeEncodeError:
        raise _wrong(said.encode(errors="backslashreplace"), "it is no Unicode") from None


def _wrong(path: bytes, why: str) -> InvalidError:
    shown = path.decode("utf-8", "backslashreplace")
    return InvalidError(
        f"The path {shown!r} cannot be: {why}.",
        state="Nothing was done.",
        todo=f"Name something in the session's workspace, {ROOT.decode()}.",
    )
