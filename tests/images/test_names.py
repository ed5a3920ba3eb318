"""Named images: put, found, listed, replaced, removed; and written out again."""

import asyncio
import json
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.images.oci_builder import Member, directory, hard_link, layer, layout
from tests.images.test_importing import CAPABILITY, CONFIG, read
from torpor.images import Asked, ImageError, Imported, Names, import_image, open_image, silent
from torpor.images.authorities import Authorities
from torpor.images.digests import disk_digest
from torpor.images.export import export_image
from torpor.images.names import imported_record

ASKED = Asked(authorities=Authorities())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("names")


@pytest.fixture(scope="module")
def one(place: Path) -> Imported:
    members = (
        directory(b"d", 0o1755, uid=5),
        Member(b"d/file", content=b"x" * 100_000, mode=0o4750, gid=6),
        hard_link(b"d/again", b"d/file"),
        Member(b"odd \xff\n", content=b"y", xattrs={"security.capability": CAPABILITY}),
        Member(b"large", content=bytes(17 << 20) + b"end"),
    )
    source = layout(place / "one", layer(*members), config=CONFIG)
    return asyncio.run(import_image(place / "cache", str(source), silent, ASKED, "one"))


@pytest.fixture(scope="module")
def two(place: Path) -> Imported:
    source = layout(place / "two", layer(Member(b"two", content=b"2")))
    return asyncio.run(import_image(place / "cache", str(source), silent, ASKED, "two"))


@pytest.fixture
def names(tmp_path: Path) -> Names:
    return Names(tmp_path)


def put(names: Names, name: str, imported: Imported, *, replace: bool = False) -> None:
    names.put(imported_record(name, imported), imported.image.root, replace=replace)


def disks(names: Names) -> list[str]:
    return sorted(each.name for each in (names.root / "disks").iterdir())


def test_a_name_leads_to_its_image(names: Names, one: Imported) -> None:
    put(names, "mine", one)
    image = names.image("mine")
    assert (image.digest, image.size_bytes) == (one.image.digest, one.image.size_bytes)
    assert image.config == one.image.config
    assert image.root.samefile(one.image.root)
    (record,) = names.records()
    assert record.source == str(one.source)
    assert record.manifest == one.manifest
    assert stat.S_IMODE(names.root.stat().st_mode) == 0o700


async def test_an_api_opens_it_by_name(names: Names, place: Path, one: Imported) -> None:
    put(names, "mine", one)
    cache, home = place / "cache", names.root.parent
    assert await open_image(cache, home, "mine", silent) == names.image("mine")
    with pytest.raises(ImageError, match="no image called yours"):
        await open_image(cache, home, "yours", silent)


def test_a_name_survives_a_cleared_cache(names: Names, two: Imported, tmp_path: Path) -> None:
    root = tmp_path / "cached.raw"
    subprocess.run(["cp", "--sparse=always", two.image.root, root], check=True)
    names.put(imported_record("kept", two), root, replace=False)
    root.unlink()
    listed = names.listed("kept")
    assert b"two" in read(names.image("kept"))
    assert listed.alone_bytes == listed.stored_bytes > 0
    assert names.remove("kept") == listed.stored_bytes


def test_what_the_cache_has_too_costs_nothing(names: Names, one: Imported) -> None:
    put(names, "mine", one)
    listed = names.listed("mine")
    assert listed.alone_bytes == 0
    assert listed.stored_bytes == one.image.root.stat().st_blocks * 512
    assert names.remove("mine") == 0


def test_a_disk_goes_with_its_last_name(names: Names, one: Imported, two: Imported) -> None:
    put(names, "a", one)
    put(names, "b", one)
    put(names, "c", two)
    assert len(disks(names)) == 2
    names.remove("a")
    assert len(disks(names)) == 2
    names.remove("b")
    assert disks(names) == [f"{two.image.digest}.raw"]
    with pytest.raises(ImageError, match="no image called b"):
        names.remove("b")


def test_a_name_is_replaced_when_asked_to_be(names: Names, one: Imported, two: Imported) -> None:
    put(names, "mine", one)
    with pytest.raises(ImageError, match="already"):
        put(names, "mine", two)
    assert names.image("mine").digest == one.image.digest
    put(names, "mine", two, replace=True)
    assert names.image("mine").digest == two.image.digest
    assert disks(names) == [f"{two.image.digest}.raw"]


@pytest.mark.parametrize("name", ["", "default", "A", "a/b", "../x", "-a", ".a", "a" * 64, "a b"])
def test_a_name_that_is_none(name: str, names: Names, one: Imported) -> None:
    for attempt in (names.record, names.remove, names.image):
        with pytest.raises(ImageError, match="cannot be called"):
            attempt(name)


def damage(text: str, **changed: Any) -> str:
    return json.dumps(json.loads(text) | changed)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": 2}, "has version 2"),
        ({"unknown": 1}, "is damaged"),
        ({"digest": None}, "is damaged"),
        ({"name": "other"}, "called 'other'"),
    ],
)
def test_a_record_that_is_damaged_is_told_and_costs_no_disk(
    change: dict[str, Any], why: str, names: Names, one: Imported, two: Imported
) -> None:
    put(names, "mine", one)
    put(names, "other", two)
    file = names.root / "names/mine.json"
    file.write_text(damage(file.read_text(), **change))
    with pytest.raises(ImageError, match=why):
        names.image("mine")
    names.remove("other")
    assert len(disks(names)) == 2


def test_a_disk_that_is_missing_is_told(names: Names, one: Imported) -> None:
    put(names, "mine", one)
    (names.root / "disks" / f"{one.image.digest}.raw").unlink()
    with pytest.raises(ImageError, match="Import it again from oci:"):
        names.image("mine")


# Export


@pytest.mark.parametrize("form", ["oci", "tar", "raw"])
def test_what_is_exported_is_imported_again(
    form: Any, names: Names, one: Imported, place: Path, tmp_path: Path
) -> None:
    put(names, "mine", one)
    image = names.image("mine")
    out = tmp_path / "out"
    stored = asyncio.run(export_image(image, out, form, silent))
    assert stored == out.stat().st_blocks * 512
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    if form == "raw":
        assert out.stat().st_size == image.size_bytes
        assert stored < 8 << 20
        assert disk_digest(out) == image.digest
        return
    again = asyncio.run(import_image(place / "cache", str(out), silent, ASKED, "mine"))
    assert again.source.kind == ("oci-archive" if form == "oci" else "tar")
    assert read(again.image) == read(image)
    if form == "oci":
        assert again.image.config == image.config
        with tarfile.open(out) as archive:
            members = [each.name for each in archive if each.isdir()]
        assert members == ["blobs", "blobs/sha256"]  # skopeo of an ordinary user needs them
        described = subprocess.run(
            ["skopeo", "inspect", f"oci-archive:{out}"], check=True, capture_output=True
        )
        assert json.loads(described.stdout)["Architecture"] == "amd64"


def test_an_export_takes_no_others_place(names: Names, two: Imported, tmp_path: Path) -> None:
    put(names, "mine", two)
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(FileExistsError):
        asyncio.run(export_image(names.image("mine"), out, "tar", silent))
    assert out.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["images", "out"]
