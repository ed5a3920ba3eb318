"""The unit with which systemd runs the server."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

KEPT = ("TORPOR_HOME", "TORPOR_CACHE", "TORPOR_CONFIG", "TORPOR_EXTRA_CA")
"""Variables that say where things are: a service does not see those of who installs it."""


def unit(
    *,
    root: bool,
    program: Sequence[str],
    config: Path | None,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Return the unit for this installation: of the system for root, else of the user.

    ``program`` is how the command line is started here. What the environment and ``config`` say
    of where things are is written into it.
    """
    name = "torpor.service" if root else "torpor-user.service"
    text = files("torpor.cli").joinpath("units", name).read_text("utf-8")
    said = {name: environ[name] for name in KEPT if environ.get(name)}
    if config is not None:
        said["TORPOR_CONFIG"] = str(config.absolute())
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in said.items()]
    text = text.replace("@TORPOR@", " ".join(_quoted(word).replace("$", "$$") for word in program))
    return text.replace("@ENVIRONMENT@\n", "".join(f"{line}\n" for line in lines))


def own_program(argv0: str = sys.argv[0]) -> list[str]:
    """Return how this program is started again, from anywhere."""
    found = shutil.which(argv0)
    if found is not None and Path(found).name == "torpor":
        return [str(Path(found).absolute())]
    return [sys.executable, "-c", "from torpor.cli import main; main()"]


def _quoted(word: str) -> str:
    """Return a word as systemd's units have it (systemd.syntax(7), systemd.service(5))."""
    word = word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{word}"' if not word or set(word) & set(" \t;'\\\"") else word
