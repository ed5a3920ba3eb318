"""A server with real machines is asked whatever its OpenAPI document says that one can ask."""

from pathlib import Path

import pytest

from tests.machine.conftest import Start
from torpor.images import silent
from torpor.lab.schema_soak import schema_soak

pytestmark = pytest.mark.machine

MINUTES = 1.0
"""In ``./dev soak``: 60."""


async def test_whatever_is_asked_is_answered_as_the_document_says(start: Start, home: Path) -> None:
    checks = await schema_soak(start.maker, home, MINUTES, 7, silent)
    assert [f"{each.name}: {each.seen}" for each in checks if not each.ok] == []
    assert len(checks) == 3
