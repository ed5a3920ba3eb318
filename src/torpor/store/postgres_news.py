"""News between servers by PostgreSQL's NOTIFY and LISTEN, over a connection of their own."""

import asyncio
import logging
from typing import Any

import asyncpg
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import func, select

from torpor.store.news import News

log = logging.getLogger("torpor.store")

CHANNEL = "torpor"
AGAIN_SECONDS = 1.0
LOOK_SECONDS = 30.0
"""How often it is looked whether a connection on which nothing comes is still there."""


async def send(conn: AsyncConnection, message: str) -> None:
    """Send a message to all servers when the transaction is committed."""
    await conn.execute(select(func.pg_notify(CHANNEL, message)))


async def listen(given: dict[str, Any], news: News) -> None:
    """Pass on what other servers send, for ever; ``given`` is what the driver connects with.

    Whenever there was no connection, and so at first, news may have been missed.
    """
    told = False
    while True:
        try:
            conn = await asyncpg.connect(**given)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if not told:
                log.warning("no news come from other servers: %s", error)
                told = True
            await asyncio.sleep(AGAIN_SECONDS)
            continue
        told = False
        try:
            await _pass_on(conn, news)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.warning("no news come from other servers at the moment: %s", error)
        finally:
            conn.terminate()


async def _pass_on(conn: Any, news: News) -> None:
    lost = asyncio.Event()

    def heard(_conn: object, _pid: object, _channel: object, message: object) -> None:
        news.heard(str(message))

    conn.add_termination_listener(lambda _: lost.set())
    await conn.add_listener(CHANNEL, heard)
    news.missed()
    while not lost.is_set():
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await lost.wait()
        except TimeoutError:
            await conn.execute("SELECT 1", timeout=LOOK_SECONDS)
