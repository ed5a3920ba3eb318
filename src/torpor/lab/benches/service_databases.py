"""What it costs to have the database in PostgreSQL: each operation of the API at a server with it
and at one with SQLite, in turns."""

from torpor.lab.benches.group import Group, Stopwatch
from torpor.lab.benches.service_operations import OPERATIONS, api_of, in_turns
from torpor.lab.figures import Figure, Notebook
from torpor.lab.filling import fill
from torpor.lab.laboratory import Laboratory
from torpor.lab.postgresql import programs, running, url_of
from torpor.lab.server import TOKEN, Server, served
from torpor.store import offline

THERE, PAGES = 10_000, 20
MEASURED = {**OPERATIONS, "page": "the newest 50 of 10,000 sessions"}
FIGURES = tuple(
    figure
    for name, meaning in MEASURED.items()
    for figure in (
        Figure(f"sqlite_{name}", "s", f"over HTTP, the database in SQLite: {meaning}"),
        Figure(f"postgresql_{name}", "s", "the same, the database in PostgreSQL"),
        Figure(
            f"postgresql_{name}_ratio", "x", "the second over the first, in turns with each other"
        ),
    )
)


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Do all operations at both servers, each first every other time. Both have as many sessions
    in their history."""
    within = lab.host.home.parent
    # PostgreSQL as it is by itself: each commit is on the disk. It is started here, and not in a
    # thread, since it ends with the one that has started it; nothing else is under way.
    with running() as directory:
        url = url_of(directory)
        async with served(lab.maker, within) as sqlite:
            await _fill(sqlite, url)
            async with served(lab.maker, within, {"database": url}) as postgresql:
                # It has made none: the one that came with the copy is good.
                (postgresql.home / TOKEN).write_text(sqlite.token)
                await _measured({"sqlite": sqlite, "postgresql": postgresql}, runs, book)


async def _measured(servers: dict[str, Server], runs: int, book: Notebook) -> None:
    def ratio(name: str, took: dict[str, float]) -> None:
        book.note(f"postgresql_{name}_ratio", took["postgresql"] / took["sqlite"])

    async with api_of(servers["sqlite"]) as sqlite, api_of(servers["postgresql"]) as postgresql:
        sides = {"sqlite": sqlite, "postgresql": postgresql}
        async for name, took in in_turns(sides, runs, book):
            ratio(name, took)
        for turn in range(PAGES + 1):
            took = {}
            for word in sides if turn % 2 else reversed(sides):
                clock = Stopwatch()
                await sides[word].page()
                took[word] = clock.seconds()
            if turn:  # the first opens a connection
                for word, seconds in took.items():
                    book.note(f"{word}_page", seconds)
                ratio("page", took)


async def _fill(server: Server, url: str) -> None:
    """Have both databases be full of the same sessions, all but one of them destroyed. The server
    is the one of SQLite."""
    async with server.client() as client:
        made = await client.create_session(wait=True)
        await client.pause_session(made.id, durable=True)
    await server.stop()
    await fill(server.home, server.database, THERE, 0)
    await offline.copy(server.database, url)
    await server.start()


def check() -> None:
    """Raise :exc:`PostgresqlError` if there is no PostgreSQL to measure."""
    programs()


GROUP = Group("databases", FIGURES, measure, check)
