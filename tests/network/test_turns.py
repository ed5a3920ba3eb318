"""Turns of machines: how many connections one has makes no difference to another."""

import asyncio

import pytest

from torpor.network.turns import PIECES, Share, Turns


async def test_a_machine_with_many_connections_has_no_more_than_one_with_one() -> None:
    turns = Turns()
    greedy, modest = Share(turns), Share(turns)
    done = {"greedy": 0, "modest": 0}

    async def work(name: str, share: Share) -> None:
        while done["modest"] < 2000:
            await share.turn()
            done[name] += 1
            await asyncio.sleep(0)  # as whoever waits for a socket

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        for _ in range(200):
            tasks.create_task(work("greedy", greedy))
        tasks.create_task(work("modest", modest))
    assert done["greedy"] <= (PIECES + 1) * done["modest"] + 400


async def test_one_alone_waits_for_nobody() -> None:
    turns = Turns()
    share = Share(turns)

    async def rounds() -> int:
        began = turns.round
        for _ in range(PIECES * 10):
            await share.turn()
        return turns.round - began

    assert await rounds() <= 11


async def test_who_goes_away_while_waiting_takes_no_turn_of_another() -> None:
    share = Share(Turns())

    async def work() -> None:
        await share.turn()

    tasks = [asyncio.create_task(work()) for _ in range(PIECES * 3)]
    await asyncio.sleep(0)
    for each in tasks[PIECES : PIECES * 2]:
        each.cancel()
    async with asyncio.timeout(5):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in results].count(True) == PIECES


@pytest.mark.parametrize("waiting", [1, PIECES, PIECES * 5])
async def test_all_who_wait_are_served(waiting: int) -> None:
    share = Share(Turns())
    served = 0

    async def work() -> None:
        nonlocal served
        for _ in range(3):
            await share.turn()
            served += 1

    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        for _ in range(waiting):
            tasks.create_task(work())
    assert served == waiting * 3
