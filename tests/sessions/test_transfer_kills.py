"""A server that is killed in the middle of transfers keeps what it has acknowledged of them, puts
in place what was committed, and never half of a file."""

import random
from pathlib import Path
from typing import Any

from tests.sessions.conftest import ANN
from tests.sessions.killing import run_and_kill
from tests.sessions.test_transfers import SIZE, Filed, small_parts
from tests.sessions.transfer_victim import content
from tests.waiting import eventually

__all__ = ["small_parts"]

KILLS = 10

Said = dict[str, dict[str, Any]]


def said_by(root: Path, url: str, seed: int, after: float) -> Said:
    """Run a victim, kill it, and return what it has said of each of its transfers, in order."""
    said: Said = {}
    for word in run_and_kill("transfer_victim", root, url, seed, after):
        if word["what"] == "begin":
            said[word["transfer"]] = {**word, "parts": set(), "last": "begin"}
        elif word["what"] == "part":
            said[word["transfer"]]["parts"].add(word["number"])
        else:
            said[word["transfer"]]["last"] = word["what"]
    return said


async def check(filed: Filed, said: Said, seen: set[str]) -> None:
    """Check that what was acknowledged is true, and finish what was cut off."""
    newest: dict[tuple[str, str], str] = {}
    for transfer, known in said.items():
        stands = await filed.transfers.get(known["session"], transfer)
        status = stands.transfer.status
        seen.add(f"{known['last']} {status}")
        match known["last"]:
            case "begin":
                assert status == "pending"
                assert set(stands.received) >= known["parts"]
                await finish(filed, known, stands.received)
            case "committing" if status == "pending":
                await filed.transfers.commit(known["session"], transfer, ANN)
            case "cancelling" if status == "pending":
                await filed.transfers.cancel(known["session"], transfer, ANN)
            case "committed" | "committing":
                assert status in ("in_progress", "completed")
            case "completed":
                assert status == "completed"
            case "cancelled" | "cancelling":
                assert status == "failed"
        if known["last"] not in ("cancelled", "cancelling"):
            await filed.completed(stands.transfer)
            newest[known["session"], known["path"]] = known["seed"]
    for (session, path), seed in newest.items():
        home = filed.host.home(session) / "workspace"
        assert (home / path).read_bytes() == content(seed)
        assert not list(home.glob(".*"))
    await eventually(_staged(filed), lambda left: left == [])


async def finish(filed: Filed, known: dict[str, Any], received: list[int]) -> None:
    """Upload what is missing, as a client that asks does."""
    data = content(known["seed"])
    transfer = (await filed.transfers.get(known["session"], known["transfer"])).transfer
    for number in range(1, -(-len(data) // SIZE) + 1):
        if number not in received:
            await filed.put(transfer, number, data[(number - 1) * SIZE : number * SIZE])
    await filed.transfers.commit(transfer.session, transfer.id, ANN)


def _staged(filed: Filed) -> Any:
    async def staged() -> list[str]:
        return filed.staged()

    return staged


async def test_transfers_go_on_after_kills(tmp_path: Path, database_url: str) -> None:
    chance = random.Random(5)
    seen: set[str] = set()
    for number in range(KILLS):
        said = said_by(tmp_path, database_url, number, chance.uniform(0.05, 0.6))
        filed = Filed(tmp_path, database_url)
        filed.host.step = 0.002
        await filed.open()
        try:
            await check(filed, said, seen)
        finally:
            await filed.close()
    # Kills have come while parts were received, and while files were put in place.
    assert "begin pending" in seen, seen
    assert seen & {"committed in_progress", "committing in_progress"}, seen
