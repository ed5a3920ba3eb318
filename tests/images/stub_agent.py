"""Stands for the guest's agent in test_build.py: says what PID 1 prepared, then provokes it."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from pathlib import Path

PROVOCATIONS = ("SIGINT", "SIGHUP", "SIGQUIT", "SIGCHLD", "SIGALRM", "SIGKILL")


def main() -> None:
    if Path("/run/second").exists():
        print("STARTED AGAIN", flush=True)
        subprocess.run(["/run/torpor/tools/bin/busybox", "poweroff", "-f"], check=False)
        time.sleep(60)
    Path("/run/second").touch()
    print("FACTS", json.dumps(facts()), flush=True)
    sys.exit(3)


def facts() -> dict[str, object]:
    return {
        "cgroup": read("/proc/self/cgroup").rpartition(":")[2],
        "controllers": sorted(read("/run/torpor/cgroup/cgroup.subtree_control").split()),
        "user_cgroup_is_at_sys_fs_cgroup": Path("/sys/fs/cgroup/cgroup.freeze").samefile(
            "/run/torpor/cgroup/user/cgroup.freeze"
        ),
        "hostname": os.uname().nodename,
        "machine_id_digits": len(read("/etc/machine-id")),
        "loopback": "lo" in read("/proc/net/if_inet6"),
        "module_loaded_on_open": opens("/dev/net/tun"),
        "shared_memory": os.path.ismount("/dev/shm"),
        "stdin_link": Path("/dev/stdin").readlink() == pathlib.PurePath("/proc/self/fd/0"),
        "tmp_mode": oct(Path("/tmp").stat().st_mode & 0o7777),
        "run_mode": oct(Path("/run").stat().st_mode & 0o7777),
        "tools_writable": os.access("/run/torpor/tools/bin", os.W_OK),
        "unreaped_orphans": orphans_after_provocation(),
        "ignored_signals": ignored_by_children(),
    }


def orphans_after_provocation() -> int:
    for _ in range(5):
        subprocess.run(["/bin/sh", "-c", "(sleep 0.1 &)"], check=True)
    for name in PROVOCATIONS:
        os.kill(1, signal.Signals[name])
        time.sleep(0.1)
    time.sleep(2)
    zombies = 0
    for process in Path("/proc").glob("[0-9]*/status"):
        text = process.read_text()
        zombies += "State:\tZ" in text and "PPid:\t1\n" in text
    return zombies


def opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError:
        return False
    return True


def read(path: str) -> str:
    return Path(path).read_text().strip()


def ignored_by_children() -> list[int]:
    """The signals that a program started by the agent ignores."""
    status = subprocess.run(
        ["cat", "/proc/self/status"], check=True, capture_output=True, text=True
    )
    (mask,) = (line.split()[1] for line in status.stdout.splitlines() if line.startswith("SigIgn"))
    return [number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1]
