import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from torpor.images.errors import ImageError
from torpor.images.programs import run
from torpor.images.progress import Step, silent
from torpor.images.stages import Building, finished_stage

# Builds one stage of kind "slow" in the cache argv[1]; its program runs until it is ended.
SLOW_BUILDER = """
import asyncio, sys
from pathlib import Path
from torpor.images.programs import run
from torpor.images.stages import finished_stage

async def build(building):
    (building.path / "half").write_text("x")
    await run("sleep", "300", lock=building.lock)
    return {}

asyncio.run(finished_stage(Path(sys.argv[1]), "slow", "key", build, lambda step: None))
"""


async def quick(building: Building) -> Mapping[str, str]:
    (building.path / "content").write_text("whole")
    return {"digest": "d"}


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / ".building").iterdir())


async def test_stage_is_built_once(tmp_path: Path) -> None:
    first = await finished_stage(tmp_path, "kind", "key", quick, silent)

    async def never(building: Building) -> Mapping[str, str]:
        raise AssertionError("built twice")

    second = await finished_stage(tmp_path, "kind", "key", never, silent)
    assert first == second
    assert first.path == tmp_path / "kind/key"
    assert first.facts == {"digest": "d"}
    assert leftovers(tmp_path) == []


async def test_second_builder_waits_and_uses_the_firsts(tmp_path: Path) -> None:
    built = 0
    steps: list[Step] = []

    async def slow(building: Building) -> Mapping[str, str]:
        nonlocal built
        built += 1
        await asyncio.sleep(0.3)
        return await quick(building)

    stages = await asyncio.gather(
        *(finished_stage(tmp_path, "kind", "key", slow, steps.append) for _ in range(4))
    )
    assert built == 1
    assert len({stage.path for stage in stages}) == 1
    assert steps == [Step("waiting for another build of kind")] * 3
    assert leftovers(tmp_path) == []


async def test_failed_build_leaves_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    async def fails(building: Building) -> Mapping[str, str]:
        (building.path / "half").write_text("x")
        await run("sh", "-c", "echo the reason; exit 3", lock=building.lock)
        return {}

    with pytest.raises(ImageError, match=r"(?s)sh failed \(status 3\).*the reason"):
        await finished_stage(tmp_path, "kind", "key", fails, silent)
    assert not (tmp_path / "kind/key").exists()
    assert leftovers(tmp_path) == []
    await finished_stage(tmp_path, "kind", "key", quick, silent)


async def test_cancelled_build_ends_its_program_and_leaves_nothing(tmp_path: Path) -> None:
    async def sleeps(building: Building) -> Mapping[str, str]:
        await run("sh", "-c", f"echo $$ >{pid_file}; sleep 299", lock=building.lock)
        return {}

    pid_file = tmp_path / "pid"
    task = asyncio.create_task(finished_stage(tmp_path, "kind", "key", sleeps, silent))
    while not (pid_file.exists() and pid_file.read_text()):  # noqa: ASYNC110 - another process writes it
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path("/proc", pid_file.read_text().strip()).exists()
    assert not (tmp_path / "kind/key").exists()
    assert leftovers(tmp_path) == []


async def test_finished_inner_stage_survives_a_failure_of_the_outer(tmp_path: Path) -> None:
    fetched = 0

    async def fetch(building: Building) -> Mapping[str, str]:
        nonlocal fetched
        fetched += 1
        return await quick(building)

    async def outer(building: Building) -> Mapping[str, str]:
        await finished_stage(tmp_path, "inner", "key", fetch, silent)
        if fetched == 1 and not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            raise ImageError("interrupted", "", "")
        return {}

    with pytest.raises(ImageError):
        await finished_stage(tmp_path, "outer", "key", outer, silent)
    await finished_stage(tmp_path, "outer", "key", outer, silent)
    assert fetched == 1


async def test_killed_builder_leaves_nothing_visible_and_is_cleaned_up_after(
    tmp_path: Path,
) -> None:
    builder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SLOW_BUILDER, str(tmp_path)
    )
    try:
        until = time.monotonic() + 20
        while not list(tmp_path.glob(".building/slow-key.*/half")):
            assert time.monotonic() < until, "the builder did not start"
            await asyncio.sleep(0.05)
        assert not (tmp_path / "slow/key").exists()

        # While it lives, a build of another stage leaves its directory alone.
        await finished_stage(tmp_path, "other", "key", quick, silent)
        assert list(tmp_path.glob(".building/slow-key.*/half"))
    finally:
        builder.kill()
        await builder.wait()

    assert not (tmp_path / "slow/key").exists()
    # Its `sleep 300` ends with it, else this would wait for the lock.
    async with asyncio.timeout(10):
        stage = await finished_stage(tmp_path, "slow", "key", quick, silent)
    assert {path.name for path in stage.path.iterdir()} == {"content", "stage.json"}
    assert leftovers(tmp_path) == []


async def test_leftovers_of_any_dead_builder_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".building/gone-key.abc/deep").mkdir(parents=True)
    (tmp_path / ".building/gone-key.lock").touch()
    await finished_stage(tmp_path, "kind", "key", quick, silent)
    assert leftovers(tmp_path) == []


async def test_damaged_stage_is_named(tmp_path: Path) -> None:
    stage = await finished_stage(tmp_path, "kind", "key", quick, silent)
    (stage.path / "stage.json").write_text("{")
    with pytest.raises(ImageError, match=r"(?s)kind/key is damaged.*rm -r"):
        await finished_stage(tmp_path, "kind", "key", quick, silent)


async def test_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    async def full(building: Building) -> Mapping[str, str]:
        raise OSError(28, "No space left on device")

    async def program_finds_it_full(building: Building) -> Mapping[str, str]:
        said = "echo 'tar: x: Cannot write: No space left on device'; exit 2"
        await run("sh", "-c", said, lock=building.lock)
        return {}

    for build in (full, program_finds_it_full):
        with pytest.raises(ImageError, match="is full"):
            await finished_stage(tmp_path, "kind", "key", build, silent)
    assert leftovers(tmp_path) == []


async def test_missing_program_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def needs_mkfs(building: Building) -> Mapping[str, str]:
        monkeypatch.setattr("torpor.images.programs.SEARCH", str(tmp_path))
        await run("mkfs.ext4", lock=building.lock)
        return {}

    with pytest.raises(ImageError, match="apt-get install e2fsprogs"):
        await finished_stage(tmp_path, "kind", "key", needs_mkfs, silent)
