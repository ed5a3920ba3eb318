"""The figures of policies are measured, in full and without a machine."""

from typing import Any, cast

from torpor.lab.bench import NETWORK_FIGURES, NETWORK_GROUPS
from torpor.lab.benches import policy
from torpor.lab.figures import Notebook
from torpor.network.policy import parse


async def test_every_figure_of_policies_is_measured() -> None:
    book = Notebook("policy", policy.FIGURES, lambda _: None)
    await policy.measure(cast(Any, None), 2, book)
    rows = book.rows()
    assert [row.figure for row in rows] == list(policy.FIGURES)
    assert {row.runs for row in rows} == {2}
    assert set(policy.FIGURES) <= set(NETWORK_FIGURES)
    assert policy.GROUP in NETWORK_GROUPS


def test_the_rules_are_as_many_as_are_said() -> None:
    assert len(parse(policy.rules(policy.RULES)).allow) == policy.RULES
