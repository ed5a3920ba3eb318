"""Progress of long work on standard error: bars on a terminal, lines elsewhere.

Standard output is for results. Nothing is shown until there is a first step, so what is done
already says nothing, and imports nothing that draws.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


class Step(Protocol):
    """One moment of some work: ``done`` of ``total``, in ``unit``, None where it is not known."""

    @property
    def name(self) -> str:
        """What is done; a step of the same name takes the place of the one before."""

    @property
    def done(self) -> int | None:
        """How much of it there is."""

    @property
    def total(self) -> int | None:
        """How much there is to be."""

    @property
    def unit(self) -> str:
        """What is counted: ``bytes``, or another word."""


class Shown:
    """Shows steps; ``report`` is the callable that the packages below tell them to.

    A context: what is shown stays when it ends, and no bar is left running.
    """

    def __init__(self, console: "Console | None" = None) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._name = ""

    def report(self, step: Step) -> None:
        """Show one step; one of the same name as before takes its place."""
        if self._console is None:
            from torpor.cli.screen import Screen

            self._console = Screen(stderr=True, highlight=False)
        if not self._console.is_terminal:
            if step.name != self._name:
                self._console.print(f"    {step.name}", markup=False, soft_wrap=True)
            self._name = step.name
            return
        if self._progress is None:
            self._progress = _progress(self._console)
            self._progress.start()
        if step.name != self._name or self._task is None:
            self._finish()
            self._name = step.name
            self._task = self._progress.add_task(step.name, total=None, amount="")
        self._progress.update(
            self._task, completed=step.done or 0, total=step.total, amount=amount_of(step)
        )

    def _finish(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=1, completed=1)
            self._progress.stop_task(self._task)
            self._task = None

    def close(self) -> None:
        """End the last step; a later one begins a new block."""
        if self._progress is not None:
            self._finish()
            self._progress.stop()
            self._progress = None
        self._name = ""

    def abandon(self, *, erase: bool = False) -> None:
        """Stop showing, the last step as unfinished as it is, or nothing left of it."""
        if self._progress is not None:
            self._progress.live.transient = erase
            self._progress.stop()
            self._progress = None
        self._task = None
        self._name = ""

    def __enter__(self) -> "Shown":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


def amount_of(step: Step) -> str:
    """Return how far a step is, in its unit."""
    if step.done is None:
        return ""
    if step.unit == "bytes":
        from rich.filesize import decimal

        done = decimal(step.done)
        return done if step.total is None else f"{done} of {decimal(step.total)}"
    done = f"{step.done}" if step.total is None else f"{step.done} of {step.total}"
    return f"{done} {step.unit}".strip()


def _progress(console: "Console") -> "Progress":
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeElapsedColumn(),
        console=console,
    )
