"""Disks that outlive machines, in a backup: what they held, whole, and once."""

import asyncio
import io
import json
import struct
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.backup.conftest import Home, make_home
from tests.vm.real_snapshots import a_manifest, make_snapshot, write_layer
from torpor.backup import BackupError, Summary, restore, verify
from torpor.backup.contents import DISK
from torpor.backup.disks import opened_disk
from torpor.backup.framing import FrameReader, FrameWriter
from torpor.sessions.hosts import SESSION
from torpor.vm.disk import Layer
from torpor.vm.disks import make_disk
from torpor.vm.manifest import KeptDisk
from torpor.vm.settling import settle
from torpor.vm.shape import MIB
from torpor.vm.store import Store

SIZE = 32 * MIB


def layer(store: Store, name: str) -> Layer:
    write_layer(store.root / f"layers/{name}.qcow2", sum(name.encode()), SIZE)
    return Layer(name, "qcow2", SIZE)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with a disk of a paused session, one that nobody has, and one that is new."""
    made = make_home(tmp_path_factory.mktemp("with-disks") / "home")
    store = Store(made.root)
    for disk in ("had", "free", "new"):
        asyncio.run(make_disk(store, disk, SIZE))
    had = (*store.heads.read("had").now.layers, layer(store, "below"), layer(store, "above"))
    store.remove("s-paused")
    make_snapshot(
        store,
        replace(a_manifest(), labels={SESSION: "id-of-paused"}),
        "s-paused",
        disks=(KeptDisk("workspace", "had", had),),
    )
    store.heads.move("had", had)
    # Its last layer was saved, and is not durable yet.
    store.heads.move("free", (*store.heads.read("free").now.layers, layer(store, "alone")))
    return made


@pytest.fixture(scope="module")
def backup(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("backup") / "file"
    assert home.back_up(file).complete
    return file


def restored(source: bytes, home: Home) -> Summary:
    return asyncio.run(restore(io.BytesIO(source), home.root, home.url)).summary


def test_they_are_in_it_and_it_has_another_version(backup: Path) -> None:
    text = backup.read_bytes()
    assert struct.unpack_from("<I", text, 8) == (2,)
    _, summary = verify(io.BytesIO(text))
    assert summary.disks == ("free", "had", "new")


def test_without_disks_a_backup_is_of_the_old_version(tmp_path: Path) -> None:
    made = make_home(tmp_path / "home")
    made.back_up(tmp_path / "file")
    assert struct.unpack_from("<I", (tmp_path / "file").read_bytes(), 8) == (1,)


def test_each_disk_holds_what_it_held(backup: Path, home: Home, tmp_path: Path) -> None:
    there = Home(tmp_path / "there")
    restored(backup.read_bytes(), there)
    old, new = Store(home.root), Store(there.root)
    assert new.heads.ids() == ["free", "had", "new"]
    for disk in new.heads.ids():
        was, now = old.heads.read(disk), new.heads.read(disk)
        assert (now.size_bytes, now.now.saved_at) == (SIZE, was.now.saved_at)
        assert now.now.durable
        for one, other in zip(was.now.layers, now.now.layers, strict=True):
            assert old.layer(one).read_bytes() == new.layer(other).read_bytes()
        places = [new.layer(each) for each in now.now.layers]
        new.heads.check(disk, now.now.layers, places, new.digests)
        assert all(place.stat().st_mode & 0o777 == 0o600 for place in places)
    assert new.collect(()).names == ()
    # The snapshot that was taken with it is so still, and shares what it shared.
    (kept,) = new.manifest("s-paused").disks
    assert (kept.disk, kept.layers) == ("had", new.heads.read("had").now.layers)
    new.verify("s-paused")
    settle(new, "had")


def test_what_is_not_durable_yet_is_there_as_it_was_last_saved(home: Home) -> None:
    """Nobody waits for the disk of a machine that runs: what is durable of it is taken."""
    store = Store(home.root)
    before = store.heads.read("new").now
    store.heads.move("new", (*before.layers, layer(store, "unsaved")))
    try:
        with ExitStack() as stack:
            saved, fds = opened_disk(store, "new", {}, stack)
        assert (len(saved.layers), len(fds), saved.saved_at) == (1, 1, None)
    finally:
        store.heads.move("new", before.layers)


def test_a_disk_that_is_damaged_is_missing_and_told(home: Home, tmp_path: Path) -> None:
    store = Store(home.root)
    settle(store, "free")
    place = store.layer(store.heads.read("free").now.layers[-1])
    text = place.read_bytes()
    place.write_bytes(text[:-1] + bytes([text[-1] ^ 1]))
    try:
        summary = home.back_up(tmp_path / "file")
    finally:
        place.write_bytes(text)
    assert summary.disks == ("had", "new")
    (missing,) = summary.missing
    assert (missing.what, missing.name) == ("disk", "free")
    assert "content that was saved" in missing.why
    verify(io.BytesIO((tmp_path / "file").read_bytes()))


def changed(backup: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The backup, with what it says of its first disk changed."""
    out = io.BytesIO()
    writer = FrameWriter(out, 2)
    first = True
    for kind, content in FrameReader(io.BytesIO(backup)).sections():
        text = content.read()
        if kind == DISK and first:
            first = False
            (length,) = struct.unpack_from("<I", text)
            document = json.loads(text[4 : 4 + length])
            change(document)
            said = json.dumps(document).encode()
            text = struct.pack("<I", len(said)) + said + text[4 + length :]
        with writer.section(kind) as section:
            section.write(text)
    writer.close()
    return out.getvalue()


def test_a_backup_put_together_again_is_whole(backup: Path) -> None:
    verify(io.BytesIO(changed(backup.read_bytes(), lambda _: None)))


@pytest.mark.parametrize(
    "change",
    [
        lambda disk: disk["layers"].pop(),
        lambda disk: disk["layers"].reverse(),
        lambda disk: disk["layers"][1].update(size=SIZE * 2),
        lambda disk: disk["layers"][1].update(id="../../x"),
        lambda disk: disk["files"][1].update(name="bases/x"),
        lambda disk: disk["files"][1].update(size=1 << 60),
        lambda disk: disk["files"][1].update(blocks=1),
        lambda disk: disk["files"][1].update(left_out=True),
        lambda disk: disk["files"][0].update(sha256="0" * 64),
        lambda disk: disk.update(size_bytes=SIZE + 4096),
        lambda disk: disk.update(id="../x"),
        lambda disk: disk.update(id="had"),
        lambda disk: disk.update(more=1),
    ],
    ids=range(13),
)
def test_a_lie_about_a_disk_is_refused_and_leaves_nothing(
    backup: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    there, lie = Home(tmp_path / "there"), changed(backup.read_bytes(), change)
    with pytest.raises(BackupError):
        restored(lie, there)
    with pytest.raises(BackupError):
        verify(io.BytesIO(lie))
    assert sorted(each.name for each in there.root.iterdir()) == ["host.lock"]
