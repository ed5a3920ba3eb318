"""The figures of the wall's traffic are measured, in full and without a machine."""

from typing import Any, cast

import pytest

from torpor.lab.bench import NETWORK_GROUPS
from torpor.lab.benches import network
from torpor.lab.figures import Notebook
from torpor.network.link import BuildError, build


def links() -> bool:
    """Say whether this host builds links, which the bench does too."""
    try:
        build().close()
    except BuildError:
        return False
    return True


@pytest.mark.skipif(not links(), reason="this host builds no links")
async def test_every_figure_of_the_walls_traffic_is_measured() -> None:
    book = Notebook("network", network.FIGURES, lambda _: None)
    await network.measure(cast(Any, None), 1, book)
    rows = {row.figure: row.samples for row in book.rows()}
    assert list(rows) == list(network.FIGURES)
    by_name = {figure.name: samples[0] for figure, samples in rows.items()}
    for what in ("stream", "streams"):
        ratio = by_name[f"network_{what}"] / by_name[f"network_{what}_direct"]
        assert by_name[f"network_{what}_ratio"] == ratio
    assert network.GROUP in NETWORK_GROUPS
