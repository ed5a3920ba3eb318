"""Which file systems may not answer, from the lines by which the kernel tells of them."""

from pathlib import Path

import pytest

from torpor.guest import mounts
from torpor.guest.mounts import Mounts

MACHINE = """\
22 25 0:20 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
24 25 0:5 / /dev rw,nosuid,relatime - devtmpfs dev rw,size=492236k,mode=755
25 1 254:0 / / rw,relatime - ext4 /dev/vda rw
26 25 0:22 / /run rw,nosuid,nodev,relatime shared:5 - tmpfs run rw,mode=755,inode64
27 26 254:16 / /run/torpor/tools ro,relatime - ext4 /dev/vdb ro
31 26 0:25 /.. /run/torpor/cgroup rw,nosuid,nodev - cgroup2 cgroup rw,favordynmods
"""


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a machine has; returns its file of mounts."""
    devices = tmp_path / "block"
    devices.mkdir()
    for number, place in {
        "254:0": "platform/LNRO0005:00/virtio0/block/vda",
        "254:16": "platform/LNRO0005:01/virtio1/block/vdb",
        "7:0": "virtual/block/loop0",
        "253:0": "virtual/block/dm-0",
    }.items():
        (tmp_path / "devices" / place).mkdir(parents=True)
        (devices / number).symlink_to(tmp_path / "devices" / place)
    monkeypatch.setattr(mounts, "BLOCK_DEVICES", str(devices))
    file = tmp_path / "mountinfo"
    file.write_text(MACHINE)
    monkeypatch.setattr(mounts, "MOUNTINFO", str(file))
    return file


def may_hang() -> bool:
    found = Mounts()
    try:
        return found.may_hang
    finally:
        found.close()


def test_what_a_machine_has_always_answers() -> None:
    assert not may_hang()


@pytest.mark.parametrize(
    "line",
    [
        "40 25 0:40 / /far rw,relatime - fuse.sshfs there:/ rw,user_id=0",
        "40 25 0:40 / /far rw,relatime - fuse silent rw",
        "40 25 0:40 / /far rw,relatime shared:7 master:1 - nfs4 there:/srv rw,vers=4.2",
        "40 25 0:40 / /far rw,relatime - cifs //there/srv rw",
        "40 25 0:40 / /far rw,relatime - 9p share rw",
        "40 25 0:40 / /far rw,relatime - autofs systemd-1 rw,fd=29",
        "40 25 0:40 / /far rw,relatime - overlay overlay rw,lowerdir=/far/a",
        "40 25 7:0 / /in\\040a\\040file rw,relatime - ext4 /dev/loop0 rw",
        "40 25 253:0 / /far rw,relatime - xfs /dev/mapper/one rw",
        "40 25 8:1 / /gone rw,relatime - ext4 /dev/sda1 rw",
        "40 25 0:40 / /far rw,relatime - something-new there rw",
    ],
)
def test_what_somebody_serves_may_not(machine: Path, line: str) -> None:
    machine.write_text(MACHINE + line + "\n")
    assert may_hang()


def test_a_table_of_any_size_is_read_to_its_end(machine: Path) -> None:
    many = "".join(f"{n} 26 0:22 /{n} /run/{n} rw - tmpfs run rw\n" for n in range(100, 5000))
    machine.write_text(MACHINE + many)
    assert not may_hang()
    machine.write_text(MACHINE + many + "40 25 0:40 / /far rw - fuse silent rw\n")
    assert may_hang()
