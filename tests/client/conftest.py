"""A server double for each test, and both clients of it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.client.double import Double
from torpor.client import AsyncClient, Client


@pytest.fixture
def double() -> Iterator[Double]:
    """A server that answers what it is told to."""
    server = Double()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(double: Double) -> Iterator[Client]:
    """A client of it."""
    with Client(double.url, "torpor_t_s") as made:
        yield made


@pytest.fixture
async def async_client(double: Double) -> AsyncIterator[AsyncClient]:
    """A client of it for coroutines."""
    async with AsyncClient(double.url, "torpor_t_s") as made:
        yield made
