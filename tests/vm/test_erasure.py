"""After an erasure the bytes are nowhere in the store, and the report tells what is."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vm.real_snapshots import make_snapshot
from torpor.vm import erasure
from torpor.vm.erasure import Erased, erase, file_system
from torpor.vm.errors import SnapshotError
from torpor.vm.export import export_stream
from torpor.vm.importing import import_snapshot
from torpor.vm.manifest import Manifest
from torpor.vm.store import Store

SECRET = b"a password that nobody is to find again"


def with_secret(store: Store, template: Manifest, name: str, **parts: object) -> None:
    """A snapshot that holds the secret in its devices, its base and its top layer."""
    base, layer = f"base-of-{name}", f"top-of-{name}"
    parts = {"base": base, "layers": ("first", layer)} | parts
    make_snapshot(store, template, name, durable=False, **parts)  # type: ignore[arg-type]
    for file in (f"bases/{base}.mem", f"layers/{layer}.qcow2", f"snapshots/{name}/devices"):
        if (store.root / file).exists():
            with open(store.root / file, "r+b") as opened:
                opened.seek(-2000, 2)
                opened.write(SECRET)
    store.make_durable(name)


def holding(root: Path) -> list[str]:
    """The files below a directory that hold the secret."""
    return [
        str(each.relative_to(root))
        for each in sorted(root.rglob("*"))
        if each.is_file() and SECRET in each.read_bytes()
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home")


def what(report: Erased, kind: str) -> list[str]:
    return [file.name for file in report.files if file.what == kind]


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_of_it_is_left(store: Store, some_manifest: Manifest, overwrite: bool) -> None:
    if overwrite and file_system(store.root) not in erasure.PLAIN:
        pytest.skip(f"{file_system(store.root)} does not write over old bytes")
    make_snapshot(store, some_manifest, "other")
    with_secret(store, some_manifest, "one")
    assert len(holding(store.root)) == 3
    report = erase(store, "one", overwrite=overwrite)
    assert holding(store.root) == []
    assert what(report, "erased") == [
        "bases/base-of-one.mem",
        "layers/top-of-one.qcow2",
        "snapshots/one/devices",
        "snapshots/one/manifest.json",
        "snapshots/one/memory.delta",
        "snapshots/one/sums.json",
    ]
    assert what(report, "kept") == ["layers/root.raw", "layers/first.qcow2", "layers/tools.raw"]
    assert all("shared with other" in file.why for file in report.files if file.what == "kept")
    assert report.complete, "what is left it had not brought"
    assert report.overwritten == overwrite
    assert store.ids() == ["other"]
    assert Store(store.root).verify("other").id == "other"
    assert report.limits


def test_alone_it_is_erased_completely(store: Store, some_manifest: Manifest) -> None:
    with_secret(store, some_manifest, "one")
    report = erase(store, "one")
    assert report.complete
    assert [each for each in store.root.rglob("*") if each.is_file()] == []


def test_a_shared_layer_is_told_and_left(store: Store, some_manifest: Manifest) -> None:
    with_secret(store, some_manifest, "one")
    make_snapshot(
        store, some_manifest, "two", base="base-of-one", layers=("first", "top-of-one"),
        parent="one",
    )  # fmt: skip
    report = erase(store, "one")
    assert not report.complete
    assert report.descendants == ("two",)
    told = {file.name: file.why for file in report.files if file.what == "kept"}
    assert sorted(holding(store.root)) == ["bases/base-of-one.mem", "layers/top-of-one.qcow2"]
    assert set(holding(store.root)) <= set(told)
    assert "two" in told["layers/top-of-one.qcow2"]
    assert Store(store.root).verify("two").id == "two"
    last = erase(store, "two")
    assert last.complete
    assert holding(store.root) == []


def test_what_a_machine_needs_is_left(store: Store, some_manifest: Manifest) -> None:
    with_secret(store, some_manifest, "one")
    report = erase(store, "one", ["layers/top-of-one.qcow2"])
    assert not report.complete
    assert holding(store.root) == ["layers/top-of-one.qcow2"]
    kept = next(file for file in report.files if file.what == "kept")
    assert kept.why == "a machine that runs needs it"


def test_what_the_cache_has_is_not_cut_there(tmp_path: Path, some_manifest: Manifest) -> None:
    golden = Store(tmp_path / "golden")
    make_snapshot(golden, some_manifest, "golden-x", layers=(), delta=False)
    store = Store(tmp_path / "home", golden)
    store.keep(["bases/base.mem", "layers/root.raw", "layers/tools.raw"])
    with_secret(store, some_manifest, "one", base="base")
    report = erase(store, "one")
    told = {file.name: file.why for file in report.files if file.what == "kept"}
    assert sorted(told) == ["bases/base.mem", "layers/root.raw", "layers/tools.raw"]
    assert all("golden" in why for why in told.values())
    assert golden.verify("golden-x").id == "golden-x"


def test_a_link_outside_of_the_store_is_told(
    store: Store, some_manifest: Manifest, tmp_path: Path
) -> None:
    with_secret(store, some_manifest, "one")
    os.link(store.root / "bases/base-of-one.mem", tmp_path / "copy")
    report = erase(store, "one")
    kept = {file.name: file.why for file in report.files if file.what == "kept"}
    assert kept == {"bases/base-of-one.mem": "1 hard links to it are outside of this store"}


def test_who_has_it_open_reads_nothing_any_more(store: Store, some_manifest: Manifest) -> None:
    with_secret(store, some_manifest, "one")
    program = "import sys; f = open(sys.argv[1], 'rb'); print(flush=True); input(); print(f.read())"
    file = store.root / "bases/base-of-one.mem"
    reader = subprocess.Popen(
        [sys.executable, "-c", program, file],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert reader.stdout is not None
    reader.stdout.readline()
    report = erase(store, "one")
    base = next(each for each in report.files if each.name == "bases/base-of-one.mem")
    assert base.open_in == (reader.pid,)
    assert reader.communicate("\n")[0] == "b''\n"


def test_a_layer_that_was_merged_away_is_erased_too(store: Store, some_manifest: Manifest) -> None:
    with_secret(store, some_manifest, "one")
    found, sums = store.durable_parts("one")
    merged = found.disk[:-1]
    store.write_sums("one", type(sums)(sums.files, merged))
    assert "layers/top-of-one.qcow2" in what(erase(store, "one"), "erased")
    assert holding(store.root) == []


def test_an_import_of_it_that_was_cut_off_goes_too(
    store: Store, some_manifest: Manifest, tmp_path: Path
) -> None:
    other = Store(tmp_path / "other")
    with_secret(other, some_manifest, "one")
    out = io.BytesIO()
    export_stream(other, "one", out)
    with pytest.raises(SnapshotError):
        import_snapshot(store, io.BytesIO(out.getvalue()[:-300_000]))
    with_secret(store, some_manifest, "one")
    assert any(name.startswith("imports/") for name in holding(store.root))
    assert erase(store, "one").complete
    assert holding(store.root) == []


def test_overwriting_is_refused_where_it_would_prove_nothing(
    store: Store, some_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_secret(store, some_manifest, "one")
    monkeypatch.setattr(erasure, "file_system", lambda _: "btrfs")
    with pytest.raises(SnapshotError, match="On btrfs new bytes are not written over"):
        erase(store, "one", overwrite=True)
    assert store.verify("one").id == "one"
    assert any("btrfs" in limit for limit in erase(store, "one").limits)


def test_bytes_that_cannot_be_written_over_are_no_success(
    store: Store, some_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if file_system(store.root) not in erasure.PLAIN:
        monkeypatch.setattr(erasure, "file_system", lambda _: "ext4")
    with_secret(store, some_manifest, "one")
    monkeypatch.setattr(erasure, "write_all", lambda *_: None)
    with pytest.raises(OSError, match="something else was read"):
        erase(store, "one", overwrite=True)
    assert store.ids() == ["one"], "it is still listed, so that it can be erased again"
    monkeypatch.undo()
    erase(store, "one")
    assert holding(store.root) == []


def test_an_unknown_snapshot(store: Store) -> None:
    with pytest.raises(SnapshotError, match="There is no snapshot"):
        erase(store, "one")


def test_the_file_system_is_named() -> None:
    assert file_system(Path("/proc")) == "proc"
    if shutil.which("findmnt"):
        said = subprocess.run(
            ["findmnt", "-no", "FSTYPE", "-T", "/"], capture_output=True, text=True, check=True
        )
        assert file_system(Path("/")) == said.stdout.strip()
