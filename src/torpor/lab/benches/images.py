"""The import of an OCI image, beside what the programs under it take alone."""

import asyncio
import contextlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from torpor.images import Asked, ImageError, import_image, silent
from torpor.images.authorities import Authorities
from torpor.images.export import export_image
from torpor.images.programs import run
from torpor.lab.benches.group import Group, Stopwatch
from torpor.lab.figures import Figure, Notebook
from torpor.lab.laboratory import Laboratory

MOST = 5
"""Runs of some seconds each; more would tell nothing new."""

FIGURES = (
    Figure(
        "image_unpack",
        "s",
        "`umoci unpack` of the default image (200 MiB) and `mkfs.ext4 -d` of what comes out, alone",
    ),
    Figure("image_import", "s", "the same image imported: checked, unpacked, made a root disk"),
)


async def measure(lab: Laboratory, runs: int, book: Notebook) -> None:
    """Import the default image as an OCI layout into an empty cache, and do it by hand.

    No run is to meet what another has left: ext4 without a journal passes over the inodes of files
    that were removed in the last minutes (``recently_deleted`` in Linux, fs/ext4/ialloc.c), which
    makes thousands of new files there cost up to three times as much.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", dir=lab.host.home) as name:
        place = Path(name)
        await _spread(place)
        layout = place / "layout"
        await export_image(lab.image, place / "image.tar", "oci", silent)
        with tarfile.open(place / "image.tar") as archive:
            archive.extractall(layout, filter="data")
        (place / "image.tar").unlink()
        for run_number in book.runs(min(runs, MOST)):
            by_hand = place / f"by-hand-{run_number}"
            book.note("image_unpack", await _by_hand(by_hand, layout, lab.image.name))
            book.note("image_import", await _imported(place / f"cache-{run_number}", layout))


async def _spread(place: Path) -> None:
    # Each directory in it is then given a part of the disk of its own, if this is ext4.
    with contextlib.suppress(ImageError):
        await run("chattr", "+T", str(place), lock=None)


async def _by_hand(work: Path, layout: Path, name: str) -> float:
    rootless = [] if os.geteuid() == 0 else ["--rootless"]
    work.mkdir()
    await _settled()
    clock = Stopwatch()
    await run(
        "umoci", "raw", "unpack", *rootless, "--image", f"{layout}:{name}", str(work / "tree"),
        lock=None,
    )  # fmt: skip
    await run(
        "mkfs.ext4", "-q", "-F", "-d", str(work / "tree"), str(work / "root.raw"), "8G", lock=None
    )
    seconds = clock.seconds()
    (work / "root.raw").unlink()  # the tree stays until all is measured
    return seconds


async def _imported(cache: Path, layout: Path) -> float:
    await _settled()
    clock = Stopwatch()
    await import_image(cache, str(layout), silent, Asked(authorities=Authorities()))
    seconds = clock.seconds()
    await asyncio.to_thread(shutil.rmtree, cache)
    return seconds


async def _settled() -> None:
    # What was written before is not to be waited for in what is measured next.
    await asyncio.to_thread(os.sync)


GROUP = Group("images", FIGURES, measure)
