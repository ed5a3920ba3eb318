"""A backup that is restored elsewhere is what it was a backup of."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backup.conftest import SETTINGS, Home, make_home
from tests.postgres import Cluster
from tests.vm.real_snapshots import allocated
from torpor.backup import BackupError, Restored, restore, staging, verify
from torpor.images.names import Names
from torpor.store import Database, bearer, events, hosts, operations, sessions, tokens
from torpor.store.records import Status
from torpor.vm.base import count_and_digest
from torpor.vm.home import host_id
from torpor.vm.store import Store


def restored(file: Path, home: Home) -> Restored:
    """Restore a backup into a home."""
    with open(file, "rb") as source:
        return asyncio.run(restore(source, home.root, home.url))


def digest(file: Path) -> str:
    with open(file, "rb", buffering=0) as opened:
        return count_and_digest(opened.fileno())[1]


@pytest.fixture(scope="module")
def elsewhere(
    made_home: Home,
    backup: Path,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Home]:
    """Another home, with its database in the same kind of place."""
    with contextlib.ExitStack() as stack:
        server = ""
        if made_home.server:
            server = stack.enter_context(request.getfixturevalue("cluster").migrated())
        home = Home(tmp_path_factory.mktemp("elsewhere") / "home", server)
        restored(backup, home)
        yield home


def test_it_says_what_is_in_it_and_what_becomes_of_each_session(backup: Path) -> None:
    with open(backup, "rb") as source:
        about, summary = verify(source)
    assert about.settings == SETTINGS
    assert summary.complete
    assert {each.name: each.becomes for each in summary.sessions} == {
        "paused": "paused",
        "running": "paused",
        "never-saved": "failed",
        "failed": "failed",
        "new": "created",
        "child": "created",
        "ending": "destroyed",
    }
    assert set(summary.snapshots) == {"s-paused", "s-older", "s-running", "s-forked"}
    assert summary.images == ("own", "same")
    by_name = {each.name: each for each in summary.sessions}
    assert by_name["running"].saved_at is not None
    assert "no snapshot" in by_name["never-saved"].why


def test_what_snapshots_share_is_in_it_once(made_home: Home, backup: Path) -> None:
    """Two bases of 5 MiB of noise each in four snapshots, whose own is 1.2 MiB each; and an image
    whose disk they have."""
    assert 14 << 20 < backup.stat().st_size < 17 << 20


def test_snapshots_arrive_whole_and_durable(made_home: Home, elsewhere: Home) -> None:
    old, new = Store(made_home.root), Store(elsewhere.root)
    assert set(new.ids()) == {"s-paused", "s-older", "s-running", "s-forked"}
    for snapshot in new.ids():
        new.verify(snapshot)
        assert new.durable(snapshot)
        was, arrived = old.manifest(snapshot), new.manifest(snapshot)
        assert (arrived.labels, arrived.parent) == (was.labels, was.parent)
        assert digest(new.base(arrived.memory.base)) == digest(old.base(was.memory.base))
    bases = list((elsewhere.root / "bases").iterdir())
    assert len(bases) == 2, "what they shared they share again"
    assert all(allocated(base) < 8 << 20 for base in bases), "holes are holes again"


def test_sessions_come_back_paused_at_what_was_saved(made_home: Home, elsewhere: Home) -> None:
    before, after = made_home.sessions(), elsewhere.sessions()
    assert before.keys() == after.keys()
    paused = after["paused"]
    assert paused.status is Status.PAUSED
    for field in ("id", "labels", "metadata", "env", "snapshot", "generation", "pause_reason"):
        assert getattr(paused, field) == getattr(before["paused"], field), field
    assert after["running"].status is Status.PAUSED
    assert (after["running"].machine, after["running"].snapshot) == (None, "s-running")
    assert after["running"].pause_reason == "restored"
    assert after["never-saved"].status is Status.FAILED
    assert "no snapshot" in (after["never-saved"].failure or "")
    assert after["child"].snapshot == "s-forked", "its start is begun anew"


def test_the_database_names_no_snapshot_that_did_not_come(elsewhere: Home) -> None:
    rows = elsewhere.snapshots()
    assert set(rows) == {"s-paused", "s-older", "s-running", "s-forked"}
    assert all(row.durable for row in rows.values())
    assert rows["s-older"].checkpoint == "cp_older"


def test_named_images_arrive(made_home: Home, elsewhere: Home) -> None:
    for name in ("own", "same"):
        old, new = Names(made_home.root).image(name), Names(elsewhere.root).image(name)
        assert digest(new.root) == digest(old.root)
        assert Names(elsewhere.root).record(name) == Names(made_home.root).record(name)
    shared = Names(elsewhere.root).image("same").root.stat()
    assert shared.st_nlink > 1, "its disk is the one that snapshots have"


def test_there_is_a_token_for_an_admin_and_the_old_ones_hold(elsewhere: Home) -> None:
    text = (elsewhere.root / "admin-token").read_text().strip()
    assert (elsewhere.root / "admin-token").stat().st_mode & 0o777 == 0o600
    identity, secret = bearer.parse(text) or ("", "")
    known = {each.id: each for each in elsewhere.read(tokens.all)}
    assert bearer.matches(secret, known[identity].sha256)
    assert known[identity].role == "admin"
    assert "t1" in known


def test_the_restore_is_told_in_events(elsewhere: Home) -> None:
    found = elsewhere.read(lambda conn: events.after(conn, None, None, 100))
    assert [each.type for each in found].count("session.restored") == 4
    assert found[-1].type == "server.restored"
    assert len(elsewhere.read(operations.unfinished)) == 1, "what was cut off is the start's to say"


def test_nothing_else_is_left(elsewhere: Home) -> None:
    found = {each.name for each in elsewhere.root.iterdir()}
    files = {"admin-token", "bases", "host.lock", "images", "layers", "snapshots"}
    assert found == files if elsewhere.server else files | {"database"}
    assert elsewhere.root.stat().st_mode & 0o777 == 0o700


def test_a_backup_of_what_was_restored_has_the_same_in_it(
    backup: Path, elsewhere: Home, tmp_path: Path
) -> None:
    again = elsewhere.back_up(tmp_path / "again")
    with open(backup, "rb") as source:
        first = verify(source)[1]
    assert set(again.snapshots) == set(first.snapshots)
    assert again.images == first.images


def test_a_damaged_snapshot_is_left_out_and_told_and_its_session_fails(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    devices = home.root / "snapshots" / "s-paused" / "devices"
    devices.write_bytes(devices.read_bytes()[:-1] + b"?")
    summary = home.back_up(tmp_path / "file")
    assert [(each.what, each.name) for each in summary.missing] == [("snapshot", "s-paused")]
    other = Home(tmp_path / "other")
    restored(tmp_path / "file", other)
    found = other.sessions()["paused"]
    assert found.status is Status.FAILED
    assert "is not in the backup" in (found.failure or "")
    assert "s-older" in other.snapshots(), "what it can be recovered from is there"
    assert other.sessions()["running"].status is Status.PAUSED


def test_a_home_without_a_database_is_nothing_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="no database"):
        Home(tmp_path).back_up(tmp_path / "file")


def test_the_database_may_be_elsewhere(backup: Path, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with open(backup, "rb") as source:
        asyncio.run(restore(source, home.root, f"sqlite:///{tmp_path}/disk/t.db"))
    assert (tmp_path / "disk" / "t.db").exists()
    assert not home.database.exists()


def test_a_database_of_postgresql_is_saved_and_restored_as_a_file_is(
    backup: Path, cluster: Cluster, tmp_path: Path
) -> None:
    with cluster.migrated() as first, cluster.migrated() as second:
        home = make_home(tmp_path / "home", first)
        summary = home.back_up(tmp_path / "file")
        with open(backup, "rb") as source:
            assert summary == verify(source)[1]
        there = Home(tmp_path / "there", second)
        restored(tmp_path / "file", there)
        assert not there.database.exists()
        as_file = Home(tmp_path / "as file")
        restored(tmp_path / "file", as_file)
        assert there.snapshots() == as_file.snapshots()
        stand = [
            {name: (each.id, each.status, each.snapshot) for name, each in home.sessions().items()}
            for home in (there, as_file)
        ]
        assert stand[0] == stand[1]
        assert len(stand[0]) == 7
        with pytest.raises(BackupError, match=r"is not empty.*the database postgresql://"):
            restored(tmp_path / "file", Home(tmp_path / "new", second))


def test_a_restore_into_postgresql_that_was_cut_off_at_its_last_step_is_finished(
    backup: Path, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the database is filled, and after it."""
    real = staging.copy

    async def killed_before(source: str, target: str) -> int:
        raise KeyboardInterrupt

    async def killed_after(source: str, target: str) -> int:
        await real(source, target)
        raise KeyboardInterrupt

    for killed in (killed_before, killed_after):
        with cluster.migrated() as url:
            home = Home(tmp_path / killed.__name__, url)
            monkeypatch.setattr(staging, "copy", killed)
            with pytest.raises(KeyboardInterrupt):
                restored(backup, home)
            monkeypatch.undo()
            assert restored(backup, home).earlier
            assert home.sessions()["paused"].status is Status.PAUSED
            assert not (home.root / "restoring").exists()


def test_what_is_restored_belongs_to_no_host(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")

    async def held(host: str) -> None:
        database = await Database.open(home.url)
        async with database.write() as conn:
            await hosts.adopt(conn, host)
            await hosts.take(conn, hosts.Claim(host, "there", None, "1", "place", "server"), 60)
        await database.close()

    asyncio.run(held(host_id(home.root)))
    home.back_up(tmp_path / "file")
    with open(tmp_path / "file", "rb") as source:
        assert set(verify(source)[1].snapshots) == {"s-paused", "s-older", "s-running", "s-forked"}
    there = Home(tmp_path / "there")
    restored(tmp_path / "file", there)
    assert {each.host for each in there.sessions().values()} == {None}
    assert there.read(hosts.all) == []


def test_what_is_on_another_host_is_told_and_not_in_it(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")

    async def move() -> None:
        database = await Database.open(home.url)
        async with database.write() as conn:
            await hosts.adopt(conn, host_id(home.root))
            await sessions.update(conn, "id-of-running", host="another")
        await database.close()

    asyncio.run(move())
    summary = home.back_up(tmp_path / "file")
    assert set(summary.snapshots) == {"s-paused", "s-older"}
    told = {each.name: each for each in summary.sessions}
    assert told["paused"].becomes == "paused"
    assert told["running"].becomes == "failed"
    assert "is not in the backup" in told["running"].why
