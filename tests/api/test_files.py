"""Files over HTTP. The machines are agents on this host, so their files are this host's."""

import asyncio
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import BASE, Api, served
from tests.api.reading import frames
from tests.api.test_events import api_client
from tests.api.test_execs import in_use
from tests.waiting import eventually
from torpor.api import uploads
from torpor.api.document import document
from torpor.sessions.model import SYSTEM

FILES = "/sessions/one/files"


@pytest.fixture
async def one(api: Api) -> str:
    """A session called `one`."""
    return await api.ready(name="one")


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A directory in the machine."""
    place = tmp_path / "in the machine"
    place.mkdir()
    return place


async def test_a_file_is_written_read_and_removed(
    one: str, there: Path, client: httpx.AsyncClient
) -> None:
    file = there / "a" / "b"
    params = {"path": str(file), "parents": "true", "mode": "0750"}
    content = bytes(range(256)) * 5000
    answer = await client.put(FILES + "/content", params=params, content=content)
    assert answer.json() == {"size": len(content)}
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (content, 0o750)
    answer = await client.get(FILES + "/content", params={"path": str(file)})
    assert answer.content == content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-length"] == str(len(content))
    shown = (await client.get(FILES + "/status", params={"path": str(file)})).json()["file"]
    assert (shown["type"], shown["mode"], shown["size"]) == ("file", "0750", len(content))
    assert (await client.delete(FILES, params={"path": str(file)})).status_code == 204
    assert not file.exists()
    answer = await client.get(FILES + "/content", params={"path": str(file)})
    assert (answer.status_code, answer.json()["id"]) == (404, "guest_enoent")


@pytest.mark.parametrize(
    ("wanted", "status", "said", "content"),
    [
        ("bytes=0-3", 206, "bytes 0-3/10", b"0123"),
        ("bytes=7-", 206, "bytes 7-9/10", b"789"),
        ("bytes=-2", 206, "bytes 8-9/10", b"89"),
        ("bytes=5-500", 206, "bytes 5-9/10", b"56789"),
        ("bytes=-500", 206, "bytes 0-9/10", b"0123456789"),
        ("bytes=10-", 416, "bytes */10", None),
        ("bytes=-0", 416, "bytes */10", None),
        ("bytes=3-2", 200, None, b"0123456789"),
        ("bytes=0-1,3-4", 200, None, b"0123456789"),
        ("lines=1-2", 200, None, b"0123456789"),
        ("bytes=-", 200, None, b"0123456789"),
    ],
)
async def test_a_part_of_a_file_is_read(
    wanted: str, status: int, said: str | None, content: bytes | None, one: str, there: Path,
    client: httpx.AsyncClient,
) -> None:  # fmt: skip
    (there / "f").write_bytes(b"0123456789")
    answer = await client.get(
        FILES + "/content", params={"path": str(there / "f")}, headers={"range": wanted}
    )
    assert (answer.status_code, answer.headers.get("content-range")) == (status, said)
    if content is not None:
        assert answer.content == content


async def test_a_part_is_of_the_same_file_or_all_of_it(
    one: str, there: Path, client: httpx.AsyncClient
) -> None:
    (there / "f").write_bytes(b"0123456789")
    params = {"path": str(there / "f")}
    etag = (await client.get(FILES + "/content", params=params)).headers["etag"]
    headers = {"range": "bytes=5-", "if-range": etag}
    assert (await client.get(FILES + "/content", params=params, headers=headers)).status_code == 206
    (there / "f").write_bytes(b"abcdefghijk")
    answer = await client.get(FILES + "/content", params=params, headers=headers)
    assert (answer.status_code, answer.content) == (200, b"abcdefghijk")


async def test_a_file_of_the_kernels_is_read_though_it_says_that_it_is_empty(
    one: str, client: httpx.AsyncClient
) -> None:
    answer = await client.get(FILES + "/content", params={"path": "/proc/version"})
    assert answer.content.startswith(b"Linux version")


@pytest.mark.parametrize(
    ("path", "method"), [("files/content", "put"), ("workspace/upload", "post")]
)
def test_the_document_says_that_a_file_may_come_without_a_body(
    api: Api, path: str, method: str
) -> None:
    asked = document(api.app)["paths"][f"/v2/agents/sessions/{{session_id}}/{path}"][method]
    assert asked["requestBody"]["required"] is False


async def test_an_empty_file_is_written_and_read(
    one: str, there: Path, client: httpx.AsyncClient
) -> None:
    params = {"path": str(there / "empty")}
    assert (await client.put(FILES + "/content", params=params)).json() == {"size": 0}
    assert (await client.get(FILES + "/content", params=params)).content == b""


async def test_names_that_are_not_utf_8_are_names(
    one: str, there: Path, client: httpx.AsyncClient
) -> None:
    path = str(there).replace(" ", "+") + "/%ff%2B"
    assert (await client.put(f"{FILES}/content?path={path}", content=b"x")).status_code == 200
    assert [each.name for each in there.iterdir()] == ["\udcff+"]
    listed = (await client.get(FILES + "/list", params={"path": str(there)})).json()
    assert [each["path"] for each in listed["entries"]] == ["\\xff+"]
    assert (await client.delete(f"{FILES}?path={path}")).status_code == 204


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/content?path=/", 400),
        ("GET", "/content", 400),
        ("GET", "/content?path=", 400),
        ("GET", "/content?path=%00", 400),
        ("GET", "/content?path=/etc/hostname&colour=red", 400),
        ("GET", "/status?path=/no/such", 404),
        ("GET", "/list?path=/no/such", 404),
        ("GET", "/archive?path=/no/such", 404),
        ("GET", "/watch?path=/no/such", 404),
        ("PUT", "/content?path=/no/such/file", 404),
        ("PUT", "/content?path=/tmp/x&mode=999", 400),
        ("PUT", "/content?path=/proc/nothing", 404),
        ("DELETE", "?path=/no/such", 404),
    ],
)
async def test_what_cannot_be_done_is_an_ordinary_error(
    method: str, path: str, status: int, one: str, client: httpx.AsyncClient
) -> None:
    answer = await client.request(method, FILES + path)
    assert answer.status_code == status, answer.text
    assert answer.json()["message"]


async def test_directories_are_listed_a_page_at_a_time(
    one: str, there: Path, client: httpx.AsyncClient
) -> None:
    for number in range(25):
        (there / f"{number:02}").write_text(str(number))
    seen = []
    params = {"path": str(there), "page_size": "10", "sha256": "true"}
    while True:
        page = (await client.get(FILES + "/list", params=params)).json()
        seen += page["entries"]
        assert len(page["entries"]) <= 10
        if not page["next_page_token"]:
            break
        params["page_token"] = page["next_page_token"]
    assert [each["path"] for each in seen] == [f"{number:02}" for number in range(25)]
    assert seen[7]["sha256"] == hashlib.sha256(b"7").hexdigest()
    lines = await client.get(
        FILES + "/list", params={"path": str(there)}, headers={"accept": "application/x-ndjson"}
    )
    names = [json.loads(line)["path"] for line in lines.text.splitlines()]
    assert sorted(names) == [f"{number:02}" for number in range(25)]


async def test_names_are_made_moved_linked_and_changed(
    one: str, there: Path, client: httpx.AsyncClient
) -> None:
    async def post(what: str, **body: object) -> int:
        return (await client.post(f"{FILES}/{what}", json=body)).status_code

    assert await post("directory", path=str(there / "d" / "e"), parents=True) == 204
    (there / "f").write_text("x")
    assert await post("move", **{"from": str(there / "f"), "to": str(there / "d" / "g")}) == 204
    (there / "f").write_text("y")
    moved = {"from": str(there / "f"), "to": str(there / "d" / "g"), "replace": False}
    assert await post("move", **moved) == 409
    assert await post("link", path=str(there / "l"), target="d/g") == 204
    assert (there / "l").read_text() == "x"
    changes = {"path": str(there / "d" / "g"), "mode": "0600", "mtime_ns": 10**18}
    assert (await client.patch(FILES, json=changes)).status_code == 204
    assert (there / "d" / "g").stat().st_mtime_ns == 10**18
    assert (await client.patch(FILES, json={"path": "/x"})).status_code == 400
    params = {"path": str(there / "d")}
    assert (await client.delete(FILES, params=params)).status_code == 409
    assert (await client.delete(FILES, params=params | {"recursive": "true"})).status_code == 204


async def test_trees_travel_as_archives(one: str, there: Path, client: httpx.AsyncClient) -> None:
    (there / "tree" / "sub").mkdir(parents=True)
    (there / "tree" / "sub" / "f").write_bytes(b"x" * 1_000_000)
    (there / "tree" / "skip.o").write_text("o")
    params = {"path": str(there / "tree"), "exclude": "*.o", "name": "."}
    answer = await client.get(FILES + "/archive", params=params)
    assert answer.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert [each.name for each in archive if each.isfile()] == ["./sub/f"]
    params = {"path": str(there / "copy"), "parents": "true"}
    done = await client.put(FILES + "/archive", params=params, content=answer.content)
    assert done.json()["members"] >= 2, done.text
    assert (there / "copy" / "sub" / "f").read_bytes() == b"x" * 1_000_000
    answer = await client.put(FILES + "/archive", params=params, content=b"no archive" * 100)
    assert answer.status_code == 400, answer.text


async def test_changes_are_followed(api: Api, one: str, there: Path) -> None:
    async with served(api) as address, api_client(api, address) as client:
        params = {"path": str(there), "recursive": "true"}
        async with client.stream("GET", FILES + "/watch", params=params) as answer:
            reading = frames(answer)
            assert (await anext(reading)).data == {"event": "ready"}
            (there / "new").write_text("x")
            seen = (await anext(reading)).data
            assert (seen["event"], seen["path"]) == ("created", "new")
            assert await in_use(api, one) == 0
            await client.post("/sessions/one/pause")
            await client.post("/sessions/one/resume")
            (there / "newer").write_text("x")
            async for frame in reading:
                if frame.data.get("path") == "newer":
                    break


async def test_a_paused_session_is_woken_and_takes_the_body_that_woke_it(
    api: Api, one: str, there: Path, client: httpx.AsyncClient
) -> None:
    await api.sessions.pause(one, SYSTEM)
    api.host.step = 0.05

    async def slowly() -> AsyncIterator[bytes]:
        for number in range(10):
            yield bytes([number]) * 100_000
            await asyncio.sleep(0.02)

    params = {"path": str(there / "f")}
    answer = await client.put(FILES + "/content", params=params, content=slowly())
    assert answer.json() == {"size": 1_000_000}
    assert (there / "f").read_bytes() == b"".join(bytes([n]) * 100_000 for n in range(10))


@pytest.mark.parametrize("atomic", ["true", "false"])
async def test_an_upload_that_breaks_off_uses_nothing_any_more(
    api: Api, one: str, there: Path, atomic: str
) -> None:
    (there / "f").write_text("old")

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100_000
            await asyncio.sleep(0.01)

    async with served(api) as address:
        async with api_client(api, address) as client:
            params = {"path": str(there / "f"), "atomic": atomic}
            uploading = asyncio.ensure_future(
                client.put(FILES + "/content", params=params, content=endless())
            )
            await eventually(lambda: in_use(api, one), lambda uses: uses == 1)
            await asyncio.sleep(0.3)
            uploading.cancel()
            await asyncio.gather(uploading, return_exceptions=True)
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)
    if atomic == "true":

        async def names() -> list[str]:
            return [each.name for each in there.iterdir()]

        await eventually(names, lambda found: found == ["f"])
        assert (there / "f").read_text() == "old"


async def test_a_download_that_breaks_off_uses_nothing_any_more(
    api: Api, one: str, there: Path
) -> None:
    with (there / "f").open("wb") as file:
        file.truncate(1 << 30)
    async with served(api) as address, api_client(api, address) as client:
        params = {"path": str(there / "f")}
        async with client.stream("GET", FILES + "/content", params=params) as answer:
            assert answer.headers["content-length"] == str(1 << 30)
            async for _ in answer.aiter_raw():
                break
        await eventually(lambda: in_use(api, one), lambda uses: uses == 0)


async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(
    api: Api, one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "STALLED_SECONDS", 0.2)

    async with served(api) as address:
        host, _, port = address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"PUT {BASE}{FILES}/content?path=/tmp/nothing HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {api.tokens['operator']}\r\ncontent-length: 9\r\n\r\nx"
        )
        writer.write(head.encode())
        answer = await asyncio.wait_for(reader.readuntil(b"}"), 5)
        writer.close()
        await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"request_timeout" in answer


async def test_what_was_done_with_files_is_told(
    api: Api, one: str, there: Path, client: httpx.AsyncClient
) -> None:
    await client.put(FILES + "/content", params={"path": str(there / "f")}, content=b"hush")
    await client.delete(FILES, params={"path": str(there / "f")})
    await client.delete(FILES, params={"path": str(there / "f")})
    told = [each for each in await api.events(one) if each.type.startswith("file.")]
    assert [each.type for each in told] == ["file.written", "file.removed", "file.removed"]
    assert (told[0].data["path"], told[0].data["size"]) == (str(there / "f"), 4)
    assert [each.data["status"] for each in told] == [200, 204, 404]
    assert told[2].data["error"] == "guest_enoent"
    assert "hush" not in str(told)
