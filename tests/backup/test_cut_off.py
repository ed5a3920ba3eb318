"""Backups of a server that serves, cut off while it freezes: what they leave."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.sessions.conftest import ANN, Service, full_disk
from tests.waiting import eventually
from torpor.backup import Backups
from torpor.store.errors import DiskFullError
from torpor.vm.store import Store


@pytest.fixture
async def service(tmp_path: Path, database_url: str) -> AsyncIterator[Service]:
    """A service on a host of files."""
    opened = await Service(tmp_path, database_url).open()
    yield opened
    await opened.close()


def backups(service: Service) -> Backups:
    return Backups(service.sessions, service.database, Store(service.root), service.root, {})


async def test_a_backup_that_is_cut_off_while_it_freezes_leaves_no_checkpoints(
    service: Service,
) -> None:
    running = [await service.ready(name) for name in ("one", "two")]
    service.host.step = 0.2
    pieces = backups(service).pieces(ANN, freeze_running=True)
    first = asyncio.create_task(anext(pieces))  # type: ignore[arg-type]

    async def calls() -> list[str]:
        return service.host.calls

    await eventually(calls, lambda found: found.count("freeze") == 2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await pieces.aclose()
    for session in running:
        assert await service.sessions.checkpoints(session.id) == ([], None)


async def test_a_backup_of_which_one_freeze_cannot_be_noted_leaves_no_checkpoints(
    service: Service,
) -> None:
    one, two = [await service.ready(name) for name in ("one", "two")]
    service.host.step = 0.2
    pieces = backups(service).pieces(ANN, freeze_running=True)

    def refused(said: str) -> bool:
        return "INSERT INTO operations" in said and two.id in said

    with full_disk(service.database, refused), pytest.raises(ExceptionGroup) as failed:
        await anext(pieces)
    assert isinstance(failed.value.exceptions[0], DiskFullError)
    assert await service.sessions.checkpoints(one.id) == ([], None)
