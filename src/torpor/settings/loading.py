"""The settings as they are given: in a file, over it the environment, over that flags."""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
)

from torpor.settings.describe import allowed
from torpor.settings.errors import SettingsError
from torpor.settings.model import PREFIX, Settings
from torpor.settings.places import default_config

OTHER_VARIABLES = frozenset(
    PREFIX + name for name in ("HOME", "CACHE", "EXTRA_CA", "URL", "TOKEN", "CA", "CONFIG")
)
"""Variables that are no settings: of places, of authorities, of clients, and that of the file."""


def load_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ, file: Path | None = None
) -> Settings:
    """Return the settings that are asked for; each comes from the strongest place that has it.

    Flags are stronger than variables ``TORPOR_<NAME>``, these stronger than the file. A flag that
    is None and a variable that is empty count as not given. ``file`` None: the one that
    ``TORPOR_CONFIG`` names, else ``torpor.toml`` where the system or the user keeps such files, if
    it is there. Raises :exc:`SettingsError` for an unknown key, a value that is not allowed, and a
    file that was named and cannot be read.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    path, text = _file(environ, file)
    written = _parsed(path, text)
    variables = {name: value for name, value in environ.items() if value != ""}
    unknown = [name for name in variables if _is_ours(name) and not _is_known(name)]
    if unknown:
        raise SettingsError(
            [f"There is no setting for the variable {name}." for name in sorted(unknown)],
            f"Unset it; the names are {', '.join(map(_variable, Settings.model_fields))}.",
        )

    class Given(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (
                init_settings,
                _Variables(settings_cls, variables),
                InitSettingsSource(settings_cls, written),
            )

    def place(name: str) -> str:
        if name in given:
            return f"The flag --{name.replace('_', '-')}"
        if _variable(name) in variables:
            return f"The variable {_variable(name)}"
        return f"{name} in {path}{_line(text, name)}"

    try:
        found = Given(**given)
    except ValidationError as error:
        raise SettingsError(
            [_problem(place, each) for each in error.errors()],
            "What each setting means is in docs/settings.md.",
        ) from None
    return Settings(**found.model_dump(exclude_unset=True))


class _Variables(EnvSettingsSource):
    """The environment that was given, and not that of the process."""

    def __init__(self, settings: type[BaseSettings], variables: Mapping[str, str]) -> None:
        super().__init__(settings)
        # Fields are looked up as the prefix and the name as it is.
        self.env_vars = {
            PREFIX + name: variables[_variable(name)]
            for name in settings.model_fields
            if _variable(name) in variables
        }


def _file(environ: Mapping[str, str], file: Path | None) -> tuple[Path, str]:
    named = file or (Path(value) if (value := environ.get(PREFIX + "CONFIG")) else None)
    path = named.expanduser().absolute() if named else default_config(environ)
    try:
        return path, path.read_text("utf-8")
    except FileNotFoundError:
        if named is None:
            return path, ""
        raise SettingsError(
            [f"There is no file of settings {path}."], "Write it, or name another."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            [f"The file of settings {path} cannot be read: {error}."],
            "Let whoever starts the server read it; it is text in UTF-8.",
        ) from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError([f"{path} is not TOML: {error}."], "Correct it there.") from None


def _variable(name: str) -> str:
    return PREFIX + name.upper()


def _is_ours(variable: str) -> bool:
    return variable.upper().startswith(PREFIX)


def _is_known(variable: str) -> bool:
    return variable in OTHER_VARIABLES or variable in map(_variable, Settings.model_fields)


def _line(text: str, name: str) -> str:
    # The parser does not tell where a key stood. One that is quoted or in a table is not found.
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(rf"\s*\[?\s*{re.escape(name)}\s*[]=.]", line):
            return f", line {number},"
    return ""


def _problem(place: Callable[[str], str], error: ErrorDetails) -> str:
    if not error["loc"]:
        return error["msg"].removeprefix("Value error, ") + "."
    name = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, Settings.model_fields, 1)
        return f"{place(name)} is no setting" + (f"; {near[0]} is one." if near else ".")
    return f"{place(name)} is {error['input']!r}; allowed is {allowed(name)}."
