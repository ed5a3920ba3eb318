"""Imports, compared with their source file by file, without a machine."""

import asyncio
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.images.oci_builder import (
    TIME,
    Builder,
    Member,
    archive_of,
    directory,
    hard_link,
    layer,
    layout,
    symlink,
)
from torpor.images import Asked, Image, ImageError, Imported, Step, import_image, silent
from torpor.images.authorities import Authorities
from torpor.images.contents import HOLE
from torpor.images.ext4_read import Disk
from torpor.images.sources import read_source

CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
DEVICES = {b"dev/null": ("c", 1, 3), b"dev/sda": ("b", 259, 300)}
Made = Callable[..., Imported]


def read(image: Image) -> dict[bytes, dict[str, Any]]:
    """All that a guest would see of an image's files."""
    found: dict[bytes, dict[str, Any]] = {}
    first: dict[int, bytes] = {}
    with Disk(image.root) as disk:
        for path, file in disk.walk():
            regular, link = stat.S_ISREG(file.mode), stat.S_ISLNK(file.mode)
            content = b"".join(disk.read(file)) if regular else b""
            found[path] = {
                "mode": file.mode,
                "owner": (file.uid, file.gid),
                "mtime": file.mtime,
                "size": file.size if regular else 0,
                "sha256": hashlib.sha256(content).hexdigest() if regular else "",
                "target": disk.target(file) if link else b"",
                "device": file.device,
                "xattrs": file.xattrs,
                "same": first.setdefault(file.number, path),
            }
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def made(place: Path) -> Made:
    def make(source: object, **options: Any) -> Imported:
        asked = Asked(authorities=options.pop("authorities", Authorities()), **options)
        return asyncio.run(import_image(place / "cache", str(source), silent, asked))

    return make


LOWER = (
    directory(b"./", 0o751, mtime=TIME + 5),
    directory(b"etc", 0o711),
    Member(b"etc/shadow", content=b"secret", mode=0, uid=1, gid=42),
    directory(b"gone"),
    Member(b"gone/file", content=b"1"),
    directory(b"opaque"),
    Member(b"opaque/old", content=b"1"),
    Member(b"replaced", content=b"old", mode=0o600),
    directory(b"was-directory"),
    Member(b"was-directory/in", content=b"1"),
    Member(b"was-file", content=b"1"),
    Member(b"bin/su", content=b"su", mode=0o6755),
    hard_link(b"bin/su-too", b"bin/su"),
    hard_link(b"bin/su-gone", b"bin/su"),
    Member(b"dev/null", tarfile.CHRTYPE, mode=0o666, device=(1, 3)),
    Member(b"dev/sda", tarfile.BLKTYPE, mode=0o660, gid=6, device=(259, 300)),
    Member(b"fifo", tarfile.FIFOTYPE, mode=0o600, uid=4_000_000_000),
    Member(
        b"bin/ping",
        content=b"ping",
        mode=0o755,
        xattrs={
            "security.capability": CAPABILITY,
            "user.binary": b"\0\xff=\n",
            "trusted.t": b"1",
            'user."a" name; quit': b"",
            "user.ünï": b"x" * 1000,
        },
    ),
    Member(b"new\nline", content=b"a"),
    Member(b"\xff\xfe not utf-8", content=b"b"),
    Member(b"-rf", content=b"c"),
    Member(b" spaces ", content=b"c"),
    Member(b"n" * 255, content=b"d"),
    Member(b"/".join([b"d" * 200] * 19), content=b"deep"),
    directory(b"tmp", 0o1777),
    directory(b"closed", 0),
    Member(b"closed/in", content=b"c", mode=0),
    directory(b"usr/lib"),
    symlink(b"lib", b"usr/lib"),
    symlink(b"dangling", b"/no/where"),
    symlink(b"long", b"t" * 200),
    Member(b"old", mtime=-5),
    Member(b"zeros", content=bytes(3 << 20) + b"x" + bytes(1 << 20)),
    Member(b"large", content=bytes(20 << 20) + b"x" * 70_000 + bytes(333), mode=0o444, uid=9),
    hard_link(b"large-too", b"large"),
)
UPPER = (
    Member(b".wh.gone"),
    Member(b"opaque/.wh..wh..opq"),
    Member(b"opaque/new", content=b"2"),
    Member(b"replaced", content=b"new", mode=0o640, uid=5),
    Member(b"was-directory", content=b"file"),
    directory(b"was-file"),
    Member(b"was-file/in", content=b"2"),
    Member(b"bin/.wh.su-gone"),
    Member(b".wh.never-there"),
    Member(b"lib/library.so", content=b"so"),
)


def expected(members: tuple[Member, ...]) -> dict[bytes, Member]:
    return {each.name: each for each in members}


def test_umoci_unpacks_the_same(tmp_path: Path, made: Made) -> None:
    lower = [each for each in LOWER if each.mode & 0o400]  # umoci's tree can be read by its user
    source = layout(tmp_path / "oci", layer(*lower), layer(*UPPER))
    index = json.loads((source / "index.json").read_text())
    [name] = [
        each["annotations"]["org.opencontainers.image.ref.name"] for each in index["manifests"]
    ]
    tree = tmp_path / "tree"
    subprocess.run(
        ["umoci", "raw", "unpack", "--rootless", "--image", f"{source}:{name}", tree], check=True
    )
    theirs, ours = of_directory(tree), read(made(source).image)
    ours.pop(b"lost+found", None)
    assert theirs.keys() == ours.keys()
    for path, file in theirs.items():
        if not ours[path]["device"][0]:  # an empty file stands for a device
            for what in ("size", "sha256", "target", "same"):
                assert ours[path][what] == file[what], (path, what)
            assert stat.S_IFMT(ours[path]["mode"]) == stat.S_IFMT(file["mode"]), path


@pytest.mark.parametrize("form", ["gzip", "none", "zstd"])
def test_content_is_that_of_the_layers(form: str, tmp_path: Path, made: Made) -> None:
    found = read(made(layout(tmp_path / "oci", layer(*LOWER), layer(*UPPER), form=form)).image)
    gone = {b"gone", b"gone/file", b"opaque/old", b"was-directory/in", b"bin/su-gone"}
    assert not gone & found.keys()
    assert not [path for path in found if b".wh." in path]
    wanted = expected(LOWER) | expected(UPPER)
    wanted[b""] = wanted.pop(b"./")
    wanted[b"usr/lib/library.so"] = wanted.pop(b"lib/library.so")
    kinds = {
        tarfile.REGTYPE: stat.S_IFREG,
        tarfile.DIRTYPE: stat.S_IFDIR,
        tarfile.SYMTYPE: stat.S_IFLNK,
        tarfile.CHRTYPE: stat.S_IFCHR,
        tarfile.BLKTYPE: stat.S_IFBLK,
        tarfile.FIFOTYPE: stat.S_IFIFO,
    }
    for path, member in wanted.items():
        if path in gone or b".wh." in path or member.kind == tarfile.LNKTYPE:
            continue
        assert found[path] == {
            "mode": kinds[member.kind] | member.mode,
            "owner": (member.uid, member.gid),
            "mtime": member.mtime,
            "size": len(member.content),
            "sha256": hashlib.sha256(member.content).hexdigest()
            if member.kind == tarfile.REGTYPE
            else "",
            "target": member.link,
            "device": member.device,
            "xattrs": dict(member.xattrs),
            "same": path,
        }, path
    assert found[b"bin/su-too"] == found[b"bin/su"]
    assert found[b"large-too"] == found[b"large"]
    implied = {b"bin", b"dev", b"usr"} | {b"/".join([b"d" * 200] * n) for n in range(1, 19)}
    assert found.keys() == {
        *(path for path in wanted if path not in gone and b".wh." not in path),
        *implied,
    }
    assert all(found[path]["mode"] == stat.S_IFDIR | 0o755 for path in implied)


def test_the_disk_is_clean_and_sparse(tmp_path: Path, made: Made) -> None:
    image = made(layout(tmp_path / "oci", layer(*LOWER), layer(*UPPER))).image
    checked = subprocess.run(["/sbin/e2fsck", "-fn", image.root], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stdout
    status = image.root.stat()
    assert status.st_size == image.size_bytes == 8 << 30
    assert status.st_blocks * 512 < 16 << 20
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.geteuid(), 0o400)


def test_what_is_there_already_is_found(tmp_path: Path, place: Path, made: Made) -> None:
    source = layout(tmp_path / "oci", layer(Member(b"once", content=b"1")))
    first = made(source)
    assert made(source) == first
    assert made(archive_of(source, tmp_path / "image.tar")).image == first.image
    assert [path.name for path in (place / "cache/.building").iterdir()] == []


@pytest.mark.parametrize("step", ["checking layers", "unpacking", "making the root disk"])
async def test_an_import_that_is_cancelled_leaves_nothing(step: str, tmp_path: Path) -> None:
    source = layout(tmp_path / "oci", layer(*LOWER), layer(*UPPER))

    def told(now: Step) -> None:
        if now.name == step:
            task.cancel()

    asked = Asked(authorities=Authorities())
    task = asyncio.create_task(import_image(tmp_path / "cache", str(source), told, asked))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list((tmp_path / "cache/.building").iterdir()) == []
    assert not list((tmp_path / "cache").glob("root/*"))
    await import_image(tmp_path / "cache", str(source), silent, asked)


CONFIG = {
    "Entrypoint": ["/app", "--serve"],
    "Cmd": ["all"],
    "Env": ["PATH=/app/bin", "EMPTY=", "TWO=a=b"],
    "User": "1000:1000",
    "WorkingDir": "/srv",
    "Labels": {"who": "me"},
    "ExposedPorts": {"80/tcp": {}},
    "Volumes": {"/data": {}},
    "StopSignal": "SIGINT",
}


def test_the_config_is_kept(tmp_path: Path, made: Made) -> None:
    source = layout(tmp_path / "oci", layer(directory(b"srv")), config=CONFIG)
    config = made(source).image.config
    assert config.argv() == ("/app", "--serve", "all")
    assert config.argv("one") == ("/app", "--serve", "one")
    assert config.env == {"PATH": "/app/bin", "EMPTY": "", "TWO": "a=b"}
    assert (config.user, config.working_dir, config.stop_signal) == ("1000:1000", "/srv", "SIGINT")
    assert (config.labels, config.ports, config.volumes) == ({"who": "me"}, ("80/tcp",), ("/data",))


def test_of_several_platforms_the_machines_is_taken(tmp_path: Path, made: Made) -> None:
    builder = Builder(tmp_path / "oci")
    arm = builder.image([layer(Member(b"arm"))], platform=("linux", "arm64"), name=None)
    amd = builder.image([layer(Member(b"amd"))], name=None)
    index = builder.document(
        {
            "schemaVersion": 2,
            "manifests": [
                arm | {"platform": {"os": "linux", "architecture": "arm64"}},
                amd | {"platform": {"os": "linux", "architecture": "amd64"}},
            ],
        },
        "application/vnd.oci.image.index.v1+json",
    )
    builder.index(index)
    assert b"amd" in read(made(builder.root).image)


def test_one_of_several_is_named(tmp_path: Path, made: Made) -> None:
    builder = Builder(tmp_path / "oci")
    one = builder.image([layer(Member(b"one"))], name="one")
    builder.index(one, builder.image([layer(Member(b"two"))], name="two"))
    assert b"two" in read(made(f"oci:{builder.root}:two").image)
    with pytest.raises(ImageError, match="one, two"):
        made(builder.root)
    with pytest.raises(ImageError, match="no image here of the name three"):
        made(f"oci:{builder.root}:three")


def test_an_archive_of_docker_is_read(tmp_path: Path, made: Made) -> None:
    source = layout(tmp_path / "oci", layer(*LOWER), layer(*UPPER), config=CONFIG)
    archive = tmp_path / "docker.tar"
    subprocess.run(
        ["skopeo", "--insecure-policy", "copy", "-q", f"oci:{source}:latest",
         f"docker-archive:{archive}:name:tag"], check=True,
    )  # fmt: skip
    archive.chmod(0o600)
    imported = made(archive)
    assert imported.source.kind == "docker-archive"
    assert imported.image == made(source).image


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    """A directory with all that a user's may have (root's, where tests run as root)."""
    root = tmp_path / "tree"
    (root / "sub/closed").mkdir(parents=True)
    (root / "sub/file").write_bytes(b"content")
    (root / "sub/file").chmod(0o4751)
    os.link(root / "sub/file", root / "sub/other")
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "fifo")
    (root / os.fsdecode(b"odd \xff\n name")).write_bytes(b"odd")
    (root / "-dash").write_bytes(b"dash")
    os.setxattr(root / "sub/file", "user.mine", b"\0value")
    with (root / "sparse").open("wb") as file:
        file.seek(64 << 20)
        file.write(b"end")
    if os.geteuid() == 0:
        os.mknod(root / "device", stat.S_IFCHR | 0o640, os.makedev(1, 7))
        os.chown(root / "-dash", 1234, 5678)
        os.setxattr(root / "sub/file", "security.capability", CAPABILITY)
    (root / "sub/closed").chmod(0o700)
    yield root
    shutil.rmtree(root)


def of_directory(root: Path) -> dict[bytes, dict[str, Any]]:
    found: dict[bytes, dict[str, Any]] = {}
    first: dict[int, bytes] = {}
    for path in [root, *root.rglob("*")]:
        name = os.fsencode(path.relative_to(root)) if path != root else b""
        status = path.lstat()
        regular = stat.S_ISREG(status.st_mode)
        root_owns = os.geteuid() != 0
        found[name] = {
            "mode": status.st_mode,
            "owner": (0, 0) if root_owns else (status.st_uid, status.st_gid),
            "mtime": int(status.st_mtime),
            "size": status.st_size if regular else 0,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest() if regular else "",
            "target": os.fsencode(path.readlink()) if path.is_symlink() else b"",
            "device": (os.major(status.st_rdev), os.minor(status.st_rdev)),
            "xattrs": {
                each: os.getxattr(path, each, follow_symlinks=False)
                for each in os.listxattr(path, follow_symlinks=False)
            },
            "same": first.setdefault(status.st_ino, name),
        }
    for each in found.values():
        each["same"] = min(name for name, other in found.items() if other["same"] == each["same"])
    return found


def test_a_directory_is_what_it_was(tree: Path, made: Made) -> None:
    assert read(made(tree).image) == of_directory(tree)


def test_an_archive_of_a_tree_is_what_the_tree_was(tree: Path, tmp_path: Path, made: Made) -> None:
    archive = tmp_path / "tree.tar.gz"
    of_root = ["--owner=0", "--group=0"] if os.geteuid() != 0 else []
    subprocess.run(
        ["tar", "-czf", archive, "--format=pax", "--xattrs", "--xattrs-include=*", "--sparse",
         "--sort=name", *of_root, "-C", tree, "."], check=True,
    )  # fmt: skip
    assert read(made(archive).image) == of_directory(tree)


def test_a_directory_of_which_there_is_much_to_say_is_read_to_its_end(
    tmp_path: Path, made: Made
) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("x")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "tree/s"))
    long = tmp_path / "tree" / ("n" * 200)
    long.mkdir()
    for number in range(1000):  # tar says of each that it is left out: more than a pipe holds
        os.link(tmp_path / "tree/s", long / f"{number}")
    assert b"file" in read(made(tmp_path / "tree").image)


def test_a_directory_with_a_name_that_means_a_removal(tmp_path: Path, made: Made) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/.wh.file").touch()
    with pytest.raises(ImageError, match="means a removal"):
        made(tmp_path / "tree")


def test_the_disk_grows_with_what_is_in_it(tmp_path: Path, made: Made) -> None:
    sparse = tmp_path / "tree"
    sparse.mkdir()
    with (sparse / "large").open("wb") as file:
        file.truncate(1 << 30)
        for at in (0, 1 << 29, (1 << 30) - 4):
            file.seek(at)
            file.write(b"data")
    os.link(sparse / "large", sparse / "other")
    image = made(sparse, size_bytes=1 << 30).image
    assert image.size_bytes == 3 << 30
    found = read(image)
    with (sparse / "large").open("rb") as file:
        assert found[b"large"]["sha256"] == hashlib.file_digest(file, "sha256").hexdigest()
    assert found[b"other"] == found[b"large"]
    assert image.root.stat().st_blocks * 512 < 16 << 20
    assert made(tmp_path / "tree", size_bytes=20 << 30).image.size_bytes == 20 << 30


def test_what_cannot_be_kept_is_told(tmp_path: Path, made: Made) -> None:
    source = layout(
        tmp_path / "oci",
        layer(Member(b"late", mtime=5_000_000_000), Member(b"apple", xattrs={"com.apple.x": b"1"})),
    )
    imported = made(source)
    assert [note.split()[0:3] for note in imported.notes] == [
        ["1", "files", "have"],
        ["1", "extended", "attributes"],
    ]
    assert read(imported.image)[b"late"]["mtime"] == (1 << 31) - 1


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    for words in (str(tmp_path / "nothing"), f"oci:{tmp_path}/nothing", "docker://", "nix:x"):
        with pytest.raises(ImageError, match="There is no"):
            read_source(words)


def test_words_lead_to_what_they_name(tmp_path: Path) -> None:
    source = layout(tmp_path / "oci", layer(Member(b"x")))
    archive_of(source, tmp_path / "a.tar")
    (tmp_path / "plain.tar").write_bytes(layer(Member(b"x")))
    assert read_source(str(source)).kind == "oci"
    assert read_source(str(tmp_path / "a.tar")).kind == "oci-archive"
    assert read_source(str(tmp_path / "plain.tar")).kind == "tar"
    assert read_source(str(tmp_path)).kind == "tree"
    assert read_source(f"oci:{source}:v1.0").name == "v1.0"
    assert read_source("docker://host:5000/a/b:c").reference == "host:5000/a/b:c"


def test_the_same_layout_gives_the_same_bytes(tmp_path: Path) -> None:
    one = layout(tmp_path / "one", layer(*LOWER))
    two = layout(tmp_path / "two", layer(*LOWER))
    index = [json.loads((each / "index.json").read_text()) for each in (one, two)]
    assert index[0] == index[1]


def test_a_large_file_keeps_its_name_its_holes_and_its_content(tmp_path: Path, made: Made) -> None:
    hole = bytes(HOLE)
    content = {
        b"\xff\xfe not a text": b"a" * HOLE,
        b"d" * 200 + b"/" + b"n" * 200: b"a" * HOLE + hole + b"b",
        b"ends-in-a-hole": b"c" + 3 * hole,
        b"just-small": b"s" * (HOLE - 1),
        b"of-a-user": b"u" * (HOLE + 1),
    }
    first = [Member(name, content=each, uid=3_000_000) for name, each in content.items()]
    second = [hard_link(b"other-name", b"ends-in-a-hole"), Member(b"of-a-user", content=b"new")]
    source = layout(tmp_path / "oci", layer(*first), layer(*second))
    found = read(made(source).image)
    content[b"of-a-user"] = b"new"
    for name, each in content.items():
        assert found[name]["sha256"] == hashlib.sha256(each).hexdigest()
        assert found[name]["size"] == len(each)
    assert found[b"ends-in-a-hole"]["owner"] == (3_000_000, 0)
    assert found[b"other-name"]["same"] == found[b"ends-in-a-hole"]["same"]


@pytest.mark.parametrize("form", ["oldgnu", "0.0", "0.1", "1.0"])
def test_a_sparse_file_in_every_form_that_tar_has(form: str, tmp_path: Path, made: Made) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    holes = {"begins": (HOLE, b"end"), "many": (512, b"x" * 512), "small": (512, b"")}
    for name, (hole, data) in holes.items():
        with (tree / name).open("wb") as file:
            for _ in range(200 if name == "many" else 1):
                file.seek(8 * hole, os.SEEK_CUR)
                file.write(data)
            file.truncate(file.tell() + 8 * hole)
    # As large in the archive as it is on the disk: what is stored are its map and its data.
    with (tree / "even").open("wb") as file:
        file.write(b"a" * 4096)
        file.truncate(4096 + 512)
    archive = tmp_path / "tree.tar"
    how = ["--format=gnu"] if form == "oldgnu" else ["--format=pax", f"--sparse-version={form}"]
    subprocess.run(
        ["tar", "-cf", archive, *how, "--sparse", "--hole-detection=raw", "-C", tree, "."],
        check=True,
    )
    assert read(made(archive).image) == of_directory(tree)
