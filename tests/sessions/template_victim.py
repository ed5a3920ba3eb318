"""A program that makes, updates and deletes templates without end, and says what it does, until it
is killed.

Run as ``python -m tests.sessions.template_victim ROOT URL SEED``. Each line is JSON: the name of a
template and what was acknowledged of it.
"""

import asyncio
import json
import random
import sys
from pathlib import Path

from tests.sessions.conftest import ANN, Service
from torpor.sessions import Key, NewSession, SessionError
from torpor.sessions.template_model import NewTemplate, TemplateChanges

NAMES = ("one", "two", "three")


def say(name: str, what: str, source: str = "") -> None:
    """Say something at once."""
    print(json.dumps({"name": name, "what": what, "source": source}), flush=True)


async def main(root: Path, url: str, seed: int) -> None:
    """Work until killed."""
    chance = random.Random(seed)
    service = Service(root, url)
    service.host.step = 0.005
    await service.open()
    templates = service.sessions.templates
    turn = 0
    while True:
        turn += 1
        name = chance.choice(NAMES)
        source = f"registry.test/{name}:{seed}-{turn}"
        key = Key(f"{seed}-{turn}", "d")
        say(name, "begin")
        try:
            template = await templates.get(name)
        except SessionError:
            await templates.create(NewTemplate(name, "sandbox", source), ANN, key=key)
            say(name, "asked", source)
        else:
            if chance.random() < 0.2:
                await templates.delete(name, ANN)
                say(name, "deleted")
            elif chance.random() < 0.5 and template.current_build is not None:
                session = await service.sessions.create(NewSession(template=name), ANN)
                session = await service.sessions.ready(session.id, 10)
                await service.sessions.destroy(session.id, ANN)
                say(name, "used" if session.failure is None else f"failed: {session.failure}")
            else:
                await templates.update(name, TemplateChanges(source=source), ANN, key=key)
                say(name, "asked", source)
        await asyncio.sleep(chance.uniform(0, 0.03))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
