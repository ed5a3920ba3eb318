"""Running a command's work to its end: interrupts, errors and exit statuses.

Exit statuses: 0 all is well, 1 it is not (the reason is on standard error), 2 wrong usage, 128 and
the signal's number when a signal ended it.
"""

import asyncio
import errno
import os
import signal
import stat
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import typer

from torpor.cli.harmless import complain
from torpor.settings import Places, default_places

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


class PlaceError(Exception):
    """A directory that Torpor keeps things in cannot be used. The text says what to do."""


def working_places() -> Places:
    """Return the places that the environment asks for; nothing is created."""
    return default_places()


def writable_places() -> Places:
    """Return the same places, both made and writable. Exits with status 1 if one cannot be.

    From here on nothing that is made is others' to write to, whatever the umask was: programs from
    the cache are run, and what is at home is what machines are.
    """
    os.umask(os.umask(0o022) | 0o022)
    places = working_places()
    with _errors_told():
        make_writable(places.home, "TORPOR_HOME", "snapshots and the disks of machines")
        make_writable(places.cache, "TORPOR_CACHE", "the guest's kernel, images, golden snapshots")
    return places


def make_writable(directory: Path, variable: str, what: str) -> None:
    """Make ``directory``, or see that it is ours to write. Raises :exc:`PlaceError`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))
    except OSError as error:
        raise PlaceError(
            f"{directory} cannot be written: {(error.strerror or str(error)).lower()}. It is to"
            f" hold {what}. Nothing was started. Set {variable} to a directory that is yours."
        ) from error
    found = directory.stat()
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & stat.S_IWOTH:
        whose = (
            "can be written to by everybody" if found.st_mode & stat.S_IWOTH
            else f"belongs to user {found.st_uid}, who could change what is in it"
        )  # fmt: skip
        raise PlaceError(
            f"{directory} {whose}. It is to hold {what}. Nothing was started. Give it to yourself"
            f" alone (chown, chmod o-w) if what is in it is yours, or set {variable} to another"
            " directory."
        )


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` and return what it returns.

    SIGINT, SIGTERM and SIGHUP cancel it, so that it cleans up (again and again is no faster), and
    then exit with 128 and the signal's number. Errors of the packages, and OSError, are shown once,
    without a traceback, and exit with 1.
    """
    caught: list[signal.Signals] = []
    with _errors_told(caught):
        return asyncio.run(_until_signal(work, caught))


async def _until_signal(work: Coroutine[Any, Any, T], caught: list[signal.Signals]) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)

    def end(number: signal.Signals) -> None:
        caught.append(number)
        if len(caught) == 1:
            task.cancel()
        else:
            typer.echo("Still ending machines and removing what was half done.", err=True)

    # What is ignored stays so: it is how nohup(1) has programs outlive their terminal.
    heard = [each for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


@contextmanager
def _errors_told(caught: list[signal.Signals] | None = None) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if caught:
            # Whatever it ran into while it ended, it was ended. A program that the terminal's
            # Ctrl-C reached as well may have failed before we were told.
            typer.echo("Interrupted; nothing was left running.", err=True)
            raise typer.Exit(128 + caught[0]) from None
        words = explain(error)
        if words is None:
            raise
        complain(words)
        raise typer.Exit(1) from None


def explain(error: BaseException) -> str | None:
    """Return what to tell a user of an error, or None if it is not one that users can cause."""
    from torpor.images import ImageError
    from torpor.vm import VmError

    if isinstance(error, BaseExceptionGroup):
        told = [explain(each) for each in error.exceptions]
        return "\n".join(dict.fromkeys(filter(None, told))) if all(told) else None
    if isinstance(error, (VmError, ImageError, PlaceError)):
        return str(error)
    if type(error).__module__.startswith("torpor.") and hasattr(error, "happened"):
        return str(error)  # of a package that is not imported only to ask whether it is its
    if isinstance(error, BrokenPipeError) or not isinstance(error, OSError):
        return None  # a closed pipe is the command line library's affair
    where = f": {error.filename}" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk is full{where}. What was half done has been removed. Free some space"
            " (`torpor doctor` says how much there is, and where) and run the same command again."
        )
    return f"{error.strerror or error}{where}. `torpor doctor` says what this host lacks."
