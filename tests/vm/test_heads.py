"""What a disk that outlives machines holds: moved as a whole, and safe over a power cut."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.vm.real_snapshots import make_snapshot, write_layer
from torpor.vm import heads as module
from torpor.vm.disk import Layer
from torpor.vm.disks import make_disk
from torpor.vm.errors import HostError, SnapshotError, disk_is_full
from torpor.vm.heads import Heads
from torpor.vm.manifest import KeptDisk, Manifest
from torpor.vm.settling import settle, settle_with
from torpor.vm.shape import MIB
from torpor.vm.store import Store

SIZE = 64 * MIB


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
async def disk(store: Store) -> str:
    await make_disk(store, "w", SIZE)
    return "w"


def layer(store: Store, name: str) -> Layer:
    """A layer of the store that a machine has written."""
    write_layer(store.root / f"layers/{name}.qcow2", sum(name.encode()), SIZE)
    return Layer(name, "qcow2", SIZE)


def chain(store: Store, *names: str) -> tuple[Layer, ...]:
    """The chain of disk ``w`` with these layers over its first one."""
    bottom = store.heads.read("w").now.layers[0]
    return (bottom, *(layer(store, name) for name in names))


def again(store: Store) -> Store:
    """The store as another program finds it."""
    return Store(store.root)


def after_a_power_cut(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(module, "host_boot_id", lambda: "the next one")
    return again(store)


def files(store: Store) -> set[str]:
    return {file.name for file in (store.root / "layers").iterdir()}


async def test_a_new_disk_is_there_small_and_durable(store: Store, disk: str) -> None:
    head = again(store).heads.read(disk)
    assert (head.size_bytes, head.now.saved_at, head.now.durable) == (SIZE, None, True)
    (bottom,) = head.now.layers
    file = store.layer(bottom)
    assert file.stat().st_size == SIZE
    assert file.stat().st_blocks * 512 < 8 * MIB
    assert file.stat().st_mode & 0o777 == 0o600
    assert (store.root / "workspaces").stat().st_mode & 0o777 == 0o700
    assert file.read_bytes()[1080:1082] == b"\x53\xef"  # the magic of ext4


async def test_the_same_disk_made_again_is_the_same(store: Store, disk: str) -> None:
    before = store.heads.read(disk)
    await make_disk(store, disk, SIZE)
    assert store.heads.read(disk) == before
    with pytest.raises(HostError, match="another size"):
        await make_disk(store, disk, 2 * SIZE)
    assert len(files(store)) == 1


@pytest.mark.parametrize("size", [0, MIB, SIZE + 1, 1 << 50])
async def test_an_impossible_size_is_refused(store: Store, size: int) -> None:
    with pytest.raises(HostError, match="not possible"):
        await make_disk(store, "w", size)
    assert files(store) == set()


@pytest.mark.parametrize("name", ["", "../w", ".w", "a/b", "w" * 101])
async def test_an_odd_id_is_refused(store: Store, name: str) -> None:
    with pytest.raises(SnapshotError, match="cannot be the id"):
        await make_disk(store, name, SIZE)


async def test_where_there_is_no_room_nothing_is_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.vm.disks.free_bytes", lambda _: 1)
    with pytest.raises(HostError, match="disk is full") as error:
        await make_disk(store, "w", SIZE)
    assert disk_is_full(error.value)
    assert (files(store), store.heads.ids()) == (set(), [])


async def test_a_file_system_that_cannot_be_made_leaves_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torpor.vm.disks.MKFS", ("sh", "-c", "echo broken; exit 1"))
    with pytest.raises(Exception, match="broken"):
        await make_disk(store, "w", SIZE)
    assert (files(store), store.heads.ids()) == (set(), [])


async def test_a_head_moves_and_is_durable_later(store: Store, disk: str) -> None:
    new = chain(store, "one")
    store.heads.move(disk, new)
    head = again(store).heads.read(disk)
    assert head.now.layers == new
    assert not head.now.durable
    assert head.now.saved_at is not None
    settle(store, disk)
    settled = again(store).heads.read(disk)
    assert (settled.now.layers, settled.now.durable, settled.safe) == (new, True, None)
    assert settled.now.saved_at == head.now.saved_at


async def test_to_move_where_it_is_changes_nothing(store: Store, disk: str) -> None:
    before = store.heads.read(disk)
    store.heads.move(disk, before.now.layers)
    assert store.heads.read(disk) == before


async def test_a_disk_that_is_gone_does_not_come_back(store: Store, disk: str) -> None:
    new = chain(store, "one")
    store.heads.remove(disk)
    store.heads.remove(disk)
    store.heads.move(disk, new)
    settled = {f"layers/{each.file_name}": "d" for each in new}
    store.heads.settled(disk, (new,), new, settled)
    assert store.heads.ids() == []
    with pytest.raises(SnapshotError, match="no disk"):
        store.heads.read(disk)


async def test_after_a_power_cut_the_last_durable_content_holds(
    store: Store, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = chain(store, "one"), chain(store, "one", "two")
    store.heads.move(disk, first)
    settle(store, disk)
    store.heads.move(disk, second)
    after = after_a_power_cut(store, monkeypatch)
    assert after.heads.read(disk).now.layers == first
    after.collect(())
    assert "two.qcow2" not in files(store)
    # And it goes on from there.
    third = (*first, layer(store, "three"))
    after.heads.move(disk, third)
    settle(after, disk)
    assert again(after).heads.read(disk).now.layers == third


async def test_both_contents_are_kept_until_the_newer_is_durable(store: Store, disk: str) -> None:
    old = chain(store, "one")
    store.heads.move(disk, old)
    settle(store, disk)
    store.heads.move(disk, (old[0], layer(store, "other")))
    store.collect(())
    assert {"one.qcow2", "other.qcow2"} <= files(store)
    settle(store, disk)
    store.collect(())
    assert "one.qcow2" not in files(store)
    assert "other.qcow2" in files(store)


async def test_nothing_of_a_disk_is_collected_until_it_is_removed(store: Store, disk: str) -> None:
    store.heads.move(disk, chain(store, "one"))
    layer(store, "loose")
    assert store.collect(()).names == ("layers/loose.qcow2",)
    assert len(files(store)) == 2
    store.heads.remove(disk)
    store.collect(())
    assert files(store) == set()


@pytest.mark.parametrize("text", ["", "{}", '{"version": 9}', "head of another"])
async def test_a_damaged_head_keeps_all_layers_and_is_told(
    store: Store, disk: str, text: str
) -> None:
    file = store.root / "workspaces/w.json"
    if text == "head of another":
        text = json.dumps(json.loads(file.read_text()) | {"id": "v"})
    file.write_text(text)
    layer(store, "loose")
    with pytest.raises(SnapshotError):
        store.heads.read(disk)
    store.collect(())
    assert len(files(store)) == 2


async def test_a_machine_that_had_the_disk_makes_a_damaged_head_whole(
    store: Store, disk: str
) -> None:
    new = chain(store, "one")
    (store.root / "workspaces/w.json").write_text("{}")
    store.heads.move(disk, new)
    assert (store.heads.read(disk).now.layers, store.heads.read(disk).size_bytes) == (new, SIZE)


async def test_a_snapshot_takes_its_disk_along(
    store: Store, disk: str, some_manifest: Manifest
) -> None:
    new = chain(store, "one")
    made = replace(some_manifest, version=2, disks=(KeptDisk("workspace", disk, new),))
    (move,) = store.heads.prepare(made)
    assert store.heads.read(disk).now.saved_at is None  # not before the snapshot is there
    move.done()
    head = store.heads.read(disk)
    assert (head.now.layers, head.now.saved_at) == (new, made.created_at)
    copy = replace(made, disks=(KeptDisk("workspace", None, chain(store, "own")),))
    assert store.heads.prepare(copy) == []


async def test_what_was_written_down_and_did_not_come_about_is_removed(
    store: Store, disk: str
) -> None:
    (move,) = store.heads.prepare_one(disk, chain(store, "one"))
    assert move.new.exists()
    assert store.heads.ids() == [disk]
    store.heads.clean()
    assert not move.new.exists()
    (move,) = store.heads.prepare_one(disk, chain(store, "two"))
    move.forget()
    assert len(list((store.root / "workspaces").iterdir())) == 1
    assert store.heads.read(disk).now.saved_at is None


async def test_a_durable_snapshot_makes_what_its_disk_holds_durable(
    store: Store, disk: str, some_manifest: Manifest
) -> None:
    new = chain(store, "one")
    kept = (KeptDisk("workspace", disk, new),)
    found = make_snapshot(store, some_manifest, "t", durable=False, disks=kept)
    store.heads.follow(found)
    sums = store.make_durable("t")
    settle_with(store, found, sums)
    head = store.heads.read(disk)
    assert head.now.durable
    assert set(head.now.sums) == {f"layers/{each.file_name}" for each in new}
    store.heads.move(disk, (*new, layer(store, "two")))
    settle_with(store, found, sums)  # it holds something else by now
    assert not store.heads.read(disk).now.durable
    assert set(store._reached_by("t")) >= {f"layers/{each.file_name}" for each in new}


async def test_to_note_that_it_is_durable_undoes_no_move(
    store: Store, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes it durable looks, and writes; a move in between would be lost."""
    first, second = chain(store, "one"), chain(store, "one", "two")
    store.heads.move(disk, first)
    prepare = Heads._prepare
    moving: list[threading.Thread] = []

    def slow(self: Heads, head: module.Head) -> module.Move:
        made = prepare(self, head)
        if head.now.durable and not moving:
            moving.append(threading.Thread(target=lambda: store.heads.move(disk, second)))
            moving[0].start()
            moving[0].join(0.3)
        return made

    monkeypatch.setattr(Heads, "_prepare", slow)
    settle(store, disk)
    moving[0].join()
    assert store.heads.read(disk).now.layers == second


async def test_a_layer_that_was_changed_is_refused(store: Store, disk: str) -> None:
    new = chain(store, "one")
    store.heads.move(disk, new)
    settle(store, disk)

    def check() -> None:
        fresh = again(store)
        fresh.heads.check(disk, new, [fresh.layer(each) for each in new], fresh.digests)

    check()
    file = store.layer(new[1])
    text = file.read_bytes()
    file.write_bytes(text[:-1] + bytes([text[-1] ^ 1]))
    with pytest.raises(SnapshotError, match="does not have the content that was saved"):
        check()
    file.unlink()
    with pytest.raises(SnapshotError, match="missing"):
        check()


def changed(store: Store, change: Callable[[dict[str, object]], None]) -> None:
    file = store.root / "workspaces/w.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


async def test_a_disk_whose_first_layers_never_reached_the_disk_is_told(
    store: Store, disk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(store, lambda head: head["now"].update(sums={}))  # type: ignore[attr-defined]
    after = after_a_power_cut(store, monkeypatch)
    with pytest.raises(SnapshotError, match="the host went down"):
        after.heads.read(disk)
