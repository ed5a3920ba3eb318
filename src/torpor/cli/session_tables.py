"""Sessions, their snapshots and their events, as people read them."""

import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from torpor.cli.snapshot_tables import size
from torpor.cli.tables import console

if TYPE_CHECKING:
    from torpor import client as api

STYLES = {
    "READY": "green",
    "PROVISIONING": "cyan",
    "PAUSED": "blue",
    "DETACHED": "yellow",
    "DESTROYING": "dim",
    "DESTROYED": "dim",
    "FAILED": "bold red",
}
TYPES = {
    "file": stat.S_IFREG,
    "directory": stat.S_IFDIR,
    "link": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
    "socket": stat.S_IFSOCK,
    "block": stat.S_IFBLK,
    "character": stat.S_IFCHR,
}
SHORT = 8
"""Characters of an id that are shown where there are many."""


def plain(value: Any) -> Any:
    """Return ``value`` as JSON can say it: dataclasses as objects, times as RFC 3339 has them."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Exception):
        return {name: each for name, each in vars(value).items() if isinstance(each, (str, int))}
    return value


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """Return how long ago something was, in the unit that fits."""
    if at is None:
        return ""
    seconds = max(0.0, ((now or datetime.now(UTC)) - at).total_seconds())
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def status(session: "api.Session") -> Text:
    """Return a session's state, and what is being done to it."""
    text = Text(session.status.lower(), STYLES.get(session.status, ""))
    if session.operation:
        text.append(f" ({session.operation})", "dim")
    return text


def sessions_table(sessions: Iterable["api.Session"]) -> Table:
    """Return the list of sessions."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("name", "id", "state", "image", "size"):
        table.add_column(name, no_wrap=True)
    table.add_column("gen", justify="right", no_wrap=True)
    table.add_column("age", justify="right", no_wrap=True)
    table.add_column("labels", overflow="fold")
    for each in sessions:
        table.add_row(
            Text(each.name, "bold"),
            each.id[:SHORT],
            status(each),
            Text(each.image),
            Text(each.size),
            str(each.generation),
            ago(each.created_at),
            Text(" ".join(f"{name}={value}" for name, value in each.labels.items())),
        )
    return table


def sessions_list(sessions: Sequence["api.Session"], *, more: bool) -> RenderableType:
    """Return the list; ``more`` says that it was cut."""
    if not sessions:
        return Text("There are no sessions. `torpor create` makes one.")
    return listed(sessions_table(sessions), more=more)


def listed(table: Table, *, more: bool) -> RenderableType:
    """Return a list; ``more`` says that it was cut."""
    return Group(table, Text("There are more: say --limit.", "dim")) if more else table


def session_table(found: "api.Session") -> RenderableType:
    """Return one session, and what it can go on from if it has failed."""
    idle = (
        "the server's own" if found.idle_timeout is None
        else "never" if found.idle_timeout == 0 or found.keep_warm
        else f"after {found.idle_timeout} s without use"
    )  # fmt: skip
    lines: list[tuple[str, str | Text]] = [
        ("name", Text(found.name, "bold")),
        ("id", found.id),
        ("state", status(found)),
        ("paused by", found.pause_reason or ""),
        ("failure", Text(found.failure or "", "red")),
        ("image", found.image),
        ("template", found.template or ""),
        ("size", found.size),
        ("workspace", found.workspace or ""),
        ("may reach", _reach(found.egress)),
        ("generation", str(found.generation)),
        ("created", when(found.created_at)),
        ("last event", when(found.last_event_at)),
        ("pauses by itself", idle),
        ("configuration", found.config or ""),
        ("forked from", _parentage(found)),
        ("boot", found.boot_id or ""),
        ("labels", _pairs(found.labels)),
        ("environment", _pairs(found.env or {})),
        ("metadata", _pairs({name: str(value) for name, value in found.metadata.items()})),
    ]
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for name, value in lines:
        if value:
            table.add_row(Text(name, "dim"), value if isinstance(value, Text) else Text(value))
    return Group(table, *_recoverable(found)) if found.status == "FAILED" else table


def _reach(egress: "str | Mapping[str, Any]") -> str:
    if not isinstance(egress, Mapping):
        return {"unrestricted": "all that is public", "none": "nothing"}.get(egress, egress)
    named = [clear(each.get("host", "")) for each in egress.get("allow", ())]
    named += [f"preset {clear(each)}" for each in egress.get("presets", ())]
    more = f", and {len(named) - 10} more" if len(named) > 10 else ""
    listed = ", ".join(named[:10]) + more
    if not listed or egress.get("unrestricted"):
        return "all that is public" + (f", and {listed}" if listed else ", with exceptions")
    return listed


def _recoverable(found: "api.Session") -> Iterator[RenderableType]:
    """Yield what a session that has failed can go on from."""
    if not found.recoverable:
        yield Text("\nThere is no snapshot that it could go on from.")
        return
    yield Text("\nIt can go on from these; `torpor resume` takes one with --snapshot:")
    table = Table(box=None, padding=(0, 2, 0, 2), header_style="dim")
    for name in ("snapshot", "kind", "gen", "age", ""):
        table.add_column(name)
    for each in found.recoverable:
        note = "" if each.durable else "not durable"
        table.add_row(each.snapshot, each.kind, str(each.generation), ago(each.created_at), note)
    yield table


def when(at: datetime | None) -> str:
    """Return a time as it is here, and how long ago it was."""
    return "" if at is None else f"{at.astimezone():%Y-%m-%d %H:%M:%S} ({ago(at)} ago)"


def _parentage(found: "api.Session") -> str:
    parts = [found.parent or "", f"at {found.forked_from}" if found.forked_from else ""]
    return " ".join(filter(None, parts))


def _pairs(pairs: Mapping[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in pairs.items())


def checkpoints_list(checkpoints: Sequence["api.Checkpoint"]) -> RenderableType:
    """Return the list of a session's checkpoints."""
    if not checkpoints:
        return Text("There are no checkpoints. `torpor checkpoint` makes one.")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("checkpoint", "label", "kind", "gen", "stored", "age", ""):
        table.add_column(name, no_wrap=name != "label", overflow="fold")
    for each in checkpoints:
        note = each.error or ("" if each.durable else "not durable")
        table.add_row(
            each.id, Text(each.label), each.kind, str(each.generation), size(each.size_bytes),
            ago(each.created_at), Text(note),
        )  # fmt: skip
    return table


def print_checkpoint(made: "api.Checkpoint", name: str) -> None:
    """Print a checkpoint that was just made, and what can be done with it."""
    label = f" ({made.label})" if made.label else ""
    durable = "durable" if made.durable else "durable soon"
    console().print(
        f"Checkpoint {made.id}{label} of {name}: generation {made.generation},"
        f" {size(made.size_bytes)} stored, {durable}.\n"
        f"Back to it: torpor rollback {name} {made.id}\n"
        f"On from it: torpor fork {name} --from {made.id}",
        markup=False,
        soft_wrap=True,
    )


def print_forked(
    forked: "api.Forked", name: str, seconds: float, lasting: Sequence["api.Event"]
) -> None:
    """Print the children of a fork, those that there are not, and what is not undone."""
    out = console()
    made = len(forked.sessions)
    children = "1 child" if made == 1 else f"{made} children"
    ready = all(child.status == "READY" for child in forked.sessions)
    how = "ready" if ready else "made"
    out.print(f"{name} has {children}, {how} in {seconds:.2f} s.", markup=False)
    if forked.sessions:
        out.print(sessions_table(forked.sessions))
    for warning in dict.fromkeys(each for child in forked.sessions for each in child.warnings):
        out.print(warning, style="yellow", markup=False, soft_wrap=True)
    for failure in forked.failures:
        out.print(Text(f"Child {failure.index + 1} was not made: {failure.error}", "red"))
    print_lasting(out, lasting, "Each child shares with its parent what was done outside of it:")


def print_rolled_back(
    session: "api.Session", checkpoint: str, seconds: float, lasting: Sequence["api.Event"]
) -> None:
    """Print a session that stands at a checkpoint again, and what is not undone."""
    out = console()
    out.print(
        f"{session.name} stands at {checkpoint} again, as generation {session.generation},"
        f" after {seconds:.2f} s.",
        markup=False,
    )
    print_lasting(out, lasting, "Not undone, for it reached out of the machine since then:")


def print_lasting(out: Console, events: Sequence["api.Event"], title: str) -> None:
    """Print the events that neither a fork nor a rollback undoes."""
    if not events:
        return
    out.print(title, style="yellow")
    for event in events:
        line = event_line(event)
        line.pad_left(2)
        out.print(line, soft_wrap=True)


def event_line(event: "api.Event", *, named: str = "") -> Text:
    """Return an event on one line: when, which session if ``named``, what, and what more."""
    line = Text()
    line.append(f"{event.at.astimezone():%Y-%m-%d %H:%M:%S.%f}"[:-3], "dim")
    if named:
        line.append(f"  {named}", "bold")
    line.append(f"  {event.type}", _event_style(event.type))
    for name, value in event.data.items():
        if value not in (None, "", [], {}):
            line.append(f"  {name}=", "dim")
            line.append(clear(value))
    if event.actor:
        line.append(f"  by {event.actor}", "dim")
    return line


def _event_style(kind: str) -> str:
    return "red" if "fail" in kind or "lost" in kind else "cyan"


def clear(value: object) -> str:
    """Return what a machine has said as text that a terminal takes for nothing more."""
    text = value if isinstance(value, str) else str(plain(value))
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def snapshot_tree(tree: "api.Tree") -> Tree:
    """Return the snapshots of a session as a tree, with where it stands, and its children."""
    session = tree.session
    root = Tree(
        Text.assemble((session.name, "bold"), "  ", status(session), f"  {session.image}"),
        guide_style="dim",
    )
    names = {child.id: child for child in tree.children}
    known = {node.snapshot for node in tree.nodes}
    below: dict[str | None, list[api.Node]] = {}
    for node in tree.nodes:
        below.setdefault(node.parent if node.parent in known else None, []).append(node)
    shown: set[str] = set()

    def add(branch: Tree, parent: str | None) -> None:
        for node in sorted(below.get(parent, ()), key=lambda each: each.created_at):
            twig = branch.add(_node(node, session))
            for child in node.children:
                shown.add(child)
                twig.add(_child(names.get(child), child))
            add(twig, node.snapshot)

    add(root, None)
    for child in tree.children:
        if child.id not in shown:  # its checkpoint has been deleted
            root.add(_child(child, child.id))
    return root


def _node(node: "api.Node", session: "api.Session") -> Text:
    text = Text()
    text.append(f"{node.generation}", "bold")
    text.append(f"  {node.kind}", "cyan")
    text.append(f"  {node.checkpoint or node.snapshot}")
    if node.label:
        text.append(f"  {clear(node.label)}", "green")
    text.append(f"  {ago(node.created_at)} ago, {size(node.stored_bytes)}", "dim")
    if node.status != "READY":
        text.append(f"  {node.status.lower()}", "red")
    elif not node.durable:
        text.append("  not durable yet", "yellow")
    if node.current:
        stands = "is paused here" if session.status == "PAUSED" else "runs on from here"
        text.append(f"  ← {session.name} {stands}", "bold")
    return text


def _child(child: "api.Session | None", child_id: str) -> Text:
    if child is None:
        return Text(f"↳ {child_id[:SHORT]}  destroyed", "dim")
    return Text.assemble("↳ ", (child.name, "bold"), "  ", status(child), "  forked from here")


def print_files(entries: Sequence["api.FileEntry"]) -> None:
    """Print a directory as ``ls -l`` does."""
    table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
    for justify in ("left", "right", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_column(overflow="fold")
    for entry in entries:
        found, name = entry.status, Text(clear(entry.path))
        if found is None:
            table.add_row("?", "", "", "", name.append(f"  {entry.error}", "red"))
            continue
        if found.target is not None:
            name.append(f" -> {clear(found.target)}", "dim")
        elif found.type == "directory":
            name.stylize("bold blue")
        if entry.sha256 is not None:
            name.append(f"  {entry.sha256}", "dim")
        at = datetime.fromtimestamp(found.mtime_ns / 1e9, UTC).astimezone()
        mode = stat.filemode(TYPES.get(found.type, 0) | found.mode)
        owner = f"{found.uid}:{found.gid}"
        table.add_row(mode, owner, str(found.size), f"{at:%Y-%m-%d %H:%M}", name)
    console().print(table)
