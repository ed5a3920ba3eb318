"""Policies, decisions of the wall and flows, as people read them."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torpor.cli.session_tables import clear, when
from torpor.cli.snapshot_tables import size

if TYPE_CHECKING:
    from torpor import client as api

MODES = {
    "open": ("all that is public", "yellow"),
    "list": ("what is listed, and nothing else", "green"),
    "none": ("nothing", "green"),
}


def policy_table(found: "api.Egress") -> RenderableType:
    """Return what a session may reach."""
    words, style = MODES.get(found.mode, (found.mode, ""))
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_row(Text("may reach", "dim"), Text(words, style))
    said = found.policy if isinstance(found.policy, Mapping) else {}
    for name, value in said.items():
        if name == "unrestricted":
            continue  # which the mode has said
        table.add_row(Text(name, "dim"), Text(_lines(value)))
    notes = [Text(f"Note: {clear(note)}", "yellow") for note in found.notes]
    return Group(table, *notes)


def _lines(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(map(_rule, value))
    if isinstance(value, Mapping):
        return "\n".join(f"{name} {each}" for name, each in value.items())
    return clear(value)


def _rule(rule: object) -> str:
    if not isinstance(rule, Mapping):
        return clear(rule)
    return clear(rule.get("host", "")) + (" (inspected)" if rule.get("inspect") else "")


def decision_line(each: "api.Decision", session: str) -> Text:
    """Return a decision on one line; of one that says no with the command that would allow it."""
    line = Text()
    line.append(f"{each.at.astimezone():%Y-%m-%d %H:%M:%S.%f}"[:-3], "dim")
    if each.allowed:
        line.append("  ended  " if each.ended else "  begun  ", "cyan")
    else:
        line.append("  DENIED ", "bold red")
    line.append(f" {_place(each)}", "bold")
    if each.count > 1:
        line.append(f"  {each.count} times", "yellow")
    if each.rule:
        line.append(f"  by {clear(each.rule)}", "dim")
    if each.address:
        line.append(f"  at {clear(each.address)}", "dim")
    if each.ended and each.allowed:
        line.append(
            f"  {size(each.sent_bytes)} out, {size(each.received_bytes)} in, {each.seconds:.1f} s"
        )
    if each.inspected:
        line.append("  inspected", "yellow")
    if each.secrets:
        line.append(f"  with {' '.join(map(clear, each.secrets))}", "yellow")
    if each.why:
        line.append(f"  {clear(each.why)}", "" if each.allowed else "red")
    if each.add and not each.allowed:
        line.append("\n    allow it: ", "dim")
        line.append(allowing(session, each.add))
    return line


def allowing(session: str, rule: str) -> str:
    """Return the command that lets a session reach what it was denied."""
    return f"torpor egress set {shlex.quote(clear(session))} --add {shlex.quote(clear(rule))}"


def _place(each: "api.Decision") -> str:
    if not each.host:
        return "many hosts"
    scheme = "" if each.transport == "tcp" else f"{clear(each.transport)}://"
    return f"{scheme}{clear(each.host)}:{each.port}"


def flows_table(flows: "Sequence[api.Flow]") -> RenderableType:
    """Return where the data of a session went."""
    if not flows:
        return Text("No host has received anything of it.")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("kind", "name", "sent", "received", "connections", "denied", "first", "last", ""):
        right = name in ("sent", "received", "connections", "denied")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for each in flows:
        notes = ["inspected"] if each.inspected else []
        notes += [f"secret {clear(secret)}" for secret in each.secrets]
        table.add_row(
            clear(each.kind),
            Text(clear(each.name) or "(others)", "bold"),
            size(each.sent_bytes),
            size(each.received_bytes),
            str(each.connections),
            Text(str(each.denied), "red") if each.denied else "",
            when(each.first_at),
            when(each.last_at),
            Text(", ".join(notes), "yellow"),
        )
    return table
