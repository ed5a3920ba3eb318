"""What tests of the wall's traffic stand on: namespaces, made once for all of them."""

from collections.abc import Iterator

import pytest

from tests.network.world import Internet, Wire


@pytest.fixture(scope="session")
def internet() -> Iterator[Internet]:
    made = Internet()
    yield made
    made.close()


@pytest.fixture(scope="session")
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


@pytest.fixture(scope="session")
def other_wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()
