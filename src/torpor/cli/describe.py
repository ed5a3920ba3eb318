"""The commands over the API, as ``docs/cli.md`` lists them, made of the commands themselves.

``python -m torpor.cli.describe`` prints the end of that page, from ``## Commands`` on.
"""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from torpor.cli.app import app

COMMANDS = (
    "serve", "status", "token", "create", "list", "show", "config", "exec", "shell", "cp", "ls",
    "port-forward", "preview", "pause", "resume", "checkpoint", "checkpoints", "fork", "rollback",
    "tree", "rm", "template", "workspace", "secret", "egress", "flows", "logs", "backup", "restore",
    "database",
)  # fmt: skip
EVERYWHERE = frozenset({"--host", "--output", "--help"})


def reference() -> str:
    """Return the list: each command with its text, its arguments and its options."""
    root: Any = get_command(app)
    parts = ["## Commands"]
    for name in COMMANDS:
        command = root.commands[name]
        for below, each in getattr(command, "commands", {"": command}).items():
            parts += _section(f"{name} {below}".strip(), each)
    return "\n\n".join(parts) + "\n"


def _section(name: str, command: Any) -> Iterator[str]:
    given = [each for each in command.params if each.param_type_name == "argument"]
    usage = " ".join((f"torpor {name}", *(each.metavar for each in given)))
    yield f"### {name}"
    yield f"    {usage}"
    yield command.help.strip()
    options = [
        each
        for each in command.params
        if each.param_type_name == "option" and not _is_everywhere(each)
    ]
    if options:
        rows = [f"| {_names(each)} | {each.help} |" for each in options]
        yield "\n".join(("| option | what it does |", "| --- | --- |", *rows))


def _is_everywhere(option: Any) -> bool:
    """Return whether an option is that of all commands, and not one of its own of this name."""
    return bool(EVERYWHERE & set(option.opts)) and option.metavar in (None, "URL")


def _names(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag or not option.metavar else f"{names} `{option.metavar}`"


if __name__ == "__main__":
    print(reference(), end="")
