"""Snapshots become durable in the background, and at once for those who wait."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import eventually
from torpor.vm import durability
from torpor.vm.durability import Durability
from torpor.vm.manifest import Disks, Sums

LIMIT = 10.0
"""Seconds, of which none is waited: by itself it would come in an hour."""


class Made:
    """Stands for the store and its chains, and notes what is made durable."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.fails = False

    def manifest(self, snapshot: str) -> Any:
        return SimpleNamespace(id=snapshot, first=Disks(()), disks=())

    def durable(self, snapshot: str) -> bool:
        return snapshot in self.made

    def make_durable(self, snapshot: str, disks: object) -> Sums:
        if self.fails:
            raise OSError(28, "full")
        self.made.append(snapshot)
        return Sums({}, ())

    async def so_far(self) -> list[str]:
        return self.made

    @contextlib.asynccontextmanager
    async def shortened(self, disks: object) -> AsyncIterator[object]:
        yield disks


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr(durability, "FIRST_OTHERS", 3600.0)
    return Made()


def of(made: Made) -> Durability:
    return Durability(made, made)  # type: ignore[arg-type]


async def test_nobody_who_waits_waits_longer(made: Made) -> None:
    work = of(made)
    for way in (work.reached, work.settled):
        work.begin("one")
        await asyncio.sleep(0)
        assert work.under_way("one")
        assert "one" not in made.made
        async with asyncio.timeout(LIMIT):
            await way("one")
        assert made.made == ["one"]
        assert not work.under_way("one")
        made.made.clear()
    for name in ("two", "three"):
        work.begin(name)
    async with asyncio.timeout(LIMIT):
        await work.close()
    assert sorted(made.made) == ["three", "two"]


async def test_who_is_in_no_hurry_lets_others_go_first(made: Made) -> None:
    work = of(made)
    work.begin("one")
    waiting = asyncio.create_task(work.reached("one", hurry=False))
    for _ in range(10):
        await asyncio.sleep(0)
    assert made.made == []
    async with asyncio.timeout(LIMIT):
        await work.reached("one")
        await waiting
    assert made.made == ["one"]


async def test_it_comes_by_itself(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "FIRST_OTHERS", 0.01)
    work = of(made)
    work.begin("one")
    assert await eventually(made.so_far, bool) == ["one"]
    await work.close()


async def test_what_failed_is_tried_again_by_who_asks(made: Made) -> None:
    work = of(made)
    made.fails = True
    work.begin("one")
    async with asyncio.timeout(LIMIT):
        with pytest.raises(OSError, match="full"):
            await work.reached("one")
        work.begin("two")
        await work.settled("two")
    made.fails = False
    await work.reached("one")
    assert made.made == ["one"]
