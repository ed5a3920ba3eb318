"""A base that is open for one user stays open, however many others come after it."""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from torpor.vm import bases
from torpor.vm.bases import OpenBases

SEALED, READ_ONLY = (7, 2, 0), (10, 0, 0)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = []
    for number in range(12):
        file = tmp_path / f"{number}.mem"
        file.write_bytes(bytes([number + 1]) * 65536)
        made.append(file)
    return made


@pytest.mark.parametrize("version", [SEALED, READ_ONLY])
async def test_many_at_once_have_each_their_own(
    files: list[Path], version: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bases, "KEEP_BYTES", 3 * 65536)
    monkeypatch.setattr(bases, "KEEP_OPEN", 3)
    opened = OpenBases(version)
    try:
        async with AsyncExitStack() as stack:
            waiting = (stack.enter_async_context(opened.opened(file.name, file)) for file in files)
            fds = await asyncio.gather(*waiting)
            found = [os.pread(fd, 1, 0)[0] for fd in fds]
            assert found == list(range(1, 13))
        before = len(list(Path("/proc/self/fd").iterdir()))
        async with opened.opened(files[0].name, files[0]) as fd:
            assert os.pread(fd, 1, 0) == b"\1"
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1
    finally:
        await opened.close()


async def test_one_that_is_missing_is_nobody_elses_error(files: list[Path], tmp_path: Path) -> None:
    opened = OpenBases(SEALED)

    async def use(file: Path) -> int:
        async with opened.opened(file.name, file) as fd:
            return os.pread(fd, 1, 0)[0]

    try:
        missing = tmp_path / "missing"
        results = await asyncio.gather(
            use(missing), use(files[1]), use(missing), use(files[2]), return_exceptions=True
        )
        assert [type(each) for each in results] == [FileNotFoundError, int, FileNotFoundError, int]
        files[0].rename(missing)
        assert await use(missing) == 1
    finally:
        await opened.close()
