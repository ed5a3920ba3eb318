"""The tokens of a server that is open: one for an admin is there, and their uses are noted."""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from torpor.api.bearers import Bearers, is_valid
from torpor.store import Database
from torpor.store.errors import StoreError

log = logging.getLogger("torpor.server")

ADMIN_TOKEN = "admin-token"  # noqa: S105 - a file's name
"""The file below Torpor's home with the bearer that the first start makes."""
NOTE_EVERY = 60.0


@asynccontextmanager
async def opened_bearers(database: Database, home: Path) -> AsyncIterator[Bearers]:
    """Open the tokens, with one for an admin among them; what is noted of their use is written
    down now and then, and at the end."""
    bearers = await Bearers.open(database)
    if not any(token.role == "admin" and is_valid(token) for token in bearers.list()):
        await bearers.make(
            "first", "admin", keep=lambda text: write_secret(home / ADMIN_TOKEN, text)
        )
        log.info("a token for an admin is in %s", home / ADMIN_TOKEN)
    tasks = (
        asyncio.create_task(_note_uses(bearers), name="uses of tokens"),
        asyncio.create_task(bearers.follow(), name="tokens of other servers"),
    )
    try:
        yield bearers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await bearers.note_uses()


async def _note_uses(bearers: Bearers) -> None:
    while True:
        await asyncio.sleep(NOTE_EVERY)
        try:
            await bearers.note_uses()
        except StoreError as error:
            log.warning("uses of tokens were not written down: %s", error)


def write_secret(file: Path, text: str) -> None:
    """Write a file that only its owner may read, all at once."""
    new = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w") as opened:
            opened.write(text + "\n")
            opened.flush()
            os.fsync(fd)
        new.rename(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
