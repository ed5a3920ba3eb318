"""A home: the directory of one host's machines and snapshots, open to one program at a time."""

import asyncio
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from torpor.vm import manifest as documents
from torpor.vm.errors import HostError, VmError
from torpor.vm.manifest import RECORD, MachineRecord
from torpor.vm.store import Store

MACHINES = "machines"
DEAD_HOLDER_LIMIT = 5.0
"""Seconds for which the lock of a program that is gone may still be held."""


@asynccontextmanager
async def opened_store(home: Path, golden: Store | None) -> AsyncIterator[Store]:
    """Open the snapshots of a home alone, to change them; its machines are left as they are.

    Raises :exc:`HostError` if another program has the home open.
    """
    async with locked(home):
        yield Store(home, golden)


@asynccontextmanager
async def locked(home: Path, *, wait: bool = False) -> AsyncIterator[int]:
    """Hold the lock of a home, which is made if there is none; yield the lock's descriptor.

    Raises :exc:`HostError` if another program has the home open, unless it is to ``wait`` for that
    one's end.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = await take_lock(home, wait=wait)
    try:
        yield lock
    finally:
        os.close(lock)


def machine_records(home: Path) -> Iterator[MachineRecord]:
    """Yield the records of the machines of a home that no program has open.

    Raises :exc:`HostError` for one that cannot be read: nobody knows what that machine uses.
    """
    directory = home / MACHINES
    for entry in sorted(directory.iterdir()) if directory.is_dir() else ():
        try:
            yield documents.read(MachineRecord, entry / RECORD)
        except (VmError, OSError) as error:
            raise HostError(
                f"The record of machine {entry.name} cannot be read: {error}",
                state="Nothing was changed.",
                todo="Let the server open the home: it ends such machines.",
            ) from None


def home_id(home: Path) -> str:
    """Return a word that this directory has and no other on this computer, a copy of it neither.

    Not its path: several containers may have the same, and one sees the processes of the others.
    """
    status = home.stat()
    words = f"{host_id(home)} {status.st_dev} {status.st_ino}"
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def host_id(home: Path) -> str:
    """Return the id of the host that a home is: it keeps it wherever it is moved, as its copies
    do."""
    file = home / "host.id"
    if not file.exists():
        new = home / f".host.id.{os.getpid()}"
        new.write_text(secrets.token_hex(16))
        new.rename(file)
    return file.read_text()


def place_of(home: Path) -> str:
    """Return a word that this directory has until its computer is started anew, and no other one
    anywhere: who has its lock knows that whoever had it before, and says this word, is gone."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return hashlib.sha256(f"{home_id(home)} {boot}".encode()).hexdigest()[:16]


def used_in(store: Store) -> list[str]:
    """Return the paths in a home's store that its machines need. Raises :exc:`HostError`."""
    return [name for record in machine_records(store.root) for name in record.uses()]


async def take_lock(home: Path, *, wait: bool) -> int:
    """Take the lock of a home, and return its descriptor. Raises :exc:`HostError` if another
    program has it, unless it is to ``wait`` for that."""
    patience = time.monotonic() + DEAD_HOLDER_LIMIT
    fd = os.open(home / "host.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # A program that was killed while it started another one has it until that one runs.
                dead = not _runs(_holder(fd)) and time.monotonic() < patience
                if not wait and not dead:
                    raise HostError(
                        f"Another program (process {_holder(fd)}) has {home} open.",
                        state="Nothing was changed.",
                        todo="End it, or set TORPOR_HOME to another directory.",
                    ) from None
                await asyncio.sleep(0.05 if dead else 0.2)
                continue
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
            return fd
    except BaseException:
        os.close(fd)
        raise


def _runs(holder: str) -> bool:
    return holder.isdigit() and Path(f"/proc/{holder}").exists()


def _holder(fd: int) -> str:
    return os.pread(fd, 20, 0).decode("ascii", "replace") or "?"
