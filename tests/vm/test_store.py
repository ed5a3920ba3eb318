import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torpor.vm import integrity
from torpor.vm import manifest as manifest_module
from torpor.vm import store as store_module
from torpor.vm.disk import Layer
from torpor.vm.errors import SnapshotError
from torpor.vm.manifest import DELTA, DEVICES, MANIFEST, SUMS, Entry, Manifest, Memory
from torpor.vm.shape import MIB, Shape
from torpor.vm.sizes import stored_bytes
from torpor.vm.store import Store

bounded = settings(
    max_examples=40, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SHAPE = Shape(1, 1)
NOT_IDS = [
    "", ".", "..", "/", "a/b", "../bases", "a/../../bases", "/etc", ".hidden", ".partial-a",
    ".trash-a", "a\n", "\na", "a\0b", "a b", "-a", "a" * 101, "a" * 5000, "\u00e4", "~",
]  # fmt: skip


class Snapshots:
    """Makes snapshots of no machine in a store: right in form, small in size."""

    def __init__(self, root: Path, template: Manifest, also: Store | None = None) -> None:
        self.store = Store(root, also)
        self._template = template
        self.tools = Layer("tools", "raw", 4096)
        self.root = Layer("root", "raw", 4096)
        if also is None:
            self.layer(self.tools)
            self.layer(self.root)

    def layer(self, layer: Layer) -> Path:
        file = self.store.root / "layers" / layer.file_name
        file.write_bytes(f"content of {layer.id}".encode() * 100)
        return file

    def base(self, name: str) -> Path:
        file = self.store.root / f"bases/{name}.mem"
        if not file.exists():
            with open(file, "wb") as new:
                new.truncate(SHAPE.memory_bytes)
                new.write(f"base {name}".encode())
        return file

    def put_together(
        self,
        name: str,
        *,
        parent: str | None = None,
        base: str | None = "base",
        disk: tuple[str, ...] = (),
    ) -> tuple[Path, Manifest, dict[str, Path]]:
        """What a freeze has made before it commits."""
        partial = self.store.begin(name)
        memory = None
        if base is not None:
            self.base(base)
            memory = Memory(base, delta=True)
            (partial / DEVICES).write_bytes(b"devices of " + name.encode())
            (partial / DELTA).write_bytes(b"delta of " + name.encode())
        layers = [self.root, *(Layer(each, "qcow2", 4096) for each in disk)]
        objects = {}
        if disk:
            top = partial.parent.parent / f"machine-{name}.qcow2"
            top.write_bytes(f"top layer of {name}".encode())
            objects[f"layers/{layers[-1].file_name}"] = top
        sizes = {file.name: file.stat().st_size for file in partial.iterdir()}
        sizes |= {path: file.stat().st_size for path, file in objects.items()}
        new = replace(
            self._template,
            id=name,
            parent=parent,
            shape=SHAPE,
            memory=memory,
            disk=tuple(layers),
            tools=self.tools,
            sizes=sizes,
        )
        return partial, new, objects

    def make(
        self,
        name: str,
        *,
        parent: str | None = None,
        base: str | None = "base",
        disk: tuple[str, ...] = (),
    ) -> Manifest:
        """A committed snapshot."""
        partial, new, objects = self.put_together(name, parent=parent, base=base, disk=disk)
        self.store.commit(partial, new, objects)
        for file in objects.values():
            file.unlink()
        return new


@pytest.fixture
def snapshots(tmp_path: Path, some_manifest: Manifest) -> Snapshots:
    return Snapshots(tmp_path / "home", some_manifest)


@pytest.fixture
def store(snapshots: Snapshots) -> Store:
    return snapshots.store


def files(store: Store) -> set[str]:
    """Every file of a store, by its path in it."""
    return {str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file()}


def fresh(store: Store) -> Store:
    """The same store, opened by a program that has not verified anything yet."""
    return Store(store.root)


@pytest.fixture
def another_boot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the host look as if it had booted again."""
    return lambda: monkeypatch.setattr(integrity, "host_boot_id", lambda: "another boot")


# Commit


def test_a_snapshot_is_there_only_after_the_rename(snapshots: Snapshots) -> None:
    store = snapshots.store
    partial, new, objects = snapshots.put_together("one", disk=("top",))
    seen: list[list[str]] = []
    real = Path.rename

    def rename(path: Path, target: Path) -> Path:
        seen.append(store.ids())
        with pytest.raises(SnapshotError):
            store.manifest("one")
        return real(path, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        store.commit(partial, new, objects)
    assert seen == [[]]
    assert store.ids() == ["one"]
    assert store.manifest("one") == new
    assert store.verify("one") == new


@pytest.mark.parametrize("step", ["begun", "files", "objects", "manifest"])
def test_a_crash_before_the_rename_leaves_nothing_after_a_collection(
    snapshots: Snapshots, step: str
) -> None:
    snapshots.make("before", disk=("first",))
    before = files(snapshots.store)
    if step == "begun":
        snapshots.store.begin("one")
    else:
        partial, new, objects = snapshots.put_together(
            "one", parent="before", disk=("first", "second")
        )
        if step in ("objects", "manifest"):
            for name, file in objects.items():
                os.link(file, snapshots.store.root / name)
        if step == "manifest":
            (partial / MANIFEST).write_bytes(store_module.documents.write(new))
        for file in objects.values():
            file.unlink()
    after = fresh(snapshots.store)
    assert after.ids() == ["before"]
    collected = after.collect(())
    assert ".partial-one" in collected.names
    assert files(after) == before
    assert after.verify("before").id == "before"
    assert after.collect(()).names == ()


def test_a_collection_leaves_alone_what_is_being_put_together(snapshots: Snapshots) -> None:
    partial, new, objects = snapshots.put_together("one")
    used = {name for name in files(snapshots.store) if name.startswith(("bases/", "layers/"))}
    assert snapshots.store.collect(used).names == ()
    assert partial.is_dir()
    # For another object it has to be named; an iterator that can be read once is enough.
    other = fresh(snapshots.store)
    other.begin("two")
    assert fresh(snapshots.store).collect(used, iter(["one", "two"])).names == ()
    assert sorted(path.name for path in partial.parent.iterdir()) == [
        ".partial-one",
        ".partial-two",
    ]
    snapshots.store.commit(partial, new, objects)
    assert snapshots.store.verify("one") == new
    # What the other had begun is nobody's for a third.
    assert fresh(snapshots.store).collect(()).names == (".partial-two",)


def test_what_was_abandoned_is_gone_and_can_be_begun_again(store: Store) -> None:
    partial = store.begin("one")
    (partial / "devices").write_bytes(b"x")
    store.abandon(partial)
    assert not partial.exists()
    store.abandon(store.begin("one"))
    assert store.ids() == []


@pytest.mark.parametrize("durable", [False, True])
def test_there_is_one_snapshot_of_one_id(snapshots: Snapshots, durable: bool) -> None:
    snapshots.make("one")
    if durable:
        snapshots.store.make_durable("one")
    with pytest.raises(SnapshotError, match="already"):
        snapshots.store.begin("one")
    snapshots.store.begin("two")
    with pytest.raises(SnapshotError, match="being made"):
        snapshots.store.begin("two")
    assert snapshots.store.verify("one").id == "one"


def test_snapshots_are_listed_in_the_order_in_which_they_were_made(snapshots: Snapshots) -> None:
    names = ["z", "a", "m"]
    for number, name in enumerate(names):
        snapshots.make(name)
        manifest = snapshots.store.root / "snapshots" / name / MANIFEST
        os.utime(manifest, ns=(0, 1_000_000_000 * (number + 1)))
    for name in reversed(names):
        snapshots.store.make_durable(name)
    assert snapshots.store.ids() == names


# Names


@pytest.mark.parametrize("name", NOT_IDS)
def test_what_is_no_id_is_refused_and_harms_nothing(snapshots: Snapshots, name: str) -> None:
    store = snapshots.store
    snapshots.make("a", disk=("top",))
    (store.root / "snapshots" / "a" / "b").mkdir()
    before = files(store)
    for call in (
        store.directory, store.manifest, store.verify, store.remove, store.make_durable,
        store.durable, store.begin,
    ):  # fmt: skip
        with pytest.raises(SnapshotError):
            call(name)
    assert files(store) == before


@pytest.mark.parametrize("name", ["../snapshots/a/manifest", "a/b", "..", "", ".hidden", "a\0"])
def test_bases_and_layers_are_looked_for_in_their_place_only(
    snapshots: Snapshots, name: str
) -> None:
    store = snapshots.store
    snapshots.make("a")
    (store.root / "bases/.hidden.mem").touch()
    with pytest.raises(SnapshotError, match="missing from the store"):
        store.base(name)
    with pytest.raises(SnapshotError, match="missing from the store"):
        store.layer(Layer(name, "raw", 1))


def test_an_unknown_snapshot_is_named(store: Store) -> None:
    with pytest.raises(SnapshotError, match="no snapshot 'none'"):
        store.verify("none")


# Damage


DAMAGED = {
    "manifest.json": "snapshots/b/manifest.json",
    "devices": "snapshots/b/devices",
    "memory.delta": "snapshots/b/memory.delta",
    "bases/bb.mem": "bases/bb.mem",
    "layers/b1.qcow2": "layers/b1.qcow2",
    "layers/b2.qcow2": "layers/b2.qcow2",
}


@pytest.fixture
def two(snapshots: Snapshots) -> Store:
    """A store with snapshots ``a`` and ``b``, which share nothing but the root layer and tools."""
    snapshots.make("a", base="ba", disk=("a1",))
    snapshots.make("b0", base="bb", disk=("b1",))
    snapshots.make("b", parent="b0", base="bb", disk=("b1", "b2"))
    for name in ("a", "b0", "b"):
        snapshots.store.make_durable(name)
    return snapshots.store


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def flip(file: Path) -> None:
    with open(file, "r+b") as opened:
        opened.seek(5)
        byte = opened.read(1)
        opened.seek(5)
        opened.write(bytes([byte[0] ^ 4]))


def grow(file: Path) -> None:
    with open(file, "ab") as opened:
        opened.write(b"\0")


def empty(file: Path) -> None:
    os.truncate(file, 0)


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [truncate, flip, grow, empty, Path.unlink, make_directory])
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_and_harms_only_its_snapshot(
    two: Store, name: str, damage: Callable[[Path], None]
) -> None:
    damage(two.root / DAMAGED[name])
    after = fresh(two)
    with pytest.raises(SnapshotError) as error:
        after.verify("b")
    assert name in str(error.value)
    assert "b" in after.ids()
    assert after.verify("a").id == "a"
    # A snapshot that cannot be read is a reason to keep everything.
    before = files(after)
    after.collect(())
    assert files(after) >= before
    after.remove("b")
    after.collect(())
    assert after.verify("a").id == "a"
    shared = {"bases/bb.mem", "layers/b1.qcow2"}
    if name not in shared:
        assert after.verify("b0").id == "b0"
    assert "layers/b2.qcow2" not in files(after)


@pytest.mark.parametrize("damage", [truncate, grow, Path.unlink])
@pytest.mark.parametrize("name", ["devices", "memory.delta", "bases/bb.mem", "layers/b2.qcow2"])
def test_before_it_is_durable_a_file_of_another_size_is_noticed(
    two: Store, name: str, damage: Callable[[Path], None]
) -> None:
    (two.root / "snapshots/b" / SUMS).unlink()
    damage(two.root / DAMAGED[name])
    with pytest.raises(SnapshotError) as error:
        fresh(two).verify("b")
    assert name in str(error.value)


def rewrite(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": 2}, "version 2"),
        ({"version": "1"}, "version '1'"),
        ({"new_field": 1}, "new_field"),
        ({"generation": "many"}, "generation"),
        ({"shape": {"vcpus": 1}}, "shape.memory_mib"),
        ({"disk": "none"}, "disk"),
        ({"id": "a"}, "is that of snapshot 'a'"),
    ],
)
def test_a_manifest_of_another_version_or_form_is_refused(
    two: Store, changes: dict[str, object], why: str
) -> None:
    rewrite(two.root / "snapshots/b" / MANIFEST, **changes)
    with pytest.raises(SnapshotError) as error:
        fresh(two).verify("b")
    assert why in str(error.value)
    with pytest.raises(SnapshotError):
        fresh(two).manifest("b")
    assert fresh(two).verify("a").id == "a"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"files": {}}', '{"files": 3}', "\x00"])
def test_sums_that_cannot_be_read_or_lack_a_file_refuse_the_snapshot(two: Store, text: str) -> None:
    (two.root / "snapshots/b" / SUMS).write_text(text)
    with pytest.raises(SnapshotError, match=r"sums\.json"):
        fresh(two).verify("b")
    assert fresh(two).verify("a").id == "a"


def test_each_file_must_have_its_sum(two: Store) -> None:
    file = two.root / "snapshots/b" / SUMS
    said = json.loads(file.read_text())
    for name in said["files"]:
        less = {key: value for key, value in said["files"].items() if key != name}
        file.write_text(json.dumps(said | {"files": less}))
        with pytest.raises(SnapshotError, match="no sum of"):
            fresh(two).verify("b")


def test_a_file_that_was_found_good_is_read_again_when_it_changed(two: Store) -> None:
    two.verify("b")
    file = two.root / DAMAGED["layers/b2.qcow2"]
    replaced = file.with_name("new")
    replaced.write_bytes(file.read_bytes().swapcase())
    replaced.rename(file)
    with pytest.raises(SnapshotError, match="content"):
        two.verify("b")


def test_the_manifest_of_a_durable_snapshot_is_read_once(
    two: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = manifest_module.read

    def counted(kind: type[Any], file: Path) -> Any:
        read.append(f"{file.parent.name}/{file.name}")
        return real(kind, file)

    monkeypatch.setattr(manifest_module, "read", counted)
    after = fresh(two)
    for _ in range(3):
        after.collect(())
        entries = {snapshot: after.entry(snapshot) for snapshot in after.ids()}
    assert sorted(read) == sorted(set(read))
    assert {f"{snapshot}/manifest.json" for snapshot in entries} <= set(read)
    assert entries == {snapshot: Entry.of(after.manifest(snapshot)) for snapshot in entries}


def test_a_snapshot_that_is_gone_has_no_entry(two: Store) -> None:
    assert two.entry("b").id == "b"
    shutil.rmtree(two.root / "snapshots" / "b")  # by somebody else
    with pytest.raises(SnapshotError):
        two.entry("b")


def test_a_stray_file_among_the_snapshots_harms_nothing(two: Store) -> None:
    (two.root / "snapshots/README").write_text("what is this")
    (two.root / "snapshots/empty").mkdir()
    assert fresh(two).verify("a").id == "a"
    for name in ("README", "empty"):
        with pytest.raises(SnapshotError):
            two.verify(name)
    before = files(two)
    two.collect(())
    assert files(two) == before


# Durable


def test_a_durable_snapshot_has_the_sums_of_all_that_it_needs(two: Store) -> None:
    assert two.durable("b")
    sums = two.make_durable("b").files
    assert set(sums) == {
        "manifest.json", "devices", "memory.delta", "bases/bb.mem", "layers/root.raw",
        "layers/b1.qcow2", "layers/b2.qcow2", "layers/tools.raw",
    }  # fmt: skip


def test_to_make_durable_again_changes_nothing(two: Store) -> None:
    first = two.make_durable("b")
    before = (two.root / "snapshots/b" / SUMS).stat()
    assert fresh(two).make_durable("b") == first
    after = (two.root / "snapshots/b" / SUMS).stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


def test_sums_of_the_parent_are_not_computed_again(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots.make("parent", disk=("p1",))
    parent = snapshots.store.make_durable("parent")
    snapshots.make("child", parent="parent", disk=("p1", "c1"))
    after = fresh(snapshots.store)
    digested: list[str] = []
    real = integrity.digest_base

    def digest(fd: int) -> str:
        digested.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        return real(fd)

    monkeypatch.setattr(integrity, "digest_base", digest)
    child = after.make_durable("child")
    assert sorted(digested) == ["c1.qcow2", "devices", "manifest.json", "memory.delta"]
    assert {k: v for k, v in parent.files.items() if "/" in k}.items() <= child.files.items()
    # The parent's own files have the same names as the child's, and other sums.
    assert child.files["devices"] != parent.files["devices"]
    after.remove("parent")
    after.collect(())
    assert fresh(after).verify("child").id == "child"


def test_a_crash_before_the_sums_are_in_place_leaves_it_not_durable(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots.make("one")

    def crash(path: Path, _target: Path) -> Path:
        raise KeyboardInterrupt(path.name)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            snapshots.store.make_durable("one")
    after = fresh(snapshots.store)
    assert not after.durable("one")
    assert after.verify("one").id == "one"
    after.make_durable("one")
    assert after.durable("one")
    assert fresh(after).verify("one").id == "one"


def test_what_was_not_durable_before_the_host_went_down_is_refused(
    snapshots: Snapshots, another_boot: Callable[[], None]
) -> None:
    snapshots.make("durable")
    snapshots.store.make_durable("durable")
    snapshots.make("not")
    another_boot()
    after = fresh(snapshots.store)
    assert after.verify("durable").id == "durable"
    with pytest.raises(SnapshotError, match="not made durable before the host went down"):
        after.verify("not")
    # Sums made now would say that whatever reached the disk is what was saved.
    with pytest.raises(SnapshotError, match="not made durable before the host went down"):
        after.make_durable("not")
    assert not after.durable("not")


def test_a_missing_file_is_no_reason_to_call_the_rest_durable(snapshots: Snapshots) -> None:
    snapshots.make("one")
    (snapshots.store.root / "snapshots/one" / DELTA).unlink()
    with pytest.raises(SnapshotError, match=r"memory\.delta is missing"):
        snapshots.store.make_durable("one")
    assert not snapshots.store.durable("one")


# Removing


TREES = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 3), st.booleans(), st.booleans()),
    min_size=1,
    max_size=8,
)


@bounded
@given(tree=TREES, used=st.sets(st.integers(0, 7)), removed=st.sets(st.integers(0, 7)))
def test_a_collection_removes_exactly_what_nothing_reaches(
    tmp_path: Path,
    some_manifest: Manifest,
    tree: list[tuple[int, int, bool, bool]],
    used: set[int],
    removed: set[int],
) -> None:
    home = tmp_path / "tree"
    shutil.rmtree(home, ignore_errors=True)
    snapshots = Snapshots(home, some_manifest)
    store = snapshots.store
    made: list[Manifest] = []
    # Each node: which earlier one is its parent, which base it has, whether it has memory at all.
    for number, (parent, base, memory, durable) in enumerate(tree):
        before = made[parent % len(made)] if made and parent < len(made) else None
        disk = tuple(layer.id for layer in before.disk[1:]) if before else ()
        made.append(
            snapshots.make(
                f"s{number}",
                parent=before.id if before else None,
                base=f"base-{base}" if memory else None,
                disk=(*disk, f"top-{number}"),
            )
        )
        if durable:
            store.make_durable(f"s{number}")
    machine = {f"layers/top-{number}.qcow2" for number in used} | {"bases/base-0.mem"}
    reached = set(machine)
    for number, each in enumerate(made):
        if number in removed:
            store.remove(each.id)
        else:
            reached |= {f"layers/{layer.file_name}" for layer in (*each.disk, each.tools)}
            if each.memory:
                reached.add(f"bases/{each.memory.base}.mem")
    there = {name for name in files(store) if not name.startswith("snapshots/")}
    collected = store.collect(machine)
    left = {name for name in files(store) if not name.startswith("snapshots/")}
    assert left == there & reached
    assert set(collected.names) == there - reached
    for number, each in enumerate(made):
        if number not in removed:
            assert fresh(store).verify(each.id) == each
    assert store.collect(machine).names == ()


def test_a_removal_that_was_cut_off_is_finished_by_a_collection(
    snapshots: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots.make("one", disk=("top",))
    snapshots.make("two")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", crash)
        with pytest.raises(KeyboardInterrupt):
            snapshots.store.remove("one")
    after = fresh(snapshots.store)
    assert after.ids() == ["two"]
    assert set(after.collect(()).names) == {".trash-one", "layers/top.qcow2"}
    assert after.verify("two").id == "two"


def test_what_was_freed_is_told(snapshots: Snapshots) -> None:
    snapshots.make("keep", base="keep")
    before = snapshots.store.stored_bytes()
    snapshots.make("one", base="one", disk=("top",))
    snapshots.store.make_durable("one")
    snapshots.store.remove("one")
    between = snapshots.store.stored_bytes()
    collected = snapshots.store.collect(())
    assert collected.freed_bytes == between - snapshots.store.stored_bytes() > 0
    assert snapshots.store.stored_bytes() == before


# Another store to look into


def content(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in root.rglob("*")
    }


@pytest.fixture
def both(tmp_path: Path, some_manifest: Manifest) -> tuple[Snapshots, Snapshots]:
    """A golden store with one snapshot, and a store that looks into it."""
    golden = Snapshots(tmp_path / "golden", some_manifest)
    golden.make("golden-1", base="golden", disk=("g1",))
    golden.store.make_durable("golden-1")
    return golden, Snapshots(tmp_path / "home", some_manifest, fresh(golden.store))


def test_a_golden_store_is_looked_into_and_never_written(
    both: tuple[Snapshots, Snapshots],
) -> None:
    golden, own = both
    before = content(golden.store.root)
    assert own.store.verify("golden-1").id == "golden-1"
    assert own.store.ids() == []
    partial, new, objects = own.put_together(
        "mine", parent="golden-1", base="golden", disk=("g1", "m1")
    )
    own.base("golden").unlink()
    own.store.commit(partial, new, objects)
    for file in objects.values():
        file.unlink()
    assert own.store.base("golden") == golden.store.base("golden")
    sums = own.store.make_durable("mine").files
    assert "bases/golden.mem" in sums
    assert Store(own.store.root, golden.store).verify("mine") == new
    assert own.store.collect(()).names == ()
    own.store.remove("mine")
    assert own.store.collect(()).names == ("layers/m1.qcow2",)
    for call in (own.store.remove, own.store.make_durable):
        with pytest.raises(SnapshotError, match="no snapshot"):
            call("golden-1")
    assert content(golden.store.root) == before


def test_without_its_golden_store_a_snapshot_says_what_is_missing(
    both: tuple[Snapshots, Snapshots],
) -> None:
    golden, own = both
    partial, new, objects = own.put_together("mine", base="golden", disk=("g1", "m1"))
    own.base("golden").unlink()
    own.store.commit(partial, new, objects)
    golden.store.base("golden").unlink()
    with pytest.raises(SnapshotError, match=r"bases/golden\.mem is missing"):
        own.store.verify("mine")


# Bytes


def test_a_sparse_file_counts_as_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    with open(file, "wb") as new:
        new.truncate(100 * MIB)
        new.write(bytes(8192))
        new.flush()
        os.fsync(new.fileno())
    assert stored_bytes([file]) == 8192


def test_a_hard_link_counts_once_and_a_symbolic_link_not_as_its_target(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(8192))
    os.link(file, tmp_path / "again")
    (tmp_path / "symbolic").symlink_to("file")
    (tmp_path / "directory").mkdir()
    (tmp_path / "broken").symlink_to("none")
    assert stored_bytes(tmp_path.iterdir()) == 8192
    assert stored_bytes([file, file, tmp_path / "none"]) == 8192


def test_a_store_is_for_its_owner_only(store: Store) -> None:
    assert store.root.stat().st_mode & 0o777 == 0o700


def test_a_collection_spares_what_is_just_being_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = Store(tmp_path / "golden")
    (golden.root / "layers/root.raw").write_bytes(b"root")
    home = Store(tmp_path / "home", golden)
    real = store_module.link_or_copy

    def link_and_collect(source: Path, target: Path) -> None:
        real(source, target)
        home.collect(())

    monkeypatch.setattr(store_module, "link_or_copy", link_and_collect)
    home.keep(["layers/root.raw"])
    assert (home.root / "layers/root.raw").read_bytes() == b"root"
    assert [file.name for file in (home.root / "layers").iterdir()] == ["root.raw"]
