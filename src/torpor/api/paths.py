"""How requests name files in a session."""

import os
from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Query
from starlette.requests import Request

from torpor.api.errors import RefusedError, invalid
from torpor.api.routes import SESSION

FILES = SESSION + "/files"


def as_bytes(path: str) -> bytes:
    """Return the bytes that a path of the guest's stands for."""
    return os.fsencode(path)


def as_text(path: bytes) -> str:
    """Return a path to be read; what of it is no UTF-8 is shown as `\\xff`."""
    return path.decode("utf-8", "backslashreplace")


async def _path(
    request: Request,
    path: Annotated[
        str,
        Query(
            min_length=1,
            description="The path in the machine. A name that is not UTF-8 is written"
            " percent-encoded, byte by byte.",
            examples=["/srv/report.txt"],
        ),
    ],
) -> bytes:
    # What is not UTF-8 is lost in a parameter that is a text, so it is read once more.
    found = os.fsencode(path)
    for pair in request.scope["query_string"].split(b"&"):
        name, _, value = pair.partition(b"=")
        if name == b"path":
            found = unquote_to_bytes(value.replace(b"+", b" "))
    if b"\0" in found:
        raise RefusedError(invalid(["query parameter 'path' has a NUL in it"]))
    return found


PathOf = Annotated[bytes, Depends(_path)]
User = Annotated[
    str,
    Query(
        min_length=1,
        max_length=64,
        description="As whom it is done in the machine, a name or a number; root if left out.",
    ),
]
Recursive = Annotated[bool, Query(description="With all that is below it.")]
Parents = Annotated[bool, Query(description="Make directories that are missing.")]


def octal(mode: str) -> int:
    """Return permission bits that are written in octal digits."""
    return int(mode, 8)
