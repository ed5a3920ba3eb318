"""Files of a real agent, see conftest.py, as the host's calls have them."""

import asyncio
import contextlib
import hashlib
import io
import itertools
import os
import random
import stat
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.guest.conftest import Guest, needs_users, open_to_all
from tests.waiting import eventually
from torpor.vm import ChannelLostError, GuestAgent, GuestError, Packing, Unpacking
from torpor.vm.channel import Channel
from torpor.vm.transfers import AHEAD, PIECE


@pytest.fixture
async def agent(guest: Guest) -> AsyncIterator[GuestAgent]:
    attached = await guest.attach()
    yield attached
    await attached.channel.close()


async def refused(code: str, call: object) -> None:
    with pytest.raises(GuestError) as caught:
        await call  # type: ignore[misc]
    assert caught.value.code == code


# Content


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, (AHEAD + 2) * PIECE + 17])
async def test_a_file_is_read_as_it_was_written(
    agent: GuestAgent, tmp_path: Path, size: int
) -> None:
    data = random.Random(size).randbytes(size)
    path = tmp_path / os.fsdecode(b"odd\xff")
    assert await agent.files.write(os.fsencode(path), data) == size
    assert path.read_bytes() == data
    assert await agent.files.read(str(path)) == data
    part = [piece async for piece in agent.files.read_pieces(str(path), 7, PIECE + 3)]
    assert b"".join(part) == data[7 : 7 + PIECE + 3]


async def test_a_file_that_does_not_know_its_size_is_read(agent: GuestAgent) -> None:
    assert (await agent.files.read("/proc/self/status")).startswith(b"Name:")
    known = Path("/proc/crypto").read_bytes()
    assert await agent.files.read("/proc/crypto") == known


async def test_more_than_was_asked_for_is_refused(agent: GuestAgent, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(3 << 20))
    await refused("EFBIG", agent.files.read(str(tmp_path / "big"), limit=1 << 20))
    assert len(await agent.files.read(str(tmp_path / "big"), limit=3 << 20)) == 3 << 20


async def test_a_file_that_becomes_shorter_is_read_to_where_it_ends(
    agent: GuestAgent, tmp_path: Path
) -> None:
    file = tmp_path / "shrinks"
    file.write_bytes(b"x" * (20 * PIECE))
    got = 0
    async for piece in agent.files.read_pieces(str(file)):
        if not got:
            os.truncate(file, 6 * PIECE + 5)
        got += len(piece)
    assert got in range(PIECE, 6 * PIECE + 6)


async def test_a_new_file_is_there_whole_or_not_at_all(agent: GuestAgent, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")

    async def pieces(*, breaks: bool) -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"n" * PIECE
            assert file.read_text() == "old"
        if breaks:
            raise RuntimeError("the source has failed")

    with pytest.raises(RuntimeError):
        await agent.files.write(str(file), pieces(breaks=True), atomic=True)

    async def parts() -> list[str]:
        return [each.name for each in tmp_path.iterdir() if each.name.startswith(".")]

    await eventually(parts, lambda left: not left)
    assert file.read_text() == "old"
    await agent.files.write(str(file), pieces(breaks=False), atomic=True, mode=0o751)
    assert file.read_bytes() == b"n" * 5 * PIECE
    assert stat.S_IMODE(file.stat().st_mode) == 0o751


# Whole files


def make_sparse(path: Path, size: int, places: tuple[int, ...]) -> None:
    with path.open("wb") as file:
        for place in places:
            file.seek(place)
            file.write(random.Random(place).randbytes(min(300_000, size - place)))
        file.truncate(size)


SHAPES = [
    (5 << 30, (0, 1 << 20, (3 << 30) + 5, (5 << 30) - 70_000)),
    (1 << 30, ()),
    (1 << 30, (1 << 29,)),
    (0, ()),
    (3 * PIECE, (0,)),
]


def same(one: Path, other: Path) -> bool:
    """Whether two sparse files have the same bytes where either has data."""
    if one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as a, other.open("rb") as b:
        for file in (a, b):
            place = 0
            with contextlib.suppress(OSError):
                while True:
                    place = os.lseek(file.fileno(), place, os.SEEK_DATA)
                    end = os.lseek(file.fileno(), place, os.SEEK_HOLE)
                    if os.pread(a.fileno(), end - place, place) != os.pread(
                        b.fileno(), end - place, place
                    ):
                        return False
                    place = end
    return True


@pytest.mark.parametrize(("size", "places"), SHAPES)
async def test_sparse_files_go_up_and_down_with_their_holes(
    agent: GuestAgent, tmp_path: Path, size: int, places: tuple[int, ...]
) -> None:
    source, inside, back = (tmp_path / name for name in ("source", "inside", "back"))
    make_sparse(source, size, places)
    inside.write_bytes(b"older and longer" * 100_000)
    assert await agent.files.upload(source, str(inside)) == size
    assert same(source, inside)
    assert await agent.files.download(str(inside), back) == size
    assert same(source, back)
    assert inside.stat().st_blocks <= source.stat().st_blocks + 8 * len(places)
    assert back.stat().st_blocks <= source.stat().st_blocks + 8 * len(places)


async def test_many_ranges_are_told_in_several_answers(agent: GuestAgent, tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        for place in range(9000):
            file.seek(place * 8192)
            file.write(b"x")
        file.truncate(9000 * 8192)
    await agent.files.download(str(source), tmp_path / "back")
    assert same(source, tmp_path / "back")


def lose_after(channel: Channel, count: int) -> None:
    """Lose a channel when so many requests have been made, those before still under way."""
    left = itertools.count(count, -1)
    ask = channel.request

    async def request(*wanted: Any, **options: Any) -> Any:
        if next(left) == 0:
            channel.lose(ChannelLostError("Lost on purpose."))
        return await ask(*wanted, **options)

    channel.request = request  # type: ignore[method-assign]


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_transfer_goes_on_after_lost_channels(
    guest: Guest, tmp_path: Path, direction: str
) -> None:
    chance = random.Random(5)
    source, target = tmp_path / "source", tmp_path / "target"
    make_sparse(source, 1 << 30, (0, 1 << 20, 500 << 20, (1 << 30) - 300_000))
    with source.open("r+b") as file:
        file.seek(100 << 20)
        file.write(chance.randbytes(12 << 20))
    losses = 0
    while True:
        agent = await guest.attach()
        lose_after(agent.channel, chance.randint(3, 12) if losses < 8 else 1000)
        try:
            if direction == "up":
                await agent.files.upload(source, str(target), resume=losses > 0)
            else:
                await agent.files.download(str(source), target, resume=losses > 0)
            break
        except ChannelLostError:
            losses += 1
        finally:
            await agent.channel.close()
    assert losses >= 5
    assert same(source, target)
    assert target.stat().st_blocks * 512 < 16 << 20


async def test_a_longer_target_is_not_gone_on_with(agent: GuestAgent, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"1")
    (tmp_path / "long").write_bytes(b"12")
    short, long = tmp_path / "short", tmp_path / "long"
    await refused("ESTALE", agent.files.upload(short, str(long), resume=True))
    await refused("ESTALE", agent.files.download(str(short), long, resume=True))


# Names and users


@needs_users
async def test_names_are_made_moved_and_removed(agent: GuestAgent, tmp_path: Path) -> None:
    files, root = agent.files, str(tmp_path)
    await files.make_directory(f"{root}/a/b", parents=True, mode=0o700)
    await files.write(f"{root}/a/b/f", b"x")
    await files.make_link(f"{root}/l", "a/b/f")
    found = await files.status(f"{root}/l")
    assert found is not None
    assert (found.type, found.target) == ("link", "a/b/f")
    followed = await files.status(f"{root}/l", follow=True)
    assert followed == await files.status(f"{root}/a/b/f")
    await files.move(f"{root}/a/b/f", f"{root}/g")
    assert await files.status(f"{root}/a/b/f") is None
    await refused("EEXIST", files.move(f"{root}/g", f"{root}/l", replace=False))
    await refused("ENOTEMPTY", files.remove(f"{root}/a"))
    await files.change(f"{root}/g", mode=0o600, owner="17:18", size=9, mtime_ns=5)
    found = await files.status(f"{root}/g")
    assert found is not None
    assert (found.mode & 0o7777, found.uid, found.gid) == (0o600, 17, 18)
    assert (found.size, found.mtime_ns) == (9, 5)
    await files.remove(f"{root}/a", recursive=True)
    await files.remove(f"{root}/l")
    assert sorted(each.name for each in tmp_path.iterdir() if "cgroup" not in each.name) == ["g"]
    await refused("ENOENT", files.remove(f"{root}/a", recursive=True))


@needs_users
async def test_everything_is_done_as_the_user_who_is_named(
    agent: GuestAgent, tmp_path: Path
) -> None:
    open_to_all(tmp_path)
    root = tmp_path / "of-nobody"
    root.mkdir()
    os.chown(root, 65534, 65534)
    user, files = "nobody", agent.files
    await refused("EACCES", files.write(str(tmp_path / "f"), b"x", user=user))
    await refused("EACCES", files.write(str(tmp_path / "f"), b"x", user=user, atomic=True))
    await files.write(str(root / "f"), b"x", user=user)
    await files.make_directory(str(root / "d"), user=user)
    packing = await files.pack(str(root), user=user)
    archive = b"".join([piece async for piece in packing.pieces()])
    unpacking = await files.unpack(str(root / "d"), user=user)
    await unpacking.write(archive)
    assert (await unpacking.finish())["members"] == 3
    assert {each.lstat().st_uid for each in root.rglob("*")} == {65534}
    assert (root / "d/of-nobody/f").read_bytes() == b"x"
    secret = tmp_path / "secret"
    secret.write_text("for root")
    secret.chmod(0o600)
    packing = await files.pack(str(secret), user=user)
    await refused("EACCES", packing.finish())
    await refused("EACCES", files.remove(str(secret), recursive=True, user=user))
    await refused("EPERM", files.change(str(secret), owner="nobody", user=user))
    assert secret.read_text() == "for root"


async def test_a_tree_is_listed(agent: GuestAgent, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "d").mkdir(parents=True)
    (root / "d" / os.fsdecode(b"\xff\n")).write_bytes(b"x")
    found = {each.path: each async for each in agent.files.list(str(root), recursive=True,
             digest=True)}  # fmt: skip
    assert set(found) == {"d", os.fsdecode(b"d/\xff\n")}
    file = found[os.fsdecode(b"d/\xff\n")]
    assert file.sha256 == hashlib.sha256(b"x").hexdigest()
    assert file.status is not None
    assert file.status == await agent.files.status(str(root / file.path))
    with pytest.raises(GuestError, match="ENOENT"):
        [each async for each in agent.files.list(str(tmp_path / "none"))]


async def test_a_listing_that_is_left_leaves_nothing(agent: GuestAgent, tmp_path: Path) -> None:
    for number in range(20_000):
        (tmp_path / f"{'n' * 100}{number}").touch()
    async with contextlib.aclosing(agent.files.list(str(tmp_path))) as listing:
        async for _ in listing:
            break
    for _ in range(100):
        if not any(each.running for each in await agent.commands()):
            break
        await asyncio.sleep(0.1)
    assert not any(each.running for each in await agent.commands())


# Archives


def fill(root: Path, seed: int) -> None:
    chance = random.Random(seed)
    root.mkdir()
    for number in range(300):
        path = root / f"{number % 7}" / f"{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(chance.randbytes(chance.choice((10, 3000, 100_000))))


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


async def test_an_archive_crosses_lost_channels_whole_on_its_way_out(
    guest: Guest, tmp_path: Path
) -> None:
    chance = random.Random(11)
    fill(tmp_path / "tree", 1)
    agent = await guest.attach()
    packing: Packing = await agent.files.pack(str(tmp_path / "tree"), name=".")
    archive = io.BytesIO()
    losses = 0
    while packing.running.exit is None:
        enough = archive.tell() + chance.randint(1, 2 << 20)
        async for piece in packing.pieces():
            archive.write(piece)
            if archive.tell() > enough:
                break
        if packing.running.exit is None:
            losses += 1
            await agent.channel.close()
            agent = await guest.attach()
            await packing.attach(agent.channel)
    assert losses > 5
    assert packing.report == {"members": 308, "sockets": 0, "changed": [], "changed_count": 0}
    archive.seek(0)
    with tarfile.open(fileobj=archive) as opened:
        opened.extractall(tmp_path / "back", filter="data")
    assert digests(tmp_path / "back") == digests(tmp_path / "tree")
    await agent.channel.close()


def of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    return member


async def test_an_archive_crosses_lost_channels_whole_on_its_way_in(
    guest: Guest, tmp_path: Path
) -> None:
    chance = random.Random(12)
    fill(tmp_path / "tree", 2)
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w") as archive:
        archive.add(tmp_path / "tree", ".", filter=of_root)
    data = text.getvalue()
    agent = await guest.attach()
    unpacking: Unpacking = await agent.files.unpack(str(tmp_path / "new/back"), parents=True)
    losses = 0
    while unpacking.written < len(data):
        await unpacking.write(data[unpacking.written :][: chance.randint(1, 2 << 20)])
        losses += 1
        await agent.channel.close()
        agent = await guest.attach()
        await unpacking.attach(agent.channel)
    assert losses > 5
    assert await unpacking.finish() == {"members": 308, "attributes": 0, "skipped": 0}
    assert digests(tmp_path / "new/back") == digests(tmp_path / "tree")
    await agent.channel.close()


async def test_a_refused_archive_says_why_to_whoever_writes_it(
    agent: GuestAgent, tmp_path: Path
) -> None:
    unpacking = await agent.files.unpack(str(tmp_path))

    async def give_all() -> None:
        for _ in range(100):
            await unpacking.write(b"no archive" * 10_000)
        await unpacking.finish()

    with pytest.raises(GuestError) as caught:
        await asyncio.wait_for(give_all(), 60)
    assert caught.value.code == "ArchiveError"
    assert "header" in str(caught.value)
    await refused("ENOENT", (await agent.files.unpack(str(tmp_path / "none"))).finish())
    await refused("ENOENT", (await agent.files.pack(str(tmp_path / "none"))).finish())


async def test_an_archive_that_is_given_up_is_not_made_further(
    agent: GuestAgent, tmp_path: Path
) -> None:
    make_sparse(tmp_path / "big", 200 << 20, ())
    with (tmp_path / "big").open("r+b") as file:
        file.write(bytes(50 << 20))
    async with await agent.files.pack(str(tmp_path / "big")) as packing:
        async for _ in packing.pieces():
            break
    for _ in range(100):
        if not any(each.running for each in await agent.commands()):
            break
        await asyncio.sleep(0.1)
    assert not any(each.running for each in await agent.commands())


# Watching


async def test_a_watch_goes_on_after_a_lost_channel(guest: Guest, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    agent = await guest.attach()
    watch = await agent.files.watch(str(root), recursive=True)
    assert await watch.next_line() == {"event": "ready"}
    (root / "before").mkdir()
    await agent.channel.close()
    (root / "between").touch()
    agent = await guest.attach()
    await watch.attach(agent.channel)
    (root / "before/after").touch()
    created: list[str] = []
    async for event in watch.events():
        if event["event"] == "created":
            created.append(event["path"])
        if len(created) == 3:
            break
    # A directory that comes is looked into at once, so its content may be told before the rest.
    assert sorted(created) == ["before", "before/after", "between"]
    watch.close()
    await agent.channel.close()
