import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from tests.store.made import START, event, sample, session
from torpor.store import Database, driver, events, samples, sessions
from torpor.store.errors import BusyError, DamagedError, DiskError, UrlError
from torpor.store.ulids import Ulids

KILLED = """
import asyncio, sys
from datetime import UTC, datetime
from torpor.store import Database, events
from torpor.store.records import Event
from torpor.store.ulids import Ulids

async def main():
    database, ulids = await Database.open(sys.argv[1]), Ulids()
    while True:
        first, second = ulids.new_id(), ulids.new_id()
        async with database.write() as conn:
            await events.append(conn, Event(first, "first", datetime.now(UTC)))
            await events.append(conn, Event(second, "second", datetime.now(UTC)))
        print(second, flush=True)

asyncio.run(main())
"""

HURRIED = """
import asyncio, random, sys
from datetime import UTC, datetime
from torpor.store import Database, events
from torpor.store.records import Event
from torpor.store.ulids import Ulids

async def work(database, ulids):
    while True:
        async with database.write() as conn:
            await events.append(conn, Event(ulids.new_id(), "x", datetime.now(UTC)))
        async with database.read() as conn:
            await events.last_id(conn)

async def main(seconds):
    database, ulids = await Database.open(sys.argv[1]), Ulids()
    tasks = [asyncio.create_task(work(database, ulids)) for _ in range(12)]
    await asyncio.sleep(seconds)
    for _ in range(3):
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0)
    if seconds > 0.02:
        await asyncio.gather(*tasks, return_exceptions=True)
        await database.close()

for number in range(8):
    asyncio.run(main(number / 200))
"""


async def all_events(database: Database) -> list[str]:
    async with database.read() as conn:
        return [each.id for each in await events.after(conn, None, None, 1_000_000)]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
async def test_nobody_else_may_look_into_it(url: str, tmp_path: Path, mask: int) -> None:
    old = os.umask(mask)
    try:
        database = await Database.open(url)
    finally:
        os.umask(old)
    try:
        files = sorted((tmp_path / "kept").iterdir())
        assert {file.name: file.stat().st_mode & 0o777 for file in files} == dict.fromkeys(
            ["torpor.db", "torpor.db-shm", "torpor.db-wal"], 0o600
        )
        assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700
    finally:
        await database.close()


async def test_a_directory_that_was_there_keeps_its_rights(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "torpor.db").touch(0o644)
    database = await Database.open(f"sqlite:///{tmp_path}/torpor.db")
    await database.close()
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "torpor.db").stat().st_mode & 0o777 == 0o600


async def test_a_commit_is_on_the_disk_and_references_are_checked(database: Database) -> None:
    async with database.write() as conn:
        for pragma, value in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
            assert (await conn.exec_driver_sql(f"PRAGMA {pragma}")).scalar() == value


async def test_one_file_is_left_when_it_is_closed(url: str, tmp_path: Path) -> None:
    database = await Database.open(url)
    async with database.write() as conn:
        await events.append(conn, event("a"))
    await database.close()
    assert [file.name for file in (tmp_path / "kept").iterdir()] == ["torpor.db"]


async def test_all_of_a_write_is_made_or_nothing(database: Database) -> None:
    async def fail_half_way() -> None:
        async with database.write() as conn:
            await events.append(conn, event("a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_half_way()
    async with database.write() as conn:
        await events.append(conn, event("b"))
    assert await all_events(database) == ["b"]


async def test_who_only_reads_cannot_write(database: Database) -> None:
    with pytest.raises((OperationalError, DiskError), match="readonly"):
        async with database.read() as conn:
            await events.append(conn, event("a"))
    assert await all_events(database) == []


async def test_a_reader_sees_one_moment_and_waits_for_nobody(database: Database) -> None:
    async with database.read() as reading, asyncio.timeout(20):
        assert await events.after(reading, None, None, 9) == []
        async with database.write() as writing:
            await events.append(writing, event("a"))
            assert await asyncio.create_task(all_events(database)) == []
        assert await events.after(reading, None, None, 9) == []
    assert await all_events(database) == ["a"]


async def test_many_writers_lose_nothing(database: Database) -> None:
    async with database.write() as conn:
        await sessions.insert(conn, session("counted"))

    async def count() -> None:
        async with database.write() as conn:
            found = await sessions.get(conn, "id-of-counted")
            assert found is not None
            await asyncio.sleep(0)
            await sessions.update(conn, found.id, generation=found.generation + 1)

    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(count())
    async with database.read() as conn:
        found = await sessions.get(conn, "id-of-counted")
    assert found is not None
    assert found.generation == 50


async def test_many_more_readers_than_connections(database: Database) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for _ in range(200):
            group.create_task(all_events(database))


async def test_a_read_within_a_read_is_refused_and_does_not_hang(database: Database) -> None:
    async def nested() -> None:
        with pytest.raises(RuntimeError, match="wait for itself"):
            async with database.read(), database.read():
                pass

    async with asyncio.timeout(20):
        await asyncio.gather(*(nested() for _ in range(50)))
        assert await all_events(database) == []


async def test_a_burst_of_readers_makes_its_connections_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[None] = []
    real = driver.connect

    async def counted(file: Path, *, writes: bool) -> Any:
        made.append(None)
        return await real(file, writes=writes)

    monkeypatch.setattr("torpor.store.database.connect", counted)
    await test_many_more_readers_than_connections(database)
    few = len(made)
    assert 0 < few < 20
    await test_many_more_readers_than_connections(database)
    assert len(made) == few


async def test_a_write_within_a_write_is_refused_and_does_not_hang(database: Database) -> None:
    async with asyncio.timeout(20):
        with pytest.raises(RuntimeError, match="wait for itself"):
            async with database.write(), database.write():
                pass
        async with database.write() as conn:
            await events.append(conn, event("a"))


async def test_writers_that_are_cancelled_leave_all_or_nothing(database: Database) -> None:
    chance, ulids = random.Random(7), Ulids()
    sure: list[str] = []

    async def write_two() -> None:
        first, second = ulids.new_id(), ulids.new_id()
        async with database.write() as conn:
            await events.append(conn, event(first, data={"pair": first}))
            await events.append(conn, event(second, data={"pair": first}))
        sure.append(first)

    for _ in range(150):
        tasks = [asyncio.create_task(write_two()) for _ in range(3)]
        await asyncio.sleep(chance.random() * 0.006)
        for task in tasks:
            if chance.random() < 0.7:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(20):
        await write_two()
    async with database.read() as conn:
        kept = [each.data["pair"] for each in await events.after(conn, None, None, 10_000)]
    assert all(kept.count(pair) == 2 for pair in kept)
    assert set(sure) <= set(kept)
    assert 0 < len(sure) < 451  # or nothing was cancelled, or everything


async def test_readers_that_are_cancelled_give_their_connections_back(database: Database) -> None:
    chance = random.Random(8)
    for _ in range(60):
        tasks = [asyncio.create_task(all_events(database)) for _ in range(5)]
        await asyncio.sleep(chance.random() * 0.003)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await test_many_more_readers_than_connections(database)


async def test_another_program_that_writes_for_long_is_named_as_the_cause(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "BUSY_SECONDS", 0.2)
    database = await Database.open(url)
    try:
        with closing(sqlite3.connect(database.file, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(BusyError, match="Another program"):
                async with database.write() as conn:
                    await events.append(conn, event("b"))
            other.execute("ROLLBACK")
        async with database.write() as conn:
            await events.append(conn, event("a"))
        assert await all_events(database) == ["a"]
    finally:
        await database.close()


async def test_what_was_committed_survives_a_killed_writer(url: str) -> None:
    said = b""
    for seconds in (0.3, 0.05, 0.11, 0.02):
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, url, stdout=asyncio.subprocess.PIPE
        )
        assert writer.stdout is not None
        said += await writer.stdout.readline()
        await asyncio.sleep(seconds)
        writer.send_signal(signal.SIGKILL)
        said += await writer.stdout.read()
        await writer.wait()
    database = await Database.open(url)
    try:
        kept = await all_events(database)
        async with database.read() as conn:
            assert (await conn.exec_driver_sql("PRAGMA integrity_check")).scalar() == "ok"
    finally:
        await database.close()
    assert len(said.split()) >= 4
    assert {each.decode() for each in said.split() if len(each) == 26} <= set(kept)
    assert len(kept) % 2 == 0


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("torpor.db", "no URL"),
        ("postgresql://host/torpor", "not in postgresql"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:////x/torpor.db?mode=ro", "more than a file"),
    ],
)
async def test_an_address_that_cannot_be_opened_is_refused(url: str, words: str) -> None:
    with pytest.raises(UrlError, match=words) as refused:
        await Database.open(url)
    assert "sqlite:////path/of/the/file" in refused.value.todo


async def test_a_relative_file_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = await Database.open("sqlite:///here.db")
    await database.close()
    assert (tmp_path / "here.db").is_file()


async def test_a_file_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "letter"
    file.write_text("Dear reader, this is no database. " * 100)
    with pytest.raises(DamagedError, match="no database"):
        await Database.open(f"sqlite:///{file}")
    assert file.read_text().startswith("Dear reader")


async def test_a_place_where_no_file_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="File exists") as refused:
        await Database.open(f"sqlite:///{tmp_path}/file/torpor.db")
    assert str(tmp_path) in refused.value.happened


async def test_a_backup_is_one_moment_of_a_database_in_use(
    database: Database, tmp_path: Path
) -> None:
    async def write_pairs(ulids: Ulids) -> None:
        while True:
            pair = ulids.new_id()
            async with database.write() as conn:
                await events.append(conn, event(pair, data={"pair": pair}))
                await events.append(conn, event(ulids.new_id(), data={"pair": pair}))

    writing = asyncio.create_task(write_pairs(Ulids()))
    try:
        counted = []
        for number in range(3):
            await asyncio.sleep(0.1)
            await database.backup(tmp_path / "copy.db")
            assert sorted(file.name for file in tmp_path.iterdir()) == ["copy.db", "kept"]
            assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
            copy = await Database.open(f"sqlite:///{tmp_path}/copy.db")
            async with copy.read() as conn:
                pairs = [each.data["pair"] for each in await events.after(conn, None, None, 10**6)]
            await copy.close()
            assert all(pairs.count(pair) == 2 for pair in pairs[-50:])
            assert len(pairs) % 2 == 0
            counted.append(len(pairs))
            assert not writing.done(), number
        assert 0 < counted[0] < counted[1] < counted[2]
    finally:
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing


async def test_a_backup_that_cannot_be_written_says_where(
    database: Database, tmp_path: Path
) -> None:
    with pytest.raises(DiskError, match="No such file or directory") as refused:
        await database.backup(tmp_path / "nowhere" / "copy.db")
    assert "No backup was made" in refused.value.state
    (tmp_path / "old").mkdir()
    with pytest.raises(DiskError, match=r"old"):
        await database.backup(tmp_path / "old")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kept", "old"]


async def test_a_damaged_database_gives_no_backup(url: str, tmp_path: Path) -> None:
    database = await Database.open(url)
    async with database.write() as conn:
        for number in range(500):
            await events.append(conn, event(f"{number:09}", data={"x": "y" * 999}))
    await database.close()
    (tmp_path / "copy.db").write_text("the backup of yesterday")
    with (tmp_path / "kept/torpor.db").open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        # The first pages have the schema, the last ones only events.
        file.seek(size * 3 // 4)
        file.write(b"\xff" * (size // 4))
    database = await Database.open(url)
    try:
        with pytest.raises(DamagedError, match="not sound"):
            await database.backup(tmp_path / "copy.db")
    finally:
        await database.close()
    assert (tmp_path / "copy.db").read_text() == "the backup of yesterday"


async def test_samples_of_nobody_are_refused(database: Database) -> None:
    with pytest.raises(IntegrityError, match="FOREIGN KEY"):
        async with database.write() as conn:
            await samples.append(conn, [sample("nobody", at=START)])


async def test_what_a_writer_raises_itself_is_passed_on(database: Database) -> None:
    async def fail() -> None:
        async with database.write():
            raise FileNotFoundError(2, "No such file or directory", "of/the/writer")

    with pytest.raises(FileNotFoundError):
        await fail()


async def test_what_follows_an_error_that_ended_all_is_not_committed_alone(
    database: Database,
) -> None:
    async def go_on_after_it() -> None:
        async with database.write() as conn:
            await events.append(conn, event("a"))
            # As SQLite does by itself when a disk is full.
            with suppress(IntegrityError):
                await conn.exec_driver_sql(
                    "INSERT OR ROLLBACK INTO events SELECT * FROM events WHERE id = 'a'"
                )
            with suppress(OperationalError):
                await events.append(conn, event("b"))

    with pytest.raises(OperationalError, match="ended this transaction"):
        await go_on_after_it()
    async with database.write() as conn:
        await events.append(conn, event("c"))
    assert await all_events(database) == ["c"]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What connections leave to their threads from now on."""
    turns: list[object] = []
    real = driver._Connection._turn

    async def counted(self: Any, work: Callable[[], object]) -> object:
        turns.append(work)
        return await real(self, work)

    monkeypatch.setattr(driver._Connection, "_turn", counted)
    return turns


async def test_a_commit_is_the_threads_and_all_before_it_is_done_at_once(
    database: Database, turns: list[object]
) -> None:
    async with database.write() as conn:
        await sessions.insert(conn, session("one"))
        await sessions.update(conn, "id-of-one", generation=1)
        await events.append(conn, event("a"))
        assert turns == []
    assert len(turns) == 1
    assert await all_events(database) == ["a"]  # the first of this connection, which is opened
    turns.clear()
    async with database.read() as conn:
        assert await sessions.get(conn, "id-of-one") is not None

    async def fail() -> None:
        async with database.write() as conn:
            await events.append(conn, event("b"))
            await sessions.update(conn, "nobody", generation=1)

    with pytest.raises(KeyError):
        await fail()
    assert turns == []
    assert await all_events(database) == ["a"]


LONG = """SELECT (WITH RECURSIVE numbers(n) AS (
    SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000000
) SELECT sum(n) FROM numbers)"""


async def test_others_go_on_while_a_query_takes_long(
    database: Database, turns: list[object]
) -> None:
    async with database.read() as conn:
        await conn.exec_driver_sql("SELECT 1")
        turns.clear()
        asking = asyncio.create_task(_asked(conn, LONG))
        looks = 0
        while not asking.done():
            await asyncio.sleep(0.001)
            looks += 1
        assert await asking == 500000500000
    assert len(turns) == 1
    assert looks > 3


async def test_a_query_that_takes_long_leaves_the_transaction_around_it_whole(
    database: Database,
) -> None:
    async with database.write() as conn:
        await events.append(conn, event("a"))
        assert await _asked(conn, LONG) == 500000500000
        await events.append(conn, event("b"))
    assert await all_events(database) == ["a", "b"]


async def _asked(conn: AsyncConnection, query: str) -> object:
    return (await conn.exec_driver_sql(query)).scalar()


async def test_others_go_on_while_another_program_is_writing(database: Database) -> None:
    async def write() -> None:
        async with database.write() as conn:
            await events.append(conn, event("a"))

    with closing(sqlite3.connect(database.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(write())
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not writing.done()
        other.execute("ROLLBACK")
    await writing
    assert await all_events(database) == ["a"]


def test_a_program_that_ends_in_a_hurry_ends_well(url: str) -> None:
    command = [sys.executable, "-c", HURRIED, url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


async def test_an_opening_that_is_cancelled_leaves_nothing_open(url: str) -> None:
    threads = set(threading.enumerate())
    for turns in range(30):
        opening = asyncio.create_task(Database.open(url))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await (await opening).close()
    for thread in set(threading.enumerate()) - threads:
        await asyncio.to_thread(thread.join, 10)
    left = {str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
    assert not [file for file in left if "torpor.db" in file]
