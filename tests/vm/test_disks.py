"""Disks in slots: all that is done with snapshots is done with all of their disks."""

import io
import struct
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.vm.real_snapshots import make_snapshot, write_layer
from torpor.vm.chains import Chains
from torpor.vm.disk import Layer
from torpor.vm.disks import Mount, attach, make_disk, mounts_at_boot, new_top, slot_of
from torpor.vm.durability import Durability
from torpor.vm.erasure import erase
from torpor.vm.errors import SnapshotError
from torpor.vm.export import export_stream
from torpor.vm.exported import read_beginning, write_beginning
from torpor.vm.flatten import DEPTH
from torpor.vm.importing import import_snapshot
from torpor.vm.manifest import (
    AttachedDisk,
    Disks,
    Entry,
    KeptDisk,
    MachineRecord,
    Manifest,
    file_names,
)
from torpor.vm.retention import Policy, held_elsewhere, plan, standing
from torpor.vm.settling import settle, settle_all
from torpor.vm.shape import MIB
from torpor.vm.store import Store

SIZE = 32 * MIB


@pytest.fixture
async def store(tmp_path: Path) -> Store:
    """A store with the disk ``w``, which has been written once."""
    made = Store(tmp_path / "home")
    await make_disk(made, "w", SIZE)
    made.heads.move("w", (*made.heads.read("w").now.layers, layer(made, "one")))
    settle(made, "w")
    return made


def layer(store: Store, name: str) -> Layer:
    write_layer(store.root / f"layers/{name}.qcow2", sum(name.encode()), SIZE)
    return Layer(name, "qcow2", SIZE)


def kept(store: Store, *more: str, disk: str | None = "w") -> tuple[KeptDisk, ...]:
    """The disk as a snapshot has it, with these layers over what it holds."""
    chain = store.heads.read("w").now.layers
    return (KeptDisk("workspace", disk, (*chain, *(layer(store, name) for name in more))),)


def exported(store: Store, snapshot: str) -> bytes:
    stream = io.BytesIO()
    export_stream(store, snapshot, stream)
    return stream.getvalue()


def names(store: Store) -> set[str]:
    return {file.name for file in (store.root / "layers").iterdir()}


def test_a_layer_on_top_tells_whose_it_is() -> None:
    for slot in ("root", "workspace", "spare"):
        made = new_top(slot, SIZE)
        assert slot_of(Path(made.file_name)) == slot
    assert slot_of(Path("0123abcd.qcow2")) == "root"  # of a machine from before there were slots
    tops = {new_top("workspace", SIZE).id[:24] for _ in range(100)}
    assert len(tops) == 100


# What goes into a new machine


def test_a_snapshot_without_disks_gets_what_the_disk_holds(store: Store) -> None:
    (attached,), mounts = attach(store, Disks(()), "w", "s")
    head = store.heads.read("w")
    assert (attached.slot, attached.disk, attached.layers) == ("workspace", "w", head.now.layers)
    assert attached.top.size == SIZE
    assert mounts == (Mount("workspace", SIZE, fresh=False),)
    assert attach(store, Disks(()), None, "s") == ((), ())


async def test_a_disk_that_nobody_has_written_is_fresh(store: Store) -> None:
    await make_disk(store, "new", SIZE)
    _, (mount,) = attach(store, Disks(()), "new", "s")
    assert mount.wanted() == {
        "serial": "torpor-workspace", "path": "/workspace", "size": SIZE, "fresh": True,
    }  # fmt: skip


def test_a_snapshot_with_a_disk_gets_it_as_it_was(store: Store) -> None:
    before = kept(store)
    store.heads.move("w", kept(store, "two")[0].layers)
    for disk in ("w", None):
        (attached,), mounts = attach(store, Disks((), before), disk, "s")
        assert (attached.disk, attached.layers, mounts) == (disk, before[0].layers, ())


def test_a_snapshot_with_another_disk_or_a_copy_is_refused(store: Store) -> None:
    for disk in ("other", None):
        with pytest.raises(SnapshotError, match="not taken with disk w"):
            attach(store, Disks((), kept(store, disk=disk)), "w", "s")
    with pytest.raises(SnapshotError, match="no disk"):
        attach(store, Disks(()), "gone", "s")


def test_at_boot_all_disks_are_mounted(store: Store) -> None:
    (new,), mounts = attach(store, Disks(()), "w", None)
    old = AttachedDisk("spare", None, new.layers, new.top)
    assert mounts_at_boot((new,), mounts) == mounts
    assert [each.slot for each in mounts_at_boot((new, old))] == ["workspace", "spare"]


# What is done with snapshots


def test_all_layers_are_needed_summed_and_checked(store: Store, some_manifest: Manifest) -> None:
    found = make_snapshot(store, some_manifest, "s", disks=kept(store, "two"))
    sums = store.durable_parts("s")[1]
    assert {"layers/one.qcow2", "layers/two.qcow2"} <= set(sums.files)
    assert "layers/two.qcow2" in list(file_names(found, found.first))
    assert Store(store.root).verify("s") == found
    assert Entry.of(found).disk == "w"
    assert Entry.of(replace(found, disks=kept(store, disk=None))).disk is None
    store.collect(())
    assert "two.qcow2" in names(store)
    file = store.root / "layers/two.qcow2"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(SnapshotError, match=r"two\.qcow2"):
        Store(store.root).verify("s")


def test_what_goes_with_a_snapshot_and_what_stays(store: Store, some_manifest: Manifest) -> None:
    make_snapshot(store, some_manifest, "s", disks=kept(store, "two"))
    store.remove("s")
    store.collect(())
    assert "two.qcow2" not in names(store)
    assert "one.qcow2" in names(store)  # the disk holds it


async def test_each_chain_is_shortened_by_itself(store: Store, some_manifest: Manifest) -> None:
    deep = tuple(f"deep-{number}" for number in range(DEPTH + 3))
    store.heads.move("w", kept(store, *deep)[0].layers)
    found = make_snapshot(store, some_manifest, "s", durable=False, disks=kept(store))
    await Durability(store, Chains(store, jailed=False)).make("s")
    now = store.disks(found)
    assert now.root == found.disk
    assert len(now.slots[0].layers) <= DEPTH + 1 < len(found.disks[0].layers)
    head = store.heads.read("w")
    assert (head.now.layers, head.now.durable) == (now.slots[0].layers, True)
    assert store.verify("s") == found
    store.collect(())
    assert "deep-9.qcow2" not in names(store)


async def test_the_chain_of_a_disk_alone_is_shortened_too(store: Store) -> None:
    deep = tuple(f"deep-{number}" for number in range(DEPTH + 3))
    store.heads.move("w", kept(store, *deep)[0].layers)
    settle(store, "w")
    before = store.heads.read("w")
    removed: list[str] = []
    chains = Chains(store, lambda: removed.extend(store.collect(()).names), jailed=False)
    chains.start()
    await chains.done()
    head = Store(store.root).heads.read("w")
    assert len(head.now.layers) <= DEPTH + 1
    assert (head.now.durable, head.now.saved_at) == (True, before.now.saved_at)
    assert "layers/deep-9.qcow2" in removed
    chains.start()
    await chains.done()
    assert store.collect(()).names == ()


def test_what_a_disk_holds_is_freed_by_no_policy(store: Store, some_manifest: Manifest) -> None:
    make_snapshot(store, some_manifest, "s", disks=kept(store, "two"))
    held = held_elsewhere(store, ())
    policy = Policy(keep=0, newest_too=True)
    made = plan(list(standing(store)), policy, datetime.now(UTC), held)
    (removal,) = made.removals
    freed = sum(
        file.stat().st_blocks * 512
        for file in store.root.rglob("*")
        if file.is_file()
        and file.name not in ("w.json", "one.qcow2")
        and file.name != store.heads.read("w").now.layers[0].file_name
    )
    assert removal.frees == freed
    (store.root / "workspaces/w.json").write_text("{}")
    unknown = held_elsewhere(store, ())
    for file in (store.root / "layers").iterdir():
        assert (file.stat().st_dev, file.stat().st_ino) in unknown


def test_what_a_disk_holds_is_not_erased_with_a_snapshot(
    store: Store, some_manifest: Manifest
) -> None:
    made = make_snapshot(store, some_manifest, "s", disks=kept(store, "two"))
    assert made.disks[0].layers[-1].id == "two"
    one = (store.root / "layers/one.qcow2").read_bytes()
    report = erase(store, "s")
    told = {file.name: file for file in report.files}
    assert (told["layers/one.qcow2"].what, told["layers/one.qcow2"].why) == (
        "kept", "shared with disk w",
    )  # fmt: skip
    assert told["layers/two.qcow2"].what == "erased"
    assert (store.root / "layers/one.qcow2").read_bytes() == one


def test_where_a_head_cannot_be_read_nothing_of_the_disk_is_erased(
    store: Store, some_manifest: Manifest
) -> None:
    make_snapshot(store, some_manifest, "s", disks=kept(store, "two"))
    (store.root / "workspaces/w.json").write_text("{}")
    report = erase(store, "s")
    assert not report.complete
    assert {"one.qcow2", "two.qcow2"} <= names(store)


# Travel


def test_a_snapshot_travels_with_its_disks_and_they_are_its_own_there(
    store: Store, some_manifest: Manifest, tmp_path: Path
) -> None:
    sent = make_snapshot(store, some_manifest, "s", disks=kept(store, "two"))
    text = exported(store, "s")
    target = Store(tmp_path / "target")
    arrived = import_snapshot(target, io.BytesIO(text)).manifest
    assert (arrived.version, [each.disk for each in arrived.disks]) == (2, [None])
    there = {file.stat().st_size for file in (target.root / "layers").iterdir()}
    needed = [store.layer(each).stat().st_size for each in sent.first.layers()]
    assert set(needed) <= there
    for old, new in zip(sent.disks[0].layers, arrived.disks[0].layers, strict=True):
        assert store.layer(old).read_bytes() == target.layer(new).read_bytes()
    assert target.verify("s") == arrived
    assert import_snapshot(target, io.BytesIO(text)).already
    own = Store(tmp_path / "own")
    restored = import_snapshot(own, io.BytesIO(text), own=True).manifest
    assert [each.disk for each in restored.disks] == ["w"]
    assert exported(own, "s") == text


def test_layers_of_one_content_in_two_disks_have_two_names(
    store: Store, some_manifest: Manifest, tmp_path: Path
) -> None:
    """QEMU has one name for each layer that it knows, in whatever disk."""
    (one,) = kept(store)
    root = make_snapshot(store, some_manifest, "plain").disk
    copies: dict[str, tuple[Layer, ...]] = {}
    for name, chain in (("root", root), ("workspace", one.layers)):
        copies[name] = tuple(replace(each, id=f"copy-{each.id[-8:]}") for each in chain)
        for each, copy in zip(chain, copies[name], strict=True):
            place = store.root / "layers" / copy.file_name
            place.write_bytes(store.layer(each).read_bytes())
    for copied in copies.values():
        both = (one, KeptDisk("spare", None, copied))
        made = make_snapshot(store, some_manifest, f"s-{copied[-1].id}", disks=both)
        target = Store(tmp_path / made.id)
        arrived = import_snapshot(target, io.BytesIO(exported(store, made.id))).manifest
        ids = [each.id for each in arrived.first.layers()]
        assert len(set(ids)) == len(ids)
        assert target.verify(made.id) == arrived


def test_a_file_with_disks_says_another_version_and_one_without_the_old_one(
    store: Store, some_manifest: Manifest
) -> None:
    make_snapshot(store, some_manifest, "plain")
    make_snapshot(store, some_manifest, "s", disks=kept(store))
    for snapshot, version in (("plain", 1), ("s", 2)):
        text = exported(store, snapshot)
        assert struct.unpack_from("<I", text, 8) == (version,)
        index, _ = read_beginning(io.BytesIO(text))
        assert index.manifest.version == version
    assert b"disks" not in exported(store, "plain")[:4096]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: (d, d), "in one place"),
        (lambda d: (replace(d, layers=d.layers[1:]),), "odd formats"),
        (lambda d: (replace(d, layers=()),), "0 layers"),
        (lambda d: (replace(d, layers=d.layers[:1] * 65),), "65 layers"),
        (lambda d: (replace(d, disk="w\x1b[2J"),), "does not print"),
        (lambda _: (), "does not go with its disks"),
        (lambda d: (replace(d, layers=(*d.layers[:1], Layer("x", "qcow2", 7))),), "size"),
    ],
)
def test_disks_that_cannot_be_are_refused(
    store: Store, some_manifest: Manifest, tmp_path: Path, change: object, said: str
) -> None:
    make_snapshot(store, some_manifest, "s", disks=kept(store))
    text = exported(store, "s")
    index, beginning = read_beginning(io.BytesIO(text))
    (disk,) = index.manifest.disks
    manifest = replace(index.manifest, disks=change(disk))  # type: ignore[operator]
    forged = write_beginning(replace(index, manifest=manifest)) + text[len(beginning) :]
    target = Store(tmp_path / "target")
    with pytest.raises(SnapshotError, match=said):
        import_snapshot(target, io.BytesIO(forged), own=True)
    assert target.ids() == []


def test_a_layer_that_a_machine_still_writes_is_given_no_sum(
    store: Store, some_record: MachineRecord
) -> None:
    """A program was killed after it had noted that the disk holds the layer, and before the machine
    was ended: the machine runs on."""
    chain = store.heads.read("w").now.layers
    top = layer(store, "top")
    store.heads.move("w", (*chain, top))
    attached = AttachedDisk("workspace", "w", chain, top)
    settle_all(store, [replace(some_record, disks=(attached,))])
    assert not store.heads.read("w").now.durable
    settle_all(store, [some_record])
    assert store.heads.read("w").now.durable
