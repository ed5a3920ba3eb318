"""Clearing the cache takes what is old and of no use, and nothing else."""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from torpor.images import Names, Recipe, prune, silent
from torpor.images.authorities import wanted_authorities
from torpor.images.config import ImageConfig
from torpor.images.debian import SIZE_BYTES, root_key, tar_key
from torpor.images.golden import Maker, golden_id
from torpor.images.image import Image
from torpor.images.names import VERSION, Record
from torpor.images.parts import GuestParts
from torpor.images.stages import Building, finished_stage, remove_stage
from torpor.vm import SIZES, Accelerator, AgentCode, Jail, manifest
from torpor.vm.disk import Layer
from torpor.vm.manifest import GuestVersions, Manifest, Memory

OLD = 30 * 24 * 3600.0
SHAPE = SIZES["mars-1vcpu-1gb"]


def stage(cache: Path, kind: str, key: str, age: float, **facts: str) -> Path:
    async def build(building: Building) -> Mapping[str, str]:
        (building.path / "content").write_bytes(b"x" * 100_000)
        return facts

    path = asyncio.run(finished_stage(cache, kind, key, build, silent)).path
    os.utime(path, (time.time() - age,) * 2)
    return path


def golden_snapshot(maker: Maker, digest: str, name: str, age: float) -> Path:
    """Files as a golden snapshot has them, without what is in them."""
    store = maker.store()
    (store.root / f"bases/{name}.mem").write_bytes(b"m" * 50_000)
    root = Layer(digest[:40], "raw", 1000)
    top = Layer(f"top-{name}", "qcow2", 1000)
    tools = Layer("tools", "raw", 1000)
    for layer in (root, top, tools):
        (store.root / "layers" / layer.file_name).write_bytes(b"l" * 50_000)
    found = Manifest(
        manifest.VERSION, name, "2026-01-01", None, 0, SHAPE, "tcg", (7, 2, 0), "max",
        GuestVersions("6.1", "t"), "boot", "boot", Memory(name, False), (root, top), tools, {}, 0,
        0, {},
    )  # fmt: skip
    directory = store.root / "snapshots" / name
    directory.mkdir()
    (directory / "manifest.json").write_bytes(manifest.write(found))
    os.utime(directory, (time.time() - age,) * 2)
    return directory


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    """A maker of this cache, whose parts are found in it as they would be."""
    cache = tmp_path / "cache"
    agent = AgentCode("agent", Path())
    parts = GuestParts(Path(), Path(), Path(), "6.1", "present", agent)
    made = Maker(
        cache, parts, Accelerator("tcg", "", (7, 2, 0), "max"), Jail(False, False, False, ())
    )
    stage(cache, "tools", "present", OLD)

    async def found(where: Path, report: object) -> Maker:
        assert where == cache
        os.utime(cache / "tools/present")
        return made

    monkeypatch.setattr(prune, "maker", found)
    monkeypatch.setenv("TORPOR_EXTRA_CA", "")
    return made


def left(cache: Path) -> set[str]:
    kinds = [each for each in cache.iterdir() if each.name not in ("golden", ".building")]
    return {f"{kind.name}/{each.name}" for kind in kinds for each in kind.iterdir()}


def pruned(maker: Maker, home: Path, **options: object) -> dict[str, int]:
    found = asyncio.run(prune.prune(maker.cache, home, silent, **options))  # type: ignore[arg-type]
    return {f"{each.kind}/{each.name}": each.freed_bytes for each in found}


def present_image(cache: Path) -> tuple[str, str]:
    packages = tar_key(Recipe())
    return packages, root_key(packages, SIZE_BYTES, wanted_authorities())


def test_what_is_of_use_or_new_stays_and_the_rest_goes(maker: Maker, tmp_path: Path) -> None:
    cache, home = maker.cache, tmp_path / "home"
    packages, root = present_image(cache)
    stage(cache, "root-tar", packages, OLD)
    stage(cache, "root", root, OLD, digest="d" * 64)
    stage(cache, "tools", "old", OLD)
    stage(cache, "kernel", "old", OLD)
    stage(cache, "root", "old", OLD, digest="e" * 64)
    stage(cache, "tools", "lately", 3600)
    foretold = pruned(maker, home, remove=False)
    assert len(left(cache)) == 7
    gone = pruned(maker, home)
    assert gone == foretold
    assert gone.keys() == {"tools/old", "kernel/old", "root/old"}
    assert all(size > 100_000 for size in gone.values())
    assert left(cache) == {
        f"root-tar/{packages}", f"root/{root}", "tools/present", "tools/lately",
    }  # fmt: skip
    assert pruned(maker, home, unused_for=0.0).keys() == {"tools/lately"}
    assert list((cache / ".building").iterdir()) == []


def test_what_a_name_stands_for_stays(maker: Maker, tmp_path: Path) -> None:
    root = stage(maker.cache, "root", "named", OLD, digest="f" * 64)
    record = Record(
        VERSION,
        "mine",
        "f" * 64,
        1 << 30,
        "now",
        "tree:/x",
        None,
        None,
        (),
        0,
        0,
        ImageConfig(),
        (),
    )
    names = Names(tmp_path / "home")
    names.put(record, root / "content", replace=False)
    os.utime(root, (time.time() - OLD,) * 2)
    assert pruned(maker, tmp_path / "home") == {}
    names.remove("mine")
    assert pruned(maker, tmp_path / "home").keys() == {"root/named"}


def test_golden_snapshots_of_the_past_go_with_what_only_they_need(
    maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, root = present_image(maker.cache)
    stage(maker.cache, "root", root, OLD, digest="d" * 64)
    wanted = golden_id(maker, Image("", "d" * 64, Path(), 0), SHAPE)
    golden_snapshot(maker, "d" * 64, wanted, OLD)
    golden_snapshot(maker, "d" * 64, "golden-of-other-tools", OLD)
    golden_snapshot(maker, "e" * 64, "golden-lately", 3600)
    store = maker.store()
    gone = pruned(maker, tmp_path / "home")
    assert gone.keys() == {"golden/golden-of-other-tools"}
    assert gone["golden/golden-of-other-tools"] >= 100_000
    assert set(store.ids()) == {wanted, "golden-lately"}
    assert {each.name for each in (store.root / "bases").iterdir()} == {
        f"{wanted}.mem", "golden-lately.mem",
    }  # fmt: skip
    assert (store.root / "layers" / f"{'d' * 40}.raw").exists()
    assert pruned(maker, tmp_path / "home", unused_for=0.0).keys() == {"golden/golden-lately"}
    assert not (store.root / "layers" / f"{'e' * 40}.raw").exists()


async def test_what_is_being_built_is_left_alone(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(building: Building) -> Mapping[str, str]:
        begun.set()
        await go_on.wait()
        return {}

    task = asyncio.create_task(finished_stage(tmp_path, "kind", "key", slow, silent))
    await begun.wait()
    assert await asyncio.to_thread(remove_stage, tmp_path, "kind", "key") is None
    go_on.set()
    await task
    assert (tmp_path / "kind/key").exists()
    assert await asyncio.to_thread(remove_stage, tmp_path, "kind", "key") is not None
    assert not (tmp_path / "kind/key").exists()


def test_use_is_noted(tmp_path: Path) -> None:
    path = stage(tmp_path, "kind", "key", OLD)

    async def never(building: Building) -> Mapping[str, str]:
        raise AssertionError

    asyncio.run(finished_stage(tmp_path, "kind", "key", never, silent))
    assert time.time() - path.stat().st_mtime < 3600
