"""Real machines for tests: a host for each test, golden snapshots shared through the cache."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from torpor.images import Image, Maker, Recipe, debian_image, golden, maker, silent
from torpor.settings import default_places
from torpor.vm import SIZES, Host, Identity, Machine
from torpor.vm.cgroups import find_groups

SIZE = "mars-2vcpu-1gb"


@dataclass(frozen=True)
class Start:
    """What the machines of tests start from."""

    maker: Maker
    image: Image
    golden: str


@pytest.fixture(scope="session")
def start() -> Start:
    """The default image and its golden snapshot, built on first use."""

    async def build() -> Start:
        made = await maker(default_places().cache, silent)
        image = await debian_image(made.cache, Recipe(), silent)
        return Start(made, image, await golden(made, image, SIZES[SIZE], silent))

    return asyncio.run(build())


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty directory on a real disk, for what does not fit into a tmpfs."""
    directory = Path(tempfile.mkdtemp(prefix="torpor-test-", dir="/var/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


async def open_host(start: Start, home: Path) -> Host:
    """Open a host that thaws from the golden snapshots."""
    return await start.maker.open_host(home)


@pytest.fixture
async def host(start: Start, home: Path) -> AsyncIterator[Host]:
    """An empty host; its machines are ended afterwards."""
    opened = await open_host(start, home)
    yield opened
    for machine in list(opened.machines.values()):
        await opened.end(machine)
    await opened.close()
    assert opened.processes() == []
    assert find_groups(opened._site.name) == {}


@pytest.fixture
async def machine(start: Start, host: Host) -> Machine:
    """A machine that was just created."""
    return await host.thaw(start.golden, Identity.of("test"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 GiB; two thirds are for what a home copies from a cache elsewhere."""
    image, place = tmp_path / "disk", tmp_path / "mounted"
    with image.open("wb") as opened:
        opened.truncate(1 << 30)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    place.mkdir()
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)
