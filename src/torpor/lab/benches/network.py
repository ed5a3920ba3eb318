"""What the wall costs what passes it: first bytes, one stream, many; beside the same without it."""

import asyncio
import json
import shutil
import statistics
import sys

from torpor.lab.benches import network_town
from torpor.lab.benches.group import Group
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory
from torpor.network.errors import NetworkError

LIMIT = 120.0
"""Seconds that one run may take; it takes 2."""

FIRST = {
    "plain": "eight bytes to a port that a rule names, and the first byte back",
    "http": "a request and its answer",
    "tls": "a handshake, through the relay, and the first byte back",
}
FIGURES = (
    *(
        figure
        for kind, what in FIRST.items()
        for figure in (
            Figure(f"network_{kind}_direct", "s", f"without the wall: a connection, {what}"),
            Figure(f"network_{kind}", "s", f"through the wall: a connection, {what}"),
            Figure(
                f"network_{kind}_adds", "s",
                f"what the wall adds to it: the median of {network_town.CONNECTIONS} in turns",
                signed=True,
            ),
        )
    ),
    Figure("network_stream_direct", "s", "without the wall: 256 MiB over one connection"),
    Figure("network_stream", "s", "through the wall: the same"),
    Figure("network_stream_ratio", "x", "the same, in times of what it takes without the wall"),
    Figure("network_streams_direct", "s", "without the wall: 200 connections of 1 MiB at once"),
    Figure("network_streams", "s", "through the wall: the same"),
    Figure("network_streams_ratio", "x", "the same, in times of what it takes without the wall"),
    Figure(
        "network_flood_ratio", "x",
        "eight bytes and the first one back through the wall while another machine begins"
        " connections as fast as it can, in times of what it takes when none does",
    ),
)  # fmt: skip


def check() -> None:
    """Raise :exc:`NetworkError` if this host lacks what the bench needs."""
    if shutil.which("ip") is None:
        raise NetworkError(
            "The traffic through the wall cannot be measured: `ip` is not installed.",
            todo="Install iproute2.",
        )


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Measure in namespaces of the bench's own; no machine is needed."""
    del lab
    for _ in book.runs(runs):
        samples = await _one_run()
        for kind in FIRST:
            direct, wall = (samples[f"{kind}_{way}"] for way in ("direct", "wall"))
            book.note(f"network_{kind}_direct", statistics.median(direct))
            book.note(f"network_{kind}", statistics.median(wall))
            adds = [through - without for through, without in zip(wall, direct, strict=True)]
            book.note(f"network_{kind}_adds", statistics.median(adds))
        for what in ("stream", "streams"):
            (direct_s,), (wall_s,) = samples[f"{what}_direct"], samples[f"{what}_wall"]
            book.note(f"network_{what}_direct", direct_s)
            book.note(f"network_{what}", wall_s)
            book.note(f"network_{what}_ratio", wall_s / direct_s)
        alone, flooded = (statistics.median(samples[each]) for each in ("alone", "flooded"))
        book.note("network_flood_ratio", flooded / alone)


async def _one_run() -> dict[str, list[float]]:
    """Have a process measure once: namespaces are a process's, and this one needs its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", network_town.__name__, "1",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LIMIT):
            said, complained = await process.communicate()
    except TimeoutError:
        raise NetworkError(f"The traffic was not measured within {LIMIT:g} s.") from None
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    samples = json.loads(said) if process.returncode == 0 else {}
    if not samples:
        last = complained.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise NetworkError(
            f"The traffic through the wall could not be measured: {' '.join(last)}.",
            todo="`torpor doctor` says whether this host can build links.",
        )
    return dict(samples)


GROUP = Group("network", FIGURES, measure, check)
