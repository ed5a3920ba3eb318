"""Clearing the cache takes what is old and of no use, and nothing else."""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from torpor.images import Names, Recipe, prune, silent
from torpor.images.authorities import Authorities, wanted_authorities
from torpor.images.debian import SIZE_BYTES, root_key, tar_key
from torpor.images.golden import Maker, golden_id
from torpor.images.image import Image
from torpor.images.names import VERSION, Record
from torpor.images.config import ImageConfig
from torpor.images.parts import GuestParts
from torpor.images.stages import Building, finished_stage, remove_stage
from torpor.vm import SIZES, Accelerator, Jail, Layer, Manifest, manifest
from torpor.vm.manifest import GuestVersions, Memory

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
    parts = GuestParts(Path(), Path(), Path(), "6.1", "present")
    made = Maker(cache, parts, Accelerator("tcg", "", (7, 2, 0), "max"), Jail(False, False, False, ()))
    stage(cache, "tools", "present", OLD)

    async def found(where: Path, report: object) -> Maker:
        assert where == cache
        for kind in ("tools",):
            os.utime(cache / kind / "present")
        return made

    monkeypatch.setattr(prune, "maker", found)
    monkeypatch.setenv("TORPOR_EXTRA_CA", "")
    return made
