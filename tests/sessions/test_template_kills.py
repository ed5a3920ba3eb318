"""A server that is killed at any moment loses no template and no build that it has acknowledged,
and leaves no image that nothing needs."""

import asyncio
import random
from pathlib import Path

from tests.sessions.conftest import Service
from tests.sessions.killing import run_and_kill
from tests.waiting import eventually
from torpor.sessions.template_model import image_of
from torpor.store import builds, sessions
from torpor.store.records import Build, Status

KILLS = 8


def said_by(root: Path, url: str, seed: int, after: float) -> dict[str, str]:
    """Run a victim, kill it, and return the last source that was acknowledged of each template that
    nothing was begun with since; of one that was deleted it is empty."""
    known: dict[str, str] = {}
    before: dict[str, str | None] = {}
    for word in run_and_kill("template_victim", root, url, seed, after):
        name = word["name"]
        assert not word["what"].startswith("failed"), word
        if word["what"] == "begin":
            before[name] = known.pop(name, None)
        elif word["what"] == "asked":
            known[name] = word["source"]
        elif word["what"] == "deleted":
            known[name] = ""
        elif (source := before[name]) is not None:
            known[name] = source
    return known


async def check(service: Service, known: dict[str, str]) -> None:
    """Check that what was acknowledged is so, that all is built that waited, and nothing leaks."""

    async def unfinished() -> list[Build]:
        async with service.database.read() as conn:
            return await builds.unfinished(conn)

    await eventually(unfinished, lambda found: found == [])
    found = {each.name: each for each in (await service.sessions.templates.page(10)).items}
    for name, source in known.items():
        assert (found[name].source if name in found else "") == source
    for template in found.values():
        _, page = await service.sessions.templates.builds(template.id, 200)
        assert template.status == "READY"
        assert {each.status for each in page.items} == {"SUCCEEDED"}
        assert template.current_build == page.items[0].id
        assert page.items[0].source == template.source
    async with service.database.read() as conn:
        starting = await sessions.with_status(conn, [Status.PROVISIONING])
    for session in starting:
        assert (await service.sessions.ready(session.id, 10)).status is Status.READY
    await service.again()  # which tidies
    needed = sorted(image_of(each.current_build or "") for each in found.values())
    await eventually(lambda: asyncio.sleep(0, service.host.images()), lambda f: f == needed)


async def test_no_build_that_was_acknowledged_is_lost(tmp_path: Path, database_url: str) -> None:
    chance = random.Random(5)
    for number in range(KILLS):
        known = said_by(tmp_path, database_url, number, chance.uniform(0.05, 0.8))
        service = await Service(tmp_path, database_url).open()
        try:
            await check(service, known)
        finally:
            await service.close()
