"""A home keeps what its snapshots need, whatever happens to the cache of golden snapshots."""

import shutil
from pathlib import Path

import pytest

from tests.machine.conftest import Start
from torpor.vm import Host, Identity, Store, Wanted

pytestmark = pytest.mark.machine


@pytest.mark.parametrize("cache_is_elsewhere", [False, True])
async def test_snapshots_survive_a_cleared_cache(
    start: Start, home: Path, cache_is_elsewhere: bool
) -> None:
    golden = home / "golden"
    shutil.copytree(start.maker.home, golden, copy_function=_link)
    made = start.maker
    place = home / "home" if not cache_is_elsewhere else Path("/dev/shm") / home.name
    host = await Host.open(
        place, made.accelerator, made.jail, golden=Store(golden), links=made.links(0)
    )
    try:
        machine = await host.thaw(start.golden, Identity.of("kept"))
        await machine.agent.shell("echo kept > /root/file")
        frozen = await host.freeze(machine, Wanted("stop"))
        await host.durable(frozen.manifest.id)
        shutil.rmtree(golden)
        thawed = await host.thaw(frozen.manifest.id)
        assert await thawed.agent.read_file("/root/file") == b"kept\n"
        await host.end(thawed)
        await host.remove(frozen.manifest.id)
        assert list((place / "layers").iterdir()) == []
        assert list((place / "bases").iterdir()) == []
    finally:
        await host.close()
        shutil.rmtree(place, ignore_errors=True)


def _link(source: str, target: str) -> None:
    Path(target).hardlink_to(source)
