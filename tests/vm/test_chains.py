"""Chains of layers are shortened in the background, and hostile ones are left alone."""

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.vm.real_snapshots import DISK, make_snapshot, write_layer
from torpor.vm import chains as chains_module
from torpor.vm import flatten
from torpor.vm.chains import Chains
from torpor.vm.errors import SnapshotError, VmError
from torpor.vm.flatten import DEPTH, merge, shorten
from torpor.vm.image_tools import Bench
from torpor.vm.jail import detect
from torpor.vm.manifest import Disks, Manifest
from torpor.vm.qcow2 import check_header
from torpor.vm.store import Store

DEEP = tuple(f"l{number}" for number in range(DEPTH + 4))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
async def jailed() -> bool:
    return (await detect()).namespaces


def content(store: Store, snapshot: str, into: Path) -> bytes:
    """What a disk reads as."""
    node: dict[str, object] | None = None
    for layer in store.disks(store.manifest(snapshot)).root:
        file = {"driver": "file", "filename": str(store.layer(layer))}
        node = {"driver": layer.format, "file": file} | ({"backing": node} if node else {})
    command = ["qemu-img", "convert", "-O", "raw", "json:" + json.dumps(node), into]
    subprocess.run(command, check=True)
    return into.read_bytes()


async def test_the_chain_of_a_durable_snapshot_is_shortened(
    store: Store, some_manifest: Manifest, tmp_path: Path, jailed: bool
) -> None:
    make_snapshot(store, some_manifest, "deep", layers=DEEP)
    make_snapshot(store, some_manifest, "flat", layers=DEEP[:2])
    sums = store.durable_parts("flat")[1]
    before = content(store, "deep", tmp_path / "before")
    old = store.disks(store.manifest("deep")).root
    chains = Chains(store, jailed=jailed)
    chains.start()
    await chains.done()
    after = Store(store.root)
    assert len(after.disks(after.manifest("deep")).root) <= DEPTH + 1
    assert content(after, "deep", tmp_path / "after") == before
    assert after.verify("deep") == store.manifest("deep")
    # A thaw that had begun with the old chain can still check it, as long as it is there.
    assert after.verify("deep", Disks(old))
    file = after.root / "layers" / old[-1].file_name
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(SnapshotError, match=old[-1].file_name):
        Store(after.root).verify("deep", Disks(old))
    assert after.durable_parts("flat")[1] == sums
    # What only the old chain had is collected; what the other snapshot needs is not.
    gone = store.collect(()).names
    assert f"layers/{DEEP[-1]}.qcow2" in gone
    assert f"layers/{DEEP[0]}.qcow2" not in gone
    assert content(after, "deep", tmp_path / "again") == before


async def test_stopped_half_way_it_leaves_nothing(
    store: Store, some_manifest: Manifest, jailed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_snapshot(store, some_manifest, "deep", layers=DEEP)
    files = sorted(each.name for each in (store.root / "layers").iterdir())
    sums = store.durable_parts("deep")[1]
    began = asyncio.Event()
    real = Bench.run

    async def run(bench: Bench, *command: str, stdin: str = "") -> str:
        if "convert" in command:
            began.set()
            # In the place of the tool one that would run for ever.
            return await real(bench, "sleep", "3600")
        return await real(bench, *command, stdin=stdin)

    monkeypatch.setattr(Bench, "run", run)
    before = _children()  # PostgreSQL, of other tests
    chains = Chains(store, jailed=jailed)
    chains.start()
    await began.wait()
    while _children() <= before:  # noqa: ASYNC110 - it has no other way to tell
        await asyncio.sleep(0.01)
    await chains.close()
    assert _children() <= before
    assert sorted(each.name for each in (store.root / "layers").iterdir()) == files
    assert store.durable_parts("deep")[1] == sums
    assert store.collect(()).names == ()


def make_hostile(layer: Path, secret: Path) -> None:
    """A layer whose header has QEMU take the data from a file of the host."""
    options = f"data_file={secret},data_file_raw=on"
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", options, layer, str(DISK)]
    subprocess.run(command, check=True)
    secret.write_bytes(b"a secret of the host".ljust(DISK, b"!"))


def _children() -> set[int]:
    """The processes that this one has started and not waited for."""
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(each) for each in found}


async def test_a_chain_with_a_hostile_layer_stays_as_it_is(
    store: Store, some_manifest: Manifest, tmp_path: Path, jailed: bool
) -> None:
    """A layer whose header names a file of the host is not opened, and the snapshot is durable."""
    make_hostile(store.root / "layers" / f"{DEEP[-1]}.qcow2", tmp_path / "secret")
    found = make_snapshot(store, some_manifest, "deep", layers=DEEP, durable=False)
    async with Chains(store, jailed=jailed).shortened(found.first) as disks:
        assert disks == found.first
    with pytest.raises(SnapshotError, match="features that no layer has"):
        await shorten(store, found.disk, "merged", jailed=jailed)
    assert not (store.root / "layers/merged.qcow2").exists()


async def test_the_tools_see_no_other_files(
    tmp_path: Path, jailed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the header were not looked at: in the jail there is no such file."""
    if not jailed:
        pytest.skip("this host allows no namespaces")
    make_hostile(tmp_path / "hostile.qcow2", tmp_path / "secret")
    monkeypatch.setattr(flatten, "check_header", lambda _: None)
    with pytest.raises(VmError, match=r"Could not open|No such file"):
        await merge([tmp_path / "hostile.qcow2"], tmp_path / "merged.qcow2", jailed=True)
    assert b"secret of the host" not in (tmp_path / "merged.qcow2").read_bytes()


def test_layers_that_are_torpors_own_are_taken(tmp_path: Path) -> None:
    write_layer(tmp_path / "layer", 1)
    check_header(tmp_path / "layer", DISK)
    with pytest.raises(SnapshotError, match=f"is of another size: {DISK} bytes, not 5"):
        check_header(tmp_path / "layer", 5)


@pytest.mark.parametrize("length", [0, 50, 104, 4096])
def test_a_layer_that_is_cut_off(tmp_path: Path, length: int) -> None:
    write_layer(tmp_path / "layer", 1)
    os.truncate(tmp_path / "layer", length)
    with pytest.raises(
        SnapshotError, match=r"too short|version 3|outside of itself|without an end"
    ):
        check_header(tmp_path / "layer", DISK)


async def test_a_chain_is_merged_after_the_other(
    store: Store, some_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = make_snapshot(store, some_manifest, "one")
    at_once = most = 0

    async def slow(_store: Store, disk, _name: str, *, jailed: bool):  # type: ignore[no-untyped-def]
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return disk

    monkeypatch.setattr(chains_module, "shorten", slow)
    chains = Chains(store, jailed=False)

    async def one() -> None:
        async with chains.shortened(found.first):
            await asyncio.sleep(0)

    await asyncio.gather(*(one() for _ in range(5)))
    assert most == 1
