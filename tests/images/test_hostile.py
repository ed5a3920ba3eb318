"""Images that lie, climb, bomb or ask for too much are refused, and the host stays as it was."""

import asyncio
import gzip
import hashlib
import io
import json
import os
import resource
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.images.oci_builder import (
    OCI,
    Builder,
    Member,
    directory,
    hard_link,
    layer,
    layout,
    packed,
    symlink,
)
from torpor.images import Asked, HostileImageError, ImageError, import_image, layer_tree, silent
from torpor.images.authorities import Authorities
from torpor.images.ext4_read import Disk
from torpor.images.layer_tree import LayerTree, Node
from torpor.images.layers import Limits
from torpor.images.layout import archive_layout
from torpor.images.tar_stream import Entry, Reader, entries

FILE = Member(b"file", content=b"content")
Refused = Callable[..., str]


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A directory that an image would like to write to; it must be as it was."""
    target = tmp_path / "outside"
    target.mkdir()
    (target / "victim").write_text("untouched")
    before = target.stat().st_mtime_ns, (target / "victim").stat()
    yield target
    assert [each.name for each in target.iterdir()] == ["victim"]
    assert (target.stat().st_mtime_ns, (target / "victim").stat()) == before
    assert (target / "victim").read_text() == "untouched"


@pytest.fixture
def refused(tmp_path: Path, outside: Path) -> Refused:
    """Import what must be refused; returns what was said."""

    def attempt(source: object, error: type[ImageError] = HostileImageError, **options: Any) -> str:
        cache = tmp_path / "cache"
        asked = Asked(authorities=Authorities(), **options)
        with pytest.raises(error) as caught:
            asyncio.run(import_image(cache, str(source), silent, asked))
        assert list((cache / ".building").iterdir()) == []
        left = {str(each.relative_to(cache)) for each in cache.rglob("*")}
        assert left - {".building", "root"} == set()
        return str(caught.value)

    return attempt


# Climbing out


@pytest.mark.parametrize(
    "name", [b"../x", b"a/../../x", b"..", b"a/..", b"/etc/x", b"//x", b"./../x", b"a/../b"]
)
def test_a_name_that_climbs(name: bytes, tmp_path: Path, refused: Refused) -> None:
    said = refused(layout(tmp_path / "oci", layer(FILE, Member(name, content=b"x"))))
    assert "climbs" in said or "absolute" in said


@pytest.mark.parametrize("target", [b"..", b"../../../../tmp", b"a/../../.."])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_link_that_climbs_is_not_followed(
    target: bytes, layers: int, tmp_path: Path, refused: Refused
) -> None:
    link = [directory(b"a"), symlink(b"link", target)]
    through = [Member(b"link/victim", content=b"x")]
    contents = [layer(*link, *through)] if layers == 1 else [layer(*link), layer(*through)]
    assert "climbs out of the image" in refused(layout(tmp_path / "oci", *contents))


def test_an_absolute_link_leads_nowhere_outside(
    tmp_path: Path, outside: Path, refused: Refused
) -> None:
    link = layer(symlink(b"link", os.fsencode(outside)))
    through = layer(Member(b"link/victim", content=b"x"))
    assert "leads nowhere in the image" in refused(layout(tmp_path / "oci", link, through))


def test_an_absolute_link_is_followed_inside(tmp_path: Path, outside: Path) -> None:
    inside = os.fsencode(outside).lstrip(b"/")
    source = layout(
        tmp_path / "oci",
        layer(directory(inside), symlink(b"link", b"/" + inside)),
        layer(Member(b"link/victim", content=b"inside")),
    )
    asked = Asked(authorities=Authorities())
    image = asyncio.run(import_image(tmp_path / "cache", str(source), silent, asked)).image
    with Disk(image.root) as disk:
        found = dict(disk.walk())
        assert b"".join(disk.read(found[inside + b"/victim"])) == b"inside"


def test_links_in_a_circle(tmp_path: Path, refused: Refused) -> None:
    circle = layer(symlink(b"a", b"b"), symlink(b"b", b"a"))
    said = refused(layout(tmp_path / "oci", circle, layer(Member(b"a/x"))))
    assert "too many symbolic links" in said


@pytest.mark.parametrize("target", [b"../victim", b"/etc/passwd", b"not/there", b"link/passwd"])
def test_a_hard_link_to_what_is_outside(target: bytes, tmp_path: Path, refused: Refused) -> None:
    members = [symlink(b"link", b"/etc"), hard_link(b"hard", target)]
    refused(layout(tmp_path / "oci", layer(*members)))


def test_a_hard_link_to_a_device(tmp_path: Path, refused: Refused) -> None:
    device = Member(b"disk", tarfile.BLKTYPE, device=(254, 0))
    said = refused(layout(tmp_path / "oci", layer(device, hard_link(b"hard", b"disk"))))
    assert "hard link to a block" in said


def test_a_file_over_a_link_to_a_device(tmp_path: Path, refused: Refused) -> None:
    members = [symlink(b"disk", b"/dev/vda"), Member(b"disk", content=b"overwritten")]
    said = refused(layout(tmp_path / "oci", layer(*members)))
    assert "written over a symbolic link of the same layer" in said


def test_a_file_through_a_device(tmp_path: Path, refused: Refused) -> None:
    members = [Member(b"disk", tarfile.BLKTYPE, device=(254, 0)), Member(b"disk/x")]
    assert "goes through a block" in refused(layout(tmp_path / "oci", layer(*members)))


# Lies


def altered(root: Path, which: str) -> Path:
    """A layout in which one blob has another content than its digest says, in the same size."""
    builder = Builder(root)
    described = builder.image([layer(FILE)])
    manifest = json.loads((root / "blobs/sha256" / described["digest"][7:]).read_text())
    descriptor = {
        "manifest": described,
        "config": manifest["config"],
        "layer": manifest["layers"][0],
    }[which]
    blob = root / "blobs/sha256" / descriptor["digest"][7:]
    content = bytearray(blob.read_bytes())
    content[-10] ^= 1
    blob.write_bytes(content)
    builder.index(described)
    return root


@pytest.mark.parametrize("which", ["manifest", "config", "layer"])
def test_a_digest_that_lies(which: str, tmp_path: Path, refused: Refused) -> None:
    said = refused(altered(tmp_path / "oci", which))
    assert "digest is wrong" in said or "not sound gzip" in said


def test_a_content_that_is_another_than_the_config_says(tmp_path: Path, refused: Refused) -> None:
    def change(manifest: dict[str, Any], config: dict[str, Any]) -> None:
        config["rootfs"]["diff_ids"] = ["sha256:" + hashlib.sha256(b"other").hexdigest()]

    assert "digest is wrong" in refused(layout(tmp_path / "oci", layer(FILE), change=change))


@pytest.mark.parametrize("by", [-1, 1, 1 << 40])
@pytest.mark.parametrize("which", ["layers", "config", "manifest"])
def test_a_size_that_lies(which: str, by: int, tmp_path: Path, refused: Refused) -> None:
    builder = Builder(tmp_path / "oci")

    def change(manifest: dict[str, Any], config: dict[str, Any]) -> None:
        if which == "layers":
            manifest["layers"][0]["size"] += by
        if which == "config":
            manifest["config"] = builder.document(config, f"{OCI}config.v1+json")
            manifest["config"]["size"] += by

    described = builder.image([layer(FILE)], change=change)
    if which == "manifest":
        described["size"] += by
    builder.index(described)
    said = refused(builder.root)
    assert "bytes; it should have" in said or "are the most" in said


@pytest.mark.parametrize(
    "digest",
    ["sha256:../../../etc/passwd", "sha256:" + "0" * 63, "md5:" + "0" * 32, "../x", "", 5, None],
)
def test_a_digest_that_is_none(digest: Any, tmp_path: Path, refused: Refused) -> None:
    builder = Builder(tmp_path / "oci")
    builder.index(builder.image([layer(FILE)]) | {"digest": digest})
    assert "The digest of" in refused(builder.root)


@pytest.mark.parametrize("name", ["index.json", "oci-layout", "manifest", "layer"])
def test_a_file_that_is_a_link_or_a_pipe(
    name: str, tmp_path: Path, outside: Path, refused: Refused
) -> None:
    for kind in ("link", "pipe", "missing"):
        builder = Builder(tmp_path / kind)
        described = builder.image([layer(FILE)])
        builder.index(described)
        manifest = builder.root / "blobs/sha256" / described["digest"][7:]
        digest = json.loads(manifest.read_text())["layers"][0]["digest"][7:]
        places = {"manifest": manifest, "layer": builder.root / "blobs/sha256" / digest}
        victim = places.get(name, builder.root / name)
        victim.unlink()
        if kind == "link":
            victim.symlink_to(outside / "victim")
        elif kind == "pipe":
            os.mkfifo(victim)
        said = refused(f"oci:{builder.root}")
        assert "lacks its file" in said or "not a plain file" in said


# Bombs


def zeros_in_gzip(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)), packer.flush()])


def bomb(root: Path, form: str, size: int) -> Path:
    """A layer of a few kB that unpacks to ``size`` bytes: one file of zeros."""
    builder = Builder(root)
    info = tarfile.TarInfo("zeros")
    info.size = size
    header = info.tobuf(tarfile.PAX_FORMAT)
    if form == "gzip":
        content = gzip.compress(header) + zeros_in_gzip(size)
    else:
        content = packed(header + bytes(size), "zstd")

    def change(manifest: dict[str, Any], config: dict[str, Any]) -> None:
        manifest["layers"] = [builder.blob(content, f"{OCI}layer.v1.tar+{form}")]
        config["rootfs"]["diff_ids"] = ["sha256:" + "0" * 64]

    builder.index(builder.image([], change=change))
    return root


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_a_bomb_is_put_out_at_the_limit(form: str, tmp_path: Path, refused: Refused) -> None:
    source = bomb(tmp_path / "oci", form, 256 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = refused(source, limits=Limits(unpacked_bytes=64 << 20))
    assert "unpacks to more than 67108864 bytes" in said
    assert "--max-unpacked" in said
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_zeros_behind_the_end_of_an_archive_are_bounded_too(
    tmp_path: Path, refused: Refused
) -> None:
    source = layout(tmp_path / "oci", layer(FILE) + bytes(128 << 20))
    said = refused(source, limits=Limits(unpacked_bytes=64 << 20))
    assert "unpacks to more than" in said


def test_a_sparse_file_counts_as_what_it_becomes(tmp_path: Path, refused: Refused) -> None:
    info = tarfile.TarInfo("sparse")
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "sparse",
        "GNU.sparse.realsize": str(1 << 50),
    }
    info.size = 512
    content = info.tobuf(tarfile.PAX_FORMAT) + b"0\n".ljust(512, b"\0") + bytes(1024)
    assert "unpacks to more than" in refused(layout(tmp_path / "oci", content))


def test_many_entries(tmp_path: Path, refused: Refused) -> None:
    many = layer(*(Member(b"%d" % number) for number in range(200)))
    said = refused(layout(tmp_path / "oci", many), limits=Limits(entries=100))
    assert "more than 100 entries" in said


def test_directories_that_are_only_made_on_the_way_count(tmp_path: Path, refused: Refused) -> None:
    deep = layer(*(Member(b"%d/" % number + b"d/" * 100 + b"f") for number in range(10)))
    said = refused(layout(tmp_path / "oci", deep), limits=Limits(entries=500))
    assert "more than 500 entries" in said


@pytest.mark.parametrize(
    "member",
    [symlink(b"%d", b"t" * 4000), Member(b"%d", xattrs={"user.x": b"x" * 3400})],
    ids=["targets", "attributes"],
)
def test_what_is_kept_of_entries_in_memory_is_bounded(
    member: Member, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_tree, "TEXT", 100_000)
    many = layer(*(replace(member, name=b"%d" % number) for number in range(40)))
    said = refused(layout(tmp_path / "oci", many), limits=Limits(entries=100))
    assert "more than 100000 bytes of names, links and attributes" in said


def test_a_way_of_thousands_of_names_is_not_gone(tmp_path: Path, refused: Refused) -> None:
    there = [directory(b"a"), *(symlink(b"l%d" % n, b"a/../" * 400 + b"a") for n in range(9))]
    way = b"/../".join(b"l%d" % n for n in range(9))
    long = layer(*there, symlink(b"way", way))
    said = refused(layout(tmp_path / "oci", long, layer(Member(b"way/f"))))
    assert "leads by more than 4096 names" in said


class Counted(dict[bytes, Node]):
    """The children of a directory, that count how often they are gone through."""

    looks = 0

    def items(self) -> Any:
        Counted.looks += len(self)
        return super().items()


def test_removals_again_and_again_do_not_look_through_everything_again() -> None:
    tree = LayerTree(max_entries=10_000, max_bytes=0)
    tree.root.children = Counted()
    for number in range(300):
        tree.add(entry(b"f%d" % number), 1)
    for _ in range(300):
        tree.add(entry(b".wh..wh..opq"), 1)
    assert Counted.looks == 300
    assert len(list(tree.walk())) == 300
    tree.add(entry(b".wh..wh..opq"), 2)  # of a later layer: all of it goes
    assert list(tree.walk()) == []


def entry(name: bytes) -> Entry:
    return Entry(name, "file", 0o644, 0, 0, 0)


def test_empty_members_of_gzip_without_end(tmp_path: Path, refused: Refused) -> None:
    builder = Builder(tmp_path / "oci")
    content = gzip.compress(layer(FILE)) + gzip.compress(b"") * 20_000

    def change(manifest: dict[str, Any], config: dict[str, Any]) -> None:
        manifest["layers"] = [builder.blob(content, f"{OCI}layer.v1.tar+gzip")]
        config["rootfs"]["diff_ids"] = ["sha256:" + "0" * 64]

    builder.index(builder.image([], change=change))
    assert "empty gzip members" in refused(builder.root)


def test_a_thousand_layers(tmp_path: Path, refused: Refused) -> None:
    said = refused(layout(tmp_path / "oci", *[layer(FILE)] * 1000))
    assert "1000 layers; 256 are the most" in said


def test_many_layers_are_not_too_many(tmp_path: Path) -> None:
    source = layout(tmp_path / "oci", *(layer(Member(b"%d" % number)) for number in range(200)))
    asked = Asked(authorities=Authorities())
    image = asyncio.run(import_image(tmp_path / "cache", str(source), silent, asked)).image
    with Disk(image.root) as disk:
        assert len(list(disk.walk())) == 201


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (Member(b"x", xattrs={"user.x": b"x" * (2 << 20)}), "extended header of"),
        (Member(b"x", xattrs={"user.x": b"x" * 5000}), "bytes of extended attributes"),
        (Member(b"x", xattrs={f"user.{n}": b"" for n in range(1000)}), "extended attributes"),
        (Member(b"x", xattrs={"user.a\nclose": b""}), "of a name that is not printable"),
        (Member(b"x" * 256), "longer than a file system takes"),
        (Member(b"x/" * 3000), "longer than a file system takes"),
        (Member(b"/".join([b"x"] * 600)), "directories deep"),
        (symlink(b"x", b"t" * 5000), "no file system takes"),
    ],
)
def test_what_no_file_system_takes(
    member: Member, why: str, tmp_path: Path, refused: Refused
) -> None:
    assert why in refused(layout(tmp_path / "oci", layer(member)))


def test_extended_headers_without_end(tmp_path: Path, refused: Refused) -> None:
    info = tarfile.TarInfo("x")
    info.pax_headers = {"comment": "c" * 2000}
    header = info.tobuf(tarfile.PAX_FORMAT)[:-512]
    said = refused(layout(tmp_path / "oci", header * 10_000))
    assert "extended headers for one file" in said


# Documents


def test_an_index_that_is_listed_again_and_again(tmp_path: Path, refused: Refused) -> None:
    builder = Builder(tmp_path / "oci")
    inner = dict(builder.image([layer(FILE)]))
    inner["platform"] = {"os": "linux", "architecture": "arm", "x": [[]] * 300_000}
    index = builder.document({"manifests": [inner]}, f"{OCI}index.v1+json")
    builder.index(*[index] * 900)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "indexes have more than" in refused(builder.root)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize("odd", [["a"], {"a": 1}, "x" * 2000, 7])
def test_a_name_that_is_none_is_nobodys(odd: Any, tmp_path: Path, refused: Refused) -> None:
    builder = Builder(tmp_path / "oci")
    described = [builder.image([layer(Member(b"%d" % n))]) for n in range(2)]
    for each in described:
        each["annotations"] = {"org.opencontainers.image.ref.name": odd}
    builder.index(*described)
    assert "they have no names" in refused(builder.root, ImageError)


@pytest.mark.parametrize(
    "config",
    [
        {"Labels": {"x": "\ud800"}},
        {"Labels": {"\ud800": "x"}},
        {"Env": ["A=\udcff"]},
        {"Entrypoint": ["\udfff"]},
        {"User": "\ud800"},
        {"Env": ["A=\0"]},
    ],
    ids=range(6),
)
def test_text_that_is_none(config: dict[str, Any], tmp_path: Path, refused: Refused) -> None:
    said = refused(layout(tmp_path / "oci", layer(FILE), config=config))
    assert "not what the specification says" in said


@pytest.mark.parametrize("which", ["index", "manifest", "config"])
def test_a_document_of_absurd_size(which: str, tmp_path: Path, refused: Refused) -> None:
    builder = Builder(tmp_path / "oci")
    long = {"annotations": {"x": "x" * (5 << 20)}}

    def change(manifest: dict[str, Any], config: dict[str, Any]) -> None:
        ({"manifest": manifest, "config": config}.get(which) or {}).update(long)

    described = builder.image([layer(FILE)], change=change)
    builder.index(described | (long if which == "index" else {}))
    said = refused(builder.root)
    assert "are the most" in said or "has more than" in said


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"manifests": 5}', b'{"manifests": [5]}']
)
def test_an_index_that_is_none(text: bytes, tmp_path: Path, refused: Refused) -> None:
    source = layout(tmp_path / "oci", layer(FILE))
    (source / "index.json").write_bytes(text)
    refused(source)


def test_an_index_that_leads_to_itself_and_on(tmp_path: Path, refused: Refused) -> None:
    builder = Builder(tmp_path / "oci")
    inner = builder.image([layer(FILE)])
    for _ in range(10):
        inner = builder.document({"manifests": [inner]}, f"{OCI}index.v1+json")
    builder.index(inner)
    assert "more than 4 deep" in refused(builder.root)


def test_an_index_with_many_entries(tmp_path: Path, refused: Refused) -> None:
    builder = Builder(tmp_path / "oci")
    index = builder.document(
        {"manifests": [builder.image([layer(FILE)])] * 400}, f"{OCI}index.v1+json"
    )
    builder.index(*[index] * 10)
    assert "more than 1000 manifests" in refused(builder.root)


@pytest.mark.parametrize(
    "described",
    [
        {"mediaType": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"},
        {"mediaType": f"{OCI}layer.nondistributable.v1.tar+gzip"},
        {"urls": ["http://127.0.0.1:1/layer"]},
    ],
)
def test_a_layer_that_is_elsewhere(
    described: dict[str, Any], tmp_path: Path, refused: Refused
) -> None:
    def change(manifest: dict[str, Any], config: dict[str, Any]) -> None:
        manifest["layers"][0].update(described)

    assert "elsewhere" in refused(layout(tmp_path / "oci", layer(FILE), change=change))


@pytest.mark.parametrize("which", ["layer", "config", "manifest"])
def test_an_unknown_media_type(which: str, tmp_path: Path, refused: Refused) -> None:
    builder = Builder(tmp_path / "oci")
    unknown = "application/x-unknown"

    def change(manifest: dict[str, Any], config: dict[str, Any]) -> None:
        if which == "layer":
            manifest["layers"][0]["mediaType"] = unknown
        if which == "config":
            manifest["config"] = builder.document(config, unknown)

    described = builder.image([layer(FILE)], change=change)
    if which == "manifest":
        described["mediaType"] = unknown
    builder.index(described)
    assert "unknown media type" in refused(builder.root)


@pytest.mark.parametrize("platform", [("linux", "arm64"), ("windows", "amd64")])
def test_another_platform(platform: tuple[str, str], tmp_path: Path, refused: Refused) -> None:
    source = layout(tmp_path / "oci", layer(FILE), platform=platform)
    assert f"{platform[0]}/{platform[1]}" in refused(source, ImageError)


@pytest.mark.parametrize(
    "config",
    [{"Env": ["NAME"]}, {"Env": "A=b"}, {"Cmd": [5]}, {"Labels": {"a": 5}}, {"User": "a\0b"}],
)
def test_a_config_that_is_unsound(config: dict[str, Any], tmp_path: Path, refused: Refused) -> None:
    said = refused(layout(tmp_path / "oci", layer(FILE), config=config))
    assert "in the image's config is not what" in said


# Archives


@pytest.mark.parametrize("cut", [1, 100, 511, 512, 700])
def test_a_layer_that_ends_early(cut: int, tmp_path: Path, refused: Refused) -> None:
    whole = layer(Member(b"x", content=b"x" * 1000))
    content = whole[: len(whole) - 1024 - cut]
    assert "ends in the middle" in refused(layout(tmp_path / "oci", content))


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_a_packed_layer_that_ends_early_or_is_garbage(
    form: str, tmp_path: Path, refused: Refused
) -> None:
    whole = packed(layer(FILE), form)
    for number, content in enumerate((whole[:-20], b"garbage" * 100, whole + b"garbage")):
        builder = Builder(tmp_path / f"{form}{number}")

        def change(manifest: dict[str, Any], config: dict[str, Any]) -> None:
            manifest["layers"] = [builder.blob(content, f"{OCI}layer.v1.tar+{form}")]  # noqa: B023

        builder.index(builder.image([layer(FILE)], change=change))
        assert f"not sound {form}" in refused(builder.root)


@pytest.mark.parametrize("size", [3, 1000])
def test_a_sparse_file_that_becomes_something_else_than_it_says(
    size: int, tmp_path: Path, refused: Refused
) -> None:
    info = tarfile.TarInfo("sparse")
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "sparse",
        "GNU.sparse.realsize": str(size),
    }
    info.size = 1024
    map_and_data = b"1\n0\n5\n".ljust(512, b"\0") + b"12345".ljust(512, b"\0")
    content = info.tobuf(tarfile.PAX_FORMAT) + map_and_data + bytes(1024)
    said = refused(layout(tmp_path / "oci", content), ImageError)
    assert f"'sparse' came out with 5 bytes; it has {size}" in said


@settings(max_examples=300)
@given(st.binary(max_size=4000), st.integers(0, 3000), st.binary(max_size=20))
def test_any_bytes_are_an_archive_or_are_refused(content: bytes, at: int, patch: bytes) -> None:
    whole = bytearray(layer(FILE, directory(b"d"), Member(b"x", xattrs={"user.a": b"b"})))
    whole[at : at + len(patch)] = patch
    for each in (content, bytes(whole)):
        reader = Reader(iter(io.BytesIO(each).readlines()))
        try:
            for entry in entries(reader):
                assert entry.name
                assert entry.stored >= 0
            reader.drain()
        except HostileImageError:
            pass


def test_a_directory_with_content_hides_no_entries() -> None:
    hidden = layer(FILE)[:1024]
    info = tarfile.TarInfo("d")
    info.type, info.size = tarfile.DIRTYPE, len(hidden)
    content = info.tobuf() + hidden + bytes(1024)
    with pytest.raises(HostileImageError, match="directory with content"):
        list(entries(Reader(iter([content]))))


def test_names_of_an_archive_that_are_no_files_of_a_layout_are_not_kept(tmp_path: Path) -> None:
    archive = tmp_path / "long.tar"
    archive.write_bytes(layer(Member(b"n" * 4000), Member(b"oci-layout", content=b"{}")))
    assert list(archive_layout(archive).files or {}) == ["oci-layout"]
