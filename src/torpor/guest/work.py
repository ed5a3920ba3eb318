"""Things that the agent has done in a process of its own, as the user who asked: what reads or
writes much, or may wait for a disk.

The spawner forks, the child does the work and ends. To the host it looks like any command: what it
makes comes on standard output, what it takes on standard input, and it stands still with the user's
other processes during a freeze. A failure is the last line of standard error, a JSON object of
``code`` and ``message``, and exit status 1.
"""

import importlib
import json
import os
from typing import Any

from torpor.guest.errors import describe

WORK = {
    "list": "torpor.guest.trees:list_directory",
    "remove": "torpor.guest.trees:remove",
    "pack": "torpor.guest.archive:pack",
    "unpack": "torpor.guest.archive:unpack",
    "watch": "torpor.guest.watch:watch",
}
"""By name, the function that does it. It is given the request's other members by name, and imported
only now: most machines never need most of these."""


def do_work(wanted: dict[str, Any]) -> int:
    """Do what ``wanted`` names and return the exit status."""
    try:
        arguments = dict(wanted)
        module, _, function = WORK[arguments.pop("name")].partition(":")
        getattr(importlib.import_module(module), function)(**arguments)
    except BrokenPipeError:
        return 1  # nobody wants to know
    except Exception as error:
        said = json.dumps(describe(error)).encode("ascii")
        os.write(2, said + b"\n")
        return 1
    return 0


def write_line(value: dict[str, Any]) -> None:
    """Write one JSON object and a line feed to standard output, all of it."""
    write_all(json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n")


def write_all(data: bytes | memoryview) -> None:
    """Write all of ``data`` to standard output."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
