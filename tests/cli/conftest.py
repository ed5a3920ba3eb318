"""A server double for the commands that speak to one."""

import pytest

from tests.client.conftest import double  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TORPOR_URL", "TORPOR_TOKEN"):
        monkeypatch.delenv(name, raising=False)
