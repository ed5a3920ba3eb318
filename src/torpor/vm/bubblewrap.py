"""The walls that bubblewrap puts around a program, as far as they are the same for all.

A machine's QEMU, QEMU's programs for disk layers and the programs that work on images each add
what they alone are to see. Nothing here lets a program see a file that is anybody's own.
"""

from collections.abc import Iterable
from pathlib import Path

TOPS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
"""Where programs and libraries are looked for at the top: links into ``/usr``, or directories where
it is not merged."""
LIBRARY_CACHE = ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")
"""The arguments that let the loader find libraries in directories that it does not know."""


def walls(*, users: bool = True, network: bool = False, outlives: bool = False) -> list[str]:
    """Return the arguments that close a program off: namespaces and a session of its own, no
    variables, no capabilities, and no file until some are bound.

    Without ``users`` it has no user namespace, for a root that takes it to another user; with
    ``network`` it has that of who starts it; if it ``outlives`` us, it does not end with this
    program.
    """
    # bubblewrap works through capabilities, variables and files in their order; the rest are flags.
    return [
        *(["--unshare-user"] if users else []),
        "--unshare-ipc",
        "--unshare-pid",
        *([] if network else ["--unshare-net"]),
        "--unshare-uts",
        "--unshare-cgroup-try",
        *([] if outlives else ["--die-with-parent"]),
        "--new-session",
        "--clearenv",
        "--cap-drop",
        "ALL",
    ]


def system(tops: Iterable[str] = TOPS) -> list[str]:
    """Return the arguments that let a program read the system's programs and libraries, of those
    at the top only ``tops``."""
    tops = tuple(tops)
    words = ["--ro-bind", "/usr", "/usr", *LIBRARY_CACHE, *links(tops)]
    for directory in directories(tops):
        words += ["--ro-bind", str(directory), str(directory)]
    return words


def links(tops: Iterable[str] = TOPS) -> list[str]:
    """Return the arguments that make the links among ``tops`` inside, whether or not what they lead
    to is seen."""
    words = []
    for path in (Path("/", name) for name in tops):
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
    return words


def directories(tops: Iterable[str] = TOPS) -> tuple[Path, ...]:
    """Return the directories among ``tops`` that are no links."""
    paths = (Path("/", name) for name in tops)
    return tuple(path for path in paths if path.is_dir() and not path.is_symlink())
