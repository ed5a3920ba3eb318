"""The page that says what works of DigitalOcean's Python client: docs/compatibility.md."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from tests.conformance.judging import Case, Verdict
from tests.conformance.surface import Method

PAGE = Path(__file__).resolve().parents[2] / "docs/compatibility.md"

_HEAD = """\
# Compatibility

What works of DigitalOcean's Python client, `pydo` {version}, method by method. This page is for
whoever has a program for Managed Agents and wants to know what becomes of it here: everything
that concerns sandboxes works by changing the endpoint, and nothing that needs an agent to run
does. [api.md](api.md) says what the API does beyond it.

```python
from pydo import Client

client = Client(token, endpoint="https://torpor.example", agents_endpoint="https://torpor.example")
```

`endpoint` is that of `client.harness`, `agents_endpoint` that of `client.agents`. The client
shows its token over TLS alone ([previews.md](previews.md#tls) says how the server gets a
certificate; [api.md](api.md) what to do without).

The page is made of a run: `pytest tests/conformance --write` calls every public method of the
client, with and without blocking, over TLS, once so that it has to work and once so that it has
to be refused, and writes what it saw. Tests fail when the page says anything else, when the
client has a method that is not here, and when one works that is said not to.

- **works**: the call does what it is for, and is refused with the status that the client knows.
  Each key of the answer that the client describes has the JSON type that it describes; there may
  be more keys, which are Torpor's own.
- **differs**: it works, but for what is said.
- **no**: there is no such request here: it is answered with 404, which the client raises as an
  error or returns as one.

Of {total} methods {works} work, {differs} differ, and {no} do not work.
"""

_GROUPS = {
    "agents": ("client.agents", ""),
    "agents.sessions": ("client.agents.sessions", ""),
    "agents.configs": ("client.agents.configs", "[configs.md](configs.md) has them."),
    "agents.templates": ("client.agents.templates", "[templates.md](templates.md) has them."),
    "agents.triggers": ("client.agents.triggers", ""),
    "session": ("The handle of a session", "`AgentSession`: what `start` and `attach` return."),
    "events": ("Events", "`HarnessEventStream`: what `stream` returns."),
    "download": ("Downloads", "`WorkspaceDownload`: what `workspace_download` returns."),
    "harness": (
        "client.harness",
        "The generated methods. They return as dictionaries most errors that the others raise.",
    ),
}

_KEYS = """\
## Keys that were left out

What the generated methods describe of answers, and the answers of the run did not have: it has no
meaning here, or nothing had happened that it tells of.

| keys | of |
| --- | --- |"""

_NEWER = """\
## Newer than the client

Methods that the public sources of newer clients have and `pydo` {version} does not, and requests
that the documentation names (in parentheses). They are sent without methods.
[workspaces.md](workspaces.md) has the workspaces.
"""

_FOOT = """\
## What was not looked at

- `RunStream`, which only a run of an agent returns.
- Quotas, prices and teams: there are none here, so nothing is answered with 402, 423 or 501 for
  them.
"""

_SOON = {"last_event_at", "sandbox_id"}
"""What a session has a moment after it was made."""

Verdicts = Mapping[str, Sequence[Verdict | None]]


def page(methods: Mapping[str, Method], cases: Mapping[str, Case], verdicts: Verdicts) -> str:
    """Return the page. ``verdicts`` are those of the two clients; None: it has no such method."""
    words = Counter(_word(verdicts[name]) for name in methods)
    counted = {word: words[word] for word in ("works", "differs", "no")}
    parts = [_HEAD.format(version=version("pydo"), total=len(methods), **counted)]
    for group, (title, about) in _GROUPS.items():
        own = [name for name in methods if name.rpartition(".")[0] == group]
        heading = f"## {title}\n" + (f"\n{about}\n" if about else "")
        parts.append("\n".join([heading, *_table(group, own, cases, verdicts), ""]))
    parts.append("\n".join([_KEYS, *_left_out(methods, verdicts), ""]))
    newer = [name for name in verdicts if name not in methods]
    parts.append(
        "\n".join(
            [_NEWER.format(version=version("pydo")), *_table(None, newer, cases, verdicts), ""]
        )
    )
    return "\n".join([*parts, _FOOT])


def _table(
    within: str | None, names: Sequence[str], cases: Mapping[str, Case], verdicts: Verdicts
) -> Iterator[str]:
    yield "| method | request | sync | async | verdict | what differs, or why not |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name in names:
        found = verdicts[name]
        of = next(each for each in found if each is not None)
        requests = "<br>".join(f"`{each}`" if "/" in each else each for each in of.requests)
        ways = " | ".join(
            "none" if each is None else "yes" if each.works else "no" for each in found
        )
        own = name if within is None else name.removeprefix(f"{within}.")
        shown = own if own.startswith("(") else f"`{own}`"
        cells = (shown, requests or "none", ways, _word(found), _said(cases[name], found))
        yield f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _left_out(methods: Mapping[str, Method], verdicts: Verdicts) -> Iterator[str]:
    """Yield rows of keys, without what they are in, and of the methods that leave them out."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in methods:
        keys = {each for verdict in verdicts[name] if verdict for each in verdict.missing}
        if keys and name.startswith("harness."):
            own = {re.sub(r"^\w+(\[\])?\.", "", each) for each in keys}
            shown = tuple(sorted(own - _SOON))
            found.setdefault(shown, []).append(name.removeprefix("harness."))
    for keys, names in found.items():
        yield f"| {', '.join(map('`{}`'.format, keys))} | {', '.join(map('`{}`'.format, names))} |"


def _word(verdicts: Sequence[Verdict | None]) -> str:
    there = [each for each in verdicts if each is not None]
    if not any(each.works for each in there):
        return "no"
    same = all(each.works and not each.differs for each in there)
    return "works" if same else "differs"


def _said(case: Case, verdicts: Sequence[Verdict | None]) -> str:
    differs = [text for each in verdicts if each is not None for text in each.differs]
    said = [*dict.fromkeys(differs), *([case.no] if case.no else [])]
    return "; ".join([*said, *([case.note] if case.note else [])])
