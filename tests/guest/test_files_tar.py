"""Archives: what is packed here others can read, and what others pack is read here."""

import io
import os
import random
import socket
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.guest.conftest import work
from torpor.guest import tar
from torpor.guest.tar import ArchiveError, Member

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners and devices need root")

NAMES = st.one_of(
    st.binary(min_size=1, max_size=20).filter(
        lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
    ),
    st.sampled_from([b"-rf", b" ", b"\n", b"a\\n", b"*", "\u00e9\U0001f40d".encode(), b"L" * 255]),
    st.integers(90, 160).map(lambda size: b"n" * size),
)
FILE = st.tuples(
    st.binary(max_size=2000),
    st.sampled_from([0o644, 0o4755, 0o000, 0o2711]),
    st.integers(0, 1 << 31),
    st.sampled_from([0, 1, -1, 1_700_000_000_123_456_789, 999_999_999]),
)
TREE: st.SearchStrategy[Any] = st.recursive(
    FILE,
    lambda inner: st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
).filter(lambda tree: isinstance(tree, dict))


def make(tree: dict[bytes, Any], where: Path) -> None:
    """Make a tree of files: a dictionary is a directory."""
    where.mkdir()
    for name, what in tree.items():
        path = where / os.fsdecode(name)
        if isinstance(what, dict):
            make(what, path)
        else:
            data, mode, owner, mtime_ns = what
            path.write_bytes(data)
            os.chown(path, owner, owner // 2)
            path.chmod(mode)
            os.utime(path, ns=(mtime_ns, mtime_ns))


def look(root: Path) -> dict[str, tuple[Any, ...]]:
    """All that an archive must bring along, by path."""
    found: dict[str, tuple[Any, ...]] = {}
    numbers: dict[tuple[int, int], str] = {}
    for path in sorted([root, *root.rglob("*")]):
        status = path.lstat()
        content: Any = None
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes() if status.st_size < 1 << 24 else status.st_size
        elif stat.S_ISLNK(status.st_mode):
            content = str(path.readlink())
        xattrs = {
            name: os.getxattr(path, name, follow_symlinks=False)
            for name in os.listxattr(path, follow_symlinks=False)
        }
        first = numbers.setdefault((status.st_dev, status.st_ino), str(path.relative_to(root)))
        links = (status.st_nlink, first) if not path.is_dir() else ()
        found[str(path.relative_to(root))] = (
            status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_rdev,
            content, xattrs, links,
        )  # fmt: skip
    return found


def gnu_tar(*arguments: str, data: bytes = b"") -> bytes:
    line = ["tar", "--xattrs", "--xattrs-include=*", "--numeric-owner", *arguments]
    return subprocess.run(line, input=data, stdout=subprocess.PIPE, check=True).stdout


def rich(root: Path) -> None:
    """One of everything."""
    (root / "deep/er").mkdir(parents=True)
    (root / "deep/er/file").write_bytes(b"content")
    (root / "deep").chmod(0o1777)
    os.link(root / "deep/er/file", root / "hard")
    (root / "link").symlink_to("../" + "t" * 150)
    (root / "dangling").symlink_to(os.fsdecode(b"\xff/nowhere"))
    os.mkfifo(root / "fifo", 0o640)
    os.mknod(root / "device", stat.S_IFBLK | 0o660, os.makedev(259, 70_000))
    os.chown(root / "fifo", 3_000_000, 4_000_000)
    os.setxattr(root / "hard", "user.odd=50%25\n", b"\x00\xff=\n")
    os.setxattr(root / "deep", "trusted.of-a-directory", b"x")
    (root / "suid").write_bytes(b"#!")
    os.chown(root / "suid", 17, 18)
    (root / "suid").chmod(0o6755)
    capability = bytes.fromhex("0100000200040000000000000000000000000000")
    os.setxattr(root / "suid", "security.capability", capability)
    sparse(root / "sparse", 6 << 30, (0, 12345, 1 << 20, (5 << 30) + 777))
    sparse(root / "all-hole", 1 << 30, ())
    os.utime(root / "dangling", ns=(1, 123_456_789_987_654_321), follow_symlinks=False)
    os.utime(root / "deep/er", ns=(1, -1_500_000_000))


def sparse(path: Path, size: int, places: tuple[int, ...]) -> None:
    with path.open("wb") as file:
        for place in places:
            file.seek(place)
            file.write(b"data at %d" % place * 1000)
        file.truncate(size)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    rich(root)
    return root


def packed(place: Path, **options: Any) -> bytes:
    return work("pack", path=str(place), **{"root": ".", **options})[0]


def unpacked(archive: bytes, into: Path, **options: Any) -> dict[str, Any]:
    into.mkdir(exist_ok=True)
    return work("unpack", path=str(into), stdin=archive, **options)[1]


def check_sparse(path: Path) -> None:
    assert path.stat().st_size == 6 << 30
    assert path.stat().st_blocks * 512 < 1 << 20
    with path.open("rb") as file:
        for place in (0, 12345, 1 << 20, (5 << 30) + 777):
            file.seek(place)
            assert file.read(len(b"data at %d" % place)) == b"data at %d" % place


# Round trips


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(TREE)
def test_any_tree_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[bytes, Any]
) -> None:
    place = tmp_path_factory.mktemp("any")
    make(tree, place / "tree")
    expected = look(place / "tree")
    archive = packed(place / "tree")
    unpacked(archive, place / "ours")
    assert look(place / "ours") == expected
    (place / "theirs").mkdir()
    gnu_tar("-xpf", "-", "-C", str(place / "theirs"), data=archive)
    assert look(place / "theirs") == expected
    unpacked(gnu_tar("--format=pax", "-cf", "-", "-C", str(place / "tree"), "."), place / "back")
    back = look(place / "back")
    assert back == expected


def test_everything_comes_back_as_it_was(tree: Path, tmp_path: Path) -> None:
    archive = packed(tree)
    assert len(archive) < 1 << 20  # holes are not sent
    report = unpacked(archive, tmp_path / "back")
    assert report == {"members": len(look(tree)), "attributes": 0, "skipped": 0}
    assert look(tmp_path / "back") == look(tree)
    check_sparse(tmp_path / "back/sparse")
    assert (tmp_path / "back/all-hole").stat().st_blocks == 0


def test_gnu_tar_reads_what_is_packed(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "back").mkdir()
    gnu_tar("-xpf", "-", "-C", str(tmp_path / "back"), data=packed(tree))
    assert look(tmp_path / "back") == look(tree)
    check_sparse(tmp_path / "back/sparse")


def test_python_reads_what_is_packed(tree: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed(tree, root="top"))) as archive:
        names = {each.name.removeprefix("top").lstrip("/") or ".": each for each in archive}
        assert set(names) == set(look(tree))
        assert names["device"].devmajor == 259
        assert names["hard"].islnk() or names["deep/er/file"].islnk()
        assert names["sparse"].issparse()
        assert names["sparse"].size == 6 << 30
        file = archive.extractfile(names["sparse"])
        assert file is not None
        file.seek((5 << 30) + 777)
        assert file.read(15) == b"data at 5368709897"[:15]


@pytest.mark.parametrize("form", ["pax", "gnu", "ustar", "v7", "oldgnu"])
def test_archives_of_gnu_tar_are_unpacked(tmp_path: Path, form: str) -> None:
    root = tmp_path / "tree"
    (root / "a").mkdir(parents=True)
    (root / "a/file").write_bytes(b"content" * 1000)
    os.utime(root / "a/file", ns=(0, 5_000_000_000))
    os.link(root / "a/file", root / "hard")
    (root / "link").symlink_to("a/file")
    if form in ("pax", "gnu", "oldgnu"):
        (root / ("long" * 60)).write_bytes(b"1")
        (root / "target").symlink_to("t" * 200)
        os.chown(root / "target", 1 << 30, 1 << 30, follow_symlinks=False)
    (tmp_path / "back").mkdir()
    gnu_tar_as = ["tar", f"--format={form}", "--numeric-owner", "-cf", "-", "-C", str(root), "."]
    archive = subprocess.run(gnu_tar_as, capture_output=True, check=True).stdout
    unpacked(archive, tmp_path / "back")
    expected = look(root)
    found = look(tmp_path / "back")
    whole = {name: (each[:3], each[3] // 10**9, each[4:]) for name, each in expected.items()}
    assert {name: (each[:3], each[3] // 10**9, each[4:]) for name, each in found.items()} == whole


@pytest.mark.parametrize(
    "options",
    [["--format=gnu"], *(["--format=pax", f"--sparse-version={n}"] for n in ("0.0", "0.1", "1.0"))],
    ids=["gnu", "0.0", "0.1", "1.0"],
)
def test_sparse_files_of_gnu_tar_are_unpacked(tmp_path: Path, options: list[str]) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    sparse(root / "sparse", 6 << 30, (0, 12345, 1 << 20, (5 << 30) + 777))
    # More ranges than the header of an old one takes.
    sparse(root / "shreds", 64 << 20, tuple(range(0, 60 << 20, 1 << 20)))
    line = ["tar", "--sparse", *options, "-cf", "-", "-C", str(root), "."]
    archive = subprocess.run(line, capture_output=True, check=True).stdout
    unpacked(archive, tmp_path / "back")
    check_sparse(tmp_path / "back/sparse")
    back = tmp_path / "back/shreds"
    assert back.read_bytes() == (root / "shreds").read_bytes()
    assert back.stat().st_blocks < 10_000


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_archives_of_python_are_unpacked(tmp_path: Path, form: int) -> None:
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w", format=form) as archive:
        for name, size in (("a/b/" + "x" * 90, 5), ("\u00e9" * 30, 100_000), ("empty", 0)):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(b"y" * size))
    unpacked(text.getvalue(), tmp_path / "back")
    assert (tmp_path / "back/a/b" / ("x" * 90)).read_bytes() == b"y" * 5
    assert (tmp_path / "back" / ("\u00e9" * 30)).read_bytes() == b"y" * 100_000
    assert (tmp_path / "back/empty").read_bytes() == b""


# Options


def names_in(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return sorted(opened.getnames())


def test_an_archive_begins_with_what_was_asked_for(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "a").mkdir(parents=True)
    (root / "a/f").touch()
    assert names_in(work("pack", path=str(root))[0]) == ["tree", "tree/a", "tree/a/f"]
    assert names_in(work("pack", path=f"{root}/")[0]) == ["tree", "tree/a", "tree/a/f"]
    assert names_in(packed(root, root="as")) == ["as", "as/a", "as/a/f"]
    assert names_in(packed(root)) == [".", "./a", "./a/f"]
    assert names_in(work("pack", path=str(root / "a/f"))[0]) == ["f"]
    assert names_in(packed(root / "a/f", root="g")) == ["g"]


def test_what_is_excluded_is_left_out_with_all_below_it(tmp_path: Path) -> None:
    for name in ("a/x.pyc", "a/keep", "b/c/d", "b/keep", "c/d"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).touch()
    archive = packed(tmp_path / "tree", exclude=["*.pyc", "/b/c", "[d"])
    assert names_in(archive) == [".", "./a", "./a/keep", "./b", "./b/keep", "./c", "./c/d"]


def test_another_file_system_is_left_out_when_asked(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "mounted").mkdir(parents=True)
    (root / "kept").touch()
    line = f"mount -t tmpfs none {root}/mounted && touch {root}/mounted/f && exec cat"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as inside:
        assert inside.stdin is not None
        assert inside.stdout is not None
        inside.stdin.write(b"!\n")
        inside.stdin.flush()
        inside.stdout.readline()
        seen = f"/proc/{inside.pid}/root{root}"
        whole = names_in(work("pack", path=seen, root=".")[0])
        part = names_in(work("pack", path=seen, root=".", one_file_system=True)[0])
        inside.stdin.close()
    assert "./mounted/f" in whole
    assert part == [".", "./kept"]


def test_sockets_are_left_out_and_counted(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(root / "s"))
    archive, report = work("pack", path=str(root), root=".")
    assert names_in(archive) == ["."]
    assert report == {"members": 1, "sockets": 1, "changed": [], "changed_count": 0}


def test_one_owner_can_be_given_to_all(tree: Path, tmp_path: Path) -> None:
    unpacked(packed(tree), tmp_path / "back", owner="1234:4321")
    owners = {(each[1], each[2]) for each in look(tmp_path / "back").values()}
    assert owners == {(1234, 4321)}
    assert stat.S_IMODE((tmp_path / "back/suid").stat().st_mode) == 0o6755


def test_what_is_there_is_replaced_and_directories_are_kept(tmp_path: Path) -> None:
    root, back = tmp_path / "tree", tmp_path / "back"
    (root / "d").mkdir(parents=True)
    (root / "d/new").write_text("new")
    for name in ("f", "link", "empty"):
        (root / name).write_text("new")
    (back / "d").mkdir(parents=True)
    (back / "d/old").write_text("old")
    (back / "elsewhere").write_text("old")
    (back / "f").write_text("old")
    os.link(back / "f", back / "other")
    (back / "link").symlink_to("elsewhere")
    (back / "empty").mkdir()
    unpacked(packed(root), back)
    assert {(back / name).read_text() for name in ("f", "link", "empty", "d/new")} == {"new"}
    assert {(back / name).read_text() for name in ("other", "elsewhere", "d/old")} == {"old"}
    assert not (back / "link").is_symlink()
    (root / "f").unlink()
    (root / "f").mkdir()
    unpacked(packed(root), back)
    assert (back / "f").is_dir()
    (root / "d/new").unlink()
    (root / "d").rmdir()
    (root / "d").write_text("a file")
    work("unpack", path=str(back), stdin=packed(root), fails="ENOTEMPTY")


def test_a_directory_that_may_not_be_written_to_is_filled(tmp_path: Path) -> None:
    (tmp_path / "tree/a").mkdir(parents=True)
    (tmp_path / "tree/a/f").touch()
    (tmp_path / "tree/a").chmod(0o500)
    os.utime(tmp_path / "tree/a", ns=(0, 77))
    archive = packed(tmp_path / "tree")
    tmp_path.chmod(0o755)
    unpacked(archive, tmp_path / "back")
    found = (tmp_path / "back/a").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns) == (0o500, 77)


# While things change


def test_a_file_that_becomes_shorter_is_filled_up_and_told(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    size = 64 << 20
    (root / "shrinks").write_bytes(b"x" * size)
    line = 'import sys; from torpor.guest.work import do_work; sys.exit(do_work({"name": "pack", '
    line += f'"path": {str(root)!r}, "root": "."}}))'
    with subprocess.Popen(
        [sys.executable, "-c", line], bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as packing:
        assert packing.stdout is not None
        start = packing.stdout.read(1 << 20)
        os.truncate(root / "shrinks", 2 << 20)
        rest, told = packing.communicate()
        assert packing.returncode == 0
    assert b'"changed": ["shrinks"]' in told
    with tarfile.open(fileobj=io.BytesIO(start + rest)) as archive:
        member = archive.getmember("./shrinks")
        file = archive.extractfile(member)
        assert file is not None
        data = file.read()
    assert len(data) == size
    assert data.rstrip(b"\0").strip(b"x") == b""


# Hostile archives


def archive_of(*members: tuple[str, dict[str, Any]]) -> bytes:
    """An archive as nobody would make it by accident."""
    text = io.BytesIO()
    with tarfile.open(fileobj=text, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, attributes in members:
            member = tarfile.TarInfo(name)
            content = attributes.pop("content", b"")
            member.size = len(content)
            for key, value in attributes.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(content))
    return text.getvalue()


LINK = tarfile.SYMTYPE
HARD = tarfile.LNKTYPE
CLIMBING: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "dots": [("../outside/new", {"content": b"!"})],
    "dots-inside": [("a/../../outside/new", {"content": b"!"})],
    "dots-of-a-directory": [("../outside/new/", {"type": tarfile.DIRTYPE})],
    "link": [
        ("way", {"type": LINK, "linkname": "../outside"}),
        ("way/new", {"content": b"!"}),
    ],
    "absolute-link": [
        ("way", {"type": LINK, "linkname": "{outside}"}),
        ("way/new", {"content": b"!"}),
    ],
    "link-over-link": [
        ("a", {"type": LINK, "linkname": "."}),
        ("a/b", {"type": LINK, "linkname": ".."}),
        ("b/outside/new", {"content": b"!"}),
    ],
    "directory-over-link": [
        ("way", {"type": LINK, "linkname": "../outside"}),
        ("way", {"type": tarfile.DIRTYPE, "mode": 0o777}),
    ],
    "hard-link": [("new", {"type": HARD, "linkname": "../outside/kept"})],
    "hard-link-through-link": [
        ("way", {"type": LINK, "linkname": "../outside"}),
        ("new", {"type": HARD, "linkname": "way/kept"}),
    ],
    "magic-link": [
        ("way", {"type": LINK, "linkname": "/proc/self/root{outside}"}),
        ("way/new", {"content": b"!"}),
    ],
}


@pytest.mark.parametrize("name", CLIMBING)
def test_an_archive_does_not_climb_out(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    outside.chmod(0o700)
    before = look(outside)
    members = [
        (path, {key: _format(value, outside) for key, value in attributes.items()})
        for path, attributes in CLIMBING[name]
    ]
    (tmp_path / "into").mkdir()
    work("unpack", path=str(tmp_path / "into"), stdin=archive_of(*members), fails="EXDEV")
    assert look(outside) == before


def _format(value: Any, outside: Path) -> Any:
    return value.format(outside=outside) if isinstance(value, str) else value


def test_a_file_is_not_written_through_a_link_of_its_name(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("kept")
    archive = archive_of(
        ("f", {"type": LINK, "linkname": str(outside)}), ("f", {"content": b"!", "mode": 0o600})
    )
    unpacked(archive, tmp_path / "into")
    assert outside.read_text() == "kept"
    assert (tmp_path / "into/f").read_bytes() == b"!"


def test_an_absolute_name_begins_at_the_directory(tmp_path: Path) -> None:
    unpacked(archive_of((f"/{tmp_path}/f", {"content": b"!"})), tmp_path / "into")
    assert (tmp_path / f"into/{tmp_path}/f").read_bytes() == b"!"


def test_links_that_stay_inside_are_followed(tmp_path: Path) -> None:
    (tmp_path / "into/real").mkdir(parents=True)
    (tmp_path / "into/way").symlink_to("real")
    archive = archive_of(("way", {"type": tarfile.DIRTYPE, "mode": 0o755}), ("way/f", {}))
    unpacked(archive, tmp_path / "into")
    assert (tmp_path / "into/real/f").exists()
    assert (tmp_path / "into/way").is_symlink()


def cut(archive: bytes) -> bytes:
    return archive[: len(archive) // 2 // 512 * 512 + 100]


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"x" * 512,
        lambda _: b"short",
        cut,
        lambda archive: archive[:1536],
        lambda archive: archive[:148] + b"9" + archive[149:],
        lambda archive: archive.replace(b" mtime=", b" mtime=x"),
        lambda archive: archive.replace(b" path=", b"9path="),
    ],
    ids=["nothing", "noise", "short", "cut", "cut-header", "number", "time", "record"],
)
def test_a_damaged_archive_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    archive = archive_of(
        ("n" * 120, {"content": random.Random(1).randbytes(100_000), "mtime": 1.5})
    )
    (tmp_path / "into").mkdir()
    code = "ArchiveError"
    work("unpack", path=str(tmp_path / "into"), stdin=damage(archive), fails=code)


def extended(records: list[tuple[bytes, bytes]], stored: int) -> bytes:
    header = tar.encode_records(records, b"f")
    return header + tar.encode_header(Member(b"f", tar.FILE, stored=stored))


@pytest.mark.parametrize(
    "archive",
    [
        extended([(b"GNU.sparse.map", b"0,10,5,10"), (b"GNU.sparse.size", b"20")], 20),
        extended([(b"GNU.sparse.map", b"0,10,15"), (b"GNU.sparse.size", b"20")], 10),
        extended([(b"GNU.sparse.map", b"0,10"), (b"GNU.sparse.size", b"5")], 10),
        extended([(b"GNU.sparse.map", b"0,10"), (b"GNU.sparse.size", b"50")], 20),
        extended([(b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"9")], 512)
        + b"99999999999\n".ljust(512, b"\0"),
        extended([(b"GNU.sparse.major", b"1"), (b"GNU.sparse.realsize", b"9")], 0) + b"x" * 512,
        extended([(b"size", b"-5")], 0),
        extended([(b"path", b"a\0b")], 0),
        tar.encode_header(Member(b"f", "x", stored=1 << 40)),
        tar.encode_header(Member(b"f", "M", stored=0)),
    ],
    ids=["overlap", "odd", "beyond", "stored", "map", "no-map", "size", "null", "long", "volume"],
)
def test_a_header_that_makes_no_sense_is_refused(tmp_path: Path, archive: bytes) -> None:
    (tmp_path / "into").mkdir()
    data = archive + bytes(4096)
    work("unpack", path=str(tmp_path / "into"), stdin=data, fails="ArchiveError")


def test_a_kind_that_is_not_known_is_passed_over(tmp_path: Path) -> None:
    archive = archive_of(("odd", {"type": b"Z", "content": b"x" * 700}), ("f", {"content": b"y"}))
    report = unpacked(archive, tmp_path / "into")
    assert report == {"members": 2, "attributes": 0, "skipped": 1}
    assert [each.name for each in (tmp_path / "into").iterdir()] == ["f"]


def test_a_checksum_of_signed_bytes_is_one() -> None:
    block = bytearray(tar.encode_header(Member(b"caf\xe9", tar.FILE))[-512:])
    block[148:156] = b" " * 8
    total = sum(byte - 256 if byte > 127 else byte for byte in block)
    block[148:156] = b"%06o\0 " % total
    assert tar.parse_block(bytes(block)).name == b"caf\xe9"


@given(st.binary(max_size=600), st.integers(0, 511), st.binary(min_size=1, max_size=12))
def test_no_header_breaks_the_reader(data: bytes, at: int, change: bytes) -> None:
    block = bytearray(tar.encode_header(Member(b"f", tar.FILE)))
    block[at : at + len(change)] = change
    for tried in (bytes(block[:512]), data[:512].ljust(512, b"\0")):
        try:
            tar.parse_block(tried)
        except ArchiveError:
            pass
    try:
        list(tar.parse_records(data))
    except ArchiveError:
        pass


@given(st.integers(-(1 << 62), 1 << 62))
def test_times_and_numbers_keep_their_value(number: int) -> None:
    assert tar.parse_time(tar._encode_time(number)) == number
    if number >= 0:
        assert tar.parse_decimal(b"%d" % number) == number
    raw = (number & ((1 << 95) - 1)) | 1 << 95 if number >= 0 else number & ((1 << 96) - 1)
    assert tar.parse_number(raw.to_bytes(12, "big")) == number
