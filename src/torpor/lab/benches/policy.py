"""What a policy costs: a decision under 2,000 rules, beside one under a single rule."""

import time
from collections.abc import Callable
from ipaddress import IPv4Address

from torpor.lab.benches.group import Group
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.network.judge import PolicyJudge, judge
from torpor.network.policy import parse
from torpor.network.verdicts import Destination

RULES = 2000
DECISIONS = 2000
"""For one sample: a single decision is too short for a clock."""

FIGURES = (
    Figure(
        "policy_decision",
        "s",
        f"a connection is judged by {RULES} rules, half of them wildcards: once before anything is"
        " said, once with the name that its TLS says, once with the address to dial",
    ),
    Figure("policy_name", "s", f"a name is judged by {RULES} rules"),
    Figure("policy_denied", "s", f"the same, for a name that none of the {RULES} is about"),
    Figure("policy_rules_ratio", "x", f"judging by {RULES} rules, in times of judging by one"),
    Figure("policy_parse", "s", f"a policy of {RULES} rules is read and made ready"),
)


def rules(count: int) -> list[str]:
    """Return so many rules: hosts, wildcards, and a few ports and ranges."""
    kinds = ("h{0}.d{1}.example", "*.w{0}.example", "h{0}.example:5432", "*.w{0}.example:8443")
    made = [kinds[number % 4].format(number, number % 50) for number in range(count - 1)]
    return [*made, "198.51.100.0/24:5432"][:count]


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Judge the same destinations by many rules and by one, in turns."""
    del lab  # no machine is needed
    own = frozenset((IPv4Address("192.0.2.1"),))
    few = judge(parse(["*.w1001.example"]), own=lambda: own)
    many = judge(parse(rules(RULES)), own=lambda: own)
    for _ in book.runs(runs):
        book.note("policy_decision", by_many := _seconds(lambda: _connection(many)))
        book.note("policy_rules_ratio", by_many / _seconds(lambda: _connection(few)))
        book.note("policy_name", _seconds(lambda: many.name("a.b.w1001.example")))
        book.note("policy_denied", _seconds(lambda: many.name("c2vjcmv0.a.b.evil.example")))
        began = time.perf_counter()
        judge(parse(rules(RULES)), own=lambda: own)
        book.note("policy_parse", time.perf_counter() - began)


_NAME = "a.b.w1001.example"
_TO = Destination(_NAME, IPv4Address("198.18.7.7"), 443)
_AT = IPv4Address("198.51.100.7")


def _connection(by: PolicyJudge) -> None:
    """Judge one connection as the wall does."""
    if not (
        by.destination(_TO).allowed
        and by.spoken(_TO, "tls", _NAME).allowed
        and by.dialled(_TO, _AT).allowed
    ):
        raise ValueError("what is measured is a connection that is allowed")


def _seconds(decide: Callable[[], object]) -> float:
    """Return the seconds that one decision takes."""
    began = time.perf_counter()
    for _ in range(DECISIONS):
        decide()
    return (time.perf_counter() - began) / DECISIONS


GROUP = Group("policy", FIGURES, measure)
