"""What Torpor does, told as a short story: a user's way through the API, with a real machine."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from torpor.client import Client, Session, Tree
from torpor.lab.checks.counter import Line, around, parse
from torpor.lab.probes import program_text

NAME = "demo"
OURS = {"made-by": "torpor-demo"}
"""The label of what the demo makes: the next one removes what the last one left."""
SCRIPT, LOG = "/srv/counter.sh", "/srv/counter.log"
FIRST_LINES = 3
PAUSE = 6
"""Seconds that the machine does not exist."""
ALONE = 4
"""Seconds that one of the forks is paused while the others count on."""
LONG = 30.0
MIB = 1 << 20

Draw = Callable[[Tree], RenderableType]
"""How a session's tree is drawn."""


@dataclass(frozen=True)
class Telling:
    """Where the story is told, about which server, and how its ``program`` is typed here."""

    client: Client
    console: Console
    draw: Draw
    program: str

    def say(self, text: str) -> None:
        """Print a paragraph, in Rich's markup."""
        self.console.print(text)

    def chapter(self, title: str) -> None:
        """Begin a chapter."""
        self.console.print(f"\n[bold]{title}[/]\n")

    def command(self, text: str) -> None:
        """Show what a user would type."""
        self.console.print(f"    [cyan]$ {self.program} {escape(text)}[/]\n", soft_wrap=True)

    def lines(self, session: str) -> list[Line]:
        """Return the counter's log in a session; that wakes it if it is paused."""
        return parse(self.client.run(session, ["cat", LOG]).stdout.decode().splitlines())


def tell(client: Client, console: Console, draw: Draw, program: str = "torpor") -> None:
    """Make a session, pause it, wake it and fork it, and leave it there. Raises ClientError."""
    here = Telling(client, console, draw, program)
    began = time.monotonic()
    with console.status("Removing what an earlier demo has left"):
        _tidy(client)
    console.rule("Torpor: a session, paused, woken and forked", align="left")
    session = _create(here)
    _pause(here, session)
    _fork(here, session)
    _leave(here, session, time.monotonic() - began)


def _tidy(client: Client) -> None:
    for each in client.list_sessions(status="ALL", labels=OURS, limit=200).items:
        if each.status != "DESTROYED":
            client.destroy_session(each.id)


def _create(here: Telling) -> Session:
    here.chapter("1. A session")
    here.command(f"create {NAME}")
    since = time.monotonic()
    with here.console.status("The first one of an image waits until the image is made"):
        session = here.client.create_session(NAME, labels=OURS, wait=True)
    took = time.monotonic() - since
    here.say(
        f"Ready after {took:.2f} s: a machine of its own ({session.size}), with its own Linux. It "
        "did not boot, it was thawed from a snapshot of a booted one. In it we start a shell loop:"
        "\n"
    )
    script = program_text("counter.sh")
    here.client.write_file(session.id, SCRIPT, script.encode())
    here.client.start_exec(session.id, ["/bin/sh", SCRIPT, LOG, "1"])
    for code in script.splitlines():
        if not code.startswith("#"):
            here.say(f"    [cyan]{escape(code)}[/]")
    here.say(
        "\nThe number is in a variable of that shell, and nowhere else. Nothing ever reads the log "
        "back:\n"
    )
    shown = 0
    while shown < FIRST_LINES:
        lines = _grown(here, session.id, shown)
        for line in lines[shown:]:
            here.say(f"    {line}")
        shown = len(lines)
    return session


def _grown(here: Telling, session: str, count: int) -> list[Line]:
    """Return the log of a session as soon as it has more than ``count`` lines."""
    deadline = time.monotonic() + LONG
    while True:
        ran = here.client.run(session, ["sh", "-c", f"cat {LOG} 2>/dev/null"])
        lines = parse(ran.stdout.decode().splitlines())
        if len(lines) > count:
            return lines
        if time.monotonic() > deadline:
            raise TimeoutError(f"the counter in {session} does not count")
        time.sleep(0.3)


def _pause(here: Telling, session: Session) -> None:
    here.chapter("2. Pause")
    here.command(f"pause {NAME}")
    since = time.monotonic()
    here.client.pause_session(session.id)
    took = time.monotonic() - since
    began = time.time_ns()
    stored = sum(each.stored_bytes for each in here.client.get_tree(session.id).nodes)
    here.say(
        f"Paused in {took:.2f} s. Nothing of it runs any more; all that it was, beyond what it "
        f"started from, is {stored / MIB:.0f} MiB on disk. {PAUSE} s pass."
    )
    with here.console.status("There is no machine"):
        time.sleep(PAUSE)
    here.chapter("3. Use it, and it is there")
    here.command(f"exec {NAME} -- cat {LOG}")
    since = time.monotonic()
    lines = here.lines(session.id)
    took = time.monotonic() - since
    lines = lines if _reaches(lines, began) else _grown(here, session.id, len(lines))
    before, after = around(lines, began)
    same = here.client.get_session(session.id).boot_id == session.boot_id
    here.say(
        f"The first use has woken it: the answer came after {took:.2f} s. Its log, around the "
        f"pause:\n\n    [bold green]{before}[/]\n    [bold green]{after}[/]\n\n"
        f"The next number, {(after.second - before.second) % 86_400} s later, in "
        f"{'the same boot' if same else 'ANOTHER BOOT'}: the loop went on from the instruction "
        "where it stood."
    )


def _reaches(lines: list[Line], began: int) -> bool:
    try:
        around(lines, began)
    except ValueError:  # the line after the pause is not there yet
        return False
    return True


def _fork(here: Telling, session: Session) -> None:
    here.chapter("4. Fork")
    here.command(f"fork {NAME} --count 2")
    since = time.monotonic()
    forked = here.client.fork_session(session.id, count=2)
    if forked.failures:
        raise forked.failures[0].error
    children = forked.sessions
    for child in children:
        _grown(here, child.id, 0)
    took = time.monotonic() - since
    here.say(
        f"Two more sessions answered {took:.2f} s later, and the first runs on. The first fork is "
        f"now paused alone for {ALONE} s; the others do not notice.\n"
    )
    with here.console.status("Three machines count"):
        here.client.pause_session(children[0].id)
        time.sleep(ALONE)
        three = {each.name: here.lines(each.id) for each in (session, *children)}
        _grown(here, children[0].id, len(three[children[0].name]))
        three = {each.name: here.lines(each.id) for each in (session, *children)}
    here.console.print(_side_by_side(three))
    here.say(
        "\nOne past, then three lives: the same loop in all three counted on from the same number."
    )


def _side_by_side(logs: dict[str, list[Line]]) -> Table:
    """Return the logs of all sessions, from one line before the last that they share."""
    times = [{line.n: line.time for line in lines} for lines in logs.values()]
    shared = [n for n in times[0] if len({each.get(n) for each in times}) == 1]
    table = Table(box=None, padding=(0, 0, 0, 4))
    table.add_column("n", justify="right")
    for name in logs:
        table.add_column(name)
    for n in range(max(max([1, *shared]) - 1, 1), max(map(max, times)) + 1):
        style = "dim" if n in shared else ""
        table.add_row(str(n), *(each.get(n, "") for each in times), style=style)
    return table


def _leave(here: Telling, session: Session, seconds: float) -> None:
    here.chapter("5. It is yours")
    here.command(f"tree {NAME}")
    tree = here.client.get_tree(session.id)
    here.console.print(here.draw(tree), soft_wrap=True)
    names = [NAME, *(each.name for each in tree.children)]
    here.say(f"\nThat took {seconds:.0f} s. All three sessions are still there. Try:\n")
    for text, what in (
        (f"shell {NAME}", "a terminal in it; pause it meanwhile: the terminal waits"),
        (f"exec {NAME} -- tail -n 3 {LOG}", "it counts on"),
        (f"checkpoint {NAME}", f"a place to come back to: {here.program} rollback"),
        ("list", "all sessions; one that is not used pauses by itself"),
        (f"rm {' '.join(names)}", "remove what this has made"),
    ):
        here.console.print(
            f"    [cyan]{here.program} {escape(text)}[/]  [dim]# {escape(what)}[/]", soft_wrap=True
        )
