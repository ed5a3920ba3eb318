"""Requests that are made up from the OpenAPI document: each is answered as the document says, and
none with 500."""

from pathlib import Path

import pytest

from tests.api.conftest import served
from tests.schema.world import GuestlessApi
from torpor.client import AsyncClient
from torpor.lab.schema import Bounds, ask
from torpor.lab.schema_stock import Stock

pytestmark = pytest.mark.long

EXAMPLES = 8
"""For each operation; in ``./dev soak`` as many as an hour has time for."""
SUCCEED = 50
"""Operations of which a request has to succeed: about as many as need no guest. A run in which all
is refused shows nothing."""


async def test_whatever_is_asked_is_answered_as_the_document_says(tmp_path: Path) -> None:
    api = await GuestlessApi(tmp_path).open()
    token = api.tokens["admin"]
    stock = tmp_path / "stock"
    try:
        async with (
            served(api) as where,
            AsyncClient(f"http://{where}", token) as client,
            Stock(client, stock, guests=False).kept(3),
        ):
            asked = await ask(f"http://{where}", token, stock, Bounds(EXAMPLES, seed=5))
    finally:
        await api.close()
    assert asked.faults == (), asked.said
    succeeded = sum(count > 0 for count in asked.accepted.values())
    assert succeeded >= SUCCEED, asked.accepted
