"""What is allowed to be written, and may not be what was meant."""

from pathlib import Path
from typing import Final

from torpor.network.hostnames import is_below
from torpor.network.rules import Denial, Rule

SHARED: Final = frozenset(
    line
    for line in Path(__file__).with_name("shared_domains.txt").read_text("ascii").splitlines()
    if not line.startswith("#")
)
"""Domains below which anyone can have a name or a bucket."""


def cautions(mode: str, allow: tuple[Rule, ...], deny: tuple[Denial, ...]) -> tuple[str, ...]:
    """Return what a person should know of rules before they are used, a sentence each."""
    return (
        *(said for rule in allow for said in _of(rule)),
        *(
            f"deny {denial.written}: without a list of what is allowed this keeps programs from the"
            " name, and not from its addresses, which whoever controls the machine can dial"
            for denial in deny
            if mode == "open" and denial.name
        ),
    )


def _of(rule: Rule) -> tuple[str, ...]:
    said = []
    if rule.below and "." not in rule.name:
        said.append(
            f"{rule.written}: this is every name in .{rule.name}, and anyone can have one there"
        )
    elif rule.below and rule.name in SHARED:
        said.append(f"{rule.written}: anyone can have a name in {rule.name}")
    elif rule.below and any(is_below(each, rule.name) for each in SHARED):
        said.append(
            f"{rule.written}: a part of {rule.name} is given to anyone who asks for a name there"
        )
    if rule.opens is not None:
        said.append(
            f"{rule.written}: this opens a part of {rule.opens.network}, which is {rule.opens.what}"
        )
    elif rule.network is not None and rule.network.prefixlen < 8:
        said.append(f"{rule.written}: these are {rule.network.num_addresses:,} addresses")
    return tuple(said)
