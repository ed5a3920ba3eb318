"""Files by DigitalOcean's own Python client: its transfers, and its uploads and downloads in one
request. Parts and payloads go by URLs of the server's, without a token."""

import hashlib
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from pydo import Client
from pydo.agents.custom_sessions import WorkspaceTransferError
from pydo.aio import Client as AsyncClient

from tests.api.conftest import Api
from tests.api.test_pydo import address, aside, shows
from tests.api.test_workspace import archive, names_of
from tests.api.workspaces import workspace
from torpor.sessions import transfers

__all__ = ["address", "workspace"]

pytestmark = pytest.mark.filterwarnings("ignore")

SIZE = 100_000
DATA = os.urandom(2 * SIZE + 10)
SHA256 = hashlib.sha256(DATA).hexdigest()
FAST = {"poll_interval": 0.05}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "part_size_for", lambda size: SIZE)


@pytest.fixture
async def session(api: Api, workspace: Path) -> str:
    return await api.ready(name="one")


@pytest.fixture
def client(api: Api, address: str) -> Any:
    token = api.tokens["operator"]
    return Client(
        token, endpoint=address, agents_endpoint=address, authentication_policy=shows(token)
    )


@pytest.fixture
async def async_client(api: Api, address: str) -> AsyncIterator[Any]:
    token = api.tokens["operator"]
    async with AsyncClient(
        token, endpoint=address, agents_endpoint=address, authentication_policy=shows(token),
    ) as opened:  # fmt: skip
        yield opened


async def test_a_file_goes_in_and_comes_out(
    client: Any, session: str, workspace: Path, tmp_path: Path
) -> None:
    sessions = client.agents.sessions
    (tmp_path / "source").write_bytes(DATA)
    for number, data in enumerate((DATA, str(tmp_path / "source"), io.BytesIO(DATA), b"")):
        done = await aside(
            sessions.workspace_upload, session, path=f"d/{number}", data=data, **FAST
        )
        whole = b"" if data == b"" else DATA
        assert (done["status"], done["bytes_written"]) == ("completed", len(whole))
        assert done["sha256"] == hashlib.sha256(whole).hexdigest()
        assert (workspace / f"d/{number}").read_bytes() == whole

    def read() -> tuple[bytes, Any]:
        found = sessions.workspace_download(session, path="d/1", require_checksum=True, **FAST)
        return found.read(), found

    data, found = await aside(read)
    assert data == DATA
    assert (found.size_hint, found.expected_sha256) == (len(DATA), SHA256)
    handle = await aside(client.agents.attach, session)
    await aside(handle.upload_file, path="x", data=archive(a=b"1"), is_archive=True, **FAST)
    assert (workspace / "x/a").read_bytes() == b"1"
    tar = await aside(lambda: handle.download_file(path="x", as_archive=True, **FAST).read())
    assert {name.removeprefix("./"): each for name, each in names_of(tar).items()} == {"a": b"1"}


async def test_what_fails_is_an_error_that_it_knows_and_is_cancelled(
    api: Api, client: Any, session: str, workspace: Path
) -> None:
    sessions = client.agents.sessions
    with pytest.raises(WorkspaceTransferError, match="there is no"):
        await aside(sessions.workspace_download, session, path="nothing", **FAST)
    with pytest.raises(WorkspaceTransferError, match="SHA-256"):
        await aside(
            sessions.workspace_upload, session, path="a", data=DATA,
            content_sha256="0" * 64, **FAST,
        )  # fmt: skip
    assert not (workspace / "a").exists()
    with pytest.raises(HttpResponseError, match="leads out"):
        await aside(sessions.workspace_upload, session, path="../a", data=DATA, **FAST)
    with pytest.raises(ResourceNotFoundError):
        await aside(sessions.get_transfer, session, "x")
    made = await aside(
        sessions.create_transfer, session, direction="upload", path="a", size_bytes=SIZE + 1
    )
    entry = await aside(
        sessions.create_part_upload_url, session, made["transfer_id"], part_number=2
    )
    assert entry["part_number"] == 2
    from pydo.agents.custom_sessions import _http_put_bytes

    with pytest.raises(WorkspaceTransferError, match="HTTP 400"):
        await aside(_http_put_bytes, entry["upload_url"], bytes(SIZE))
    with pytest.raises(HttpResponseError, match="not complete"):
        await aside(sessions.commit_upload, session, made["transfer_id"])
    for aborted in (True, False):
        ended = await aside(
            sessions.cancel_transfer, session, made["transfer_id"], reason="client_error"
        )
        assert (ended["aborted"], ended["status"]) == (aborted, "failed")


async def test_the_same_without_blocking(async_client: Any, session: str, workspace: Path) -> None:
    sessions = async_client.agents.sessions
    done = await sessions.workspace_upload(session, path="a", data=DATA, **FAST)
    assert done["sha256"] == SHA256
    assert (workspace / "a").read_bytes() == DATA
    found = await sessions.workspace_download(session, path="a", require_checksum=True, **FAST)
    assert b"".join([piece async for piece in found]) == DATA
    with pytest.raises(WorkspaceTransferError, match="there is no"):
        await sessions.workspace_download(session, path="nothing", **FAST)


async def test_the_generated_methods(client: Any, session: str, workspace: Path) -> None:
    harness = client.harness
    answer = await aside(
        harness.create_session_workspace_upload, session, io.BytesIO(DATA), path="a",
        x_content_sha256=SHA256,
    )  # fmt: skip
    assert answer == {"bytes_written": len(DATA), "path": f"{workspace}/a"}
    wrong = await aside(
        harness.create_session_workspace_upload, session, io.BytesIO(DATA), path="a",
        x_content_sha256="0" * 64,
    )  # fmt: skip
    assert wrong["id"] == "checksum_mismatch"
    read = await aside(lambda: b"".join(harness.get_session_workspace_download(session, path="a")))
    assert read == DATA + b"DOWSSHA1" + SHA256.encode() + b"\n"
    gone = await aside(
        lambda: b"".join(harness.get_session_workspace_download(session, path="nothing"))
    )
    assert b"guest_enoent" in gone
    body = {"direction": "upload", "path": "b", "size_bytes": "5", "is_archive": False}
    made = await aside(harness.create_session_workspace_transfer, session, body)
    assert (made["status"], made["part_size"]) == ("pending", SIZE)
    transfer = made["transfer_id"]
    urls = await aside(
        harness.create_session_workspace_part_upload_urls, session, transfer,
        {"part_numbers": [1]},
    )  # fmt: skip
    assert urls["part_urls"][0]["part_number"] == 1
    missing = await aside(harness.commit_session_workspace_transfer, session, transfer)
    assert missing["id"] == "parts_missing"
    shown = await aside(harness.get_session_workspace_transfer, session, transfer)
    assert shown["status"] == "pending"
    ended = await aside(harness.cancel_session_workspace_transfer, session, transfer)
    assert ended["aborted"] is True
    down = await aside(
        harness.create_session_workspace_transfer, session, {"direction": "download", "path": "a"}
    )
    assert down["status"] == "in_progress"
    unknown = await aside(harness.get_session_workspace_transfer, session, "x")
    assert unknown["id"] == "not_found"


async def test_the_generated_methods_without_blocking(
    async_client: Any, session: str, workspace: Path
) -> None:
    harness = async_client.harness
    answer = await harness.create_session_workspace_upload(session, io.BytesIO(DATA), path="a")
    assert answer["bytes_written"] == len(DATA)
    pieces = await harness.get_session_workspace_download(session, path="a")
    assert b"".join([piece async for piece in pieces])[:-73] == DATA
    body = {"direction": "upload", "path": "b", "size_bytes": 0}
    transfer = (await harness.create_session_workspace_transfer(session, body))["transfer_id"]
    done = await harness.commit_session_workspace_transfer(session, transfer)
    assert done["transfer_id"] == transfer
    shown = await harness.get_session_workspace_transfer(session, transfer)
    assert shown["direction"] == "upload"
    ended = await harness.cancel_session_workspace_transfer(session, transfer)
    assert ended["transfer_id"] == transfer
