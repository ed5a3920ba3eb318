"""The place where proofs and benchmarks are made: a host of its own, gone afterwards."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from torpor.images import Image, Maker, Recipe, Report, debian_image, golden, maker
from torpor.settings import Places
from torpor.vm import SIZES, Host, Identity, Machine, Shape

SIZE = "mars-2vcpu-1gb"
"""The size that proofs and figures are made at, unless they say otherwise."""


@dataclass(frozen=True)
class Laboratory:
    """An open host with a golden snapshot to start from. ``raw`` is where samples are kept."""

    host: Host
    maker: Maker
    image: Image
    shape: Shape
    golden: str
    raw: Path | None = None

    async def machine(self, name: str = "lab") -> Machine:
        """Start a new machine from the golden snapshot."""
        return await self.host.thaw(self.golden, Identity.of(name))

    def keep(self, name: str, sample: bytes | str) -> None:
        """Keep a raw sample, if the user wants them kept."""
        if self.raw is not None:
            file = self.raw / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(sample.encode() if isinstance(sample, str) else sample)


@asynccontextmanager
async def laboratory(
    places: Places,
    report: Report,
    *,
    size: str = SIZE,
    raw: Path | None = None,
    clock: Callable[[], int] | None = None,
) -> AsyncIterator[Laboratory]:
    """Open a laboratory; whatever runs in it at the end is ended, and its directory removed.

    ``clock`` is the wall clock in nanoseconds that machines are given, the host's by default.
    Raises ImageError and :exc:`torpor.vm.VmError`.
    """
    made = await maker(places.cache, report)
    image = await debian_image(places.cache, Recipe(), report)
    start = await golden(made, image, SIZES[size], report)
    places.home.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="lab-", dir=places.home))
    try:
        host = await Host.open(
            home,
            made.accelerator,
            made.jail,
            golden=made.store(),
            clock=clock,
            kernels=made.kernels,
        )
        try:
            yield Laboratory(host, made, image, SIZES[size], start, raw)
        finally:
            machines = list(host.machines.values())
            await asyncio.gather(*(host.end(each) for each in machines), return_exceptions=True)
            await host.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)
