"""Transfers: what was acknowledged is kept, what is wrong is refused, and nothing is done twice."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.conftest import ANN, Service
from tests.sessions.filing import FilingHost
from tests.waiting import eventually
from torpor.sessions import (
    ConflictError,
    InvalidError,
    Key,
    NewTransfer,
    NotFoundError,
    Progress,
    TooLargeError,
    Transfers,
    carrying,
    receiving,
    staging,
    transfers,
)
from torpor.sessions.errors import NoSpaceError
from torpor.sessions.model import now
from torpor.store.records import Session, Status, Transfer
from torpor.vm import ChannelLostError

SIZE = 4 << 10
"""Bytes of a part here."""


class Filed(Service):
    """A service on a host with files, with small parts."""

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root, url)
        self.host: FilingHost = FilingHost(root / "world")  # type: ignore[assignment]

    @property
    def transfers(self) -> Transfers:
        return self.sessions.transfers

    async def restart(self) -> None:
        """Stop it and start the next one, as fast as can be."""
        await self.again(FilingHost(self.root / "world"))

    def staged(self) -> list[str]:
        """Return the transfers of which there is something on the server's disk."""
        return sorted(each.name for each in (self.root / "transfers").glob("*"))

    def files(self, session: Session) -> dict[str, bytes]:
        """Return what there is in a session's workspace."""
        root = self.host.home(session.id) / "workspace"
        return {
            str(each.relative_to(root)): each.read_bytes()
            for each in root.rglob("*")
            if each.is_file()
        }

    async def upload(self, session: Session, path: str = "a", **more: Any) -> Transfer:
        """Begin an upload."""
        new = NewTransfer("upload", b"/workspace/" + path.encode(), **more)
        return await self.transfers.create(session.id, ANN, new)

    async def put(self, transfer: Transfer, number: int, data: bytes) -> None:
        """Upload a part."""
        await self.transfers.parts.put(
            transfer.session, transfer.id, number, len(data), pieces(data)
        )

    async def put_all(self, transfer: Transfer, data: bytes) -> None:
        """Upload all parts."""
        for number, start in enumerate(range(0, len(data), SIZE), 1):
            await self.put(transfer, number, data[start : start + SIZE])

    async def sent(self, session: Session, data: bytes, path: str = "a", **more: Any) -> Transfer:
        """Upload all of something, and commit it."""
        transfer = await self.upload(session, path, size=len(data), **more)
        await self.put_all(transfer, data)
        return await self.transfers.commit(session.id, transfer.id, ANN)

    async def ended(self, transfer: Transfer) -> Progress:
        """Return a transfer once it has ended."""
        return await eventually(
            lambda: self.transfers.get(transfer.session, transfer.id),
            lambda found: found.transfer.status in ("completed", "failed"),
        )

    async def completed(self, transfer: Transfer) -> Transfer:
        """Return a transfer once it is completed."""
        ended = (await self.ended(transfer)).transfer
        assert ended.status == "completed", ended.error
        return ended

    async def fetched(self, progress: Progress) -> bytes:
        """Return what a download has brought."""
        assert progress.fetchable
        found = progress.transfer
        read = [each async for each in self.transfers.payload(found, 0, found.size or 0)]
        return b"".join(read)


async def pieces(data: bytes, wait: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    yield data[: len(data) // 2]
    if wait is not None:
        await wait.wait()
    yield data[len(data) // 2 :]


async def breaking(data: bytes) -> AsyncIterator[bytes]:
    yield data
    raise ConnectionResetError


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "part_size_for", lambda size: SIZE)


@pytest.fixture
async def filed(tmp_path: Path, database_url: str) -> AsyncIterator[Filed]:
    opened = Filed(tmp_path, database_url)
    await opened.open()
    yield opened
    await opened.close()


DATA = os.urandom(2 * SIZE + 100)


async def test_what_is_uploaded_in_parts_is_a_file_in_the_end(filed: Filed) -> None:
    one = await filed.ready()
    transfer = await filed.upload(one, "d/ä", size=len(DATA), sha256=sha256(DATA))
    assert (transfer.status, transfer.part_size) == ("pending", SIZE)
    await filed.put(transfer, 3, DATA[2 * SIZE :])
    await filed.put(transfer, 1, DATA[:SIZE])
    assert (await filed.transfers.get(one.id, transfer.id)).received == [1, 3]
    await filed.put(transfer, 2, DATA[SIZE : 2 * SIZE])
    committed = await filed.transfers.commit(one.id, transfer.id, ANN)
    assert (committed.status, committed.size) == ("in_progress", len(DATA))
    done = await filed.completed(transfer)
    assert (done.done_bytes, done.sha256) == (len(DATA), sha256(DATA))
    assert filed.files(one) == {"d/ä": DATA}
    await eventually(lambda: _async(filed.staged()), lambda left: left == [])
    assert (await filed.types(one))[-3:] == [
        "transfer.created", "transfer.committed", "transfer.completed",
    ]  # fmt: skip


async def _async(value: Any) -> Any:
    return value


@pytest.mark.parametrize("size", [0, 1, SIZE, SIZE + 1])
async def test_all_sizes(filed: Filed, size: int) -> None:
    one = await filed.ready()
    done = await filed.completed(await filed.sent(one, DATA[:size]))
    assert (done.size, done.sha256) == (size, sha256(DATA[:size]))
    assert filed.files(one) == {"a": DATA[:size]}


async def test_the_size_need_not_be_known(filed: Filed) -> None:
    one = await filed.ready()
    transfer = await filed.upload(one)
    await filed.put_all(transfer, DATA)
    await filed.transfers.commit(one.id, transfer.id, ANN, sha256(DATA))
    assert (await filed.completed(transfer)).size == len(DATA)
    assert filed.files(one) == {"a": DATA}


async def test_a_part_that_is_sent_again_takes_the_place_of_the_first(filed: Filed) -> None:
    one = await filed.ready()
    transfer = await filed.upload(one, size=len(DATA))
    await filed.put_all(transfer, DATA)
    await filed.put(transfer, 2, bytes(SIZE))
    assert len(list((filed.root / "transfers" / transfer.id).iterdir())) == 3
    await filed.put(transfer, 2, DATA[SIZE : 2 * SIZE])
    await filed.put(transfer, 2, DATA[SIZE : 2 * SIZE])
    await filed.transfers.commit(one.id, transfer.id, ANN, sha256(DATA))
    await filed.completed(transfer)
    assert filed.files(one) == {"a": DATA}


async def test_of_a_part_that_breaks_off_nothing_is_kept_and_the_one_before_is(
    filed: Filed,
) -> None:
    one = await filed.ready()
    transfer = await filed.upload(one, size=2 * SIZE)
    await filed.put(transfer, 1, DATA[:SIZE])
    for number in (1, 2):
        with pytest.raises(ConnectionResetError):
            await filed.transfers.parts.put(one.id, transfer.id, number, SIZE, breaking(bytes(100)))
    assert (await filed.transfers.get(one.id, transfer.id)).received == [1]
    kept = list((filed.root / "transfers" / transfer.id).iterdir())
    assert [each.read_bytes() for each in kept] == [DATA[:SIZE]]


async def test_parts_of_a_wrong_length_or_number_are_refused(filed: Filed) -> None:
    one = await filed.ready()
    transfer = await filed.upload(one, size=SIZE + 10)
    put = filed.transfers.parts.put
    for number, length in ((1, SIZE - 1), (1, SIZE + 1), (2, SIZE), (0, SIZE), (3, 1)):
        with pytest.raises(InvalidError):
            await filed.put(transfer, number, bytes(length))
    for data in (bytes(9), bytes(11), bytes(3 * SIZE)):  # not what was announced
        with pytest.raises(InvalidError, match="another number came"):
            await put(one.id, transfer.id, 2, 10, pieces(data))
    with pytest.raises(NotFoundError):
        await put(one.id, "x", 1, 10, pieces(bytes(10)))
    other = await filed.ready("two")
    with pytest.raises(NotFoundError):
        await put(other.id, transfer.id, 2, 10, pieces(bytes(10)))
    assert (await filed.transfers.get(one.id, transfer.id)).received == []
    assert list((filed.root / "transfers" / transfer.id).iterdir()) == []


async def test_one_part_is_received_once_at_a_time(filed: Filed) -> None:
    one = await filed.ready()
    transfer = await filed.upload(one, size=2 * SIZE)
    wait = asyncio.Event()
    put = filed.transfers.parts.put
    first = asyncio.ensure_future(put(one.id, transfer.id, 1, SIZE, pieces(DATA[:SIZE], wait)))
    await asyncio.sleep(0.05)
    with pytest.raises(ConflictError, match="being received already"):
        await filed.put(transfer, 1, bytes(SIZE))
    await filed.put(transfer, 2, DATA[SIZE : 2 * SIZE])
    wait.set()
    await first
    await filed.transfers.commit(one.id, transfer.id, ANN, sha256(DATA[: 2 * SIZE]))
    await filed.completed(transfer)


async def test_what_is_not_complete_is_not_committed(filed: Filed) -> None:
    one = await filed.ready()
    transfer = await filed.upload(one, size=len(DATA))
    await filed.put(transfer, 2, DATA[SIZE : 2 * SIZE])
    with pytest.raises(ConflictError) as refused:
        await filed.transfers.commit(one.id, transfer.id, ANN)
    assert (refused.value.code, refused.value.facts) == ("parts_missing", {"missing": [1, 3]})
    await filed.put(transfer, 1, DATA[:SIZE])
    await filed.put(transfer, 3, DATA[2 * SIZE :])
    await filed.transfers.commit(one.id, transfer.id, ANN)
    await filed.completed(transfer)


async def test_another_hash_than_was_announced_is_refused_and_it_stays_pending(
    filed: Filed,
) -> None:
    one = await filed.ready()
    transfer = await filed.upload(one, size=1, sha256=sha256(b"x"))
    await filed.put(transfer, 1, b"x")
    with pytest.raises(InvalidError, match="is committed with"):
        await filed.transfers.commit(one.id, transfer.id, ANN, sha256(b"y"))
    assert (await filed.transfers.get(one.id, transfer.id)).transfer.status == "pending"
    await filed.transfers.commit(one.id, transfer.id, ANN, sha256(b"x"))
    await filed.completed(transfer)
    with pytest.raises(InvalidError):
        await filed.transfers.commit(one.id, transfer.id, ANN, sha256(b"y"))


async def test_what_does_not_have_its_hash_is_not_put_in_place(filed: Filed) -> None:
    one = await filed.ready()
    await filed.completed(await filed.sent(one, b"old"))
    transfer = await filed.sent(one, DATA, sha256=sha256(b"else"))
    ended = (await filed.ended(transfer)).transfer
    assert ended.status == "failed"
    assert sha256(DATA) in (ended.error or "")
    assert filed.files(one) == {"a": b"old"}
    await eventually(lambda: _async(filed.staged()), lambda left: left == [])
    assert (await filed.types(one))[-1] == "transfer.failed"
    with pytest.raises(ConflictError, match="has failed"):
        await filed.transfers.commit(one.id, transfer.id, ANN)
    with pytest.raises(ConflictError, match="has failed"):
        await filed.put(transfer, 1, DATA[:SIZE])


async def test_a_part_that_the_disk_has_damaged_is_not_put_in_place(filed: Filed) -> None:
    one = await filed.ready()
    transfer = await filed.upload(one, size=SIZE)
    await filed.put(transfer, 1, DATA[:SIZE])
    (kept,) = (filed.root / "transfers" / transfer.id).iterdir()
    kept.write_bytes(bytes(SIZE))
    await filed.transfers.commit(one.id, transfer.id, ANN)
    ended = (await filed.ended(transfer)).transfer
    assert "Part 1 is not as it was received" in (ended.error or "")
    assert filed.files(one) == {}


async def test_committed_twice_it_is_done_once(filed: Filed) -> None:
    one = await filed.ready()
    transfer = await filed.upload(one, size=SIZE)
    await filed.put(transfer, 1, DATA[:SIZE])
    commit = filed.transfers.commit
    both = await asyncio.gather(*(commit(one.id, transfer.id, ANN) for _ in range(5)))
    assert {each.status for each in both} <= {"in_progress", "completed"}
    done = await filed.completed(transfer)
    assert await commit(one.id, transfer.id, ANN, sha256(DATA[:SIZE])) == done
    assert filed.host.written == [b"/workspace/a"]
    assert (await filed.types(one)).count("transfer.committed") == 1


async def test_a_transfer_that_is_cancelled_leaves_nothing(filed: Filed) -> None:
    one = await filed.ready()
    transfer = await filed.upload(one, size=2 * SIZE)
    await filed.put(transfer, 1, DATA[:SIZE])
    wait = asyncio.Event()
    put = filed.transfers.parts.put(one.id, transfer.id, 2, SIZE, pieces(DATA[:SIZE], wait))
    late = asyncio.ensure_future(put)
    await asyncio.sleep(0.05)
    ended, aborted = await filed.transfers.cancel(one.id, transfer.id, ANN, "client_error")
    assert (aborted, ended.status, ended.error) == (
        True, "failed", "It was cancelled: client_error",
    )  # fmt: skip
    again, aborted = await filed.transfers.cancel(one.id, transfer.id, ANN)
    assert (again, aborted) == (ended, False)
    wait.set()
    with pytest.raises(ConflictError, match="has failed"):
        await late
    await filed.transfers.tidy()
    assert filed.staged() == []
    assert (await filed.types(one))[-1] == "transfer.cancelled"


async def test_what_is_cancelled_while_it_is_put_in_place_is_not(filed: Filed) -> None:
    one = await filed.ready()
    await filed.completed(await filed.sent(one, b"old"))
    filed.host.step = 0.02
    transfer = await filed.sent(one, DATA)
    await eventually(
        lambda: filed.transfers.get(one.id, transfer.id),
        lambda found: found.transfer.done_bytes > 0,
    )
    _, aborted = await filed.transfers.cancel(one.id, transfer.id, ANN)
    assert aborted
    assert filed.files(one) == {"a": b"old"}  # nor is there anything beside it


async def test_what_was_completed_is_not_cancelled(filed: Filed) -> None:
    one = await filed.ready()
    done = await filed.completed(await filed.sent(one, DATA))
    found, aborted = await filed.transfers.cancel(one.id, done.id, ANN)
    assert (found, aborted) == (done, False)


async def test_a_paused_session_is_woken(filed: Filed) -> None:
    one = await filed.ready()
    await filed.sessions.pause(one.id, ANN)
    transfer = await filed.upload(one, size=len(DATA))
    await filed.put_all(transfer, DATA)
    assert (await filed.get(one)).status is Status.PAUSED  # nothing is needed of it so far
    await filed.transfers.commit(one.id, transfer.id, ANN)
    await filed.completed(transfer)
    assert filed.files(one) == {"a": DATA}


async def test_a_pause_in_the_middle_has_it_begun_anew(filed: Filed) -> None:
    one = await filed.ready()
    filed.host.step = 0.02
    transfer = await filed.sent(one, DATA)
    await eventually(
        lambda: filed.transfers.get(one.id, transfer.id),
        lambda found: found.transfer.done_bytes > 0,
    )
    await filed.sessions.pause(one.id, ANN)
    await filed.completed(transfer)
    assert filed.files(one) == {"a": DATA}
    assert "session.resumed" in await filed.types(one)


async def test_it_is_not_begun_anew_for_ever(filed: Filed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torpor.sessions.carrying.MOMENT", 0.01)
    one = await filed.ready()
    tried = []

    async def lost(*_: Any, **__: Any) -> int:
        tried.append(1)
        raise ChannelLostError("It was lost.")

    monkeypatch.setattr("tests.sessions.filing.Filing.write", lost)
    ended = (await filed.ended(await filed.sent(one, DATA))).transfer
    assert (ended.status, ended.error) == ("failed", "It was lost.")
    assert len(tried) == 5


async def test_what_the_machine_refuses_is_told(filed: Filed) -> None:
    one = await filed.ready()
    await filed.completed(await filed.sent(one, b"x", "d/e"))
    ended = (await filed.ended(await filed.sent(one, DATA, "d"))).transfer
    assert (ended.status, ended.error) == ("failed", "it is a directory (EISDIR)")
    assert filed.files(one) == {"d/e": b"x"}


async def test_what_nobody_foresaw_is_an_end_too(
    filed: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("tests.sessions.filing.Filing.write", broken)
    one = await filed.ready()
    ended = (await filed.ended(await filed.sent(one, DATA))).transfer
    assert ended.error == "It failed on the server's side; the log says why."


# Downloads


async def test_a_file_is_made_ready_to_be_fetched(filed: Filed) -> None:
    one = await filed.ready()
    await filed.completed(await filed.sent(one, DATA))
    await filed.sessions.pause(one.id, ANN)
    new = NewTransfer("download", b"/workspace/a")
    transfer = await filed.transfers.create(one.id, ANN, new)
    assert (transfer.status, transfer.part_size) == ("in_progress", None)
    ended = await filed.ended(transfer)
    assert (ended.transfer.size, ended.transfer.sha256) == (len(DATA), sha256(DATA))
    assert await filed.fetched(ended) == DATA
    found = filed.root / "transfers" / transfer.id / "payload"
    assert found.stat().st_mode & 0o777 == 0o600
    assert found.parent.stat().st_mode & 0o777 == 0o700
    assert found.parent.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(InvalidError, match="is a download"):
        await filed.transfers.commit(one.id, transfer.id, ANN)
    with pytest.raises(ConflictError, match="takes no parts"):
        await filed.put(transfer, 1, DATA)


async def test_what_is_not_there_or_is_no_file_cannot_be_fetched(filed: Filed) -> None:
    one = await filed.ready()
    await filed.completed(await filed.sent(one, DATA, "d/a"))
    for path, why in ((b"x", "there is no /workspace/x"), (b"d", "is no file, but a directory")):
        new = NewTransfer("download", b"/workspace/" + path)
        ended = await filed.ended(await filed.transfers.create(one.id, ANN, new))
        assert ended.transfer.status == "failed"
        assert why in (ended.transfer.error or "")
    assert filed.staged() == []


async def test_more_than_the_disk_has_room_for_is_not_fetched(
    filed: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await filed.ready()
    await filed.completed(await filed.sent(one, DATA))
    free = staging.RESERVE + len(DATA) - 1
    monkeypatch.setattr(staging, "free_bytes", lambda _: free)
    new = NewTransfer("download", b"/workspace/a")
    ended = await filed.ended(await filed.transfers.create(one.id, ANN, new))
    assert f"has room for {len(DATA) - 1}" in (ended.transfer.error or "")


# Bounds


async def test_a_transfer_that_is_too_large_is_refused_at_once(
    filed: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "free_bytes", lambda _: 1 << 40)
    one = await filed.ready()
    await filed.upload(one, size=50 << 30)
    with pytest.raises(TooLargeError, match=str(50 << 30)):
        await filed.upload(one, size=(50 << 30) + 1)


async def test_what_the_disk_cannot_take_is_refused_with_what_others_were_promised(
    filed: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await filed.ready()
    monkeypatch.setattr(staging, "free_bytes", lambda _: staging.RESERVE + 1000)
    await filed.upload(one, size=300)  # 600 of the disk
    with pytest.raises(NoSpaceError) as refused:
        await filed.upload(one, size=201)
    assert refused.value.facts == {"needed": 402, "free": 400}
    await filed.upload(one, size=200)


async def test_there_may_be_many_and_not_any_number_of_them(
    filed: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "MOST_OPEN", 2)
    one, two = await filed.ready(), await filed.ready("two")
    first = await filed.upload(one)
    await filed.upload(one)
    with pytest.raises(ConflictError) as refused:
        await filed.upload(one)
    assert refused.value.code == "limit_reached"
    await filed.upload(two)
    await filed.transfers.cancel(one.id, first.id, ANN)
    await filed.upload(one)


async def test_a_disk_that_fills_up_refuses_before_it_is_full(
    filed: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "LOOK_EVERY", 100)
    monkeypatch.setattr(staging, "PIECE", 100)
    one = await filed.ready()
    transfer = await filed.upload(one, size=SIZE)
    monkeypatch.setattr(staging, "free_bytes", lambda _: staging.RESERVE - 1)
    with pytest.raises(OSError, match="No space"):
        await filed.put(transfer, 1, DATA[:SIZE])
    assert list((filed.root / "transfers" / transfer.id).iterdir()) == []


async def test_a_key_begins_one_transfer(filed: Filed) -> None:
    one = await filed.ready()
    new, key = NewTransfer("upload", b"/workspace/a", size=3), Key("k", "d")
    create = filed.transfers.create
    both = await asyncio.gather(*(create(one.id, ANN, new, key) for _ in range(3)))
    await filed.restart()
    assert {each.id for each in both} == {(await filed.transfers.create(one.id, ANN, new, key)).id}
    with pytest.raises(ConflictError, match="another request"):
        await filed.transfers.create(one.id, ANN, new, Key("k", "e"))


async def test_there_is_none_for_a_session_that_is_gone_or_has_failed(filed: Filed) -> None:
    one, two = await filed.ready(), await filed.ready("two")
    await filed.sessions.destroy(one.id, ANN)
    with pytest.raises(NotFoundError):
        await filed.upload(one)
    with pytest.raises(NotFoundError):
        await filed.transfers.create("x", ANN, NewTransfer("upload", b"/workspace/a"))
    filed.host.die(filed.machine(two))
    await filed.status(two, Status.FAILED)
    with pytest.raises(ConflictError, match="has failed"):
        await filed.upload(two)


# Time


async def test_what_stands_still_expires_and_a_part_is_a_sign_of_life(
    filed: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = timedelta()
    for module in (transfers, receiving, carrying):
        monkeypatch.setattr(module, "now", lambda: now() + passed)
    one = await filed.ready()
    still, moves = await filed.upload(one), await filed.upload(one, "b", size=2 * SIZE)
    await filed.put(still, 1, DATA[:SIZE])
    done = await filed.completed(await filed.sent(one, DATA, "c"))
    new = NewTransfer("download", b"/workspace/c")
    fetched = await filed.ended(await filed.transfers.create(one.id, ANN, new))
    passed = timedelta(hours=23)
    await filed.put(moves, 1, DATA[:SIZE])
    await filed.transfers.tidy()
    assert (await filed.transfers.get(one.id, still.id)).received == [1]
    assert filed.staged() == sorted([still.id, moves.id, fetched.transfer.id])
    passed = timedelta(hours=25)
    await filed.transfers.tidy()
    ended = await filed.transfers.get(one.id, still.id)
    assert (ended.transfer.status, ended.transfer.error) == ("failed", receiving.EXPIRED)
    assert filed.staged() == [moves.id]
    found = await filed.transfers.get(one.id, fetched.transfer.id)
    assert (found.transfer.status, found.fetchable) == ("completed", False)
    assert (await filed.transfers.get(one.id, done.id)).transfer.status == "completed"
    passed = timedelta(hours=48)
    with pytest.raises(ConflictError, match="expired"):  # before anybody has tidied up
        await filed.transfers.commit(one.id, moves.id, ANN)
    passed = timedelta(days=20)
    await filed.transfers.tidy()
    with pytest.raises(NotFoundError):
        await filed.transfers.get(one.id, still.id)


async def test_what_a_destroyed_session_had_is_removed(filed: Filed) -> None:
    one = await filed.ready()
    done = await filed.completed(await filed.sent(one, DATA))
    new = NewTransfer("download", b"/workspace/a")
    fetched = await filed.ended(await filed.transfers.create(one.id, ANN, new))
    filed.host.step = 0.02
    pending = await filed.upload(one, "b", size=2 * SIZE)
    await filed.put(pending, 1, DATA[:SIZE])
    moving = await filed.sent(one, DATA, "c")
    await filed.sessions.destroy(one.id, ANN)
    assert filed.staged() == []
    for each in (pending, moving):
        found = (await filed.transfers.get(one.id, each.id)).transfer
        assert found.status == "failed"
        assert "destroyed" in (found.error or "")
    assert (await filed.transfers.get(one.id, done.id)).transfer.status == "completed"
    assert not (await filed.transfers.get(one.id, fetched.transfer.id)).fetchable


# Restarts


async def test_a_new_server_goes_on_where_the_last_one_was(filed: Filed) -> None:
    one = await filed.ready()
    await filed.completed(await filed.sent(one, b"c", "c"))
    filed.host.step = 0.05
    pending = await filed.upload(one, size=2 * SIZE)
    await filed.put(pending, 1, DATA[:SIZE])
    moving = await filed.sent(one, DATA, "b")
    new = NewTransfer("download", b"/workspace/c")
    fetching = await filed.transfers.create(one.id, ANN, new)
    (filed.root / "transfers" / pending.id / ".beginning").write_bytes(b"x")
    (filed.root / "transfers" / pending.id / "2-of-no-row").write_bytes(b"x")
    (filed.root / "transfers" / "nobody").mkdir()
    await filed.restart()
    assert (await filed.transfers.get(one.id, pending.id)).received == [1]
    assert len(list((filed.root / "transfers" / pending.id).iterdir())) == 1
    await filed.put(pending, 2, DATA[SIZE : 2 * SIZE])
    await filed.transfers.commit(one.id, pending.id, ANN, sha256(DATA[: 2 * SIZE]))
    for each in (pending, moving, fetching):
        await filed.completed(each)
    assert await filed.fetched(await filed.ended(fetching)) == b"c"
    assert filed.files(one) == {"a": DATA[: 2 * SIZE], "b": DATA, "c": b"c"}
    await eventually(lambda: _async(filed.staged()), lambda left: left == [fetching.id])


async def test_an_upload_whose_parts_are_gone_says_so(filed: Filed) -> None:
    one = await filed.ready()
    lost, empty = await filed.upload(one, size=2 * SIZE), await filed.upload(one, "b", size=SIZE)
    await filed.put(lost, 1, DATA[:SIZE])
    (kept,) = (filed.root / "transfers" / lost.id).iterdir()
    kept.unlink()
    await filed.restart()
    found = (await filed.transfers.get(one.id, lost.id)).transfer
    assert found.error == "What had been received of it is not there any more."
    await filed.put(empty, 1, DATA[:SIZE])


async def test_many_small_files_at_once(filed: Filed) -> None:
    one = await filed.ready()
    files = {f"d/{number}": b"%d" % number * (number % 40) for number in range(100)}
    sent = await asyncio.gather(*(filed.sent(one, data, path) for path, data in files.items()))
    for transfer in sent:
        await filed.completed(transfer)
    assert filed.files(one) == files
    await eventually(lambda: _async(filed.staged()), lambda left: left == [])
