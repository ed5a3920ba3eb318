"""A server of one host, which changes one session again and again, until it is killed.

Run as ``python -m tests.sessions.server ROOT URL PLACE SECONDS``: the lease of the host lasts so
long, and is made anew all the time. Each line that it prints is what it is about to do.
"""

import asyncio
import secrets
import sys
from pathlib import Path

from tests.sessions.conftest import ANN, Service
from torpor.api.tenure import held
from torpor.store.errors import FencedError
from torpor.store.hosts import Claim

HOST = "host"
STEP = 0.05


def claim(place: str) -> Claim:
    """Return what a server asks for that runs in a place."""
    return Claim(HOST, HOST, None, "1", place, secrets.token_hex(4))


def say(what: str) -> None:
    """Say something at once."""
    print(what, flush=True)


async def main(root: Path, url: str, place: str, seconds: float) -> None:
    """Pause and resume until killed, or fenced."""
    service = Service(root, url)
    service.host.step = STEP
    service.options["me"] = HOST
    service.database = await service.opened_database()
    async with held(service.database, claim(place), seconds):
        await service.open()
        session = await service.ready()
        say(session.id)
        try:
            while True:
                service.host.count((await service.get(session)).machine or "")
                say("pause")
                await service.sessions.pause(session.id, ANN)
                say("resume")
                await service.sessions.resume(session.id, ANN)
        except FencedError:
            say("fenced")
            await service.sessions.close()
    await service.database.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])))
