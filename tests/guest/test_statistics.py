"""Statistics of this host, read as a guest reads its own."""

import os
from pathlib import Path

import pytest

from torpor.guest import statistics as statistics_module
from torpor.guest.statistics import statistics
from torpor.vm.guest_statistics import GuestInterface, parse_statistics


def write_cgroup(directory: Path) -> None:
    for name, text in {
        "cpu.stat": "usage_usec 30\nuser_usec 10\nsystem_usec 20\nnr_periods 0\nthrottled_usec 5\n",
        "memory.current": "4096\n",
        "memory.peak": "8192\n",
        "memory.swap.current": "0\n",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 1\noom_kill 3\n",
    }.items():
        (directory / name).write_text(text)


def test_the_host_understands_what_the_guest_says(tmp_path: Path) -> None:
    write_cgroup(tmp_path)
    said = parse_statistics(statistics(tmp_path))
    assert said.cpu.count == os.cpu_count()
    assert (said.cpu.commands_user, said.cpu.commands_system) == (10e-6, 20e-6)
    assert said.cpu.commands_throttled == 5e-6
    assert said.cpu.idle > 0
    assert said.memory.total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < said.memory.available <= said.memory.total
    assert (said.memory.commands, said.memory.commands_peak) == (4096, 8192)
    assert said.memory.commands_oom_kills == 3
    space = os.statvfs("/")
    assert said.disk.size == space.f_blocks * space.f_frsize
    assert said.disk.used + said.disk.free <= said.disk.size
    assert "lo" in {each.name for each in said.network}
    assert said.processes > 1
    assert said.uptime > 0


def test_a_controller_that_is_not_there_leaves_its_numbers_out(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 30\nuser_usec 10\nsystem_usec 20\n")
    said = parse_statistics(statistics(tmp_path))
    assert said.cpu.commands_throttled is None
    assert said.memory.commands is None
    assert said.memory.commands_oom_kills is None


def test_only_so_many_interfaces_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cgroup(tmp_path)
    (tmp_path / "net").mkdir()
    for name in ("stat", "meminfo", "uptime", "diskstats"):
        (tmp_path / name).symlink_to(f"/proc/{name}")
    rows = "".join(f"veth{n}: {n} 2 0 0 0 0 0 0 3 4 0 0 0 0 0 0\n" for n in range(500))
    (tmp_path / "net/dev").write_text(f"Inter-| Receive\n face |bytes\n{rows}")
    monkeypatch.setattr(statistics_module, "PROC", tmp_path)
    said = parse_statistics(statistics(tmp_path))
    assert len(said.network) == statistics_module.MOST_INTERFACES
    assert said.network[7] == GuestInterface("veth7", 7, 2, 3, 4)
