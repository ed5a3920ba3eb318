"""Presets: hosts that go together, by one word in a policy.

Each but ``packages`` is a file of data beside this one, which says what it is for and which rules
it stands for. ``packages`` has no list here: it is what an image's own package tools are set up to
use (:mod:`torpor.network.package_sources` reads that), so its hosts come from who knows the image.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from torpor.network.rules import Rule, read_rule

PACKAGES: Final = "packages"
_PLACE = Path(__file__).parent


@dataclass(frozen=True)
class Preset:
    """What a word in a policy stands for, and who should use it."""

    name: str
    meaning: str
    rules: tuple[Rule, ...]


@cache
def preset_names() -> tuple[str, ...]:
    """Return the presets that are data here."""
    return tuple(sorted(path.stem for path in _PLACE.glob("*.yaml")))


@cache
def preset(name: str) -> Preset:
    """Return one of :func:`preset_names`. Raises KeyError if it is none of them."""
    if name not in preset_names():
        raise KeyError(name)
    import yaml  # servers whose policies name no preset start without it

    said = yaml.safe_load((_PLACE / f"{name}.yaml").read_text("utf-8"))
    return Preset(name, said["meaning"], _rules(name, said["allow"]))


def package_rules(hosts: Iterable[str]) -> tuple[Rule, ...]:
    """Return what ``packages`` stands for in an image whose package tools use ``hosts`` (rules, as
    they are written). Raises :exc:`PolicyError`."""
    return _rules(PACKAGES, hosts)


def preset_rules(name: str, packages: Iterable[str]) -> tuple[Rule, ...]:
    """Return what any preset stands for, in an image whose package tools use ``packages``."""
    return package_rules(packages) if name == PACKAGES else preset(name).rules


def _rules(name: str, texts: Iterable[str]) -> tuple[Rule, ...]:
    rules = [read_rule(f"{name}[{number}]", text) for number, text in enumerate(texts)]
    return tuple(replace(rule, source=name) for rule in rules)
