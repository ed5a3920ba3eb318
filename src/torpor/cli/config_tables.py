"""Configurations, as people read them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torpor.cli.session_tables import SHORT, ago, listed, when
from torpor.cli.tables import console

if TYPE_CHECKING:
    from torpor import client as api


def configs_list(configs: Sequence["api.Config"], *, more: bool) -> RenderableType:
    """Return the list; ``more`` says that it was cut."""
    if not configs:
        return Text("There are no configurations. `torpor config create` makes one.")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("name", "id", "hash"):
        table.add_column(name, no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True)
    for each in configs:
        table.add_row(
            Text(each.name, "bold"),
            each.id,
            each.content_hash[:SHORT],
            ago(each.created_at),
        )
    return listed(table, more=more)


def print_config(found: "api.Config") -> None:
    """Print one configuration, its manifest in YAML."""
    import yaml

    out = console()
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in (
        ("name", Text(found.name, "bold")),
        ("id", Text(found.id)),
        ("hash", Text(found.content_hash)),
        ("written as", Text(found.schema_version)),
        ("made", Text(when(found.created_at))),
        ("by", Text(found.created_by)),
    ):
        table.add_row(Text(name, "dim"), value)
    out.print(table)
    out.print()
    text = yaml.safe_dump(dict(found.manifest), sort_keys=False, allow_unicode=True)
    out.print(text.rstrip(), markup=False, highlight=False, soft_wrap=True)
