from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from torpor.store import Database


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Where a database that is a file may come to be."""
    return f"sqlite:///{tmp_path}/kept/torpor.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[str]:
    """Where a database may come to be, of each kind."""
    if request.param == "sqlite":
        yield sqlite_url
    else:
        with request.getfixturevalue("cluster").migrated() as found:
            yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, sqlite_url: str) -> Iterator[str]:
    """Where nothing is yet, not even tables."""
    if request.param == "sqlite":
        yield sqlite_url
    else:
        with request.getfixturevalue("cluster").empty() as found:
            yield found


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = await Database.open(url)
    yield opened
    await opened.close()


@pytest.fixture
async def sqlite(sqlite_url: str) -> AsyncIterator[Database]:
    """A database that is a file, for what only those have."""
    opened = await Database.open(sqlite_url)
    yield opened
    await opened.close()
