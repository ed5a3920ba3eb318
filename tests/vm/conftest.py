"""What several of these tests work on: a process that maps memory, a manifest and a record to
change."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.vm.real_snapshots import a_manifest
from torpor.vm.accelerator import Accelerator
from torpor.vm.disk import Layer
from torpor.vm.manifest import GuestVersions, MachineRecord, Manifest
from torpor.vm.pages import PAGE, find_mapping
from torpor.vm.pages import Mapping as MemoryMapping
from torpor.vm.processes import ProcessId, identify
from torpor.vm.shape import Shape

# Maps a file as QEMU maps guest memory, privately, and writes and reads pages of it when told to.
CHILD = """
import mmap, os, sys
memory = None
for line in sys.stdin:
    verb, *words = line.split()
    if verb == "map":
        if memory is not None:
            memory.close()
        fd = os.open(words[0], os.O_RDONLY)
        memory = mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
        os.close(fd)
    elif verb == "write":
        for word in words:
            page, value = map(int, word.split(":"))
            memory[page * 4096 : (page + 1) * 4096] = bytes([value]) * 4096
    elif verb == "look":
        for word in words:
            memory[int(word) * 4096]
    print("done", flush=True)
"""


class Child:
    """A process that maps a file privately. Its pages are written one value a page."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-SE", "-c", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def map(self, file: Path) -> MemoryMapping:
        """Map ``file`` anew, nothing written, and return where."""
        self._tell("map", file)
        status = file.stat()
        return find_mapping(self.process.pid, (status.st_dev, status.st_ino), status.st_size)

    def write(self, pages: Mapping[int, int]) -> None:
        """Fill pages, each with a value."""
        self._tell("write", *(f"{page}:{value}" for page, value in pages.items()))

    def look(self, *pages: int) -> None:
        """Read pages, which writes none."""
        self._tell("look", *pages)

    def memory(self, mapping: MemoryMapping) -> bytes:
        """All of the mapped memory, read another way than the code under test does."""
        fd = os.open(f"/proc/{self.process.pid}/mem", os.O_RDONLY)
        try:
            return os.pread(fd, mapping.end - mapping.start, mapping.start)
        finally:
            os.close(fd)

    def end(self) -> None:
        """Kill it, and leave nothing of it."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def children() -> Iterator[Callable[[], Child]]:
    """Starts processes that map memory."""
    started: list[Child] = []

    def start() -> Child:
        started.append(Child())
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.fixture(scope="module")
def child(children: Callable[[], Child]) -> Child:
    """One such process, for many examples one after another."""
    return children()


def fill(pages: Mapping[int, int], count: int) -> bytes:
    """Memory of ``count`` pages, all zeros but those in ``pages``."""
    return b"".join(bytes([pages.get(page, 0)]) * PAGE for page in range(count))


def make_sparse(file: Path, pages: Mapping[int, int], count: int) -> None:
    """A file of ``count`` pages; those in ``pages`` hold data, perhaps zeros, the rest are
    holes."""
    with open(file, "wb") as new:
        os.ftruncate(new.fileno(), count * PAGE)
        for page, value in pages.items():
            os.pwrite(new.fileno(), bytes([value]) * PAGE, page * PAGE)


@pytest.fixture(scope="session")
def sparse() -> Callable[[Path, Mapping[int, int], int], None]:
    """:func:`make_sparse`."""
    return make_sparse


@pytest.fixture(scope="session")
def filled() -> Callable[[Mapping[int, int], int], bytes]:
    """:func:`fill`."""
    return fill


@pytest.fixture
def some_manifest() -> Manifest:
    """A manifest with something in each field."""
    return a_manifest()


@pytest.fixture
def some_record() -> MachineRecord:
    """The record of a machine, with something in each field."""
    return MachineRecord(
        version=1,
        id="machine",
        name="torpor-1-machine",
        process=ProcessId(17, 4711),
        uid=0x7000_0000,
        shape=Shape(2, 64),
        accelerator=Accelerator("tcg", "because", (7, 2, 0), "qemu-max"),
        guest=GuestVersions("6.1", "digest"),
        base="base",
        memory_file=(3, 4),
        layers=(Layer("root", "raw", 1),),
        top=Layer("top", "qcow2", 1),
        tools=Layer("tools", "raw", 1),
        snapshot="snapshot",
        generation=2,
        guest_boot_id="boot",
    )


@pytest.fixture
def sleeper() -> Iterator[ProcessId]:
    """A process that stays."""
    with subprocess.Popen(["sleep", "600"]) as child:
        found = identify(child.pid)
        assert found is not None
        yield found
        child.kill()
