"""What the commands of backup and restore do.

Imports are inside: the program must not wait for them when it does something else.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from torpor.cli.server import explained, local_server, told_url

if TYPE_CHECKING:
    from torpor.backup import About, Restored, Summary
    from torpor.settings import Places, Settings
    from torpor.vm import Store

PARTIAL = ".partial"


@dataclass(frozen=True)
class Made:
    """A backup that was written, and checked."""

    file: str
    size: int
    about: "About"
    summary: "Summary"


async def backed_up(
    places: "Places",
    file: Path,
    host: str | None,
    config: Path | None,
    *,
    freeze_running: bool,
    replace: bool,
) -> Made:
    """Back up what a server has, by itself or from its home. Raises BackupError and others."""
    from torpor.backup import BackupError
    from torpor.vm.syncing import fsync

    if file.exists() and not replace:
        raise BackupError(
            f"{file} is there already.",
            state="Nothing was written.",
            todo="Choose another name, or say --force.",
        )
    partial = file.with_name(file.name + PARTIAL)
    with _private(partial) as target:
        try:
            if told_url(host) is not None or local_server() is not None:
                await _from_server(host, target, freeze_running=freeze_running)
            else:
                await _from_home(places, target, config, freeze_running=freeze_running)
            target.flush()
            await asyncio.to_thread(os.fsync, target.fileno())
            target.seek(0)
            try:
                about, summary = await _verified(target)
            except BackupError as error:
                raise BackupError(
                    f"What was written is not a whole backup: {error.happened}",
                    state="It was removed again.",
                    todo="If the server was stopped meanwhile, ask again when it serves; else see"
                    " its log.",
                ) from error
        except BaseException:
            partial.unlink()
            raise
        size = os.fstat(target.fileno()).st_size
        partial.rename(file)
        fsync(file.absolute().parent)
    return Made(str(file), size, about, summary)


@contextmanager
def _private(partial: Path) -> Iterator[BinaryIO]:
    """Open the file that becomes the backup; it is nobody else's to read, or to write meanwhile."""
    from torpor.backup import BackupError
    from torpor.vm.own_file import open_own

    with open(open_own(partial), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(
                f"Another program is writing a backup to {partial}.", state="Nothing was changed."
            ) from None
        file.truncate(0)
        yield file


async def _from_server(host: str | None, target: BinaryIO, *, freeze_running: bool) -> None:
    from torpor.backup import BackupError
    from torpor.cli.progress import Shown
    from torpor.cli.server import connected_async
    from torpor.client import ClientError
    from torpor.images import Step

    done = 0
    try:
        with Shown() as shown:
            async with connected_async(host) as client:
                async for piece in client.back_up(freeze_running=freeze_running):
                    await asyncio.to_thread(target.write, piece)
                    done += len(piece)
                    shown.report(Step("receiving the backup", done, None, "bytes"))
    except ClientError as error:
        raise BackupError(
            f"The server made no whole backup: {explained(error)}", state="Nothing was written."
        ) from error


async def _from_home(
    places: "Places", target: BinaryIO, config: Path | None, *, freeze_running: bool
) -> None:
    from torpor.backup import BackupError, back_up_alone
    from torpor.cli.progress import Shown
    from torpor.images import Step

    if freeze_running:
        raise BackupError(
            "No server runs that could freeze anything.",
            state="Nothing was written.",
            todo="Start it with `torpor serve`, or leave out --freeze-running.",
        )
    settings = _settings(config)
    async with _opened(places) as store:
        with Shown() as shown:
            await back_up_alone(
                store,
                settings.database_url(places),
                settings.told(),
                target,
                report=lambda what, done, total: shown.report(Step(what, done, total, "bytes")),
            )


@asynccontextmanager
async def _opened(places: "Places") -> AsyncIterator["Store"]:
    from torpor.backup import BackupError
    from torpor.vm import Store
    from torpor.vm.home import opened_store

    if not places.home.is_dir():
        raise BackupError(
            f"There is no server's home {places.home}.",
            state="Nothing was written.",
            todo="Set TORPOR_HOME to it, or say --host for a server elsewhere.",
        )
    golden = places.cache / "golden"
    also = Store(golden) if (golden / "snapshots").is_dir() else None
    async with opened_store(places.home, also) as store:
        yield store


def _settings(config: Path | None) -> "Settings":
    from torpor.settings import load_settings

    return load_settings({}, file=config)


async def _verified(source: BinaryIO) -> "tuple[About, Summary]":
    from torpor.backup import verify
    from torpor.cli.progress import Shown
    from torpor.images import Step
    from torpor.vm.stoppable import stoppable

    size = os.fstat(source.fileno()).st_size
    with Shown() as shown:

        def work(check: Any) -> "tuple[About, Summary]":
            def step() -> None:
                check()
                shown.report(Step("checking the backup", source.tell(), size, "bytes"))

            return verify(source, step)

        return await stoppable(work)


async def checked(file: Path) -> Made:
    """Read a whole backup, and return what it says of itself."""
    with open(file, "rb") as source:
        about, summary = await _verified(source)
        return Made(str(file), os.fstat(source.fileno()).st_size, about, summary)


async def brought_back(places: "Places", file: Path, config: Path | None) -> "Restored":
    """Restore a backup into the home."""
    from torpor.backup import restore
    from torpor.cli.progress import Shown
    from torpor.images import Step

    database = _settings(config).database_url(places)
    with open(file, "rb") as source, Shown() as shown:
        return await restore(
            source,
            places.home,
            database,
            report=lambda what, done, total: shown.report(Step(what, done, total, "bytes")),
        )
