import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from torpor.images.cpio import archive, character_device, directory, regular, symlink

ENTRIES = [
    regular("init", b"#!/bin/sh\n", 0o755),
    directory("bin"),
    regular("bin/odd length", b"12345"),
    symlink("bin/link", "odd length"),
    regular("empty", b""),
]


def test_same_entries_in_any_order_give_the_same_bytes() -> None:
    assert archive(ENTRIES) == archive(list(reversed(ENTRIES)))


def test_header_is_as_the_kernel_describes_it() -> None:
    data = archive([regular("a", b"xyz", 0o640)])
    assert data[:6] == b"070701"
    fields = [int(data[6 + 8 * i : 14 + 8 * i], 16) for i in range(13)]
    assert fields[1] == stat.S_IFREG | 0o640
    assert fields[2:4] == [0, 0]
    assert fields[5:7] == [0, 3]
    assert fields[11] == 2
    assert data[110:112] == b"a\0"
    assert data[112:116] == b"xyz\0"
    assert data[116:122] == b"070701"
    assert len(data) % 4 == 0


@pytest.mark.skipif(shutil.which("busybox") is None, reason="there is no other reader of cpio here")
def test_another_program_reads_it(tmp_path: Path) -> None:
    data = archive(ENTRIES)
    # busybox's cpio makes the devices that it finds only for root.
    subprocess.run(["busybox", "cpio", "-idm"], input=data, cwd=tmp_path, check=True)
    assert (tmp_path / "bin/odd length").read_bytes() == b"12345"
    assert (tmp_path / "bin/link").readlink() == Path("odd length")
    assert (tmp_path / "empty").read_bytes() == b""
    assert stat.S_IMODE((tmp_path / "init").stat().st_mode) == 0o755
    assert (tmp_path / "init").stat().st_mtime == 0


@pytest.mark.skipif(shutil.which("busybox") is None, reason="there is no other reader of cpio here")
def test_device_is_listed() -> None:
    data = archive([directory("dev"), character_device("dev/console", 5, 1)])
    listed = subprocess.run(["busybox", "cpio", "-tv"], input=data, check=True, capture_output=True)
    assert b"dev/console" in listed.stdout
