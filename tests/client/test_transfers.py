"""Calls over transfers."""

from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from tests.client.double import AT, Double
from torpor.client import AsyncClient, Client
from torpor.client.calls import transfers

PLACE = "sessions/b/workspace/transfers"
URL = "https://elsewhere.example.com/x/v2/agents/signed/abc.def/part"


def shown(**more: Any) -> dict[str, Any]:
    return {
        "transfer_id": "t1", "direction": "upload", "status": "pending", "expires_at": AT, **more,
    }  # fmt: skip


async def test_an_upload_is_asked_for_as_the_api_has_it(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    double.on("POST", PLACE, JSONResponse(shown(part_size=8, upload_id="t1"), 201))
    made = client.create_upload("b", "data/a", size=20, sha256="00", archive=True, key="k")
    assert made == await async_client.create_upload("b", "data/a", size=20)
    assert (made.id, made.direction, made.status, made.part_size) == ("t1", "upload", "pending", 8)
    assert not made.over
    assert double.asked[0].said == {
        "direction": "upload", "path": "data/a", "is_archive": True, "size_bytes": 20,
        "sha256": "00",
    }  # fmt: skip
    assert double.asked[0].headers["idempotency-key"] == "k"


def test_a_name_that_is_no_utf_8_comes_and_goes_as_it_is(double: Double, client: Client) -> None:
    double.on("POST", PLACE, JSONResponse(shown(direction="download"), 202))
    client.create_download("b", "/workspace/caf\udce9 %", archive=True)
    assert double.asked[0].said == {
        "direction": "download", "path": "/workspace/caf%E9%20%25", "path_encoding": "percent",
        "as_archive": True,
    }  # fmt: skip
    double.on("GET", f"{PLACE}/t1", JSONResponse(shown(
        path="/workspace/caf%E9%20%25", path_encoding="percent", parts_received=[1, 3],
        size_bytes=20, part_size=8, is_archive=False,
    )))  # fmt: skip
    found = client.get_transfer("b", "t1")
    assert (found.path, found.received) == ("/workspace/caf\udce9 %", (1, 3))


def test_a_transfer_that_is_over(double: Double, client: Client) -> None:
    double.on("GET", f"{PLACE}/t1", JSONResponse(shown(
        status="completed", direction="download", bytes_written=3, sha256="ab",
        download_url=URL, size_bytes=3,
    )), JSONResponse(shown(status="failed", error_message="no")))  # fmt: skip
    found = client.get_transfer("b", "t1")
    assert (found.over, found.done, found.url) == (True, 3, URL)
    found = client.get_transfer("b", "t1")
    assert (found.over, found.error) == (True, "no")


async def test_parts_go_to_where_the_server_says_at_the_address_that_is_known(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    double.on("POST", f"{PLACE}/t1/part-upload-urls", JSONResponse({
        "transfer_id": "t1", "expires_at": AT,
        "part_urls": [{"part_number": 2, "upload_url": URL}],
    }))  # fmt: skip
    double.on("PUT", "signed/abc.def/part", JSONResponse({"part_number": 2}))
    urls = client.get_part_urls("b", "t1", [2])
    assert urls == await async_client.get_part_urls("b", "t1", (2,)) == {2: URL}
    assert double.asked[0].said == {"part_numbers": [2]}
    client.put_part(URL, b"abc")
    await async_client.put_part(URL, b"abc")
    assert [each.body for each in double.asked[2:]] == [b"abc", b"abc"]
    with pytest.raises(ValueError, match="no URL"):
        client.put_part("http://x/y", b"")


async def test_the_end_of_an_upload(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    double.on("POST", f"{PLACE}/t1/commit", JSONResponse(shown(), 202))
    double.on("POST", f"{PLACE}/t1/cancel", JSONResponse({"aborted": True}))
    client.commit_upload("b", "t1", sha256="00")
    await async_client.commit_upload("b", "t1")
    assert client.cancel_transfer("b", "t1", reason="enough") is True
    assert await async_client.cancel_transfer("b", "t1") is True
    assert [each.said for each in double.asked] == [
        {"sha256": "00"}, {}, {"reason": "enough"}, {},
    ]  # fmt: skip


async def test_a_download_is_read_from_where_it_was(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    double.on("GET", "signed/abc.def/payload", Response(b"def", 206))
    url = URL.replace("/part", "/payload")
    assert b"".join(client.read_download_pieces(url, offset=3)) == b"def"
    assert double.asked[0].headers["range"] == "bytes=3-"
    assert b"".join([each async for each in async_client.read_download_pieces(url)]) == b"def"
    assert "range" not in double.asked[1].headers


def test_a_file_goes_in_one_request(double: Double, client: Client) -> None:
    double.on("POST", "sessions/b/workspace/upload", JSONResponse({"bytes_written": 6, "path": ""}))
    written = client.upload_file("b", "x", iter([b"abc", b"def"]), archive=True, sha256="00")
    asked = double.one("POST", "sessions/b/workspace/upload")
    assert (written, asked.body) == (6, b"abcdef")
    assert dict(asked.query) == {"path": "x", "is_archive": "true"}
    assert asked.headers["x-content-sha256"] == "00"
    assert transfers.upload_file("b", "x", b"").repeat == "always"
