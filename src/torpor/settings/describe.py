"""What is allowed for each setting, in words; and ``docs/settings.md``, made of the settings.

``python -m torpor.settings.describe`` prints that page.
"""

from typing import Any

from torpor.settings.model import PREFIX, Settings

_HEAD = """\
# Settings

How the server is set up. This page is made of the code (`python -m torpor.settings.describe`).

A setting comes from the strongest of these places that has it:

1. a flag of `torpor serve`, where there is one for it (`torpor serve --help`);
2. an environment variable: `{prefix}` and the setting's name in capitals, as `{prefix}LISTEN`. An
   empty one counts as not set;
3. the file, in [TOML](https://toml.io): the one that `--config` names, else that `{prefix}CONFIG`
   names, else, if it is there, `/etc/torpor/torpor.toml` for root and `torpor/torpor.toml` below
   `$XDG_CONFIG_HOME` (`~/.config`) for others;
4. the default.

A name that is not here is refused, in the file and as a variable, and so is a value that is not
allowed. A file that says the same as the defaults:

```toml
{example}
```

| setting | default | allowed | what it does |
| --- | --- | --- | --- |
"""
_TAIL = """
Other variables, which are no settings of the server:

| variable | what it does |
| --- | --- |
| `{prefix}HOME`, `{prefix}CACHE` | where what must last is kept, and what can be made again |
| `{prefix}EXTRA_CA` | certificates that images are to trust besides their own |
| `{prefix}CONFIG` | the file of settings |
| `{prefix}URL`, `{prefix}TOKEN` | which server the command line asks, and the token that it shows |
| `{prefix}CA` | certificates by which the command line trusts a server, besides the usual ones |
"""


def allowed(name: str) -> str:
    """Return in words what a setting may be."""
    schema = Settings.model_json_schema()["properties"][name]
    if "allowed" in schema:
        return str(schema["allowed"])
    # A setting that need not be there has its own kind, and that of nothing.
    kind: dict[str, Any] = next(
        each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"
    )
    if "enum" in kind:
        return " or ".join(f'"{word}"' for word in kind["enum"])
    words = {"integer": "a whole number", "string": "a text"}[kind["type"]]
    least, most = kind.get("minimum"), kind.get("maximum")
    if most is not None:
        return f"{words} from {least} to {most}"
    return words if least is None else f"{words}, at least {least}"


def written(value: object) -> str:
    """Return a default as it is written in the file."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def page() -> str:
    """Return the text of ``docs/settings.md``."""
    fields = Settings.model_fields
    example = "\n".join(
        f"{name} = {written(field.default)}"
        for name, field in fields.items()
        if field.default is not None
    )
    rows = "\n".join(
        f"| `{name}` | {_cell(field.default)} | {allowed(name)} | {field.description} |"
        for name, field in fields.items()
    )
    return _HEAD.format(prefix=PREFIX, example=example) + rows + "\n" + _TAIL.format(prefix=PREFIX)


def _cell(default: object) -> str:
    return "none" if default is None else f"`{written(default)}`"


if __name__ == "__main__":
    print(page(), end="")
