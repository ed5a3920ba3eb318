"""A key pressed at a terminal, beside a byte written to a command on pipes."""

from torpor.lab.benches.group import Group, Stopwatch
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.vm import Command, Exec, GuestError, Output, Terminal

KEYS = 20
"""Keys that are pressed in each run; a key counts on its own."""
FIGURES = (
    Figure("echo_pipe", "s", "a byte is written to `cat` on pipes and comes back"),
    Figure("echo_terminal", "s", "a key is pressed at a terminal and shown there"),
)


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Write to both in turns."""
    machine = await lab.machine("bench")
    on_pipes = await machine.agent.start(Command(["/bin/cat"], stdin=True))
    # A terminal shows what is typed by itself, whatever its program does.
    on_terminal = await machine.agent.start(Command(["/bin/cat"], terminal=Terminal()))
    for program in (on_pipes, on_terminal):
        await _echoed(program)
    for _ in book.runs(runs):
        for _ in range(KEYS):
            book.note("echo_pipe", await _echoed(on_pipes))
            book.note("echo_terminal", await _echoed(on_terminal))


async def _echoed(program: Exec) -> float:
    """Write a byte; return the seconds until it is back."""
    clock = Stopwatch()
    await program.write(b"x")
    item = await program.next_output()
    if not isinstance(item, Output) or item.data != b"x":
        raise GuestError("EPROTO", f"{item!r} came back instead of a byte")
    return clock.seconds()


GROUP = Group("terminals", FIGURES, measure)
"""A byte through a command, and a key at a terminal."""
