"""Fills the disk below a database, or reaches a limit, and prints as JSON what came of it."""

import asyncio
import json
import os
import resource
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torpor.store import Database, events
from torpor.store.errors import StoreError
from torpor.store.records import Event
from torpor.store.ulids import Ulids

ULIDS = Ulids()


async def write(database: Database) -> None:
    async with database.write() as conn:
        noise = os.urandom(20_000).hex()
        await events.append(conn, Event(ULIDS.new_id(), "x", datetime.now(UTC), data={"x": noise}))


async def count(database: Database) -> int:
    async with database.read() as conn:
        return len(await events.after(conn, None, None, 1_000_000))


async def until_refused(database: Database) -> dict[str, Any]:
    committed = 0
    while True:
        try:
            await write(database)
            committed += 1
        except StoreError as error:
            return {"committed": committed, **told(error)}


def told(error: StoreError) -> dict[str, str]:
    return {
        "error": type(error).__name__,
        "happened": error.happened,
        "state": error.state,
        "todo": error.todo,
    }


async def soundness(database: Database) -> dict[str, Any]:
    async with database.read() as conn:
        integrity = (await conn.exec_driver_sql("PRAGMA integrity_check")).scalar()
    return {"kept": await count(database), "integrity": integrity}


def fill(directory: Path, leave: int) -> Path:
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as opened:
        try:
            while opened.write(bytes(4096)):
                pass
        except OSError:
            opened.truncate(max(0, opened.tell() - leave))
    return ballast


async def fills_while_it_writes(directory: Path) -> dict[str, Any]:
    ballast = fill(directory, 2 << 20)
    database = await Database.open(f"sqlite:///{directory}/torpor.db")
    found = await until_refused(database)
    again = await until_refused(database)
    found["committed"] += again["committed"]
    found |= {"again": again["error"]} | await soundness(database)
    ballast.unlink()
    await write(database)
    found["after_space_was_made"] = await count(database)
    await database.close()
    return found


async def is_full_from_the_start(directory: Path) -> dict[str, Any]:
    ballast = fill(directory, 8192)
    url = f"sqlite:///{directory}/torpor.db"
    try:
        database = await Database.open(url)
    except StoreError as error:
        found: dict[str, Any] = told(error)
    else:
        await database.close()
        return {"error": "none"}
    ballast.unlink()
    database = await Database.open(url)
    await write(database)
    found["after_space_was_made"] = await count(database)
    await database.close()
    return found


async def has_no_space_for_a_backup(directory: Path) -> dict[str, Any]:
    # The database itself is on another disk.
    database = await Database.open(f"sqlite:///{directory}.elsewhere/torpor.db")
    for _ in range(20):
        await write(database)
    (directory / "copy.db").write_text("the backup of yesterday")
    fill(directory, 100_000)
    try:
        await database.backup(directory / "copy.db")
    except StoreError as error:
        found: dict[str, Any] = told(error)
    else:
        found = {"error": "none"}
    finally:
        await database.close()
    found["files"] = sorted(each.name for each in directory.iterdir())
    found["older_one"] = (directory / "copy.db").read_text()
    return found


async def reaches_a_limit(directory: Path) -> dict[str, Any]:
    database = await Database.open(f"sqlite:///{directory}/torpor.db")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    found = await until_refused(database)
    found |= await soundness(database)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    await write(database)
    found["after_space_was_made"] = await count(database)
    await database.close()
    return found


WAYS = {
    "write": fills_while_it_writes,
    "open": is_full_from_the_start,
    "backup": has_no_space_for_a_backup,
    "limit": reaches_a_limit,
}

if __name__ == "__main__":
    print(json.dumps(asyncio.run(WAYS[sys.argv[2]](Path(sys.argv[1])))))
