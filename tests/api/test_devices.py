"""One live stream of events for each device."""

import asyncio

import httpx
import pytest

from tests.api.conftest import BASE, Api, served
from tests.api.reading import Frame, frames
from tests.waiting import eventually
from torpor.api.devices import device_of
from torpor.store.records import Role


@pytest.mark.parametrize(
    ("said", "device"),
    [
        (None, None),
        ("", None),
        ("  ", None),
        (" a ", "a"),
        ("x" * 128, "x" * 128),
        ("x" * 129, None),
        ("caf\u00e9", None),
        ("a\tb", None),
    ],
)
def test_what_a_device_is_called(said: str | None, device: str | None) -> None:
    assert device_of(said) == device


class Reader:
    """A live stream of the session `one`, read in the background to its end."""

    def __init__(self, client: httpx.AsyncClient, path: str = "events", **how: str) -> None:
        headers = {"x-device-uuid": how.pop("header")} if "header" in how else {}
        self.found: list[Frame] = []
        self.begun = asyncio.Event()
        self.task = asyncio.create_task(self._read(client, path, how, headers))

    async def _read(
        self, client: httpx.AsyncClient, path: str, params: dict[str, str], headers: dict[str, str]
    ) -> None:
        url = f"/sessions/one/{path}"
        async with client.stream("GET", url, params=params, headers=headers) as answer:
            assert answer.status_code == 200
            async for frame in frames(answer):
                self.found.append(frame)
                self.begun.set()

    async def live(self) -> "Reader":
        """Return when it has begun."""
        await asyncio.wait_for(self.begun.wait(), 10)
        return self

    async def superseded(self) -> bool:
        """Return whether it has ended because a newer one began."""
        await asyncio.wait_for(self.task, 10)
        last = self.found[-1]
        return last.event == "error" and last.data["error"]["id"] == "superseded"

    async def goes_on(self) -> bool:
        """Return whether it has not ended."""
        await asyncio.sleep(0.2)
        return not self.task.done()


async def test_a_newer_stream_of_the_same_device_ends_the_older_one(api: Api) -> None:
    await api.ready(name="one")

    def client(where: str, role: Role = "operator") -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {api.tokens[role]}"}
        return httpx.AsyncClient(base_url=f"http://{where}{BASE}", headers=headers, timeout=20)

    async with served(api) as where, client(where) as ours, client(where, "viewer") as others:
        first = await Reader(ours, device_id="laptop").live()
        # Neither another device, nor another's device of that name, nor a replay, nor one without.
        phone = await Reader(ours, device_id="phone").live()
        other = await Reader(others, device_id="laptop").live()
        replay = await Reader(ours, device_id="laptop", replay_only="true").live()
        await asyncio.wait_for(replay.task, 10)
        assert replay.found[-1].event != "error"
        nameless = await Reader(ours).live()
        assert await first.goes_on()
        second = await Reader(ours, "stream", header="laptop").live()
        assert await first.superseded()
        # The parameter is believed rather than the header.
        third = await Reader(ours, header="tablet", device_id="laptop").live()
        assert await second.superseded()
        assert await third.goes_on()
        alive = (phone, third, other, nameless)
        assert not any(each.task.done() for each in alive)
        await ours.delete("/sessions/one")
        for each in alive:
            await asyncio.wait_for(each.task, 10)
            assert each.found[-1].event == "session.destroyed"

    async def left() -> int:
        return len(api.app.state.parts.devices._streams)

    await eventually(left, lambda count: count == 0)
