"""A server whose machines have no guest: whatever it is asked to do in one is refused.

Requests that are made up must never reach the agents that other tests have: those would do on this
computer what they are asked, remove files and end processes.
"""

from pathlib import Path
from typing import Any

from tests.api.conftest import Api
from tests.sessions.world import WorldHost
from torpor.vm import ChannelLostError
from torpor.vm.statistics import HostStatistics, Statistics


class GuestlessHost(WorldHost):
    """A host whose machines never answer."""

    async def agent(self, machine: str) -> Any:
        self._read("machines", machine)
        raise ChannelLostError("This machine has nothing that answers.")

    async def statistics(self, machine: str) -> Any:
        self._read("machines", machine)
        figures = HostStatistics((1.5,), 0.1, 0.2, 80 << 20, 40 << 20, 1, 2, 3, 4, 5, 6, 7, 8)
        return Statistics(figures, None)

    async def close(self) -> None:
        """Nothing is open."""


class GuestlessApi(Api):
    """The application on such a host."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            root,
            f"sqlite:///{root}/torpor.db",
            rate_limit_burst=1_000_000,
            rate_limit_per_second=1_000_000,
        )
        self.host = GuestlessHost(root / "world")  # type: ignore[assignment]
