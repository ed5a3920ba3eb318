"""Why a host cannot build links, in words that help."""

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torpor.network.link import BuildError, probe
from torpor.network.link.probe import explain

MAKE = "make a user and a network namespace"
TAP = "make a tap with /dev/net/tun"
RULES = "load rules with nft's library"


@pytest.mark.parametrize(
    ("step", "number", "why", "apparmor", "todo"),
    [
        (MAKE, errno.ENOSPC, "No space left on device", False, "max_user_namespaces"),
        (MAKE, errno.EPERM, "Operation not permitted", False, "unprivileged_userns_clone"),
        (MAKE, errno.EPERM, "Operation not permitted", True, "AppArmor"),
        (TAP, errno.ENOENT, "No such file or directory", False, "modprobe tun"),
        (TAP, errno.EACCES, "Permission denied", False, "chmod 666"),
        (TAP, errno.EACCES, "Permission denied", True, "chmod 666"),
        (TAP, errno.EPERM, "Operation not permitted", True, "userns,"),
        (RULES, 0, "libnftables.so.1: cannot open shared object file", False, "Install nftables"),
        (RULES, 0, "Could not process rule: No such file or directory", False, "nft_tproxy"),
        ("bind sockets", errno.EADDRINUSE, "Address already in use", False, "Report this"),
    ],
)
def test_what_stands_in_the_way_is_told_with_what_to_do(
    step: str, number: int, why: str, apparmor: bool, todo: str
) -> None:
    found = explain(BuildError(step, number, why), root=False, apparmor=apparmor)
    assert not found.works
    assert why in found.why
    assert todo in found.todo
    assert (found.package == "nftables") is ("libnftables" in why)


def test_apparmor_is_not_blamed_for_what_root_may_not() -> None:
    error = BuildError(MAKE, errno.EPERM, "Operation not permitted")
    assert "AppArmor" not in explain(error, root=True, apparmor=True).todo


async def test_a_host_that_can_says_so() -> None:
    found = await probe()
    if not found.works:
        pytest.skip(f"this host cannot build links: {found.why}")
    assert (found.why, found.todo) == ("", "")


REFUSING = """
import asyncio
from torpor.network.link import probe
found = asyncio.run(probe())
print(found.why)
print(found.todo)
"""


@pytest.mark.parametrize(
    ("line", "todo"),
    [
        ("mount -t tmpfs none /dev/net", "modprobe tun"),
        ("echo 0 >/proc/sys/user/max_net_namespaces", "user.max_net_namespaces"),
    ],
)
def test_it_is_found_out_by_trying(line: str, todo: str, tmp_path: Path) -> None:
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], check=False).returncode
    ):
        pytest.skip("this host makes no user namespaces")
    whole = f'{line} && exec "$@"'
    ran = subprocess.run(
        [*unshare, "sh", "-c", whole, "sh", sys.executable, "-c", REFUSING],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert todo in ran.stdout.splitlines()[1]
