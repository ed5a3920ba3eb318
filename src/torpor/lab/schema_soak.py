"""A server with real machines that is asked, for a long time, whatever its document says that one
can ask."""

import time
from pathlib import Path

from torpor.client import AsyncClient
from torpor.images import Maker, Report, Step
from torpor.lab.benches.service_load import resident_mib
from torpor.lab.check import Check
from torpor.lab.remains import all_sessions, machine_processes, remains
from torpor.lab.schema import Bounds, ask
from torpor.lab.schema_stock import Stock
from torpor.lab.server import Server, served

ROUND_SECONDS = 300
"""After each of these one looks at what the server has become; schemathesis begins anew then, so
that it does not grow either."""
EXAMPLES = 25
FILL_SECONDS = 15.0
MOST_MACHINES = 60
"""So many sessions there may be; more are refused."""
GROWTH = 128
"""MiB that the server's memory may grow by after the first round."""
MOST_MEMORY = 512
"""MiB that it may be at all."""
SUCCEED = 20
"""Operations of which a request has to succeed: where all is refused nothing is shown."""
WITHOUT = (
    "POST /v2/agents/backup",  # as large as all machines together
    "GET /v2/agents/sessions/{session_id}/files/watch",  # has no end
)
SETTINGS: dict[str, int | str] = {
    "preview_listen": "127.0.0.1:0",
    "max_sessions": MOST_MACHINES,
    "idle_timeout_seconds": 30,
}


async def schema_soak(
    maker: Maker, within: Path, minutes: float, seed: int, report: Report
) -> list[Check]:
    """Ask a server for so many minutes whatever its document says that one can ask; return a check
    of its answers, one of its memory and machines, and one of what is left in the end."""
    asking = _Asking()
    async with served(maker, within, SETTINGS) as server, server.client() as client:
        began = time.monotonic()
        while (left := minutes * 60 - (time.monotonic() - began)) > 0 and not asking.faults:
            await asking.round(server, client, min(ROUND_SECONDS, left), seed)
            spent = min(time.monotonic() - began, minutes * 60)
            report(Step("schema", int(spent), int(minutes * 60), "seconds"))
        for session in [each async for each in all_sessions(client)]:
            await client.destroy_session(session.id)
        leftover = await remains(server, client)
    return [
        Check(
            "schema answers",
            not asking.faults and len(asking.succeeded) >= SUCCEED,
            "whatever is asked is answered as the document says, and nothing with 500; of at least"
            f" {SUCCEED} operations a request succeeds",
            "; ".join(asking.faults)
            or f"{asking.requests} requests were answered so; {len(asking.succeeded)} operations"
            " succeeded",
        ),
        Check(
            "schema bounds",
            not asking.excess,
            f"the server's memory grows by at most {GROWTH} MiB, and there are as many"
            " machines as sessions that run",
            "; ".join([*asking.excess, asking.seen()]),
        ),
        Check(
            "schema, in the end",
            not leftover,
            "when all sessions are destroyed nothing of them is left",
            "; ".join(leftover) or "nothing is left",
        ),
    ]


class _Asking:
    """What came of the rounds so far."""

    def __init__(self) -> None:
        self.requests = 0
        self.faults: list[str] = []
        self.succeeded: set[str] = set()
        self.excess: list[str] = []
        self._memory: list[float] = []
        self._machines: list[int] = []

    async def round(self, server: Server, client: AsyncClient, seconds: float, seed: int) -> None:
        stock = server.home / "stock"
        first = not self._memory
        bounds = Bounds(
            EXAMPLES,
            seed=(seed + len(self._memory)) % (1 << 32),
            seconds=max(1, int(seconds)),
            coverage=first,
            without=WITHOUT,
        )
        async with Stock(client, stock, guests=True).kept(FILL_SECONDS):
            asked = await ask(server.url, server.token, stock, bounds)
        self.requests += asked.requests
        self.faults += asked.faults
        self.succeeded |= {label for label, count in asked.accepted.items() if count}
        if asked.faults:
            said = server.home.with_name(f"schema-{server.home.name}.log")
            said.write_text(asked.said)
            self.faults.append(f"the requests are in {said}")
        await self._look(server, client)

    async def _look(self, server: Server, client: AsyncClient) -> None:
        self._memory.append(resident_mib(server.pid))
        self._machines.append(len(machine_processes(server.home)))
        if self._memory[-1] > min(self._memory[0] + GROWTH, MOST_MEMORY):
            self.excess.append(f"its memory is {self._memory[-1]:.0f} MiB")
        self.excess += await remains(server, client)

    def seen(self) -> str:
        """Say what there was."""
        if not self._memory:
            return "nobody looked"
        return (
            f"its memory was {self._memory[0]:.0f} MiB at first, {self._memory[-1]:.0f} MiB in"
            f" the end; at most {max(self._machines)} machines ran"
        )
