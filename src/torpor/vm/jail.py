"""The jail around QEMU: an unprivileged user, namespaces of its own, only its files, QEMU's
sandbox.

A guest that breaks out of QEMU finds itself as nobody in particular, with no network, no other
processes, no files but the system's programs, no capabilities and a system call filter. What a
machine works on (memory, disks, sockets) reaches QEMU as open descriptors, so none of it has a path
inside.
"""

import asyncio
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torpor.vm.accelerator import QEMU
from torpor.vm.processes import find_by_prefix

FIRST_UID = 0x7000_0000
"""The first of the user ids for machines: above those that systemd gives to containers
(524288 to 1879048191, ``UIDS-GIDS.md``)."""
UIDS = 1 << 16
PROGRAMS = ("setpriv", "bwrap", QEMU)
"""What a machine's process is, one after the other, on its way into the jail."""
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


@dataclass(frozen=True)
class Jail:
    """Which parts of the jail this host allows; each missing one has its reason in ``missing``."""

    own_user: bool
    namespaces: bool
    seccomp: bool
    missing: tuple[str, ...]

    def wrap(self, qemu: list[str], *, uid: int, info_fd: int, kvm: bool) -> list[str]:
        """Return the command line that runs ``qemu`` in the jail.

        ``uid`` is a machine's own user id, used when we are root; bubblewrap writes the process id
        of QEMU as JSON to ``info_fd``.
        """
        command: list[str] = []
        if self.own_user:
            groups = [f"--groups={Path('/dev/kvm').stat().st_gid}"] if kvm else ["--clear-groups"]
            command += [
                "setpriv",
                f"--reuid={uid}",
                f"--regid={uid}",
                *groups,
                "--no-new-privs",
                "--",
            ]
        if self.namespaces:
            command += _bubblewrap(info_fd, kvm)
        if self.seccomp:
            qemu = [*qemu, "-sandbox", SANDBOX]
        return command + qemu


def _bubblewrap(info_fd: int, kvm: bool) -> list[str]:
    # No --die-with-parent: machines outlive the program that started them.
    # fmt: off
    arguments = [
        "bwrap", "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net",
        "--unshare-uts", "--unshare-cgroup-try", "--as-pid-1", "--new-session", "--clearenv",
        "--hostname", "machine", "--cap-drop", "ALL", "--info-fd", str(info_fd),
        "--ro-bind", "/usr", "/usr", "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache",
    ]
    # fmt: on
    for name in ("bin", "lib", "lib32", "lib64", "libx32", "sbin"):
        path = Path("/") / name
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            arguments += ["--ro-bind", str(path), str(path)]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    if kvm:
        arguments += ["--dev-bind", "/dev/kvm", "/dev/kvm"]
    return [*arguments, "--chdir", "/", "--"]


def pick_uid(taken: Iterable[int]) -> int:
    """Return a machine user id that is not among ``taken``."""
    used = set(taken)
    return next(uid for uid in range(FIRST_UID, FIRST_UID + UIDS) if uid not in used)


async def end_all(name: str) -> bool:
    """End every process of machines whose name begins with ``name``; say whether there was one.

    Again and again until none is found: one that is still on its way into the jail becomes another
    program on the way.
    """
    ended = False
    while found := find_by_prefix(name, PROGRAMS):
        ended = True
        for process in found:
            process.kill()
        await asyncio.sleep(0.01)
    return ended


async def detect() -> Jail:
    """Find out which parts of the jail this host allows, by trying them."""
    missing = []
    own_user = os.geteuid() == 0 and shutil.which("setpriv") is not None
    if not own_user and os.geteuid() == 0:
        missing.append("a user of its own: the program setpriv (package util-linux) is missing")
    if os.geteuid() != 0:
        missing.append("a user of its own: only root can give one; QEMU runs as you")
    trial = Jail(own_user, namespaces=True, seccomp=False, missing=())
    reader, writer = os.pipe()
    try:
        command = trial.wrap(["true"], uid=FIRST_UID, info_fd=writer, kvm=False)
        why = await _try(command, writer)
    finally:
        os.close(reader)
        os.close(writer)
    if why:
        missing.append(f"namespaces: {why}")
    seccomp = False
    if shutil.which(QEMU) is None:
        missing.append(f"QEMU's sandbox: the program {QEMU} (package qemu-system-x86) is missing")
    else:
        help_text = await _output(QEMU, "-sandbox", "help")
        seccomp = "not enabled" not in help_text and "no option" not in help_text.lower()
        if not seccomp:
            missing.append("QEMU's sandbox: this QEMU was built without seccomp")
    return Jail(own_user, not why, seccomp, tuple(missing))


async def _try(command: list[str], fd: int) -> str:
    if shutil.which("bwrap") is None:
        return "the program bwrap (package bubblewrap) is missing"
    process = await asyncio.create_subprocess_exec(
        *command,
        pass_fds=(fd,),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await process.communicate()
    if process.returncode == 0:
        return ""
    lines = error.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"bwrap ended with status {process.returncode}"


async def _output(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return output.decode("utf-8", "replace")
