"""Events are kept, and followed without a gap."""

import asyncio

from tests.sessions.conftest import ANN, Service
from torpor.sessions.events import PAGE


async def test_who_follows_gets_every_event_once_and_in_order(service: Service) -> None:
    got: list[int] = []

    async def follow() -> None:
        async for event in service.sessions.follow(None, start):
            got.append(event.data["number"])
            if len(got) == 200:
                return

    start = await service.sessions.events.last()
    following = asyncio.create_task(follow())

    async def add(first: int) -> None:
        for number in range(first, first + 50):
            await service.sessions.events.add("note", None, ANN, number=number)

    for first in range(0, 200, 50):
        await add(first)
    await asyncio.wait_for(following, 10)
    assert got == list(range(200))


async def test_who_missed_more_than_a_page_gets_all_of_it_at_once(service: Service) -> None:
    events = service.sessions.events
    start = await events.last()
    async with service.database.write() as conn:
        for number in range(2 * PAGE + 1):
            await events.append(conn, "note", None, ANN, number=number)
    following = service.sessions.follow(None, start)
    async with asyncio.timeout(10):  # there are no more news
        got = [(await anext(following)).data["number"] for _ in range(2 * PAGE + 1)]
    assert got == list(range(2 * PAGE + 1))


async def test_who_comes_back_goes_on_after_the_last_one_it_saw(service: Service) -> None:
    session = await service.ready()
    seen = await service.sessions.events.after(None, session.id)
    await service.again()
    await service.sessions.pause(session.id, ANN)
    following = service.sessions.follow(session.id, seen[-1].id)
    assert (await asyncio.wait_for(anext(following), 10)).type == "session.paused"


async def test_ids_grow_over_restarts(service: Service) -> None:
    for _ in range(3):
        await service.sessions.events.add("note", None, ANN)
        await service.again()
    found = [event.id for event in await service.sessions.events.after(None, None)]
    assert found == sorted(set(found))


async def test_one_session_is_followed_alone(service: Service) -> None:
    first, second = await service.ready("first"), await service.ready("second")
    start = await service.sessions.events.last()
    following = service.sessions.follow(first.id, start)
    next_event = asyncio.ensure_future(anext(following))
    await service.sessions.pause(second.id, ANN)
    await asyncio.sleep(0.05)
    assert not next_event.done()
    await service.sessions.pause(first.id, ANN)
    assert (await asyncio.wait_for(next_event, 10)).session == first.id
