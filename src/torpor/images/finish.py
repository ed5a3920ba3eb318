"""What is done to a tree before a file system is made of it; runs confined.

A program of its own that imports only the standard library: its text is handed to a Python that
sees nothing else of ours.

    finish.py TREE PLAN

PLAN is a file of JSON lines. The first is an object:

    "files": true if lines follow, one for each file that is in the tree or is to be
    "authorities": certificates to add, or null: {"bundle": text to append to bundles,
        "files": {name: text}, "hashed": [[hash of the subject, text]]}

Each further line is ``[path, kind, mode, mtime, size, link, first, content]``: ``mode`` is that
which it has on the host; ``first`` is the path of the same inode that came before, or null;
``content`` is the name of the file that has its content, or empty (``contents.py``). Directories
come before what is in them. Names are as Python's ``os.fsdecode`` gives them. ``place.py`` has made
all of them, devices as empty files.
"""

import contextlib
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any

BUNDLES = (
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "etc/ssl/ca-bundle.pem",
    "etc/ssl/cert.pem",
)
SOURCES = ("usr/local/share/ca-certificates", "etc/pki/ca-trust/source/anchors")
HASHED = "etc/ssl/certs"


def date(tree: str, lines: list[list[Any]]) -> None:
    """Give each file its time, which those of the host's clock are in place of until now."""
    for path, _, _, mtime, *_ in reversed(lines):
        os.utime(os.path.join(tree, path), (mtime, mtime), follow_symlinks=False)


def inside(tree: str, path: str) -> str | None:
    """Where a path leads inside the tree, as for a process whose root it is; its last part may be
    missing. None if what leads there is missing, or is no directory."""
    found: list[str] = []
    todo, followed = path.split("/")[::-1], 0
    while todo:
        name = todo.pop()
        if name in ("", "."):
            continue
        if name == "..":
            found = found[:-1]
            continue
        place = os.path.join(tree, *found, name)
        if os.path.islink(place):
            followed += 1
            if followed > 40:
                return None
            target = os.readlink(place)
            if target.startswith("/"):
                found = []
            todo += target.split("/")[::-1]
            continue
        if todo and not os.path.isdir(place):
            return None
        found.append(name)
    return os.path.join(tree, *found)


def make_directories(tree: str, path: str) -> str | None:
    """Make a directory and those above it, and return where it is; None if it cannot be."""
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        place = inside(tree, "/".join(parts[:count]))
        if place is None:
            return None
        if not os.path.exists(place):
            os.mkdir(place)
            os.chmod(place, 0o755)
    place = inside(tree, path)
    return place if place is not None and os.path.isdir(place) else None


def trust(tree: str, authorities: dict[str, Any]) -> None:
    """Add certificates to where the distributions keep theirs."""
    bundles: dict[int, str] = {}
    for name in BUNDLES:
        place = inside(tree, name)
        if place is not None and os.path.isfile(place):
            bundles[os.lstat(place).st_ino] = place
    for place in bundles.values():
        with kept_mode(place), open(place, "ab") as file:
            file.write(b"\n" + authorities["bundle"].encode())
    directories = [make_directories(tree, SOURCES[0]), inside(tree, SOURCES[1])]
    for directory in directories:
        if directory is not None and os.path.isdir(directory):
            for name, text in authorities["files"].items():
                put(os.path.join(directory, name), text)
    hashed = inside(tree, HASHED)
    if hashed is not None and os.path.isdir(hashed):
        for digest, text in authorities["hashed"]:
            number = 0
            while os.path.lexists(os.path.join(hashed, f"{digest}.{number}")):
                number += 1
            put(os.path.join(hashed, f"{digest}.{number}"), text)


@contextlib.contextmanager
def kept_mode(place: str) -> Iterator[None]:
    """Let the owner write a file for the length of the block."""
    mode = stat.S_IMODE(os.lstat(place).st_mode)
    os.chmod(place, mode | 0o600)
    try:
        yield
    finally:
        os.chmod(place, mode)


def put(place: str, text: str) -> None:
    """Write a file anew, whatever is there under its name."""
    if os.path.lexists(place):
        os.unlink(place)
    with open(place, "x") as file:
        file.write(text)
    os.chmod(place, 0o644)


def main(tree: str, plan: str) -> None:
    with open(plan) as file:
        head = json.loads(file.readline())
        lines = [json.loads(line) for line in file]
    if head["files"]:
        date(tree, lines)
    if head["authorities"] is not None:
        trust(tree, head["authorities"])


if __name__ == "__main__":
    main(*sys.argv[1:])
