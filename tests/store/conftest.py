from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from torpor.store import Database


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/kept/torpor.db"


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    opened = await Database.open(url)
    yield opened
    await opened.close()
