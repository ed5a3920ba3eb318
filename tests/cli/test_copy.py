"""``torpor cp`` and ``torpor ls``: both directions, and nothing of an archive outside its place."""

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response
from typer.testing import CliRunner

from tests.cli.seats import PROGRAM
from tests.client.double import Double, refusal
from torpor.cli.app import app
from torpor.cli.transfer import There, place

FILE = {
    "type": "file", "mode": "0640", "size": 3, "stored": 4096, "uid": 0, "gid": 0,
    "mtime_ns": 1777881942120000000, "links": 1, "inode": 131, "device": 65024,
}  # fmt: skip
DIRECTORY = {**FILE, "type": "directory", "mode": "0755"}
NOTHING = refusal(404, "guest_enoent", "There is no such file.")


def environment(double: Double) -> dict[str, str]:
    return {"TORPOR_URL": double.url, "TORPOR_TOKEN": "torpor_t_s", "COLUMNS": "200"}


def cp(double: Double, source: object, target: object) -> Any:
    return CliRunner(env=environment(double)).invoke(app, ["cp", str(source), str(target)])


def pipe(double: Double, source: str, target: str, given: bytes = b"") -> Any:
    return subprocess.run(
        [*PROGRAM, "cp", source, target],
        input=given,
        capture_output=True,
        env=os.environ | environment(double),
        timeout=60,
        check=False,
    )


def there(double: Double, found: dict[str, Any] | None) -> None:
    """Say what there is at the place in session b."""
    answer = NOTHING if found is None else JSONResponse({"file": found})
    double.on("GET", "sessions/b/files/status", answer)


def takes(double: Double) -> None:
    double.on("PUT", "sessions/b/files/content", JSONResponse({"size": 3}))
    unpacked = {"members": 3, "attributes": 0, "skipped": 0}
    double.on("PUT", "sessions/b/files/archive", JSONResponse(unpacked))


def archive(*members: tarfile.TarInfo | str) -> bytes:
    """Return an archive of these; a name is a file with "abc" in it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as made:
        for each in members:
            member = tarfile.TarInfo(each) if isinstance(each, str) else each
            content = b"abc" if member.isreg() else b""
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return data.getvalue()


def member(name: str, kind: bytes, target: str = "", mode: int = 0o755) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, target, mode
    return made


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("b:/x", There("b", "/x")),
        ("b:", There("b", "/")),
        ("b:x:y", There("b", "x:y")),
        ("./b:x", Path("b:x")),
        ("/tmp/b:x", Path("/tmp/b:x")),
        (":x", Path(":x")),
        ("x", Path("x")),
        ("-", None),
    ],
)
def test_where_a_place_is(said: str, meant: object) -> None:
    assert place(said) == meant


# Into the machine


def test_a_file_goes_with_its_mode(double: Double, tmp_path: Path) -> None:
    there(double, None)
    takes(double)
    (tmp_path / "f").write_bytes(b"abc")
    (tmp_path / "f").chmod(0o750)
    said = cp(double, tmp_path / "f", "b:/srv/g")
    assert said.exit_code == 0, said.stderr
    asked = double.one("PUT", "sessions/b/files/content")
    assert asked.body == b"abc"
    assert dict(asked.query) == {"path": "/srv/g", "mode": "0750"}


def test_a_file_keeps_its_name_in_a_directory(double: Double, tmp_path: Path) -> None:
    there(double, DIRECTORY)
    takes(double)
    (tmp_path / "f").write_bytes(b"abc")
    assert cp(double, tmp_path / "f", "b:/srv").exit_code == 0
    assert dict(double.one("PUT", "sessions/b/files/content").query)["path"] == "/srv/f"


@pytest.mark.parametrize(("found", "root"), [(None, "new"), (DIRECTORY, "d")])
def test_a_directory_goes_whole_and_is_roots(
    double: Double, tmp_path: Path, found: dict[str, Any] | None, root: str
) -> None:
    there(double, found)
    takes(double)
    (tmp_path / "d/sub").mkdir(parents=True)
    (tmp_path / "d/sub/f").write_bytes(b"x" * 300_000)
    (tmp_path / "d/l").symlink_to("/etc/passwd")
    said = cp(double, tmp_path / "d", "b:/srv/new")
    assert said.exit_code == 0, said.stderr
    asked = double.one("PUT", "sessions/b/files/archive")
    assert dict(asked.query)["path"] == ("/srv" if found is None else "/srv/new")
    with tarfile.open(fileobj=io.BytesIO(asked.body)) as sent:
        members = {each.name: each for each in sent}
        assert sorted(members) == [root, f"{root}/l", f"{root}/sub", f"{root}/sub/f"]
        assert {(each.uid, each.gid, each.uname) for each in members.values()} == {(0, 0, "")}
        assert members[f"{root}/l"].linkname == "/etc/passwd"
        assert members[f"{root}/sub/f"].size == 300_000


def test_a_directory_that_cannot_be_read_is_not_sent_as_if_it_were_whole(
    double: Double, tmp_path: Path
) -> None:
    there(double, None)
    takes(double)
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").symlink_to("f")
    (tmp_path / "d/gone").write_bytes(b"x")
    program = (
        "import os, tarfile\n"
        "whole = tarfile.TarFile.addfile\n"
        "def breaking(self, member, file=None):\n"
        "    if member.name.endswith('gone'):\n"
        "        raise PermissionError(13, 'Permission denied', 'gone')\n"
        "    return whole(self, member, file)\n"
        "tarfile.TarFile.addfile = breaking\n"
        "from torpor.cli import main; main()"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, "cp", str(tmp_path / "d"), "b:/srv/d"],
        capture_output=True,
        env=os.environ | environment(double),
        check=False,
    )
    assert said.returncode == 1
    assert b"Permission denied: gone" in said.stderr
    # The request broke off: the double, like the server, has never seen the end of a body.
    assert all(each.method != "PUT" for each in double.asked)


def test_what_the_server_refuses_is_told_and_nothing_waits(double: Double, tmp_path: Path) -> None:
    there(double, None)
    double.on("PUT", "sessions/b/files/archive", refusal(404, "guest_enoent", "There is no /srv."))
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"x" * 3_000_000)
    said = cp(double, tmp_path / "d", "b:/srv/x")
    assert (said.exit_code, said.stdout) == (1, "")
    assert said.stderr.endswith("There is no /srv.\n")


def test_standard_input_is_a_file_or_what_fills_a_directory(double: Double) -> None:
    takes(double)
    there(double, None)
    assert pipe(double, "-", "b:/srv/f", b"abc\0").returncode == 0
    assert double.one("PUT", "sessions/b/files/content").body == b"abc\0"
    there(double, DIRECTORY)
    assert pipe(double, "-", "b:/srv", b"tar").returncode == 0
    assert double.one("PUT", "sessions/b/files/archive").body == b"tar"


def test_a_directory_that_is_missing_is_not_a_file(double: Double, tmp_path: Path) -> None:
    there(double, None)
    (tmp_path / "f").write_bytes(b"abc")
    said = cp(double, tmp_path / "f", "b:/srv/")
    assert said.exit_code == 1
    assert "There is no directory /srv/" in said.stderr
    assert cp(double, tmp_path / "nix", "b:/srv").stderr.startswith("No such file or directory: ")


# Out of the machine


def test_a_file_comes_with_its_mode_and_all_at_once(double: Double, tmp_path: Path) -> None:
    there(double, FILE)
    double.on("GET", "sessions/b/files/content", Response(b"abc"))
    mask = os.umask(0o022)
    try:
        assert cp(double, "b:/srv/f", tmp_path / "g").exit_code == 0
        assert cp(double, "b:/srv/f", tmp_path).exit_code == 0
    finally:
        os.umask(mask)
    for name in ("g", "f"):
        assert (tmp_path / name).read_bytes() == b"abc"
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o640
    assert sorted(each.name for each in tmp_path.iterdir()) == ["f", "g"]


def test_a_file_that_breaks_off_leaves_what_was_there(double: Double, tmp_path: Path) -> None:
    there(double, FILE)
    half = Response(b"ab", headers={"content-length": "3"})
    double.on("GET", "sessions/b/files/content", half)
    (tmp_path / "g").write_bytes(b"old")
    said = cp(double, "b:/srv/f", tmp_path / "g")
    assert said.exit_code == 1
    assert [each.name for each in tmp_path.iterdir()] == ["g"]
    assert (tmp_path / "g").read_bytes() == b"old"


def test_standard_output_gets_the_bytes_and_nothing_else(double: Double) -> None:
    there(double, FILE)
    double.on("GET", "sessions/b/files/content", Response(b"abc\0"))
    said = pipe(double, "b:/srv/f", "-")
    assert (said.returncode, said.stdout) == (0, b"abc\0")
    there(double, DIRECTORY)
    double.on("GET", "sessions/b/files/archive", Response(b"tar"))
    assert pipe(double, "b:/srv", "-").stdout == b"tar"


def tree(double: Double, *members: tarfile.TarInfo | str) -> None:
    there(double, DIRECTORY)
    double.on("GET", "sessions/b/files/archive", Response(archive(*members)))


def test_a_directory_comes_under_the_name_that_it_is_given(double: Double, tmp_path: Path) -> None:
    read_only = member("./sub", tarfile.DIRTYPE, mode=0o555)
    tree(double, member(".", tarfile.DIRTYPE), read_only, "./sub/f",
         member("./l", tarfile.SYMTYPE, "sub/f"))  # fmt: skip
    said = cp(double, "b:/srv/d", tmp_path / "new")
    assert said.exit_code == 0, said.stderr
    assert dict(double.asked[-1].query) == {"path": "/srv/d", "name": "."}
    assert (tmp_path / "new/l").read_bytes() == b"abc"
    assert [each.name for each in tmp_path.iterdir()] == ["new"]
    assert cp(double, "b:/srv/d", tmp_path).exit_code == 0  # into what is there: by its own name
    assert (tmp_path / "d/sub/f").read_bytes() == b"abc"


def test_nothing_of_an_archive_is_written_elsewhere(double: Double, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    tree(
        double,
        member(".", tarfile.DIRTYPE),
        "./good",
        "../outside/a",
        str(outside / "b"),
        member("./out", tarfile.SYMTYPE, str(outside)),
        "./out/c",
        member("./up", tarfile.SYMTYPE, "../outside"),
        member("./hard", tarfile.LNKTYPE, "../outside/x"),
        member("./device", tarfile.CHRTYPE),
    )
    said = cp(double, "b:/srv/d", tmp_path / "new")
    assert list(outside.iterdir()) == []
    assert (tmp_path / "new/good").read_bytes() == b"abc"
    assert said.exit_code == 1
    for name in ("out", "up", "hard", "device"):
        assert name in said.stderr
        assert not (tmp_path / "new" / name).is_symlink()


def beyond(outside: Path) -> list[tarfile.TarInfo | str]:
    """An archive whose links lead out once all of them together are longer than a path may be: the
    check of Python's tarfile sees no link there (CVE-2025-4517, mended in 3.11.13)."""
    members: list[tarfile.TarInfo | str] = [member(".", tarfile.DIRTYPE)]
    deep, path, short = "d" * 247, "", "abcdefghijklmnop"
    for name in short:
        members += [
            member(f"{path}{deep}", tarfile.DIRTYPE),
            member(f"{path}{name}", tarfile.SYMTYPE, deep),
        ]
        path += f"{deep}/"
    up = "/".join(short) + "/" + "l" * 254
    members += [
        member(up, tarfile.SYMTYPE, "../" * len(short)),
        member("escape", tarfile.SYMTYPE, f"{up}/../../{outside.name}"),
        "escape/new",
        member("link", tarfile.SYMTYPE, "escape/victim"),
        "link",
    ]
    return members


def test_a_second_name_of_a_link_leads_elsewhere(double: Double, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("untouched")
    tree(
        double,
        member(".", tarfile.DIRTYPE),
        member("sub", tarfile.DIRTYPE),
        member("sub/up", tarfile.SYMTYPE, "../kept"),
        member("up", tarfile.LNKTYPE, "sub/up"),
        member("later", tarfile.SYMTYPE, "not/yet/../../x"),
        member("not", tarfile.SYMTYPE, "."),
        member("round", tarfile.SYMTYPE, "round"),
    )
    said = cp(double, "b:/srv/d", tmp_path / "new")
    assert said.exit_code == 1
    assert "up" in said.stderr
    links = [each for each in (tmp_path / "new").iterdir() if each.is_symlink()]
    left = {each.name: str(each.readlink()) for each in links}
    assert left == {"not": ".", "round": "round"}
    assert str((tmp_path / "new/sub/up").readlink()) == "../kept"


@pytest.mark.parametrize(
    "members",
    [
        [member("h", tarfile.LNKTYPE, "nobody")],
        [member("p", tarfile.XHDTYPE)],
        [member("n", tarfile.GNUTYPE_LONGNAME)],
    ],
    ids=["a link to nobody", "an endless header", "an endless name"],
)
def test_an_archive_that_is_none_is_told(
    double: Double, tmp_path: Path, members: list[tarfile.TarInfo]
) -> None:
    for each in members:
        each.size = 1 << 40
    there(double, DIRECTORY)
    said = member(".", tarfile.DIRTYPE).tobuf() + b"".join(each.tobuf() for each in members)
    double.on("GET", "sessions/b/files/archive", Response(said + bytes(1 << 21)))
    copied = cp(double, "b:/srv/d", tmp_path / "new")
    assert copied.exit_code == 1
    assert "no sound archive" in copied.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_hard_link_that_leads_out(double: Double, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    hard = member("victim", tarfile.LNKTYPE, "escape/victim")
    tree(double, *beyond(outside), hard, "victim")
    assert cp(double, "b:/srv/d", tmp_path / "new").exit_code == 1
    assert (outside / "victim").read_text() == "untouched"
    assert (outside / "victim").stat().st_nlink == 1


def test_nothing_is_written_through_links_of_an_archive(double: Double, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    tree(double, *beyond(outside), member("s", tarfile.SYMTYPE, "kept"), "s", "kept")
    said = cp(double, "b:/srv/d", tmp_path / "new")
    assert [each.name for each in outside.iterdir()] == ["victim"]
    assert (outside / "victim").read_text() == "untouched"
    assert said.exit_code == 1
    assert "leads out of it" in said.stderr
    assert (tmp_path / "new/s").is_symlink()
    assert (tmp_path / "new/kept").read_bytes() == b"abc"


def test_an_archive_that_breaks_off_leaves_nothing(double: Double, tmp_path: Path) -> None:
    there(double, DIRECTORY)
    whole = archive(member(".", tarfile.DIRTYPE), "./f")
    half = Response(whole[:700], headers={"content-length": str(len(whole))})
    double.on("GET", "sessions/b/files/archive", half)
    assert cp(double, "b:/srv/d", tmp_path / "new").exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_one_of_the_two_is_in_a_session(double: Double) -> None:
    assert "torpor cp A:PATH - | torpor cp - B:PATH" in cp(double, "a:/x", "b:/y").stderr
    assert "SESSION:PATH" in cp(double, "x", "y").stderr
    assert double.asked == []


def test_ls_is_as_ls(double: Double) -> None:
    there(double, DIRECTORY)
    link = {**FILE, "type": "link", "mode": "0777", "target": "f"}
    double.on("GET", "sessions/b/files/list",
        JSONResponse({"entries": [{"path": "f\x1b[2J", "file": FILE}], "next_page_token": "m"}),
        JSONResponse({"entries": [{"path": "l", "file": link}, {"path": "x", "error": "gone"}],
                      "next_page_token": ""}),
    )  # fmt: skip
    said = CliRunner(env=environment(double)).invoke(app, ["ls", "b:/srv", "-r"])
    lines = [line.rstrip() for line in said.stdout.splitlines()]
    assert lines[0].split()[:3] == ["-rw-r-----", "0:0", "3"]
    assert lines[0].endswith("f\\x1b[2J")
    assert lines[1].startswith("lrwxrwxrwx")
    assert lines[1].endswith("l -> f")
    assert lines[2].split() == ["?", "x", "gone"]
    assert dict(double.asked[-1].query) == {
        "path": "/srv", "recursive": "true", "page_token": "m",
    }  # fmt: skip
