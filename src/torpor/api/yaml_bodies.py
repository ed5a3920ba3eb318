"""Bodies of requests in YAML, read as strictly as those in JSON.

A module of its own, which whoever gets a YAML body imports: most servers never get one.
"""

from typing import Any

import yaml

from torpor.api.bodies import DEEPEST, Document, Place, check_value, wrong
from torpor.api.errors import refused

YAML_LIMIT = 64 << 10
"""Bytes of a YAML body. Its reader is slow, and all that this server takes fits into that."""
TEXTS = frozenset({("env",), ("labels",)})
"""Keys below which a YAML scalar is the text that is written: `8080`, `yes` and `1.10` are what
somebody wrote, not a number or a truth."""
OLDER = "apiVersion"
TEXTS_OF_OLDER = frozenset({("spec", "env"), ("metadata", "labels")})
"""The same in the format of manifests that begins with ``apiVersion``."""


def read_yaml(data: bytes, limit: int = YAML_LIMIT) -> Document:
    """Return what YAML says: one document, no key twice, no aliases, no tags. Raises
    :exc:`RefusedError`, also for more than ``limit`` bytes."""
    if len(data) > limit:
        raise refused(413, "body_too_large", f"YAML may have at most {limit} bytes here.")
    try:
        text = data.decode()
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            _check_event(event)
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise wrong(f"the body is nested more than {DEEPEST} deep")
        reader = _YamlReader(text)
        check_value(reader.value)
        return Document(reader.value, reader.lines)
    except UnicodeDecodeError:
        raise wrong("the body is not UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1})" if mark else ""
        raise wrong(f"the body is not YAML: {error.problem or error}{where}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none
        raise wrong(f"the body is not YAML: {error}") from None


def _check_event(event: yaml.Event) -> None:
    line = event.start_mark.line + 1 if event.start_mark else 0
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
        raise wrong(f"anchors and aliases are not read (line {line})")
    if getattr(event, "tag", None):
        raise wrong(f"tags are not read (line {line})")


class _YamlReader:
    """Reads one document, and notes the line of each key."""

    def __init__(self, text: str) -> None:
        self.lines: dict[Place, int] = {}
        self._loader = yaml.SafeLoader(text)
        try:
            node = self._loader.get_single_node()
            self._texts = TEXTS_OF_OLDER if _is_older(node) else TEXTS
            self.value = None if node is None else self._read(node, ())
        finally:
            self._loader.dispose()

    def _read(self, node: yaml.Node, place: Place) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self._read_mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self._read(each, (*place, n)) for n, each in enumerate(node.value)]
        if place[:1] in self._texts or place[:2] in self._texts:
            return node.value
        return self._loader.construct_object(node)

    def _read_mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                raise wrong(f"a key must be a text (line {line})")
            if key.value in found:
                raise wrong(f"key {key.value!r} is there twice (line {line})")
            here = (*place, key.value)
            self.lines[here] = line
            found[key.value] = self._read(value, here)
        return found


def _is_older(node: yaml.Node | None) -> bool:
    return isinstance(node, yaml.MappingNode) and any(key.value == OLDER for key, _ in node.value)
