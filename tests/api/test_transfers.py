"""Transfers by HTTP: parts and payloads by URLs that need no token."""

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest

from tests.api.conftest import BASE, Api, served
from tests.api.test_workspace import archive, names_of
from tests.api.workspaces import ALL_BYTES, workspace
from tests.waiting import eventually
from torpor.sessions import staging, transfers
from torpor.sessions.parts import part_size_for
from torpor.store.records import Role

__all__ = ["workspace"]

SIZE = 100_000
DATA = os.urandom(2 * SIZE + 10)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "part_size_for", lambda size: SIZE)


@pytest.fixture
async def one(api: Api, workspace: Path) -> str:
    return f"/sessions/{await api.ready(name='one')}/workspace/transfers"


def local(url: str) -> str:
    """Return a URL of the server's as it is below the API's root."""
    return urlsplit(url).path.removeprefix(BASE)


async def begin(client: httpx.AsyncClient, one: str, **said: Any) -> dict[str, Any]:
    answer = await client.post(one, json={"direction": "upload", "path": "a", **said})
    assert answer.status_code in (201, 202), answer.text
    made: dict[str, Any] = answer.json()
    return made


async def urls_of(client: httpx.AsyncClient, place: str, *numbers: int) -> list[str]:
    answer = await client.post(f"{place}/part-upload-urls", json={"part_numbers": numbers})
    assert answer.status_code == 200, answer.text
    assert [each["part_number"] for each in answer.json()["part_urls"]] == list(numbers)
    return [each["upload_url"] for each in answer.json()["part_urls"]]


async def put_all(api: Api, client: httpx.AsyncClient, place: str, data: bytes) -> None:
    starts = range(0, len(data), SIZE)
    urls = await urls_of(client, place, *range(1, len(starts) + 1))
    async with api.client(None) as nobody:
        for url, start in zip(urls, starts, strict=True):
            answer = await nobody.put(local(url), content=data[start : start + SIZE])
            assert answer.status_code == 200, answer.text


async def ended(client: httpx.AsyncClient, place: str) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        return (await client.get(place)).json()  # type: ignore[no-any-return]

    found: dict[str, Any] = await eventually(
        ask, lambda found: found["status"] in ("completed", "failed")
    )
    return found


async def upload(api: Api, client: httpx.AsyncClient, one: str, data: bytes, **said: Any) -> Any:
    made = await begin(client, one, size_bytes=len(data), **said)
    place = f"{one}/{made['transfer_id']}"
    if data:
        await put_all(api, client, place, data)
    assert (await client.post(f"{place}/commit")).status_code == 202
    return await ended(client, place)


async def test_a_file_is_uploaded_in_parts(
    api: Api, client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    answer = await client.post(
        one,
        json={"direction": "upload", "path": "d/a", "is_archive": False, "size_bytes": len(DATA)},
    )
    assert answer.status_code == 201
    made = answer.json()
    assert made.keys() == {
        "transfer_id", "direction", "status", "part_size", "upload_id", "expires_at",
    }  # fmt: skip
    assert (made["status"], made["direction"], made["part_size"]) == ("pending", "upload", SIZE)
    place = f"{one}/{made['transfer_id']}"
    second, first = await urls_of(client, place, 2, 1)
    assert first.startswith("http://torpor/v2/agents/signed/")
    async with api.client(None) as nobody:
        for url, part in ((first, DATA[:SIZE]), (second, DATA[SIZE : 2 * SIZE])):
            answer = await nobody.put(local(url), content=part)
            assert answer.status_code == 200
            assert answer.headers["etag"] == f'"{sha256(part)}"'
            assert answer.json()["size_bytes"] == SIZE
        answer = await client.post(f"{place}/commit", json={})
        assert (answer.status_code, answer.json()["id"]) == (409, "parts_missing")
        assert answer.json()["facts"] == {"missing": [3]}
        shown = (await client.get(place)).json()
        assert (shown["parts_received"], shown["size_bytes"]) == ([1, 2], len(DATA))
        assert shown["path"] == f"{workspace}/d/a"
        (third,) = await urls_of(client, place, 3)
        assert (await nobody.put(local(third), content=DATA[2 * SIZE :])).status_code == 200
    for _ in range(2):
        answer = await client.post(f"{place}/commit", json={"sha256": sha256(DATA)})
        assert answer.status_code == 202
        assert answer.json()["size_bytes"] == len(DATA)
    done = await ended(client, place)
    assert (done["bytes_written"], done["sha256"]) == (len(DATA), sha256(DATA))
    assert "download_url" not in done
    assert (workspace / "d/a").read_bytes() == DATA
    told = [each.type for each in await api.events() if each.type.startswith("transfer.")]
    assert told == [
        "transfer.created", *["transfer.part"] * 3, "transfer.committed", "transfer.completed",
    ]  # fmt: skip


async def test_a_file_is_fetched_whole_or_in_part(
    api: Api, client: httpx.AsyncClient, one: str
) -> None:
    await upload(api, client, one, DATA)
    made = await begin(client, one, direction="download", as_archive=False)
    assert made.keys() == {"transfer_id", "direction", "status", "expires_at"}
    place = f"{one}/{made['transfer_id']}"
    done = await ended(client, place)
    assert (done["bytes_written"], done["sha256"]) == (len(DATA), sha256(DATA))
    url = local(done["download_url"])
    async with api.client(None) as nobody:
        whole = await nobody.get(url)
        assert (whole.status_code, whole.content) == (200, DATA)
        assert whole.headers["content-length"] == str(len(DATA))
        etag = whole.headers["etag"]
        part = await nobody.get(url, headers={"range": "bytes=10-19", "if-range": etag})
        assert (part.status_code, part.content) == (206, DATA[10:20])
        assert part.headers["content-range"] == f"bytes 10-19/{len(DATA)}"
        other = await nobody.get(url, headers={"range": "bytes=10-19", "if-range": '"x"'})
        assert (other.status_code, other.content) == (200, DATA)
        beyond = await nobody.get(url, headers={"range": f"bytes={len(DATA)}-"})
        assert beyond.status_code == 416
    async with api.client("viewer") as viewer:
        assert "download_url" not in (await viewer.get(place)).json()
    (Path(api.root) / "transfers" / made["transfer_id"] / "payload").unlink()
    async with api.client(None) as nobody:
        assert (await nobody.get(url)).status_code == 404
    assert "download_url" not in (await client.get(place)).json()


async def test_an_archive_goes_both_ways(
    api: Api, client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    files = {"a": b"1", "d/b": os.urandom(3 * SIZE)}
    done = await upload(api, client, one, archive(**files), path="x", is_archive=True)
    assert done["status"] == "completed", done
    assert (workspace / "x/d/b").read_bytes() == files["d/b"]
    made = await begin(client, one, direction="download", path="x", as_archive=True)
    done = await ended(client, f"{one}/{made['transfer_id']}")
    async with api.client(None) as nobody:
        fetched = (await nobody.get(local(done["download_url"]))).content
    assert {name.removeprefix("./"): data for name, data in names_of(fetched).items()} == files


async def test_of_an_archive_with_another_hash_nothing_is_unpacked(
    api: Api, client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    done = await upload(
        api, client, one, archive(a=b"1"), path="x", is_archive=True, sha256=sha256(b"")
    )
    assert done["status"] == "failed"
    assert "SHA-256" in done["error_message"]
    assert not (workspace / "x").exists()
    async with api.client("viewer") as viewer:
        shown = (await viewer.get(f"{one}/{done['transfer_id']}")).json()
    assert "error_message" not in shown


async def test_what_is_no_archive_fails_with_words(
    api: Api, client: httpx.AsyncClient, one: str
) -> None:
    done = await upload(api, client, one, DATA, path="x", is_archive=True)
    assert done["status"] == "failed"
    assert done["error_message"]


@pytest.mark.parametrize("size", [10, "10"])
async def test_the_size_is_a_number_or_its_digits(
    client: httpx.AsyncClient, one: str, size: Any
) -> None:
    made = await begin(client, one, size_bytes=size)
    assert (await client.get(f"{one}/{made['transfer_id']}")).json()["size_bytes"] == 10


async def test_bodies_that_may_be_left_out_are_nothing_or_empty(
    client: httpx.AsyncClient, one: str
) -> None:
    headers = {"content-type": "application/json"}
    for content in (b"", b"{}"):
        made = await begin(client, one, size_bytes=0)
        place = f"{one}/{made['transfer_id']}"
        answer = await client.post(f"{place}/commit", content=content, headers=headers)
        assert answer.status_code == 202, answer.text
        assert (await ended(client, place))["bytes_written"] == 0
        answer = await client.post(f"{place}/cancel", content=content, headers=headers)
        assert answer.json() == {
            "transfer_id": made["transfer_id"], "aborted": False, "status": "completed",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "status", "why"),
    [
        ({"path": "../x"}, 400, "leads out"),
        ({"path": "."}, 400, "workspace itself"),
        ({"path": ""}, 400, "path"),
        ({"path": "a\0"}, 400, "NUL"),
        ({"direction": "sideways"}, 400, "direction"),
        ({"as_archive": True}, 400, "'as_archive' is for a download"),
        ({"direction": "download", "is_archive": True}, 400, "'is_archive' is for an upload"),
        ({"direction": "download", "size_bytes": 3}, 400, "'size_bytes' is for an upload"),
        ({"direction": "download", "sha256": "0" * 64}, 400, "'sha256' is for an upload"),
        ({"sha256": "xyz"}, 400, "sha256"),
        ({"size_bytes": -1}, 400, "size_bytes"),
        ({"size_bytes": "1e3"}, 400, "size_bytes"),
        ({"size_bytes": True}, 400, "size_bytes"),
        ({"size_bytes": (50 << 30) + 1}, 413, "too many"),
        ({"size": 3}, 400, "'size' is not known"),
        ({"path_encoding": "base64"}, 400, "path_encoding"),
    ],
)
async def test_what_cannot_be_is_refused(
    client: httpx.AsyncClient, one: str, said: dict[str, Any], status: int, why: str
) -> None:
    answer = await client.post(one, json={"direction": "upload", "path": "a", **said})
    assert answer.status_code == status, answer.text
    assert why in answer.json()["message"]


async def test_a_name_may_have_every_byte(
    api: Api, client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    said = {"path": quote(ALL_BYTES, safe=""), "path_encoding": "percent"}
    done = await upload(api, client, one, DATA, **said)
    assert done["status"] == "completed", done
    assert [os.fsencode(each.name) for each in workspace.iterdir()] == [ALL_BYTES]
    assert done["path_encoding"] == "percent"
    made = await begin(
        client, one, direction="download", path=done["path"], path_encoding="percent"
    )
    done = await ended(client, f"{one}/{made['transfer_id']}")
    assert done["sha256"] == sha256(DATA)


async def test_all_urls_of_the_largest_upload_come_at_once(
    client: httpx.AsyncClient, one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "part_size_for", part_size_for)
    monkeypatch.setattr(staging, "free_bytes", lambda _: 1 << 40)
    made = await begin(client, one, size_bytes=50 << 30)
    count = -(-(50 << 30) // made["part_size"])
    assert 800 <= count <= 1000
    place = f"{one}/{made['transfer_id']}"
    urls = await urls_of(client, place, *range(1, count + 1))
    assert len(set(urls)) == count
    for numbers in ([count + 1], [0], [], ["1"], [1] * 1001):
        answer = await client.post(f"{place}/part-upload-urls", json={"part_numbers": numbers})
        assert answer.status_code == 400


async def test_a_url_is_for_one_part_of_one_transfer(
    api: Api, client: httpx.AsyncClient, one: str
) -> None:
    made = await begin(client, one, size_bytes=SIZE + 1)
    place = f"{one}/{made['transfer_id']}"
    (url,) = await urls_of(client, place, 2)
    async with api.client(None) as nobody:
        assert (await nobody.put(local(url), content=bytes(SIZE))).status_code == 400
        assert (await nobody.get(local(url))).status_code == 405
        payload = local(url).removesuffix("/part") + "/payload"
        assert (await nobody.get(payload)).status_code == 404
        assert (await nobody.put(local(url)[:-9] + "x/part", content=b"1")).status_code == 401
        assert (await nobody.put(local(url), content=b"1")).status_code == 200
    assert (await client.get(place)).json()["parts_received"] == [2]


async def test_a_url_ends_with_the_token_of_who_asked(
    api: Api, client: httpx.AsyncClient, one: str
) -> None:
    token, text = await api.bearers.make("x", "operator")
    async with api.client(None, headers={"authorization": f"Bearer {text}"}) as asker:
        made = await begin(asker, one, size_bytes=1)
        (url,) = await urls_of(asker, f"{one}/{made['transfer_id']}", 1)
    await api.bearers.revoke(token.id)
    async with api.client(None) as nobody:
        assert (await nobody.put(local(url), content=b"1")).status_code == 401


async def test_a_part_has_to_say_how_large_it_is(
    api: Api, client: httpx.AsyncClient, one: str
) -> None:
    made = await begin(client, one, size_bytes=1)
    (url,) = await urls_of(client, f"{one}/{made['transfer_id']}", 1)

    async def pieces() -> Any:
        yield b"1"

    async with api.client(None) as nobody:
        answer = await nobody.put(local(url), content=pieces())
    assert (answer.status_code, answer.json()["id"]) == (411, "length_required")


async def test_a_client_that_is_killed_asks_how_far_it_was_and_goes_on(
    api: Api, client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    made = await begin(client, one, size_bytes=2 * SIZE)
    place = f"{one}/{made['transfer_id']}"
    async with served(api) as where:
        first, second = await urls_of(client, place, 1, 2)
        host, _, port = where.partition(":")
        async with httpx.AsyncClient() as nobody:
            answer = await nobody.put(f"http://{where}{BASE}{local(first)}", content=DATA[:SIZE])
            assert answer.status_code == 200
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"PUT {BASE}{local(second)} HTTP/1.1\r\nHost: x\r\nContent-Length: {SIZE}\r\n\r\n"
        writer.write(head.encode() + DATA[SIZE : SIZE + 500])
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.transport.abort()
        told = await eventually(
            lambda: _parts(api), lambda told: [each.data["status"] for each in told] == [200, 499]
        )
    assert told[1].data["error"] == "client_gone"
    assert (await client.get(place)).json()["parts_received"] == [1]
    async with api.client(None) as nobody:
        await nobody.put(local(second), content=DATA[SIZE : 2 * SIZE])
    await client.post(f"{place}/commit", json={"sha256": sha256(DATA[: 2 * SIZE])})
    assert (await ended(client, place))["status"] == "completed"
    assert (workspace / "a").read_bytes() == DATA[: 2 * SIZE]


async def _parts(api: Api) -> list[Any]:
    return [each for each in await api.events() if each.type == "transfer.part"]


async def test_urls_begin_as_the_server_is_reached(tmp_path: Path, database_url: str) -> None:
    api = await Api(tmp_path, database_url, public_url="https://torpor.example.com/x/").open()
    session = await api.ready(name="one")
    async with api.client() as client:
        one = f"/sessions/{session}/workspace/transfers"
        made = await begin(client, one, size_bytes=1)
        (url,) = await urls_of(client, f"{one}/{made['transfer_id']}", 1)
    assert url.startswith("https://torpor.example.com/x/v2/agents/signed/")
    await api.close()


async def test_who_may_only_look_may_look(api: Api, client: httpx.AsyncClient, one: str) -> None:
    made = await begin(client, one, size_bytes=1)
    place = f"{one}/{made['transfer_id']}"
    roles: tuple[Role, ...] = ("viewer", "approver")
    for role in roles:
        async with api.client(role) as looking:
            assert (await looking.get(place)).status_code == 200
            for path in (one, f"{place}/part-upload-urls", f"{place}/commit", f"{place}/cancel"):
                assert (await looking.post(path, json={})).status_code == 403
    other = f"/sessions/{await api.ready(name='two')}/workspace/transfers/{made['transfer_id']}"
    for answer in (await client.get(other), await client.post(f"{other}/cancel")):
        assert (answer.status_code, answer.json()["id"]) == (404, "not_found")


async def test_a_key_begins_one_transfer(client: httpx.AsyncClient, one: str) -> None:
    said = {"direction": "upload", "path": "a"}
    headers = {"idempotency-key": "k"}
    answers = [(await client.post(one, json=said, headers=headers)).json() for _ in range(2)]
    assert answers[0] == answers[1]


# The minute that it takes is HTTP's and the guest's; what becomes of many at once in both databases
# is in tests/sessions/test_transfers.py.
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_thousand_small_files_in_parallel(
    api: Api, client: httpx.AsyncClient, one: str, workspace: Path
) -> None:
    files = {f"d{number % 7}/{number}": b"%d" % number * (number % 50) for number in range(1000)}
    at_once = asyncio.Semaphore(100)
    places = []

    async def send(path: str, data: bytes) -> None:
        async with at_once:
            made = await begin(client, one, size_bytes=len(data), path=path)
            place = f"{one}/{made['transfer_id']}"
            if data:
                await put_all(api, client, place, data)
            assert (await client.post(f"{place}/commit")).status_code == 202
            places.append(place)

    await asyncio.gather(*(send(path, data) for path, data in files.items()))
    for place in places:
        assert (await ended(client, place))["status"] == "completed"
    found = {str(each.relative_to(workspace)): each.read_bytes()
             for each in workspace.rglob("*") if each.is_file()}  # fmt: skip
    assert found == files
