"""A large file on its way from the server's disk into a session and back, beside what a channel
carries at best."""

import asyncio
import hashlib
import os

from torpor.client import AsyncClient, Transfer
from torpor.lab.benches.group import Group, Stopwatch
from torpor.lab.benches.transfer import channel_in, channel_out
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.lab.server import served
from torpor.vm import VmError

CARRIED = 1024
"""MiB in each direction, in one file."""
BLOCK = 32
"""MiB of random bytes, of which the file is made."""
FILE = "bench"
MOST_RUNS = 1
"""With software emulation one takes minutes, and is a mean of all that it carries."""
LOOK_EVERY = 0.5

FIGURES = (
    Figure("channel_in_1gib", "s", "directly: a process reads 1 GiB of input and drops it"),
    Figure(
        "transfer_in_1gib", "s", "an upload of 1 GiB whose parts have come, from its commit until"
        " it is completed: read, checked, and written into a file of the session",
    ),
    Figure("channel_out_1gib", "s", "directly: a process writes 1 GiB from its memory"),
    Figure(
        "transfer_out_1gib", "s", "the same file back: from the beginning of a download until it"
        " can be fetched",
    ),
)  # fmt: skip


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Carry the same amount in four ways: through the channel of a machine, and as transfers of a
    session."""
    block = os.urandom(BLOCK << 20)
    async with (
        served(lab.maker, lab.host.home.parent) as server,
        server.client() as client,
    ):
        session = (await client.create_session(wait=True)).id
        agent = (await lab.machine("bench")).agent
        for _ in book.runs(min(runs, MOST_RUNS)):
            book.note("channel_in_1gib", await channel_in(agent, block, CARRIED // BLOCK))
            book.note("transfer_in_1gib", await _transfer_in(client, session, block))
            book.note("channel_out_1gib", await channel_out(agent, CARRIED))
            book.note("transfer_out_1gib", await _transfer_out(client, session))
            await client.remove_file(session, f"/workspace/{FILE}")


async def _transfer_in(client: AsyncClient, session: str, block: bytes) -> float:
    made = await client.create_upload(session, FILE, size=CARRIED << 20)
    part_size = made.part_size or 0
    digest = hashlib.sha256()
    urls = await client.get_part_urls(session, made.id, range(1, (CARRIED << 20) // part_size + 1))
    for number, url in urls.items():
        start = (number - 1) * part_size % len(block)
        part = block[start : start + part_size]
        digest.update(part)
        await client.put_part(url, part)
    clock = Stopwatch()
    await client.commit_upload(session, made.id, sha256=digest.hexdigest())
    await _completed(client, session, made)
    return clock.seconds()


async def _transfer_out(client: AsyncClient, session: str) -> float:
    clock = Stopwatch()
    made = await client.create_download(session, FILE)
    await _completed(client, session, made)
    took = clock.seconds()
    await client.cancel_transfer(session, made.id)
    return took


async def _completed(client: AsyncClient, session: str, made: Transfer) -> None:
    while True:
        found = await client.get_transfer(session, made.id)
        if found.status == "completed":
            return
        if found.over:
            raise VmError(f"The transfer failed: {found.error}")
        await asyncio.sleep(LOOK_EVERY)


GROUP = Group("service transfers", FIGURES, measure)
