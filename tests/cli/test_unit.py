"""The unit with which systemd runs the server."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torpor.cli.app import app
from torpor.cli.unit import own_program, unit

SETTINGS = {
    "Type": "notify",
    "KillMode": "process",
    "Delegate": "yes",
    "OOMPolicy": "continue",
    "Restart": "on-failure",
    "TasksMax": "infinity",
}
BREAKING = (
    "PrivateTmp", "PrivateDevices", "PrivateUsers", "PrivateNetwork", "ProtectControlGroups",
    "ProtectProc", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectClock", "ProtectHostname",
    "RestrictNamespaces", "RestrictSUIDSGID", "MemoryDenyWriteExecute", "SystemCallFilter",
    "MemoryMax", "MemoryHigh", "CPUQuota", "DevicePolicy", "WatchdogSec", "DynamicUser", "Slice",
)  # fmt: skip
"""What would keep machines from being jailed or started, end them with the server, or limit them
all together."""


def keys(text: str) -> dict[str, str]:
    lines = (line for line in text.splitlines() if line and line[0] not in "#[")
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("root", [True, False])
def test_it_ends_the_server_alone_and_leaves_machines_what_they_need(root: bool) -> None:
    text = unit(root=root, program=["/opt/torpor"], config=None, environ={})
    found = keys(text)
    assert SETTINGS.items() <= found.items()
    assert found["ExecStart"] == "/opt/torpor serve"
    assert not set(BREAKING) & set(found)
    assert "Environment" not in found
    assert "@" not in text


def test_state_is_where_root_has_it_and_a_user_s_unit_says_nothing_of_it() -> None:
    found = keys(unit(root=True, program=["t"], config=None, environ={}))
    assert (found["StateDirectory"], found["CacheDirectory"]) == ("torpor", "torpor")
    assert found["WantedBy"] == "multi-user.target"
    user = keys(unit(root=False, program=["t"], config=None, environ={}))
    assert "StateDirectory" not in user
    assert user["WantedBy"] == "default.target"


def test_what_the_environment_says_of_places_is_written_into_it() -> None:
    text = unit(
        root=True,
        program=["/with blank/torpor"],
        config=Path("/etc/own.toml"),
        environ={"TORPOR_HOME": "/srv/100% mine", "TORPOR_TOKEN": "secret", "TORPOR_CACHE": ""},
    )
    assert 'Environment="TORPOR_HOME=/srv/100%% mine"\n' in text
    assert "Environment=TORPOR_CONFIG=/etc/own.toml\n" in text
    assert 'ExecStart="/with blank/torpor" serve\n' in text
    assert "secret" not in text
    assert "TORPOR_CACHE" not in text


def test_it_is_printed_and_nothing_is_started(tmp_path: Path) -> None:
    said = CliRunner(env={"TORPOR_HOME": str(tmp_path)}).invoke(app, ["serve", "--print-unit"])
    assert said.exit_code == 0
    assert said.stdout.startswith("# Torpor as a service")
    assert list(tmp_path.iterdir()) == []


def test_settings_on_the_command_line_are_refused_with_it() -> None:
    said = CliRunner().invoke(app, ["serve", "--print-unit", "--listen", "127.0.0.1:1"])
    assert said.exit_code == 2
    assert "--listen" in said.stderr


def test_the_program_is_found_again(tmp_path: Path) -> None:
    program = tmp_path / "torpor"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert own_program(str(program)) == [str(program)]
    assert own_program("/nowhere/pytest")[0] == sys.executable


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
@pytest.mark.parametrize("root", [True, False])
def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path, root: bool) -> None:
    file = tmp_path / "torpor-under-test.service"
    file.write_text(unit(root=root, program=["/bin/true"], config=None, environ={}))
    said = subprocess.run(
        ["systemd-analyze", *([] if root else ["--user"]), "verify", "--man=no", str(file)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    ours = re.findall(r".*torpor.*", said.stdout + said.stderr)
    assert ours == []
    assert root is False or said.returncode == 0, said.stderr
