"""The jail around QEMU: an unprivileged user, namespaces of its own, only its files, limits, QEMU's
sandbox.

A guest that breaks out of QEMU finds itself as nobody in particular, with no network but the wire
of its machine's card (:mod:`torpor.vm.wire`), no other processes, no files but QEMU's own program
and libraries, no capabilities, a system call filter and limits on what it may take. What a machine
works on (memory, disks, sockets) reaches QEMU as open descriptors, so none of it has a path inside.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from torpor.vm.accelerator import QEMU
from torpor.vm.bubblewrap import LIBRARY_CACHE, directories, links, walls
from torpor.vm.cgroup_trees import CONTROLLERS, Tree, find_tree
from torpor.vm.errors import HostError
from torpor.vm.limits import Limits
from torpor.vm.processes import find_by_prefix
from torpor.vm.seccomp import filter_file
from torpor.vm.wire import Wire

FIRST_UID = 0x7000_0000
"""The first of the user ids for machines: above those that systemd gives to containers
(524288 to 1879048191, ``UIDS-GIDS.md``)."""
UIDS = (1 << 16) - 1
PROGRAMS = ("nsenter", "prlimit", "setpriv", "sh", "bwrap", QEMU)
"""What a machine's process is, one after the other, on its way into the jail."""
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


@dataclass(frozen=True)
class Jail:
    """Which parts of the jail this host allows; each missing one has its reason in ``missing``."""

    own_user: bool
    namespaces: bool
    seccomp: bool
    missing: tuple[str, ...]
    seen: tuple[Path, ...] = (Path("/usr"),)
    """Files and directories of the host that are seen inside, where they are outside."""
    groups: Tree | None = None
    """Where machines get their control groups."""
    resource_limits: bool = False

    def wrap(
        self,
        qemu: list[str],
        *,
        uid: int,
        info_fd: int,
        kvm: bool,
        limits: Limits | None = None,
        gate: int | None = None,
        calls: int | None = None,
        wire: Wire | None = None,
    ) -> list[str]:
        """Return the command line that runs ``qemu`` in the jail.

        ``uid`` is a machine's own user id, used when we are root; bubblewrap writes the process id
        of QEMU as JSON to ``info_fd``. QEMU starts when there is something to read from ``gate``;
        ``calls`` is a descriptor of the filter of its system calls (:mod:`torpor.vm.seccomp`).
        With a ``wire`` QEMU runs in its network namespace, else in an empty one.
        """
        command: list[str] = []
        if gate is not None and not self.namespaces:
            # First, while it is still who made the pipe: it is opened by its name, because not
            # every shell reads from a descriptor of two digits. And to the end of a line.
            command += ["sh", "-c", f'read -r go </proc/self/fd/{gate} && exec "$@"', "sh"]
        if wire is not None:
            command += _entered(wire)
        if self.resource_limits and limits is not None:
            command += ["prlimit", *limits.resource_limits(own_user=self.own_user), "--"]
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
            command += _bubblewrap(self.seen, info_fd, kvm, gate, calls, wired=wire is not None)
        if self.seccomp:
            qemu = [*qemu, "-sandbox", SANDBOX]
        return command + qemu


def _entered(wire: Wire) -> list[str]:
    """Return the words that go before a command which is to run in a wire's network namespace.

    The namespaces are opened where we have them open, so that QEMU inherits neither. Root needs
    not become part of the user namespace, and does not. Anybody else must, and loses the rights
    that come with it when the next program begins, for not being root there (capabilities(7)).
    """
    ours = f"/proc/{os.getpid()}/fd"
    words = ["nsenter", f"--net={ours}/{wire.network}"]
    if os.geteuid() != 0:
        words += [f"--user={ours}/{wire.users}", "--preserve-credentials"]
    return [*words, "--"]


def _bubblewrap(
    seen: Iterable[Path],
    info_fd: int,
    kvm: bool,
    gate: int | None,
    calls: int | None,
    *,
    wired: bool,
) -> list[str]:
    # Machines outlive the program that started them.
    # fmt: off
    arguments = [
        "bwrap", *walls(network=wired, outlives=True), "--as-pid-1", "--disable-userns",
        "--hostname", "machine", "--info-fd", str(info_fd),
    ]
    # fmt: on
    if gate is not None:
        arguments += ["--block-fd", str(gate)]
    if calls is not None:
        arguments += ["--seccomp", str(calls)]
    arguments += links()
    for path in seen:
        arguments += ["--ro-bind", str(path), str(path)]
    arguments += [*LIBRARY_CACHE, "--proc", "/proc"]
    for device in ("/dev/null", "/dev/urandom", *(["/dev/kvm"] if kvm else [])):
        arguments += ["--dev-bind", device, device]
    # Neither files of its own making, nor settings of the kernel and of its own process.
    arguments += ["--remount-ro", "/proc", "--remount-ro", "/"]
    return [*arguments, "--chdir", "/", "--"]


def pick_uid(taken: Iterable[int], home: str) -> int:
    """Return a machine user id that is not among ``taken``.

    Each ``home`` (:func:`torpor.vm.home.home_id`) begins elsewhere: two that start machines at the
    same moment are not to give theirs the same.
    """
    used = set(taken)
    begin = int(home[:8], 16)
    return next(uid for at in range(UIDS) if (uid := FIRST_UID + (begin + at) % UIDS) not in used)


END_LIMIT = 30.0
"""Seconds that processes which are killed may take to go."""


async def end_all(name: str) -> bool:
    """End every process of machines whose name begins with ``name``; say whether there was one.

    Again and again until none is found: one that is still on its way into the jail becomes another
    program on the way. Raises :exc:`HostError` if one does not go, and OSError.
    """
    ended = False
    deadline = time.monotonic() + END_LIMIT
    while found := find_by_prefix(name, PROGRAMS):
        ended = True
        if time.monotonic() > deadline:
            raise HostError(
                f"Processes of machines do not end: {', '.join(str(each.pid) for each in found)}.",
                state="They have been killed, and go as soon as the host's kernel lets them.",
            )
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
    seen = await qemu_files()
    trial = Jail(own_user, namespaces=True, seccomp=False, missing=(), seen=seen)
    why = await _try(trial)
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
        if Path("/usr") in seen:
            missing.append("only its files: QEMU's libraries cannot be listed; it sees all of /usr")
    resource_limits = shutil.which("prlimit") is not None
    if not resource_limits:
        missing.append("resource limits: the program prlimit (package util-linux) is missing")
    tree = await asyncio.to_thread(find_tree, root=os.geteuid() == 0)
    if isinstance(tree, str):
        missing += [f"limit of {name}: {tree}" for name in CONTROLLERS]
    else:
        lacking = "the host's control groups lack this controller"
        missing += [f"limit of {name}: {lacking}" for name in tree.lacking]
    groups = None if isinstance(tree, str) else tree
    return Jail(own_user, not why, seccomp, tuple(missing), seen, groups, resource_limits)


async def qemu_files() -> tuple[Path, ...]:
    """Return what QEMU needs to see of the host: its program, its libraries and its firmware.

    Libraries come with the directory that the distribution has them in: it holds no programs that
    run others, and binding each of some fifty files takes 13 ms more. If they cannot be found out,
    all of ``/usr``.
    """
    program = shutil.which(QEMU)
    if program is None or shutil.which("ldd") is None:
        return _whole()
    listed = await _output("ldd", program)
    libraries = [Path(word) for word in listed.split() if word.startswith("/")]
    if not libraries:
        return _whole()
    firmware = (Path(program).resolve().parent.parent / "share/qemu", Path("/usr/share/seabios"))
    places = [
        Path(program),
        *(file.parent if file.parent.name.endswith("-linux-gnu") else file for file in libraries),
        *(directory for directory in firmware if directory.is_dir()),
    ]
    # A link at the top (/lib to /usr/lib) is made inside as well.
    return tuple(dict.fromkeys(place.parent.resolve() / place.name for place in places))


def _whole() -> tuple[Path, ...]:
    return (Path("/usr"), *directories())


async def _try(trial: Jail) -> str:
    if shutil.which("bwrap") is None:
        return "the program bwrap (package bubblewrap) is missing"
    true = shutil.which("true") or "/bin/true"
    trial = replace(trial, seen=(*trial.seen, Path(true)))
    reader, writer = os.pipe()
    calls = filter_file()
    try:
        process = await asyncio.create_subprocess_exec(
            *trial.wrap([true], uid=FIRST_UID, info_fd=writer, kvm=False, calls=calls),
            pass_fds=(writer, calls),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, error = await process.communicate()
    finally:
        for fd in (reader, writer, calls):
            os.close(fd)
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
