"""Clearing the cache of what nothing uses any more: old tools disks, images, golden snapshots.

What the present recipes, names and guest parts come to stays. So does what was used lately: other
versions of Torpor may share the cache, and a build or a thaw may be at work with it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torpor.images.authorities import wanted_authorities
from torpor.images.debian import SIZE_BYTES, Recipe, root_key, tar_key
from torpor.images.golden import Maker, golden_id, maker
from torpor.images.image import Image
from torpor.images.names import Names
from torpor.images.progress import Report, Step
from torpor.images.stages import FACTS, found_stage, remove_stage
from torpor.vm.errors import SnapshotError
from torpor.vm.host import Host
from torpor.vm.sizes import unshared_bytes

STAGES = ("guest-packages", "guest-runtime", "kernel", "tools", "root-tar", "root")
LATELY_S = 24 * 3600.0
MARK_S = 2.0
"""A file's time is that of the kernel's last tick, so what was marked just now looks older."""


@dataclass(frozen=True)
class Pruned:
    """One thing that was removed (or would be): what it was, and the bytes that this freed."""

    kind: str
    name: str
    freed_bytes: int


@dataclass(frozen=True)
class Present:
    """What must stay: stages by kind and key, and the digests of images."""

    stages: frozenset[tuple[str, str]]
    digests: frozenset[str]


async def prune(
    cache: Path, home: Path, report: Report, *, unused_for: float = LATELY_S, remove: bool = True
) -> list[Pruned]:
    """Remove what was not used for ``unused_for`` seconds and is of no use to this Torpor.

    Without ``remove`` only say what would go. Raises ImageError, :exc:`torpor.vm.VmError`, OSError.
    """
    if not (cache / "tools").is_dir():
        return []
    began = time.time()
    # This marks the guest parts of this Torpor as used.
    made = await maker(cache, report)
    present = await asyncio.to_thread(_present, cache, home)
    before = began - max(unused_for, MARK_S)
    report(Step("looking for what nothing uses"))
    found = await _golden(made, present, before, remove=remove)
    for kind, key in list(_old_stages(cache, present, before)):
        if remove:
            size = await asyncio.to_thread(remove_stage, cache, kind, key)
            if size is None:
                continue
        else:
            size = unshared_bytes((cache / kind / key).rglob("*"))
        found.append(Pruned(kind, key, size))
    return found


def _present(cache: Path, home: Path) -> Present:
    stages = set()
    digests = set()
    records = Names(home).records()
    authorities = wanted_authorities()
    recipes = [(Recipe(), SIZE_BYTES)]
    recipes += [(each.recipe, each.size_bytes) for each in records if each.recipe is not None]
    for recipe, size_bytes in recipes:
        packages = tar_key(recipe)
        root = root_key(packages, size_bytes, authorities)
        stages |= {("root-tar", packages), ("root", root)}
        stage = found_stage(cache, "root", root)
        if stage is not None:
            digests.add(stage.facts["digest"])
    digests |= {each.digest for each in records}
    return Present(frozenset(stages), frozenset(digests))


def _old_stages(cache: Path, present: Present, before: float) -> Iterator[tuple[str, str]]:
    for kind in STAGES:
        for stage in sorted((cache / kind).glob("*")):
            if (kind, stage.name) in present.stages or stage.stat().st_mtime >= before:
                continue
            # An import's disk is a link to that of the named image, and costs nothing.
            if kind == "root" and _digest_of(stage) in present.digests:
                continue
            yield kind, stage.name


def _digest_of(stage: Path) -> str | None:
    try:
        facts = json.loads((stage / FACTS).read_text())
    except (OSError, ValueError):
        return None
    return str(facts.get("digest")) if isinstance(facts, dict) else None


async def _golden(made: Maker, present: Present, before: float, *, remove: bool) -> list[Pruned]:
    store = made.store()
    old = []
    for snapshot in store.ids():
        directory = store.directory(snapshot)
        try:
            shape = store.manifest(snapshot).shape
        except SnapshotError:
            continue  # damaged, or of another version: not ours to judge
        images = (Image("", digest, Path(), 0) for digest in present.digests)
        if snapshot in {golden_id(made, image, shape) for image in images}:
            continue
        if directory.stat().st_mtime < before:
            old.append(snapshot)
    if not old or not remove:
        return [Pruned("golden", each, _own_bytes(made, each)) for each in old]
    # Whoever makes a golden snapshot holds the same lock.
    host = await Host.open(made.home, made.accelerator, made.jail, wait=True, keep_disks=False)
    try:
        found = []
        for snapshot in old:
            own = unshared_bytes(host.store.directory(snapshot).rglob("*"))
            found.append(
                Pruned("golden", snapshot, own + (await host.remove(snapshot)).freed_bytes)
            )
        return found
    finally:
        await host.close()


def _own_bytes(made: Maker, snapshot: str) -> int:
    store = made.store()
    found = store.manifest(snapshot)
    files = list(store.directory(snapshot).rglob("*"))
    if found.memory is not None:
        files.append(store.base(found.memory.base))
    return unshared_bytes(files)
