"""Templates and their builds, as people read them."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torpor.cli.session_tables import SHORT, ago, when

if TYPE_CHECKING:
    from torpor import client as api

STYLES = {
    "PENDING": "dim",
    "BUILDING": "cyan",
    "READY": "green",
    "SUCCEEDED": "green",
    "FAILED": "bold red",
}


def templates_list(templates: Sequence["api.Template"]) -> RenderableType:
    """Return the list of templates."""
    if not templates:
        return Text("There are no templates. `torpor template create` makes one.")
    table = _table("name", "id", "state", "from", "age")
    for each in templates:
        table.add_row(
            Text(each.name, "bold"),
            each.id[:SHORT],
            _state(each.status),
            Text(str(each.source)),
            ago(each.created_at),
        )
    return table


def template_table(found: "api.Template", newest: "api.Build | None") -> Table:
    """Return one template, and how its newest build stands."""
    lines: list[tuple[str, str | Text]] = [
        ("name", Text(found.name, "bold")),
        ("id", found.id),
        ("state", _state(found.status)),
        ("from", Text(str(found.source))),
        ("base", Text(found.base)),
        ("created", when(found.created_at)),
        ("updated", when(found.updated_at)),
        ("sessions start from", found.current_build or ""),
    ]
    if newest is not None and newest.id != found.current_build:
        lines.append(("newest build", Text(newest.id + " ").append_text(_state(newest.status))))
        lines.append(("error", Text(newest.error or "", "red")))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in lines:
        if value:
            table.add_row(Text(name, "dim"), value if isinstance(value, Text) else Text(value))
    return table


def builds_table(builds: Iterable["api.Build"]) -> Table:
    """Return the list of a template's builds."""
    table = _table("build", "state", "from", "age", "error")
    for each in builds:
        table.add_row(
            each.id,
            _state(each.status),
            Text(str(each.source)),
            ago(each.created_at),
            Text((each.error or "").partition("\n")[0], "red"),
        )
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in names:
        table.add_column(name, overflow="fold")
    return table


def _state(status: str) -> Text:
    return Text(status.lower(), STYLES.get(status, ""))
