"""Workspaces, as people read them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torpor.cli.session_tables import SHORT, ago, when
from torpor.cli.snapshot_tables import size

if TYPE_CHECKING:
    from torpor import client as api

STYLES = {
    "PENDING": "dim",
    "AVAILABLE": "green",
    "ATTACHING": "cyan",
    "ATTACHED": "cyan",
    "RELEASING": "yellow",
    "DELETING": "dim",
    "FAILED": "bold red",
}


def workspaces_list(workspaces: Sequence["api.Workspace"]) -> RenderableType:
    """Return the list of workspaces."""
    if not workspaces:
        return Text("There are no workspaces. `torpor workspace create` makes one.")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("name", "id", "state", "size", "stored", "session", "saved", "age"):
        table.add_column(column, overflow="fold")
    for each in workspaces:
        table.add_row(
            Text(each.name or "", "bold"),
            each.id[:SHORT],
            _state(each.state),
            f"{each.size_gib} GiB",
            size(each.stored_bytes),
            (each.session or "")[:SHORT],
            ago(each.saved_at),
            ago(each.created_at),
        )
    return table


def workspace_table(found: "api.Workspace") -> RenderableType:
    """Return one workspace."""
    lines: list[tuple[str, str | Text]] = [
        ("name", Text(found.name or "", "bold")),
        ("id", found.id),
        ("state", _state(found.state)),
        ("error", Text(found.error or "", "red")),
        ("session", found.session or ""),
        ("size", f"{found.size_gib} GiB"),
        ("stored", size(found.stored_bytes)),
        ("saved", when(found.saved_at)),
        ("created", when(found.created_at)),
    ]
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in lines:
        if value:
            table.add_row(Text(name, "dim"), value if isinstance(value, Text) else Text(value))
    return table


def _state(state: str) -> Text:
    return Text(state.lower(), STYLES.get(state, ""))
