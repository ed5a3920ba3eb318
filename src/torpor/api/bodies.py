"""Bodies of requests, read strictly: what is written twice, or could be read in two ways, is
refused."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from torpor.api.errors import RefusedError, complaint, invalid, refused

JSON_TYPES = ("application/json",)
YAML_TYPES = ("application/x-yaml", "application/yaml", "text/yaml", "text/x-yaml")
YAML_LIMIT = 64 << 10
"""Bytes of a YAML body. Its reader is slow, and all that this server takes fits into that."""
DEEPEST = 32
"""How deep mappings and lists may stand in each other."""
MOST_BITS = 8192
"""Bits of a whole number. Python writes none in decimal that has many more."""
TEXTS = frozenset({"env", "labels"})
"""Top-level keys below which a YAML scalar is the text that is written: `8080`, `yes` and `1.10`
are what somebody wrote, not a number or a truth."""

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
        raise _wrong(f"the body is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise _wrong("the body is not UTF-8") from None
    except (RecursionError, ValueError) as error:
        raise _wrong(f"the body cannot be read: {error}") from None
    _check(value)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _wrong(f"key {name!r} is there twice")
        found[name] = value
    return found


def _no_constant(name: str) -> Any:
    raise _wrong(f"{name} is no number of JSON")


def _check(value: Any) -> None:
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
    raise _wrong(f"the body is nested more than {DEEPEST} deep")


def _check_plain(value: Any) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _wrong(f"{ascii(value)[:80]} has half of a surrogate pair in it") from None
    elif isinstance(value, float) and not math.isfinite(value):
        raise _wrong(f"{value} is no number of JSON")
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise _wrong(f"a number has more than {MOST_BITS} bits")
    elif value is not None and not isinstance(value, int | float):
        raise _wrong(f"{value} is a {type(value).__name__}, which JSON cannot say; quote it")


def read_yaml(data: bytes) -> Document:
    """Return what YAML says: one document, no key twice, no aliases, no tags. Raises
    :exc:`RefusedError`."""
    if len(data) > YAML_LIMIT:
        raise refused(
            413,
            "body_too_large",
            f"A body of YAML may have at most {YAML_LIMIT} bytes.",
        )
    try:
        text = data.decode()
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            _check_event(event)
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise _wrong(f"the body is nested more than {DEEPEST} deep")
        reader = _YamlReader(text)
        _check(reader.value)
        return Document(reader.value, reader.lines)
    except UnicodeDecodeError:
        raise _wrong("the body is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1})" if mark else ""
        raise _wrong(f"the body is not YAML: {error.problem or error}{where}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        raise _wrong(f"the body is not YAML: {error}") from None


def _check_event(event: yaml.Event) -> None:
    line = event.start_mark.line + 1 if event.start_mark else 0
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        raise _wrong(f"anchors and aliases are not read (line {line})")
    if getattr(event, "tag", None):
        raise _wrong(f"tags are not read (line {line})")


class _YamlReader:
    """Reads one document, and notes the line of each key."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Place, int] = {}
        self._loader = yaml.SafeLoader(text)
        try:
            node = self._loader.get_single_node()
            self.value = None if node is None else self._read(node, ())
        finally:
            self._loader.dispose()

    def _read(self, node: yaml.Node, place: Place) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._read_mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self._read(each, (*place, n)) for n, each in enumerate(node.value)]
        if place and place[0] in TEXTS:
            return node.value
        return self._loader.construct_object(node)

    def _read_mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                raise _wrong(f"a key must be a text (line {line})")
            if key.value in found:
                raise _wrong(f"key {key.value!r} is there twice (line {line})")
            here = (*place, key.value)
            self.lines[here] = line
            found[key.value] = self._read(value, here)
        return found


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


def _wrong(complaint: str) -> RefusedError:
    return RefusedError(invalid([complaint]))
