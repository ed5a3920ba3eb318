"""Stages: directories in the cache that are made once and never change.

A stage is `cache/<kind>/<key>/`. It is built in `cache/.building/<kind>-<key>.<random>/` and shown
by one rename, so it is complete or not there. Who builds it holds a flock on
`cache/.building/<kind>-<key>.lock`, and so do the programs it started: a lock that can be had
means that nobody works in the directories of that name any more, and they are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from torpor.images.errors import NOTHING_VISIBLE, ImageError, disk_full, is_disk_full
from torpor.images.programs import run
from torpor.images.progress import Report, Step, silent
from torpor.vm.sizes import unshared_bytes
from torpor.vm.syncing import fsync

FACTS = "stage.json"
LOCK_POLL_S = 0.1
FEW = 64


@dataclass(frozen=True)
class Stage:
    """A finished stage: its directory and what its builder noted about it."""

    path: Path
    facts: Mapping[str, str]


@dataclass(frozen=True)
class Building:
    """A stage in the making: the directory to fill, and the lock to hand on to programs."""

    path: Path
    lock: int


Build = Callable[[Building], Awaitable[Mapping[str, str]]]


async def finished_stage(cache: Path, kind: str, key: str, build: Build, report: Report) -> Stage:
    """The stage of this kind and key, built now if nobody has built it yet.

    `build` fills `Building.path` and returns facts (kept in `stage.json`). Raises ImageError.
    """
    final = cache / kind / key
    if final.exists():
        return _read(final)
    name = f"{kind}-{key}"
    yard = cache / ".building"
    with _told(cache, f"Building {kind}"):
        yard.mkdir(parents=True, exist_ok=True)
        final.parent.mkdir(exist_ok=True)
        async with _lock(yard / f"{name}.lock", kind, report) as lock:
            await asyncio.to_thread(_remove_leftovers, yard, name)
            if final.exists():
                return _read(final)
            path = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=yard))
            # mkdtemp makes it private; mmdebstrap in another user namespace must pass through.
            path.chmod(0o755)
            try:
                await _fill(Building(path, lock), build)
                path.rename(final)
                fsync(final.parent)
            finally:
                # Also when cancelled: it runs in this thread, so nothing can come between.
                _remove(path)
    return _read(final)


@contextmanager
def _told(cache: Path, what: str) -> Iterator[None]:
    """Tell what the system refuses as an error of ours."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(str(cache)) from error
        raise ImageError(
            f"{what} failed: {error}.",
            NOTHING_VISIBLE,
            f"See that {cache} is yours to write, then run the same command again.",
        ) from error


@asynccontextmanager
async def workplace(cache: Path, kind: str) -> AsyncIterator[Building]:
    """A directory of one's own for the length of the block, in the cache; removed afterwards, by
    the next builder if this process is killed. Raises ImageError."""
    yard = cache / ".building"
    name = f"{kind}-{secrets.token_hex(8)}"
    with _told(cache, f"The {kind}"):
        yard.mkdir(parents=True, exist_ok=True)
        async with _lock(yard / f"{name}.lock", kind, silent) as lock:
            path = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=yard))
            try:
                yield Building(path, lock)
            finally:
                _remove(path)


def found_stage(cache: Path, kind: str, key: str) -> Stage | None:
    """The stage of this kind and key, if it was built. Raises ImageError if it is damaged."""
    final = cache / kind / key
    return _read(final) if final.exists() else None


def remove_stage(cache: Path, kind: str, key: str) -> int | None:
    """Remove a stage, unless somebody is building it; return the bytes that are free now, or None.

    Blocks. Who has its files open keeps them. Raises OSError.
    """
    name = f"{kind}-{key}"
    yard = cache / ".building"
    yard.mkdir(exist_ok=True)
    lock = _try_lock(yard / f"{name}.lock")
    if lock is None:
        return None
    try:
        final = cache / kind / key
        size = unshared_bytes(final.rglob("*"))
        # By one rename, as it came: it is there as a whole, or not.
        trash = yard / f"{name}.{secrets.token_hex(4)}"
        final.rename(trash)
        _remove(trash)
        return size
    finally:
        (yard / f"{name}.lock").unlink(missing_ok=True)
        os.close(lock)


async def _fill(building: Building, build: Build) -> None:
    facts = await build(building)
    (building.path / FACTS).write_text(json.dumps(dict(facts), indent=1, sort_keys=True) + "\n")
    # The rename must not reach the disk before what it shows.
    if not await asyncio.to_thread(_force_few, building.path):
        await run("sync", "--file-system", str(building.path), lock=building.lock)


def _force_few(directory: Path) -> bool:
    """Force the files of a directory to disk one by one, if they are few; say whether they were.

    All of the file system is the faster way for many, but waits for what others write, too.
    """
    paths = list(itertools.islice(directory.rglob("*"), FEW + 1))
    if len(paths) > FEW:
        return False
    for path in (*paths, directory):
        if path.is_dir() or path.is_file():
            fsync(path)
    return True


def _read(path: Path) -> Stage:
    try:
        facts = json.loads((path / FACTS).read_text())
    except (OSError, ValueError) as error:
        raise ImageError(
            f"The cached stage {path} is damaged: {error}.",
            "It was left as it is.",
            f"Remove it (rm -r {path}); the next run builds it anew.",
        ) from error
    with contextlib.suppress(OSError):
        # When it was last used: what prune asks.
        os.utime(path)
    return Stage(path, {str(name): str(value) for name, value in facts.items()})


@asynccontextmanager
async def _lock(path: Path, kind: str, report: Report) -> AsyncIterator[int]:
    waiting = False
    while True:
        lock = _try_lock(path)
        if lock is not None:
            break
        if not waiting:
            report(Step(f"waiting for another build of {kind}"))
            waiting = True
        await asyncio.sleep(LOCK_POLL_S)
    try:
        yield lock
    finally:
        path.unlink(missing_ok=True)
        os.close(lock)


def _try_lock(path: Path) -> int | None:
    """An open and locked descriptor of the lock file, or None if somebody else has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The holder before us unlinks the file: then our lock is on a name that is gone.
        if path.exists() and os.path.samestat(os.fstat(lock), path.stat()):
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _remove_leftovers(yard: Path, ours: str) -> None:
    """Remove what dead builders left, of this stage and of others. Call with `ours` locked."""
    for name in sorted({entry.name.partition(".")[0] for entry in yard.iterdir()}):
        if name == ours:
            _remove_directories(yard, name)
            continue
        path = yard / f"{name}.lock"
        lock = _try_lock(path)
        if lock is None:
            continue
        try:
            _remove_directories(yard, name)
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)


def _remove_directories(yard: Path, name: str) -> None:
    for directory in yard.glob(f"{name}.*"):
        if directory.is_dir():
            _remove(directory)


def _remove(directory: Path) -> None:
    """Remove a directory, unless something is mounted below it: that would be removed too."""
    if not directory.exists():
        return
    inside = f"{directory.resolve()}/"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mounted = line.split()[4].replace("\\040", " ")
        if mounted.startswith(inside):
            raise ImageError(
                f"{mounted} is still mounted in the directory of a build that ended.",
                f"{directory} was left as it is.",
                f"Unmount it (umount {mounted}) and run the same command again.",
            )
    if os.geteuid() != 0:
        # Trees have directories whose modes keep even their owner out.
        for parent, names, _ in os.walk(directory):
            for name in names:
                below = Path(parent, name)
                if not below.is_symlink():
                    below.chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)
