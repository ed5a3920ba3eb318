"""A snapshot travels whole or not at all: round trips, resumption, and files that lie."""

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from tests.vm.real_snapshots import (
    DISK,
    PAGE,
    SHAPE,
    allocated,
    delta_of,
    make_snapshot,
    tree,
    write_layer,
)  # fmt: skip
from torpor.sessions.hosts import OPERATION, SESSION
from torpor.vm import exported, importing, integrity, piece_writer
from torpor.vm.base import count_and_digest
from torpor.vm.errors import HostError, SnapshotError
from torpor.vm.export import export_file, export_stream
from torpor.vm.exported import HEAD, Index, Piece, pack, read_beginning, read_next, write_beginning
from torpor.vm.importing import import_snapshot
from torpor.vm.manifest import DELTA, DEVICES, Manifest
from torpor.vm.rescue import ENDED, MACHINE
from torpor.vm.store import Store


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a store, ``home``, that nobody changes."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def source(made: Path, some_manifest: Manifest) -> Store:
    """A store with the durable snapshot ``one``."""
    store = Store(made / "home")
    if "one" not in store.ids():
        make_snapshot(store, some_manifest, "one")
    return store


@pytest.fixture
def file(source: Store, made: Path) -> Path:
    """The exported snapshot."""
    place = made / "one.torpor"
    if not place.exists():
        export_file(source, "one", place)
    return place


@pytest.fixture
def target(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path / "target")


def take(store: Store, content: bytes | Path, **options: Any) -> importing.Imported:
    data = content if isinstance(content, bytes) else content.read_bytes()
    return import_snapshot(store, io.BytesIO(data), **options)


def content_of(store: Store, snapshot: str) -> list[tuple[str, int]]:
    """Digests and sizes of a snapshot's files in order, their names aside."""
    found, sums = store.durable_parts(snapshot)
    files = list(store.files(found, sums.now))
    return [(sums.files[name], path.stat().st_size) for name, path in files[1:]]


# Round trips


def test_what_arrives_is_what_was_sent(source: Store, file: Path, target: Store) -> None:
    arrived = take(target, file)
    fresh = Store(target.root)
    assert fresh.ids() == ["one"]
    assert fresh.durable("one")
    assert fresh.verify("one") == arrived.manifest
    assert content_of(fresh, "one") == content_of(source, "one")
    sent = source.manifest("one")
    same = ("id", "created_at", "parent", "generation", "shape", "accelerator", "labels", "guest")
    assert all(getattr(arrived.manifest, name) == getattr(sent, name) for name in same)
    assert fresh.collect(()).names == ()
    assert not (target.root / "imports").exists()


def test_the_same_snapshot_is_the_same_file_wherever_it_is_exported(
    file: Path, target: Store, tmp_path: Path
) -> None:
    take(target, file)
    again = tmp_path / "again"
    export_file(target, "one", again)
    assert again.read_bytes() == file.read_bytes()
    stream = io.BytesIO()
    export_stream(target, "one", stream)
    assert stream.getvalue() == file.read_bytes()


def test_holes_stay_holes(source: Store, file: Path, target: Store) -> None:
    take(target, file)
    base = next((target.root / "bases").iterdir())
    root = next(each for each in (target.root / "layers").iterdir() if each.stat().st_size == DISK)
    assert allocated(base) <= allocated(source.root / "bases/base.mem") + 60 * 65536
    assert allocated(root) <= 4 * 65536
    assert file.stat().st_size < 9 << 20


def test_zeros_that_are_stored_and_holes_are_the_same_file(
    file: Path, source: Store, some_manifest: Manifest, tmp_path: Path
) -> None:
    other = Store(tmp_path / "other")
    for part in ("bases", "layers"):
        for each in (source.root / part).iterdir():
            (other.root / part / each.name).write_bytes(each.read_bytes())
    make_snapshot(other, some_manifest, "one")
    out = io.BytesIO()
    export_stream(other, "one", out)
    assert out.getvalue() == file.read_bytes()


def test_through_a_pipe(source: Store, target: Store) -> None:
    reader, writer = os.pipe()
    with open(reader, "rb") as incoming, open(writer, "wb") as outgoing:

        def send() -> None:
            with outgoing:
                export_stream(source, "one", outgoing)

        thread = threading.Thread(target=send)
        thread.start()
        import_snapshot(target, incoming)
        thread.join()
    assert content_of(target, "one") == content_of(source, "one")


def test_a_second_import_finds_it_there(file: Path, target: Store) -> None:
    take(target, file)
    before = tree(target.root)
    assert take(target, file).already
    assert tree(target.root) == before


def test_another_snapshot_of_the_same_id_is_refused(
    file: Path, target: Store, some_manifest: Manifest
) -> None:
    make_snapshot(target, some_manifest, "one", layers=("another",))
    before = tree(target.root)
    with pytest.raises(SnapshotError, match="another snapshot 'one'"):
        take(target, file)
    assert tree(target.root) == before
    assert take(target, file, name="two").manifest.id == "two"
    assert target.verify("two").id == "two"


def test_what_the_target_has_is_not_written_again(
    source: Store, file: Path, tmp_path: Path, some_manifest: Manifest
) -> None:
    golden = Store(tmp_path / "golden")
    make_snapshot(golden, some_manifest, "golden-x", layers=(), delta=False)
    target = Store(tmp_path / "target", golden)
    arrived = take(target, file)
    base = next((target.root / "bases").iterdir())
    assert base.samefile(golden.root / "bases/base.mem")
    assert sum(name.startswith("bases/") for name in arrived.shared) == 1
    assert len(arrived.shared) == 3, "base, image and tools"
    assert arrived.written < 3 << 20
    assert content_of(target, "one") == content_of(source, "one")


def test_what_golden_snapshots_have_can_be_left_out(
    tmp_path: Path, some_manifest: Manifest
) -> None:
    golden = Store(tmp_path / "golden")
    make_snapshot(golden, some_manifest, "golden-x", layers=(), delta=False)
    home = Store(tmp_path / "home", golden)
    for part in ("bases", "layers"):
        home.keep(f"{part}/{each.name}" for each in (golden.root / part).iterdir())
    make_snapshot(home, some_manifest, "one")
    small = tmp_path / "small"
    told = export_file(home, "one", small, shared=False)
    assert len(told.left_out) == 3
    assert small.stat().st_size < 3 << 20
    bare = Store(tmp_path / "bare")
    with pytest.raises(SnapshotError, match="leaves out what this host does not have"):
        take(bare, small)
    assert tree(bare.root) == {}
    other = Store(tmp_path / "other-home", golden)
    take(other, small)
    assert content_of(other, "one") == content_of(home, "one")


def test_a_chain_with_the_same_layer_twice(tmp_path: Path, some_manifest: Manifest) -> None:
    home, target = Store(tmp_path / "home"), Store(tmp_path / "target")
    shutil.copy(_layer(tmp_path / "x", 1), home.root / "layers/a.qcow2")
    shutil.copy(tmp_path / "x", home.root / "layers/c.qcow2")
    make_snapshot(home, some_manifest, "one", layers=("a", "b", "c"))
    export_file(home, "one", tmp_path / "file")
    take(target, tmp_path / "file")
    found = target.verify("one")
    assert len({layer.id for layer in found.disk}) == 4
    assert content_of(target, "one") == content_of(home, "one")


def _layer(file: Path, seed: int) -> Path:
    write_layer(file, seed)
    return file


# Exports that are refused, or cut off


def test_what_is_not_durable_or_damaged_is_not_exported(
    tmp_path: Path, some_manifest: Manifest
) -> None:
    store = Store(tmp_path / "home")
    make_snapshot(store, some_manifest, "one", durable=False)
    with pytest.raises(SnapshotError, match="not durable"):
        export_file(store, "one", tmp_path / "file")
    store.make_durable("one")
    layer = store.root / "layers/first.qcow2"
    layer.write_bytes(layer.read_bytes()[:-1] + b"x")
    with pytest.raises(SnapshotError, match=r"layers/first\.qcow2 does not have the content"):
        export_file(store, "one", tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_file_that_is_there_is_not_overwritten(source: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"precious")
    with pytest.raises(SnapshotError, match="is there already"):
        export_file(source, "one", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"precious"
    export_file(source, "one", tmp_path / "file", replace=True)
    assert (tmp_path / "file").stat().st_size > 1 << 20


def test_an_export_is_written_into_no_file_of_somebody_elses(source: Store, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    partial = tmp_path / "new.partial"
    for leave in (
        lambda: partial.symlink_to(victim),
        lambda: os.link(victim, partial),
        lambda: os.mkfifo(partial),
        lambda: _of_another(partial),
        lambda: partial.symlink_to(tmp_path / "nothing"),
    ):
        leave()
        with pytest.raises(HostError, match="no file of yours alone"):
            export_file(source, "one", tmp_path / "new")
        partial.unlink()
        assert victim.read_bytes() == b"precious"
    partial.touch(0o666)
    export_file(source, "one", tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def _of_another(file: Path) -> None:
    if os.geteuid() != 0:
        os.mkfifo(file)  # nobody else's file can be made
        return
    file.touch(0o666)
    os.chown(file, 65534, 65534)


@pytest.mark.parametrize("seed", range(6))
def test_an_export_that_was_cut_off_goes_on(
    source: Store, file: Path, tmp_path: Path, seed: int
) -> None:
    whole = file.read_bytes()
    chance = random.Random(seed)
    cut = chance.randrange(len(whole))
    there = bytearray(whole[:cut])
    if seed % 3 == 0:  # the disk did not get all of it
        there[-min(cut, 5000) :] = bytes(min(cut, 5000))
    (tmp_path / "new.partial").write_bytes(there)
    told = export_file(source, "one", tmp_path / "new")
    assert (tmp_path / "new").read_bytes() == whole
    assert told.resumed <= cut
    assert told.resumed > cut - (6 << 20)
    assert not (tmp_path / "new.partial").exists()


def test_what_was_begun_of_another_snapshot_is_not_gone_on_with(
    source: Store, file: Path, tmp_path: Path, some_manifest: Manifest
) -> None:
    store = Store(tmp_path / "home")
    make_snapshot(store, some_manifest, "other", layers=("third",))
    (tmp_path / "new.partial").write_bytes(file.read_bytes()[: 5 << 20])
    assert export_file(store, "other", tmp_path / "new").resumed == 0
    target = Store(tmp_path / "target")
    take(target, tmp_path / "new")
    assert content_of(target, "other") == content_of(store, "other")


# Imports that are cut off


@pytest.mark.parametrize("part", [0.001, 0.1, 0.5, 0.8, 0.98])
def test_an_import_of_a_file_that_ends_early_goes_on_with_the_whole(
    source: Store, file: Path, target: Store, part: float
) -> None:
    whole = file.read_bytes()
    cut = int(len(whole) * part)
    before = tree(target.root)
    with pytest.raises(SnapshotError, match="not all there"):
        take(target, whole[:cut])
    assert tree(target.root) == before
    assert target.ids() == []
    arrived = take(target, whole)
    assert content_of(target, "one") == content_of(source, "one")
    assert arrived.resumed <= arrived.written
    if part > 0.9:
        assert arrived.resumed > 4 << 20
    assert not (target.root / "imports").exists()


PROGRAM = """
import sys
from pathlib import Path
from torpor.vm.importing import import_snapshot
from torpor.vm.store import Store
count, kill_at = 0, int(sys.argv[3])
def check():
    global count
    count += 1
    if count == kill_at:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
with open(sys.argv[2], "rb") as file:
    print(import_snapshot(Store(Path(sys.argv[1])), file, check=check).resumed)
"""


def test_an_import_that_is_killed_goes_on_where_it_was(
    source: Store, file: Path, target: Store
) -> None:
    ended = []
    for kill_at in (4, 10, 1000):
        command = [sys.executable, "-c", PROGRAM, str(target.root), str(file), str(kill_at)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        ended.append(done.returncode)
        if done.returncode == -signal.SIGKILL:
            assert target.ids() == []
            # What it has got is nobody's for a collection.
            assert Store(target.root).collect(()).names == ()
    assert ended[0] == -signal.SIGKILL
    assert ended[-1] == 0, done.stderr
    assert int(done.stdout) > 1 << 20
    assert content_of(target, "one") == content_of(source, "one")


def test_what_may_not_have_reached_the_disk_is_written_again(
    source: Store, file: Path, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = file.read_bytes()
    with pytest.raises(SnapshotError):
        take(target, whole[: -(1 << 19)])
    for module in (importing, integrity, piece_writer):
        monkeypatch.setattr(module, "host_boot_id", lambda: "0" * 36)
    assert take(target, whole).resumed == 0
    assert content_of(target, "one") == content_of(source, "one")


def test_an_import_is_stopped_between_pieces(file: Path, target: Store) -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(target, file, check=check)
    assert target.ids() == []
    take(target, file)
    assert target.verify("one").id == "one"


def test_a_full_disk_is_told_before_anything_is_written(
    file: Path, target: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "RESERVE", 1 << 60)
    with pytest.raises(SnapshotError, match="MiB are free"):
        take(target, file)
    assert tree(target.root) == {}


# Files that are damaged or lie


@pytest.mark.parametrize("seed", range(24))
def test_a_flipped_bit_is_found(file: Path, target: Store, seed: int) -> None:
    content = bytearray(file.read_bytes())
    beginning = len(read_beginning(io.BytesIO(content))[1])
    chance = random.Random(seed)
    # Half of them in what is small and matters most.
    place = chance.randrange(beginning + HEAD if seed % 2 else len(content))
    content[place] ^= 1 << chance.randrange(8)
    with pytest.raises(SnapshotError):
        take(target, bytes(content))
    assert tree(target.root) == {}


@pytest.mark.parametrize("where", ["trailer", "behind"])
def test_the_end_must_fit(file: Path, target: Store, where: str) -> None:
    content = file.read_bytes()
    if where == "behind":
        content += b"\0"
    else:
        content = content[:-HEAD] + exported.Trailer(3, bytes(32)).write()
    with pytest.raises(SnapshotError, match="end"):
        take(target, content)
    assert tree(target.root) == {}
    assert not (target.root / "imports").exists()


class Forged:
    """Takes an exported snapshot apart, so that a test can lie in one place and nowhere else."""

    def __init__(self, content: bytes) -> None:
        self.source = io.BytesIO(content)
        self.index, _ = read_beginning(self.source)
        self.pieces: list[tuple[Piece, bytes]] = []
        while isinstance((piece := read_next(self.source)[0]), Piece):
            self.pieces.append((piece, self.source.read(piece.packed)))

    def write(self, text: bytes | None = None) -> bytes:
        """The file again, all checksums right; ``text`` in the place of the index."""
        beginning = write_beginning(self.index)
        if text is not None:
            head = exported._sealed(exported._HEADER.pack(b"TORPORSX", 1, 65536, len(text)))
            beginning = head + text + hashlib.sha256(text).digest()
        heads = [piece.write() for piece, _ in self.pieces]
        sha = hashlib.sha256(beginning + b"".join(heads)).digest()
        body = b"".join(h + packed for h, (_, packed) in zip(heads, self.pieces, strict=True))
        return beginning + body + exported.Trailer(len(heads), sha).write()

    def change(self, **fields: Any) -> None:
        """Change the manifest."""
        self.index = replace(self.index, manifest=replace(self.index.manifest, **fields))

    def change_file(self, end: str, **fields: Any) -> None:
        """Change what the index says of the files whose name has this end."""
        files = tuple(
            replace(each, **fields) if each.name.endswith(end) else each
            for each in self.index.files
        )
        self.index = replace(self.index, files=files)

    def put(self, name: str, content: bytes, tmp_path: Path) -> None:
        """Put another content in the place of a file's, honest in all but that."""
        number = next(i for i, each in enumerate(self.index.files) if each.name.startswith(name))
        old = self.index.files[number]
        (tmp_path / "put").write_bytes(content)
        with open(tmp_path / "put", "rb") as opened:
            blocks, digest = count_and_digest(opened.fileno())
        text = write_beginning(self.index)[HEAD:-32].decode()
        self.index = Index(**asdict(self.index))  # type: ignore[arg-type]
        data = json.loads(text.replace(old.sha256, digest))
        data["files"][number] |= {"size": len(content), "blocks": blocks}
        if old.name in data["manifest"]["sizes"]:
            data["manifest"]["sizes"][old.name] = len(content)
        self.text = json.dumps(data).encode()
        self.index, _ = read_beginning(io.BytesIO(self._beginning(self.text)))
        self.pieces = [each for each in self.pieces if each[0].file != number]
        padded = content.ljust(-(-len(content) // 65536) * 65536, b"\0")
        wanted = [
            n for n in range(len(padded) // 65536) if any(padded[n * 65536 : n * 65536 + 65536])
        ]
        for start in range(0, len(wanted), 64):
            group = wanted[start : start + 64]
            data = b"".join(padded[n * 65536 : (n + 1) * 65536] for n in group)
            self.pieces.append(pack(number, group, data))

    def _beginning(self, text: bytes) -> bytes:
        head = exported._sealed(exported._HEADER.pack(b"TORPORSX", 1, 65536, len(text)))
        return head + text + hashlib.sha256(text).digest()


@pytest.fixture
def forged(file: Path) -> Forged:
    return Forged(file.read_bytes())


def refused(target: Store, forged: Forged, match: str, text: bytes | None = None) -> None:
    with pytest.raises(SnapshotError, match=match):
        take(target, forged.write(text))
    assert tree(target.root) == {}
    assert not (target.root / "imports").exists()


def test_what_is_taken_apart_and_put_together_is_taken(forged: Forged, target: Store) -> None:
    take(target, forged.write())
    assert target.ids() == ["one"]


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "layers/../../x.raw", "layers/x.raw", "manifest.json", ""],
)
def test_a_path_that_is_not_the_snapshots_own(forged: Forged, target: Store, name: str) -> None:
    forged.change_file(forged.index.files[0].name, name=name)
    refused(target, forged, "its files are not those")


@pytest.mark.parametrize("name", ["../x", "..", ".hidden", "a/b", "a\0b", "x" * 101, "golden-x"])
def test_an_id_that_is_none_or_not_free(forged: Forged, target: Store, name: str) -> None:
    forged.change(id=name)
    refused(target, forged, "id|print")


def test_a_layer_cannot_choose_its_name(forged: Forged, target: Store) -> None:
    found = forged.index.manifest
    wanted = replace(found.tools, id="the-name-that-a-golden-snapshot-will-use")
    old = f"layers/{found.tools.file_name}"
    forged.change(tools=wanted)
    forged.change_file(old, name=f"layers/{wanted.file_name}")
    refused(target, forged, "not called by their digests")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 4}, "version 4"),
        ({"created_at": "now"}, "time"),
        ({"created_at": "2026-03-01T08:05:42"}, "time"),
        ({"labels": {"a": "\x1b[2J"}}, "does not print"),
        ({"cpu": "x" * 2000}, "too long"),
        ({"disk": ()}, "layers|files"),
        ({"sizes": {"devices": 1}}, "another size"),
        ({"generation": -1}, "impossible number"),
        ({"generation": 1 << 70}, "impossible number"),
        ({"stored_bytes": 10**30}, "impossible number"),
        ({"allocated_bytes": -5}, "impossible number"),
        ({"qemu_version": (7, 2, 1 << 64)}, "impossible number"),
    ],
)
def test_a_manifest_that_lies(
    forged: Forged, target: Store, change: dict[str, Any], why: str
) -> None:
    forged.change(**change)
    refused(target, forged, why)


def test_a_stranger_marks_no_snapshot_as_what_the_server_has_left(
    forged: Forged, target: Store
) -> None:
    """With these labels it would be taken for the disk of a machine that ended."""
    marks = {MACHINE: "m-1", ENDED: "power-off", OPERATION: "op"}
    forged.change(labels={"mine": "x", SESSION: "s"} | marks)
    arrived = take(target, forged.write())
    assert arrived.manifest.labels == {"mine": "x", SESSION: "s"}
    assert target.manifest("one").labels == {"mine": "x", SESSION: "s"}
    assert take(target, forged.write()).already
    own = Store(target.root.parent / "own")
    import_snapshot(own, io.BytesIO(forged.write()), own=True)
    assert own.manifest("one").labels == {"mine": "x", SESSION: "s"} | marks
    assert take(own, forged.write()).already


def test_a_damaged_file_of_the_store_is_not_taken_for_what_was_sent(
    forged: Forged, target: Store
) -> None:
    name = next(each.name for each in forged.index.files if each.name.startswith("layers/"))
    (target.root / name).write_bytes(b"damaged")
    with pytest.raises(SnapshotError, match="its content is not what its name says"):
        take(target, forged.write())
    assert target.ids() == []


def test_a_machine_of_an_impossible_size(forged: Forged, target: Store) -> None:
    forged.change(shape=replace(SHAPE, memory_mib=1 << 40))
    refused(target, forged, "impossible size")


def test_a_thousand_layers(forged: Forged, target: Store) -> None:
    found = forged.index.manifest
    forged.change(disk=(found.disk[0], *[found.disk[1]] * 1000))
    refused(target, forged, "layers|files")


def test_a_layer_format_of_another_kind(forged: Forged, target: Store) -> None:
    text = write_beginning(forged.index)[HEAD:-32].replace(b'"qcow2"', b'"vmdk"')
    refused(target, forged, "not a whole", text)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"manifest": 1}', b"\xff" * 9, b"[" * 50_000])
def test_an_index_that_is_none(forged: Forged, target: Store, text: bytes) -> None:
    refused(target, forged, "not a whole", text)


@pytest.mark.parametrize("length", [exported.MOST_INDEX + 1, (1 << 64) - 1])
def test_an_index_of_an_absurd_length(target: Store, length: int) -> None:
    head = exported._sealed(exported._HEADER.pack(b"TORPORSX", 1, 65536, length))
    with pytest.raises(SnapshotError, match="out of bounds"):
        take(target, head + bytes(100))


def test_another_version_of_the_file(forged: Forged, target: Store) -> None:
    content = bytearray(forged.write())
    content[:HEAD] = exported._sealed(exported._HEADER.pack(b"TORPORSX", 4, 65536, 10))
    with pytest.raises(SnapshotError, match="version 4; this Torpor reads version 1, 2, 3"):
        take(target, bytes(content))


@pytest.mark.parametrize("name", [DEVICES, DELTA, ".mem", ".raw"])
@pytest.mark.parametrize("size", [-1, 1 << 62])
def test_sizes_that_lie(forged: Forged, target: Store, name: str, size: int) -> None:
    forged.change(sizes={})
    forged.change_file(name, size=size)
    refused(target, forged, "impossible size")


def test_more_content_than_was_said(forged: Forged, target: Store) -> None:
    base = next(each for each in forged.index.files if each.name.startswith("bases/"))
    forged.change_file(base.name, blocks=base.blocks - 1)
    refused(target, forged, "more in it than it should")


def test_less_content_than_was_said(forged: Forged, target: Store) -> None:
    del forged.pieces[-1]
    refused(target, forged, "lacks blocks")


def test_a_bomb_is_not_unpacked(forged: Forged, target: Store) -> None:
    """A piece that unpacks to a GiB is left at the bytes that its header says."""
    reader = exported.zstd.ZstdCompressor()
    zeros = bytes(1 << 24)
    bomb = b"".join(reader.compress(zeros) for _ in range(64)) + reader.flush()
    piece, _ = forged.pieces[0]
    digest = hashlib.sha256(bomb).digest()
    forged.pieces[0] = (replace(piece, packed=len(bomb), sha256=digest), bomb)
    content = forged.write()
    tracemalloc.start()
    try:
        with pytest.raises(SnapshotError, match="does not hold what its header says"):
            take(target, content)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20
    assert tree(target.root) == {}


def test_a_window_of_gigabytes_is_refused(forged: Forged, target: Store) -> None:
    options = {exported.zstd.CompressionParameter.window_log: 27}
    packed = exported.zstd.ZstdCompressor(options=options)
    piece, old = forged.pieces[0]
    raw = exported.zstd.decompress(old)
    # Without its size in the header the frame says which window it wants.
    body = packed.compress(raw[:100]) + packed.compress(raw[100:]) + packed.flush()
    digest = hashlib.sha256(body).digest()
    forged.pieces[0] = (replace(piece, packed=len(body), sha256=digest), body)
    refused(target, forged, "cannot be unpacked")


@pytest.mark.parametrize("change", [{"file": 99}, {"runs": 65}, {"raw": 1}, {"packed": 1 << 31}])
def test_a_piece_out_of_bounds(forged: Forged, target: Store, change: dict[str, int]) -> None:
    piece, packed = forged.pieces[0]
    forged.pieces[0] = (replace(piece, **change), packed)
    refused(target, forged, "out of bounds|of no file")


def test_blocks_beyond_the_end_of_a_file(forged: Forged, target: Store) -> None:
    number = next(i for i, each in enumerate(forged.index.files) if each.name == DEVICES)
    place = next(i for i, (piece, _) in enumerate(forged.pieces) if piece.file == number)
    forged.pieces[place] = pack(number, [1 << 30], b"x" * 65536)
    refused(target, forged, "beyond its end")


def test_another_content_under_the_right_names(forged: Forged, target: Store) -> None:
    number = next(i for i, each in enumerate(forged.index.files) if each.name == DEVICES)
    place = next(i for i, (piece, _) in enumerate(forged.pieces) if piece.file == number)
    size = forged.index.files[number].size
    forged.pieces[place] = pack(number, [0], (b"x" * size).ljust(65536, b"\0"))
    refused(target, forged, "does not have the content that its index says")


def _qcow2(tmp_path: Path, *options: str) -> bytes:
    (tmp_path / "secret").write_bytes(b"the host's secret" * 4096)
    file = tmp_path / "evil.qcow2"
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", *options, str(file), str(DISK)],
        check=True, cwd=tmp_path,
    )  # fmt: skip
    return file.read_bytes()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("-b", "secret", "-F", "raw"), "names a file below it"),
        (("-o", "data_file=data,data_file_raw=on"), "features that no layer has"),
        (("-o", "compat=0.10"), "no qcow2 file of version 3"),
        (("-o", "extended_l2=on"), "features that no layer has"),
    ],
)
def test_a_layer_that_would_open_other_files(
    forged: Forged, target: Store, tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    layer = forged.index.manifest.disk[1]
    forged.put(f"layers/{layer.file_name}", _qcow2(tmp_path, *options), tmp_path)
    refused(target, forged, why)


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"x" * 5000, "its header is wrong"), (delta_of({1: b"x" * PAGE}, 1 << 40), "1099511627776")],
)
def test_a_delta_that_is_none(
    forged: Forged, target: Store, tmp_path: Path, content: bytes, why: str
) -> None:
    forged.put(DELTA, content, tmp_path)
    refused(target, forged, why)


def test_an_honest_forgery_is_taken(forged: Forged, target: Store, tmp_path: Path) -> None:
    """What the tests above change is really all that is wrong there."""
    forged.put(DELTA, delta_of({1: b"x" * PAGE}), tmp_path)
    take(target, forged.write())
    assert target.verify("one").id == "one"


class Slow(io.RawIOBase):
    """Gives a few bytes at a time, as a pipe may."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self._content.read(min(size, 70_000))

    def seekable(self) -> bool:
        return False


def test_a_source_that_gives_a_few_bytes_at_a_time(file: Path, target: Store) -> None:
    import_snapshot(target, cast("BinaryIO", Slow(file.read_bytes())))
    assert target.ids() == ["one"]


def test_what_comes_is_told_before_it_does(file: Path, target: Store) -> None:
    told: list[Manifest] = []

    def announce(found: Manifest) -> None:
        told.append(found)
        assert tree(target.root) == {}
        raise KeyboardInterrupt  # as one might who does not like it

    with pytest.raises(KeyboardInterrupt):
        take(target, file, announce=announce)
    assert [found.id for found in told] == ["one"]
    assert tree(target.root) == {}


def test_progress_is_told_in_bytes(source: Store, file: Path, target: Store) -> None:
    told: list[tuple[str, int, int]] = []
    report: Callable[[str, int, int], None] = lambda *each: told.append(each)  # noqa: E731
    export_stream(source, "one", io.BytesIO(), report=report)
    take(target, file, report=report)
    assert {what.split()[0] for what, _, _ in told} >= {"reading", "exporting", "importing"}
    assert all(0 <= done <= total for _, done, total in told)
    for verb in ("exporting", "importing"):
        assert [done == total for what, done, total in told if what.startswith(verb)][-1]
