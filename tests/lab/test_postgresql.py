"""A PostgreSQL server of one's own is there while it is needed, and leaves nothing."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from torpor.lab import bench as benches
from torpor.lab import postgresql
from torpor.lab.bench import SERVICE_GROUPS
from torpor.lab.benches import service_databases
from torpor.lab.postgresql import PostgresqlError, programs, running


def asked(directory: Path, sql: str) -> str:
    psql = ["psql", "-h", directory, "-U", postgresql.USER, "-d", "postgres", "-Atc", sql]
    return subprocess.run(psql, check=True, capture_output=True, text=True).stdout.strip()


def test_it_runs_as_it_is_told_and_leaves_nothing() -> None:
    with running({"work_mem": "5MB"}) as directory:
        assert asked(directory, "SHOW work_mem") == "5MB"
        assert asked(directory, "SHOW fsync") == "on"
        assert asked(directory, "SHOW listen_addresses") == ""
        assert directory.stat().st_mode & 0o077 == 0, "who may enter it may do everything"
        pid = int((directory / "data" / "postmaster.pid").read_text().split()[0])
    assert not directory.exists()
    assert not Path(f"/proc/{pid}").exists()


def test_what_it_refuses_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], tempfile.mkdtemp

    def making(**how: Any) -> str:
        made.append(real(**how))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", making)
    with pytest.raises(PostgresqlError, match="nonsense"), running({"work_mem": "nonsense"}):
        pass
    assert [Path(each).exists() for each in made] == [False]


def test_the_newest_version_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql, "INSTALLED", tmp_path)
    for name in ("9", "13", "17", "18", "common"):
        (tmp_path / name / "bin").mkdir(parents=True)
        if name != "18":  # its client alone
            (tmp_path / name / "bin" / "initdb").touch()
    assert programs() == tmp_path / "17" / "bin"


async def test_without_it_a_bench_says_so_before_it_measures_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_more(_: Any) -> Any:
        raise AssertionError("it goes on")

    monkeypatch.setattr(postgresql, "INSTALLED", tmp_path)
    monkeypatch.setattr(benches, "host_facts", nothing_more)
    laboratory: Any = None
    with pytest.raises(PostgresqlError, match="Install Debian's package postgresql"):
        await benches.bench(laboratory, 1, nothing_more, groups=SERVICE_GROUPS)
    others = [each.name for each in SERVICE_GROUPS[0].figures]
    with pytest.raises(AssertionError, match="it goes on"):
        await benches.bench(laboratory, 1, nothing_more, others, SERVICE_GROUPS)
    assert service_databases.GROUP in SERVICE_GROUPS
