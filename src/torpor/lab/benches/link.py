"""The link: what a network card adds to the start of a machine, with its link prepared and without,
beside a machine that has none, in turns."""

import asyncio
from dataclasses import replace

from torpor.images import golden, silent
from torpor.lab.benches.group import Group, Stopwatch, ready_at
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.network.link import build
from torpor.vm import Identity, Link

FIGURES = (
    Figure("link_build", "s", "a link is built: namespaces, tap, rules and sockets"),
    Figure("link_close", "s", "a link is closed"),
    Figure("bare_create_ready", "s", "a machine without a network card from its golden snapshot"),
    Figure("card_create_ready", "s", "a machine with one, whose link was prepared"),
    Figure("card_create_ready_unprepared", "s", "the same, its link built when it is created"),
    Figure("card_create_ratio", "x", "card_create_ready to bare_create_ready of the same turn"),
)


def check() -> None:
    """Raise :exc:`torpor.network.link.BuildError` if this host can build no link."""
    build().close()


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Build, close and create in turns."""
    bare = await golden(replace(lab.maker, card=False), lab.image, lab.shape, silent)

    async def created(snapshot: str, link: Link | None, clock: Stopwatch) -> float:
        machine = await lab.host.thaw(snapshot, Identity.of("bench"), link=link)
        seconds = clock.seconds(ready_at(machine))
        await lab.host.end(machine)
        return seconds

    # The first use of a base by a program opens it.
    await created(bare, None, Stopwatch())
    await lab.host.end(await lab.machine())
    for _ in book.runs(runs):
        clock = Stopwatch()
        prepared = await asyncio.to_thread(build)
        book.note("link_build", clock.seconds())
        alone = await created(bare, None, Stopwatch())
        book.note("bare_create_ready", alone)
        with_card = await created(lab.golden, prepared, Stopwatch())
        book.note("card_create_ready", with_card)
        book.note("card_create_ratio", with_card / alone)
        clock = Stopwatch()
        await asyncio.to_thread(prepared.close)
        book.note("link_close", clock.seconds())

        clock = Stopwatch()
        built = await asyncio.to_thread(build)
        book.note("card_create_ready_unprepared", await created(lab.golden, built, clock))
        await asyncio.to_thread(built.close)


GROUP = Group("network cards", FIGURES, measure, check)
