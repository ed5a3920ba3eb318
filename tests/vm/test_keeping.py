"""What an open host does with its snapshots, with no machine in it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.vm.real_snapshots import make_snapshot
from torpor.vm import Accelerator, Host, Jail, SnapshotError, Store
from torpor.vm.flatten import DEPTH
from torpor.vm.keeping import apply, erase_from, export_from, import_into, plan_for
from torpor.vm.manifest import Manifest
from torpor.vm.retention import Policy, mark_kept
from torpor.vm.sizes import store_files, unshared_bytes

DEEP = tuple(f"l{number}" for number in range(DEPTH + 2))
HERE = Accelerator("tcg", "", (7, 2, 0), "qemu-max")
BARE = Jail(own_user=False, namespaces=False, seccomp=False, missing=())


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    opened = await Host.open(tmp_path / "home", HERE, BARE)
    yield opened
    await opened.close()


async def test_a_policy_is_applied_and_frees_what_it_said(
    host: Host, some_manifest: Manifest
) -> None:
    parent = None
    for number, name in enumerate("abcd", 1):
        made = replace(some_manifest, created_at=f"2026-03-0{number}T00:00:00.000+00:00")
        layers = tuple(f"layer-{each}" for each in range(number))
        make_snapshot(host.store, made, name, parent=parent, layers=layers)
        parent = name
    mark_kept(host.store, "b", kept=True)
    plan = plan_for(host, Policy(keep=1, age=timedelta(days=1)))
    assert [removal.id for removal in plan.removals] == ["a", "c"]
    before = unshared_bytes(store_files(host.store.root))
    freed = await apply(host, plan)
    assert host.store.ids() == ["b", "d"]
    after = unshared_bytes(store_files(host.store.root))
    assert before - after == plan.before - plan.after
    assert freed <= before - after
    assert all(host.store.verify(each) for each in "bd")


async def test_a_deep_chain_that_was_imported_is_shortened_in_the_background(
    host: Host, some_manifest: Manifest, tmp_path: Path
) -> None:
    other = Store(tmp_path / "other")
    make_snapshot(other, some_manifest, "deep", layers=DEEP)
    source = await Host.open(tmp_path / "source", HERE, BARE)
    try:
        make_snapshot(source.store, some_manifest, "deep", layers=DEEP)
        await export_from(source, "deep", tmp_path / "file")
    finally:
        await source.close()
    with open(tmp_path / "file", "rb") as file:
        arrived = await import_into(host, file)
    assert len(arrived.manifest.disk) == len(DEEP) + 1
    await host.chains.done()
    assert len(host.store.disks(host.store.manifest("deep")).root) <= DEPTH + 1
    assert Store(host.store.root).verify("deep") == arrived.manifest


async def test_an_old_deep_chain_is_shortened_when_its_home_is_opened(
    some_manifest: Manifest, tmp_path: Path
) -> None:
    make_snapshot(Store(tmp_path), some_manifest, "deep", layers=DEEP)
    host = await Host.open(tmp_path, HERE, BARE)
    try:
        await host.chains.done()
        assert len(host.store.disks(host.store.manifest("deep")).root) <= DEPTH + 1
        host.collect()
        assert Store(tmp_path).verify("deep").id == "deep"
    finally:
        await host.close()


async def test_an_import_that_is_cancelled_goes_on_when_it_is_asked_for_again(
    host: Host, some_manifest: Manifest, tmp_path: Path
) -> None:
    make_snapshot(Store(tmp_path / "other"), some_manifest, "one")
    source = await Host.open(tmp_path / "other", HERE, BARE)
    try:
        await export_from(source, "one", tmp_path / "file")
    finally:
        await source.close()
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()

    def report(what: str, done: int, _total: int) -> None:
        if what.startswith("importing") and done:
            loop.call_soon_threadsafe(seen.set)

    with open(tmp_path / "file", "rb") as file:
        task = asyncio.create_task(import_into(host, file, report=report))
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    if "one" not in host.store.ids():  # it was not faster than we
        host.collect()
        with open(tmp_path / "file", "rb") as file:
            await import_into(host, file)
    assert Store(host.store.root).verify("one").id == "one"
    assert not (host.store.root / "imports").exists()


async def test_what_is_erased_is_gone_and_a_damaged_one_can_be_removed(
    host: Host, some_manifest: Manifest
) -> None:
    make_snapshot(host.store, some_manifest, "one")
    make_snapshot(host.store, some_manifest, "two", base="other", layers=("third",))
    (host.store.root / "snapshots/one/manifest.json").write_text("{")
    with pytest.raises(SnapshotError, match="damaged"):
        await erase_from(host, "one")
    await host.remove("one")
    report = await erase_from(host, "two")
    assert report.complete
    assert host.store.ids() == []
    assert [each for each in store_files(host.store.root) if each.is_file()] == []
