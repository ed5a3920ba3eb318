"""Bodies of requests, read strictly: what is written twice, or could be read in two ways, is
refused."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from torpor.api.errors import RefusedError, complaint, invalid, refused

JSON_TYPES = ("application/json",)
YAML_TYPES = ("application/x-yaml", "application/yaml", "text/yaml", "text/x-yaml")
DEEPEST = 32
"""How deep mappings and lists may stand in each other."""
MOST_BITS = 8192
"""Bits of a whole number. Python writes none in decimal that has many more."""

Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """What a body says, and in which line each of its keys stands, if it has lines."""

    value: Any
    lines: Mapping[Place, int] = field(default_factory=dict)


def media_type(said: str | None) -> str:
    """Return a content type without its parameters."""
    return (said or "").partition(";")[0].strip().lower()


def unsupported(said: str, accepted: tuple[str, ...]) -> RefusedError:
    """Return the error for a body of a type that is not read."""
    return refused(
        415,
        "unsupported_media_type",
        f"A body of the type {said or '(none)'!r} is not read here.",
        todo=f"Send the header Content-Type with {' or '.join(accepted)}.",
    )


class StrictRequest(Request):
    """A request whose JSON is read strictly."""

    async def json(self) -> Any:
        """Return what the body says. Raises :exc:`RefusedError`."""
        if not hasattr(self, "_said"):
            self._said = read_json(await self.body())
        return self._said


def read_json(data: bytes) -> Any:
    """Return what JSON says; no key twice in an object, no NaN. Raises :exc:`RefusedError`."""
    try:
        value = json.loads(data, object_pairs_hook=_once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise wrong(f"the body is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise wrong("the body is not UTF-8") from None
    except (RecursionError, ValueError) as error:
        raise wrong(f"the body cannot be read: {error}") from None
    check_value(value)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise wrong(f"key {name!r} is there twice")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise wrong(f"{name} is no number of JSON")


def check_value(value: Any) -> None:
    """Raise :exc:`RefusedError` for what is nested too deep, and for what could be kept and not be
    answered, since JSON in UTF-8 cannot say it."""
    layer = [value]
    for _ in range(DEEPEST + 1):
        inner: list[Any] = []
        for each in layer:
            if isinstance(each, dict):
                inner.extend(each.keys())
                inner.extend(each.values())
            elif isinstance(each, list):
                inner.extend(each)
            else:
                _check_plain(each)
        if not inner:
            return
        layer = inner
    raise wrong(f"the body is nested more than {DEEPEST} deep")


def _check_plain(value: Any) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise wrong(f"{ascii(value)[:80]} has half of a surrogate pair in it") from None
    elif isinstance(value, float) and not math.isfinite(value):
        raise wrong(f"{value} is no number of JSON")
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise wrong(f"a number has more than {MOST_BITS} bits")
    elif value is not None and not isinstance(value, int | float):
        raise wrong(f"{value} is a {type(value).__name__}, which JSON cannot say; quote it")


def check_body(model: type[BaseModel], document: Document) -> Any:
    """Return the body as ``model`` has it. Raises :exc:`RefusedError`, which names the line."""
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        said = []
        for each in error.errors():
            line = document.lines.get(tuple(each["loc"]))
            where = f" (line {line})" if line else ""
            said.append(complaint({**each, "loc": ("body", *each["loc"])}) + where)
        raise RefusedError(invalid(said)) from None


def wrong(complaint: str) -> RefusedError:
    """Return the error for a body that cannot be read."""
    return RefusedError(invalid([complaint]))
