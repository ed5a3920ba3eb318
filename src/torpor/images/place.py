"""Makes the tree of what was checked; runs confined.

A program of its own like ``finish.py``, which says what PLAN is:

    place.py TREE PLAN CONTENTS

TREE is made. Files are there afterwards under all of their names, with their contents, and with the
modes that they are to have on the host; devices are empty files. Their times are given to them by
``finish.py``, and what else they have is written into the file system (``dress.py``).
"""

import json
import os
import subprocess
import sys
from typing import Any


def place(line: list[Any], contents: str) -> None:
    """Make one file of the plan in the current directory."""
    path, kind, mode, _, size, link, first, content = line
    if first is not None:
        os.link(first, path, follow_symlinks=False)
    elif kind == "symlink":
        os.symlink(link, path)
    elif kind == "dir":
        os.mkdir(path, mode)
    elif kind == "fifo":
        os.mkfifo(path, mode)
    else:
        if content.endswith(".tar"):
            unpack(os.path.join(contents, content), path, size)
        elif content:
            os.rename(os.path.join(contents, content), path)
        else:
            open(path, "x").close()
        os.chmod(path, mode)


def unpack(archive: str, path: str, size: int) -> None:
    """Write the one file of an archive, whatever it is called in there."""
    with open(path, "x") as out:
        subprocess.run(
            ["tar", "--extract", "--to-stdout", "--file", archive], stdout=out, check=True
        )
    found = os.stat(path).st_size
    if found != size:
        sys.exit(f"{path!r} came out with {found} bytes; it has {size}")


def main(tree: str, plan: str, contents: str) -> None:
    os.umask(0)
    os.mkdir(tree)
    os.chdir(tree)
    with open(plan) as file:
        next(file)
        _, _, mode, *_ = json.loads(next(file))  # that of the root
        os.chmod(".", mode)
        for line in file:
            place(json.loads(line), contents)


if __name__ == "__main__":
    main(*sys.argv[1:])
