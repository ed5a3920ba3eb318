"""Who is started on a wire as QEMU is, by root or by an ordinary user, has no rights there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.network.link.conftest import DROP, builders, with_tun

JAILED = """
import asyncio
from pathlib import Path
from torpor.network.link import build
from torpor.vm.jail import FIRST_UID, Jail, qemu_files
{drop}
cat = Path(shutil.which("cat"))
async def main():
    link = build()
    root = os.geteuid() == 0
    jail = Jail(root, True, False, (), (*await qemu_files(), cat))
    read, info = os.pipe()
    for wire in (link.wire, None):
        line = jail.wrap(
            [str(cat), "/proc/self/status", "/proc/self/net/dev", "/proc/self/uid_map"],
            uid=FIRST_UID, info_fd=info, kvm=False, wire=wire,
        )
        process = await asyncio.create_subprocess_exec(*line, pass_fds=(info,))
        assert await process.wait() == 0
        print("---", flush=True)
    link.close()
asyncio.run(main())
"""


@pytest.mark.parametrize("user", builders())
def test_it_sees_the_wire_alone_and_holds_no_right(user: str, tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    drop = DROP if user == "ordinary" and os.geteuid() == 0 else "import os, shutil"
    command = [sys.executable, "-c", JAILED.format(drop=drop)]
    ran = subprocess.run(
        with_tun(tmp_path, *command) if drop == DROP else command,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    on_the_wire, alone, _ = ran.stdout.split("---\n")
    for said, cards in ((on_the_wire, {"lo", "machine"}), (alone, {"lo"})):
        lines = said.splitlines()
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            (found,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
            assert int(found, 16) == 0, name
        seen = {
            line.split(":")[0].strip() for line in lines if line.count(" ") > 15 and ":" in line
        }
        assert seen & {"lo", "machine", "eth0"} == cards
