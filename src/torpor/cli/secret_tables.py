"""Secrets, as people read them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from torpor.cli.session_tables import SHORT, ago, when

if TYPE_CHECKING:
    from torpor import client as api


def secrets_list(secrets: Sequence["api.Secret"]) -> RenderableType:
    """Return the list of secrets."""
    if not secrets:
        return Text("There are no secrets. `torpor secret set` makes one.")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("name", "for", "used as", "version", "set"):
        table.add_column(column, overflow="fold")
    for each in secrets:
        table.add_row(
            Text(each.name, "bold"),
            "\n".join(_requests(binding) for binding in each.bindings),
            "\n".join(_use(binding) for binding in each.bindings),
            Text(str(each.version)) if each.usable else Text("no key here", "bold red"),
            ago(each.updated_at),
        )
    return table


def secret_table(found: "api.Secret") -> RenderableType:
    """Return one secret."""
    lines: list[tuple[str, str | Text]] = [
        ("name", Text(found.name, "bold")),
        *(("for", f"{_requests(each)}, as {_use(each)}") for each in found.bindings),
        ("version", str(found.version)),
        ("error", "" if found.usable else Text("this server has not its key; set it anew", "red")),
        ("sessions", ", ".join(each[:SHORT] for each in found.sessions or ())),
        ("set", when(found.updated_at)),
        ("created", when(found.created_at)),
    ]
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in lines:
        if value:
            table.add_row(Text(name, "dim"), value if isinstance(value, Text) else Text(value))
    return table


def _requests(binding: Mapping[str, Any]) -> str:
    port = binding.get("port", 443)
    where = str(binding.get("host")) + ("" if port == 443 else f":{port}")
    methods = " ".join(binding.get("methods") or ())
    path = str(binding.get("path", "/**"))
    return " ".join(part for part in (methods, where + ("" if path == "/**" else path)) if part)


def _use(binding: Mapping[str, Any]) -> str:
    if "header" in binding:
        return f"{binding['header']}: {binding.get('template', '{}')}"
    if "basic" in binding:
        return f"password of {binding['basic']}"
    if "query" in binding:
        return f"parameter {binding['query']}"
    where = " and small bodies" if binding.get("in_body") else ""
    return f"placeholder ${binding.get('variable')} in headers{where}"
