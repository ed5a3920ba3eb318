"""A program that uploads without end, and says what it does, until it is killed.

Run as ``python -m tests.sessions.transfer_victim ROOT URL SEED``. Each line is JSON: ``begin``
before a transfer is begun, then what was acknowledged of it.
"""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from tests.sessions.conftest import ANN
from tests.sessions.test_transfers import SIZE, Filed
from tests.sessions.victim import say
from torpor.sessions import NewTransfer, NotFoundError, transfers
from torpor.store.records import Session, Transfer

WORKERS = 4
STEP = 0.002


def content(seed: str) -> bytes:
    """Return what is uploaded in one transfer."""
    chance = random.Random(seed)
    return chance.randbytes(chance.randint(0, 5 * SIZE))


class Worker:
    """Uploads one file after the other into a session of its own."""

    def __init__(self, filed: Filed, number: int, seed: int) -> None:
        self.filed = filed
        self.number = number
        self.seed = seed
        self.random = random.Random(f"{seed} {number}")

    async def work(self) -> None:
        """Work until killed."""
        name = f"s{self.number}"
        try:
            session = await self.filed.sessions.find(name)
        except NotFoundError:
            session = await self.filed.ready(name)
        turn = 0
        while True:
            turn += 1
            await self.upload(session, f"{self.seed} {self.number} {turn}")

    async def upload(self, session: Session, seed: str) -> None:
        """Upload one file."""
        data, path = content(seed), f"f{self.random.randint(1, 2)}"
        new = NewTransfer("upload", b"/workspace/" + path.encode(), size=len(data))
        made = await self.filed.transfers.create(session.id, ANN, new)
        say("begin", transfer=made.id, session=session.id, path=path, seed=seed)
        for number in range(1, -(-len(data) // SIZE) + 1):
            await self.part(made, number, data)
            if self.random.random() < 0.2:
                await self.part(made, number, data)
        if self.random.random() < 0.2:
            say("cancelling", transfer=made.id)
            await self.filed.transfers.cancel(session.id, made.id, ANN)
            say("cancelled", transfer=made.id)
            return
        say("committing", transfer=made.id)
        await self.filed.transfers.commit(session.id, made.id, ANN)
        say("committed", transfer=made.id)
        await self.filed.completed(made)
        say("completed", transfer=made.id)

    async def part(self, transfer: Transfer, number: int, data: bytes) -> None:
        """Upload one part."""
        part = data[(number - 1) * SIZE : number * SIZE]
        put = self.filed.transfers.parts.put
        await put(transfer.session, transfer.id, number, len(part), slowly(part))
        say("part", transfer=transfer.id, number=number)


async def slowly(data: bytes) -> AsyncIterator[bytes]:
    """Yield a part as a slow client sends it."""
    for start in range(0, len(data), SIZE // 4):
        await asyncio.sleep(STEP)
        yield data[start : start + SIZE // 4]


async def main(root: Path, url: str, seed: int) -> None:
    """Work until killed."""
    transfers.part_size_for = lambda _: SIZE
    filed = Filed(root, url)
    filed.host.step = STEP
    await filed.open()
    async with asyncio.TaskGroup() as group:
        for number in range(WORKERS):
            group.create_task(Worker(filed, number, seed).work())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
