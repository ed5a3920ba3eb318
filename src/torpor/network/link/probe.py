"""Whether this host can build links, found out by building one; and if not, why, and what to do."""

import asyncio
import errno
import os
from dataclasses import dataclass
from pathlib import Path

from torpor.network.link.link import BuildError, build

APPARMOR = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")


@dataclass(frozen=True)
class Probed:
    """``why`` says why no link can be built, and is empty if one can; ``todo`` is what to do, and
    ``package`` the distribution's package that is missing, if that is all."""

    why: str = ""
    todo: str = ""
    package: str = ""

    @property
    def works(self) -> bool:
        """Whether links can be built."""
        return not self.why


async def probe() -> Probed:
    """Build a link and take it away again. (Settings of the kernel say less: a namespace may be
    had and be of no use.)"""
    return await asyncio.to_thread(_probe)


def _probe() -> Probed:
    try:
        build().close()
    except BuildError as error:
        return explain(error, root=os.geteuid() == 0, apparmor=_apparmor_restricts())
    return Probed()


def _apparmor_restricts() -> bool:
    """Whether programs without a profile of AppArmor have no rights in namespaces of their own
    (Ubuntu 23.10 and later)."""
    try:
        return APPARMOR.read_text().strip() == "1"
    except OSError:
        return False


def explain(error: BuildError, *, root: bool, apparmor: bool) -> Probed:
    """Return what stands in the way, in words for whoever runs the host."""
    why = f"to {error.step} failed: {error.why}"
    refused = error.number in (errno.EPERM, errno.EACCES)
    if refused and apparmor and not root and error.why != "Permission denied":
        return Probed(
            f"AppArmor takes the rights from namespaces that users make ({why})",
            "Allow the Python that runs Torpor user namespaces, with a profile for AppArmor that"
            " has the rule `userns,`; or run Torpor as root.",
        )
    if error.step.startswith("load rules") and "libnftables" in error.why:
        return Probed(why, "Install nftables.", "nftables")
    return Probed(why, _todo(error, refused=refused))


def _todo(error: BuildError, *, refused: bool) -> str:
    if error.step.startswith("make a user"):
        if error.number == errno.ENOSPC:
            return (
                "Allow more namespaces: sysctl user.max_user_namespaces and"
                " user.max_net_namespaces; here or above a container one of them is at its end."
            )
        return (
            "Allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 where there is such a"
            " setting, or what a container that this runs in is allowed."
        )
    if error.step.startswith("make a tap"):
        if error.number in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            return (
                "Load the kernel's module tun (modprobe tun); a container must be given the device."
            )
        if refused:
            return (
                "Let users open /dev/net/tun (chmod 666, as udev does); it gives no rights by"
                " itself."
            )
    if error.step.startswith("load rules"):
        return "Load the kernel's modules: modprobe -a nf_tables nft_tproxy."
    return "Report this, with what it says."
