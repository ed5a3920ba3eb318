"""``torpor cp`` of large files: in parts, and gone on with when it was cut off."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response
from typer.testing import CliRunner

from tests.cli.test_copy import DIRECTORY, FILE, environment, there
from tests.client.double import AT, Asked, Double, refusal
from torpor.cli import large
from torpor.cli.app import app
from torpor.cli.large import is_large

SIZE = 1000
DATA = os.urandom(2 * SIZE + 10)
SHA256 = hashlib.sha256(DATA).hexdigest()
PLACE = "sessions/b/workspace/transfers"


@pytest.fixture(autouse=True)
def all_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "LARGE", SIZE)
    monkeypatch.setattr(large, "LOOK_EVERY", 0.01)


def cp(double: Double, *arguments: object) -> Any:
    return CliRunner(env=environment(double)).invoke(app, ["cp", *map(str, arguments)])


def shown(**more: Any) -> JSONResponse:
    return JSONResponse({
        "transfer_id": "t1", "direction": "upload", "status": "pending", "expires_at": AT,
        "path": "/workspace/f", "size_bytes": len(DATA), "part_size": SIZE, **more,
    })  # fmt: skip


def urls(asked: Asked) -> JSONResponse:
    return JSONResponse({
        "transfer_id": "t1", "expires_at": AT,
        "part_urls": [
            {"part_number": number, "upload_url": f"http://x/v2/agents/signed/{number}/part"}
            for number in asked.said["part_numbers"]
        ],
    })  # fmt: skip


def takes(double: Double) -> None:
    """Have the double take uploads of the file in session b."""
    there(double, None)
    double.on("POST", PLACE, shown())
    double.on("POST", f"{PLACE}/t1/part-upload-urls", urls)
    for number in (1, 2, 3):
        double.on("PUT", f"signed/{number}/part", JSONResponse({}))
    double.on("POST", f"{PLACE}/t1/commit", shown(status="in_progress"))
    double.on("GET", f"{PLACE}/t1", shown(status="in_progress"), shown(status="completed"))
    double.on("PATCH", "sessions/b/files", Response(status_code=204))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "f"
    file.write_bytes(DATA)
    file.chmod(0o750)
    return file


@pytest.mark.parametrize(
    ("path", "size", "large"),
    [
        ("/workspace/a", SIZE, True),
        ("/workspace/d/../a", SIZE, True),
        ("/workspace/a", SIZE - 1, False),
        ("/srv/a", SIZE, False),
        ("/workspace/../srv/a", SIZE, False),
        ("/workspaces/a", SIZE, False),
        ("workspace/a", SIZE, False),
    ],
)
def test_what_is_large(path: str, size: int, large: bool) -> None:
    assert is_large(path, size) is large


def test_a_large_file_goes_in_parts_with_its_mode(double: Double, source: Path) -> None:
    takes(double)
    there(double, DIRECTORY)
    said = cp(double, source, "b:/workspace")
    assert said.exit_code == 0, said.stderr
    assert double.one("POST", PLACE).said == {
        "direction": "upload", "path": "/workspace/f", "size_bytes": len(DATA),
        "is_archive": False,
    }  # fmt: skip
    parts = [double.one("PUT", f"signed/{number}/part").body for number in (1, 2, 3)]
    assert b"".join(parts) == DATA
    assert double.one("POST", f"{PLACE}/t1/commit").said == {"sha256": SHA256}
    assert double.one("PATCH", "sessions/b/files").said["mode"] == "0750"


def test_a_copy_that_is_cut_off_says_how_to_go_on_and_does(double: Double, source: Path) -> None:
    takes(double)
    double.on("PUT", "signed/2/part", refusal(500, "internal_error", "no luck"))
    said = cp(double, source, "b:/workspace/f")
    assert said.exit_code == 1
    assert "--resume t1" in said.stderr
    assert "no luck" in said.stderr
    double.asked.clear()
    takes(double)
    double.on(
        "GET", f"{PLACE}/t1",
        shown(parts_received=[1, 3]), shown(status="in_progress"), shown(status="completed"),
    )  # fmt: skip
    said = cp(double, source, "b:/workspace/f", "--resume", "t1")
    assert said.exit_code == 0, said.stderr
    assert double.one("POST", f"{PLACE}/t1/part-upload-urls").said == {"part_numbers": [2]}
    assert double.one("PUT", "signed/2/part").body == DATA[SIZE : 2 * SIZE]
    assert double.one("POST", f"{PLACE}/t1/commit").said == {"sha256": SHA256}


def test_what_was_committed_is_only_waited_for(double: Double, source: Path) -> None:
    takes(double)
    said = cp(double, source, "b:/workspace/f", "--resume", "t1")
    assert said.exit_code == 0, said.stderr
    assert not [each for each in double.asked if each.method in ("PUT", "POST")]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"direction": "download"}, "is the download of /workspace/f"),
        ({"path": "/workspace/g"}, "is the upload of /workspace/g"),
        ({"size_bytes": 3}, "of a file of 3 bytes"),
        ({"status": "failed", "error_message": "It has expired"}, "It has expired"),
    ],
)
def test_another_copy_is_not_gone_on_with(
    double: Double, source: Path, more: dict[str, Any], why: str
) -> None:
    takes(double)
    double.on("GET", f"{PLACE}/t1", shown(**more))
    said = cp(double, source, "b:/workspace/f", "--resume", "t1")
    assert said.exit_code == 1
    assert why in said.stderr
    assert not [each for each in double.asked if each.method == "PUT"]


def test_only_one_file_can_be_gone_on_with(double: Double, tmp_path: Path) -> None:
    takes(double)
    for source, target in ((tmp_path, "b:/workspace/f"), ("-", "b:/workspace/f")):
        said = cp(double, source, target, "--resume", "t1")
        assert said.exit_code == 1
        assert "single file" in said.stderr
    there(double, DIRECTORY)
    assert "single file" in cp(double, "b:/workspace/d", tmp_path, "--resume", "t1").stderr


# Out of the machine


def gives(double: Double, content: bytes = DATA) -> None:
    """Have the double make the file in session b ready."""
    there(double, {**FILE, "size": len(DATA)})
    down = {"direction": "download", "status": "in_progress"}
    double.on("POST", PLACE, shown(**down))
    ready = {**down, "status": "completed", "sha256": SHA256}
    url = "http://x/v2/agents/signed/abc/payload"
    double.on("GET", f"{PLACE}/t1", shown(**down), shown(**ready, download_url=url))
    double.on("POST", f"{PLACE}/t1/cancel", JSONResponse({"aborted": False}))

    def payload(asked: Asked) -> Response:
        start = int(asked.headers.get("range", "bytes=0-")[6:-1])
        return Response(content[start:], 206 if start else 200)

    double.on("GET", "signed/abc/payload", payload)


def test_a_large_file_comes_out(double: Double, tmp_path: Path) -> None:
    gives(double)
    said = cp(double, "b:/workspace/f", tmp_path)
    assert said.exit_code == 0, said.stderr
    assert (tmp_path / "f").read_bytes() == DATA
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["f"]
    double.one("POST", f"{PLACE}/t1/cancel")  # it takes no more space there


def test_what_came_out_is_gone_on_with(double: Double, tmp_path: Path) -> None:
    gives(double)
    (tmp_path / ".f.t1").write_bytes(DATA[:700])
    said = cp(double, "b:/workspace/f", tmp_path, "--resume", "t1")
    assert said.exit_code == 0, said.stderr
    assert double.one("GET", "signed/abc/payload").headers["range"] == "bytes=700-"
    assert (tmp_path / "f").read_bytes() == DATA


def test_what_is_not_what_the_server_has_is_not_kept(double: Double, tmp_path: Path) -> None:
    gives(double, bytes(len(DATA)))
    (tmp_path / "f").write_bytes(b"old")
    said = cp(double, "b:/workspace/f", tmp_path)
    assert said.exit_code == 1
    assert "not what the server has" in said.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"
