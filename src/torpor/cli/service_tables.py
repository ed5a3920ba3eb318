"""The server, its host and its tokens, as people read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from torpor.cli.session_tables import STYLES, ago
from torpor.cli.snapshot_tables import size
from torpor.cli.tables import console

if TYPE_CHECKING:
    from torpor import client as api


@dataclass(frozen=True)
class Status:
    """Which server this is, whom it takes us for, and what its host has."""

    url: str
    who: "api.Who"
    host: "api.HostStatus"


def status_table(found: Status) -> Table:
    """Return how a server is, for people."""
    who, host = found.who, found.host
    sessions = _sessions(host)
    promised = host.promised_free_bytes
    lines: list[tuple[str, str | Text]] = [
        ("server", Text(f"{found.url}  (Torpor {host.version})", "bold")),
        ("you", f"{who.name}, {who.role}" if who.name else who.role),
        ("host", f"{host.name}, QEMU {host.qemu}"),
        ("accelerator", f"{host.accelerator}: {host.why}" if host.why else host.accelerator),
        ("jail", _jail(host.jail_missing)),
        ("network", Text(f"none: {host.wall_missing}", "yellow") if host.wall_missing else ""),
        ("sessions", sessions if sessions.plain else "none"),
        ("memory", f"{size(host.free_memory_bytes)} of {size(host.memory_bytes)} free"),
        (
            "for machines",
            size(promised) if promised >= 0
            else Text(f"none: {size(-promised)} too much are promised", "yellow"),
        ),
        ("snapshots", f"{size(host.stored_bytes)} stored, {size(host.free_disk_bytes)} free"),
    ]  # fmt: skip
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in lines:
        if value:
            table.add_row(Text(name, "dim"), value if isinstance(value, Text) else Text(value))
    return table


def status_line(found: Status) -> str:
    """Return in a line what changes of a host."""
    host = found.host
    return (
        f"sessions: {' '.join(_sessions(host).plain.split()) or 'none'};"
        f" memory: {size(host.free_memory_bytes)} free;"
        f" snapshots: {size(host.stored_bytes)} stored, {size(host.free_disk_bytes)} free"
    )


def _sessions(host: "api.HostStatus") -> Text:
    sessions = Text()
    for state, count in host.sessions.items():
        if count:
            sessions.append(f"{count} {state.lower()}  ", STYLES.get(state, ""))
    return sessions


def _jail(missing: tuple[str, ...] | None) -> str | Text:
    if missing is None:
        return "not told to this role"
    return Text("; ".join(missing), "yellow") if missing else "whole"


def print_tokens(tokens: Sequence["api.Token"]) -> None:
    """Print the list of tokens."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("id", "name", "role", "made", "used", "ends"):
        table.add_column(name)
    for each in tokens:
        ends: str | Text = "never"
        if each.revoked_at is not None:
            ends = Text(f"revoked {ago(each.revoked_at)} ago", "red")
        elif each.expires_at is not None:
            ends = f"{each.expires_at.astimezone():%Y-%m-%d %H:%M}"
        used = f"{ago(each.used_at)} ago" if each.used_at else "never"
        made = f"{ago(each.created_at)} ago"
        table.add_row(each.id, Text(each.name), each.role, made, used, ends)
    console().print(table)


def print_links(links: Sequence["api.Preview"]) -> None:
    """Print the links to ports of a session."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("id", "port", "label", "made", "ends"):
        table.add_column(name)
    for each in links:
        ends: str | Text = f"{each.expires_at.astimezone():%Y-%m-%d %H:%M}"
        if each.revoked_at is not None:
            ends = Text(f"revoked {ago(each.revoked_at)} ago", "red")
        elif each.expires_at <= datetime.now(UTC):
            ends = Text(f"over since {ends}", "dim")
        made = f"{ago(each.created_at)} ago"
        table.add_row(each.id, str(each.port), Text(each.label), made, ends)
    console().print(table)
