"""Files and archives that are brought into a workspace, or fetched from it, in one request."""

import asyncio
import hashlib
import io
import os
import tarfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.api.conftest import Api, served
from tests.api.workspaces import ALL_BYTES, workspace
from tests.guest.conftest import needs_users
from tests.waiting import eventually
from torpor.api import workspace as routes
from torpor.api.workspace import UPLOAD_LIMIT
from torpor.store.records import Role, Status

__all__ = ["workspace"]

DATA = os.urandom(300_000)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def payload_of(answer: httpx.Response) -> bytes:
    """Return what a download is without its footer, which is checked."""
    payload, footer = answer.content[:-73], answer.content[-73:]
    assert footer == b"DOWSSHA1" + sha256(payload).encode() + b"\n"
    return payload


def archive(**files: bytes) -> bytes:
    """Return a tar archive of files."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.uid, member.gid = len(content), 4711, 4711
            tar.addfile(member, io.BytesIO(content))
    return whole.getvalue()


def names_of(tar: bytes) -> dict[str, bytes]:
    """Return the files in an archive."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        files = [(each.name, opened.extractfile(each)) for each in opened if each.isfile()]
        return {name: file.read() for name, file in files if file is not None}


@pytest.fixture
async def one(api: Api, workspace: Path) -> str:
    return f"/sessions/{await api.ready(name='one')}/workspace"


async def test_a_file_goes_in_and_comes_out(
    api: Api, client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    answer = await client.post(
        f"{one}/upload", params={"path": "d/a.bin"}, content=DATA,
        headers={"x-content-sha256": sha256(DATA).upper()},
    )  # fmt: skip
    assert answer.status_code == 200
    assert answer.json() == {"bytes_written": len(DATA), "path": f"{workspace}/d/a.bin"}
    assert (workspace / "d/a.bin").read_bytes() == DATA
    assert workspace.stat().st_mode & 0o777 == 0o755
    assert [each.name for each in workspace.parent.glob("w-*")] == []
    found = await client.get(f"{one}/download", params={"path": f"{workspace}/d/a.bin"})
    assert found.status_code == 200
    assert payload_of(found) == DATA
    assert found.headers["x-workspace-size-bytes"] == str(len(DATA))
    assert "x-workspace-is-archive" not in found.headers
    assert found.headers["content-type"] == "application/octet-stream"
    told = [each for each in await api.events() if each.type == "file.written"]
    assert [each.data["size"] for each in told] == [len(DATA)]


async def test_an_empty_file_has_a_footer_too(client: httpx.AsyncClient, one: str) -> None:
    answer = await client.post(f"{one}/upload", params={"path": "a"}, content=b"")
    assert answer.json()["bytes_written"] == 0
    assert payload_of(await client.get(f"{one}/download", params={"path": "a"})) == b""


async def test_an_archive_is_unpacked_at_its_path_and_comes_out_as_the_same(
    client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    files = {"a": b"1", "d/b": b"22"}
    answer = await client.post(
        f"{one}/upload", params={"path": "x/y", "is_archive": True}, content=archive(**files)
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["bytes_written"] == len(archive(**files))
    assert (workspace / "x/y/d/b").read_bytes() == b"22"
    assert (workspace / "x/y/a").stat().st_uid == os.geteuid()
    found = await client.get(f"{one}/download", params={"path": "x/y", "as_archive": "true"})
    assert found.headers["x-workspace-is-archive"] == "true"
    assert {name.removeprefix("./"): content for name, content in
            names_of(payload_of(found)).items()} == files  # fmt: skip
    single = await client.get(f"{one}/download", params={"path": "x/y/a", "as_archive": "true"})
    assert names_of(payload_of(single)) == {"a": b"1"}


async def test_a_wrong_hash_leaves_the_file_as_it_was(
    client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    await client.post(f"{one}/upload", params={"path": "a"}, content=b"old")
    answer = await client.post(
        f"{one}/upload", params={"path": "a"}, content=DATA,
        headers={"x-content-sha256": sha256(b"else")},
    )  # fmt: skip
    assert (answer.status_code, answer.json()["id"]) == (400, "checksum_mismatch")
    assert sha256(DATA) in answer.json()["message"]
    await eventually(lambda: _names(workspace), lambda names: names == ["a"])
    assert (workspace / "a").read_bytes() == b"old"
    wrong = await client.post(
        f"{one}/upload", params={"path": "a"}, headers={"x-content-sha256": "x"}
    )
    assert wrong.status_code == 400


async def _names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


async def test_an_upload_that_breaks_off_leaves_the_file_as_it_was(
    api: Api, client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    await client.post(f"{one}/upload", params={"path": "a"}, content=b"old")
    async with served(api) as where:
        host, _, port = where.partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST /v2/agents{one}/upload?path=a HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {api.tokens['operator']}\r\nContent-Length: 1000\r\n\r\n"
        )
        writer.write(head.encode() + bytes(500))
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.transport.abort()
        await eventually(lambda: _told(api), lambda told: len(told) == 2)
    await eventually(lambda: _names(workspace), lambda names: names == ["a"])
    assert (workspace / "a").read_bytes() == b"old"
    assert [each.data["status"] for each in await _told(api)] == [200, 499]


async def _told(api: Api) -> list[Any]:
    return [each for each in await api.events() if each.type == "file.written"]


@pytest.mark.parametrize(
    "path", ["", "..", "/etc/passwd", "a/../../b", "%00", "a%00b", "." , "/"]
)  # fmt: skip
async def test_a_path_that_leads_out_is_refused_and_wakes_nothing(
    api: Api, client: httpx.AsyncClient, one: str, path: str
) -> None:
    session = one.split("/")[2]
    await client.post(f"/sessions/{session}/pause")
    for answer in (
        await client.post(f"{one}/upload?path={path}", content=b"x"),
        await client.get(f"{one}/download?path={path}"),
    ):
        assert answer.status_code == 400, path
    assert (await api.sessions.get(session)).status is Status.PAUSED


async def test_what_is_not_there_or_is_no_file(client: httpx.AsyncClient, one: str) -> None:
    answer = await client.get(f"{one}/download", params={"path": "x"})
    assert (answer.status_code, answer.json()["id"]) == (404, "guest_enoent")
    await client.post(f"{one}/upload", params={"path": "d/a"}, content=b"x")
    answer = await client.get(f"{one}/download", params={"path": "d"})
    assert (answer.status_code, answer.json()["todo"]) == (400, "Ask for it as an archive.")
    answer = await client.get(f"{one}/download", params={"path": "x", "as_archive": "true"})
    assert answer.status_code == 404


async def test_a_name_may_have_every_byte(
    client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    query = f"path={quote(ALL_BYTES, safe='')}"
    assert (await client.post(f"{one}/upload?{query}", content=b"x")).status_code == 200
    assert [os.fsencode(each.name) for each in workspace.iterdir()] == [ALL_BYTES]
    assert payload_of(await client.get(f"{one}/download?{query}")) == b"x"


async def test_a_body_of_more_than_500_mib_is_refused_at_once(
    api: Api, client: httpx.AsyncClient, one: str
) -> None:
    answer = await client.post(
        f"{one}/upload", params={"path": "a"}, content=_nothing(),
        headers={"content-length": str(UPLOAD_LIMIT + 1)},
    )  # fmt: skip
    assert (answer.status_code, answer.json()["id"]) == (413, "body_too_large")


async def _nothing() -> AsyncIterator[bytes]:
    raise AssertionError("the body was read")
    yield b""


async def test_a_paused_session_is_woken(
    api: Api, client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    session = one.split("/")[2]
    await client.post(f"{one}/upload", params={"path": "a"}, content=b"x")
    await client.post(f"/sessions/{session}/pause")
    assert payload_of(await client.get(f"{one}/download", params={"path": "a"})) == b"x"
    assert (await api.sessions.get(session)).status is Status.READY


async def test_eight_are_served_at_once_and_who_waits_too_long_is_told(
    api: Api, client: httpx.AsyncClient, one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "WAIT_SECONDS", 0.3)
    go_on = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        await go_on.wait()

    async def upload(name: str, content: Any) -> httpx.Response:
        return await client.post(f"{one}/upload", params={"path": name}, content=content)

    eight = [asyncio.ensure_future(upload(str(number), slow())) for number in range(8)]
    await asyncio.sleep(0.3)
    answer = await upload("nine", b"x")
    assert (answer.status_code, answer.json()["id"]) == (503, "too_many_transfers")
    assert answer.headers["retry-after"] == "5"
    monkeypatch.setattr(routes, "WAIT_SECONDS", 10)
    ninth = asyncio.ensure_future(upload("nine", b"x"))
    await asyncio.sleep(0.1)
    go_on.set()
    for each in (*eight, ninth):
        assert (await each).status_code == 200


@pytest.mark.parametrize("role", ["viewer", "approver"])
async def test_who_may_only_look_may_not(api: Api, one: str, role: Role) -> None:
    async with api.client(role) as client:
        assert (await client.get(f"{one}/download", params={"path": "a"})).status_code == 403
        assert (await client.post(f"{one}/upload", params={"path": "a"})).status_code == 403


@needs_users
async def test_all_is_done_as_the_images_user(
    api: Api, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = api.host.image_start

    async def of_nobody(*args: Any) -> Any:
        found = await start(*args)
        return replace(found, defaults={**found.defaults, "user": "65534:65534"})

    monkeypatch.setattr(api.host, "image_start", of_nobody)
    one = f"/sessions/{await api.ready(name='nobodys')}/workspace"
    async with api.client() as client:
        await client.post(f"{one}/upload", params={"path": "d/a"}, content=b"x")
        tar = {"path": "t", "is_archive": True}
        assert (await client.post(f"{one}/upload", params=tar, content=archive(b=b"1"))).is_success
        for name in ("", "d", "d/a", "t", "t/b"):
            found = (workspace / name).stat()
            assert (found.st_uid, found.st_gid) == (65534, 65534), name
        secret = workspace.parent / "secret"
        secret.write_bytes(b"of root")
        secret.chmod(0o600)
        (workspace / "link").symlink_to(secret)
        answer = await client.get(f"{one}/download", params={"path": "link"})
        assert (answer.status_code, answer.json()["id"]) == (403, "guest_eacces")
        (workspace / "out").symlink_to(workspace.parent)
        workspace.parent.chmod(0o755)
        answer = await client.post(f"{one}/upload", params={"path": "out/x"}, content=b"x")
        assert (answer.status_code, answer.json()["id"]) == (403, "guest_eacces")
