"""What ``torpor doctor`` makes of the facts: for each thing its state, and what to do.

One small function for each finding; each takes only what it judges.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torpor.cli.facts import Facts, Kept, Kvm, Memory, Place, Program, System
from torpor.cli.server_facts import Server
from torpor.network.link import Probed
from torpor.vm import MIB, SIZES, Accelerator, Jail

GIB = 1 << 30
SIZE = "mars-2vcpu-1gb"
MEMORY_WANTED = 4 * GIB
DISK_WANTED = 5 * GIB
DISK_NEEDED = GIB
APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"


@dataclass(frozen=True)
class Finding:
    """One line: ``what`` it is about, in which ``group``, how it stands, and ``todo``, empty if
    nothing.

    ``warning``: slower, weaker or less safe than it could be. ``broken``: something does not work.
    """

    group: str
    what: str
    state: Literal["ok", "warning", "broken"]
    seen: str
    todo: str = ""


def diagnose(facts: Facts) -> list[Finding]:
    """Return all findings, in the order in which they are read."""
    return [
        system(facts.system),
        accelerator(facts.accelerator, facts.accelerator_problem, facts.kvm),
        *jail(facts.jail, facts.jail_problem, root=facts.root),
        namespaces(facts.sysctls, facts.jail),
        own_memory(facts.own_memory_refused, facts.jail),
        adopted_memory(facts.adopted_memory_refused, facts.jail, facts.sysctls),
        page_map(available=facts.pagemap_scan),
        network(facts.link),
        *(program(each) for each in facts.programs),
        *subordinate_ids(facts.subordinate_ids, facts.user, root=facts.root),
        memory(facts.memory),
        place(facts.home, "snapshots and the disks of machines"),
        place(facts.cache, "what can be made again"),
        leftovers(facts.leftovers),
        snapshots(facts.kept),
        *server(facts.server),
    ]


def system(found: System) -> Finding:
    """Linux on x86-64?"""
    seen = f"{found.name} {found.kernel} on {found.machine}, Python {found.python}"
    if (found.name, found.machine) != ("Linux", "x86_64"):
        return Finding("host", "system", "broken", seen, "Use a Linux host with an x86-64 CPU.")
    return Finding("host", "system", "ok", seen)


def accelerator(found: Accelerator | None, problem: str, kvm: Kvm) -> Finding:
    """What runs guest instructions, and why it is that."""
    what = "accelerator"
    if problem:
        return Finding("host", what, "broken", problem, "Run `torpor doctor` again after that.")
    closed = ""
    if kvm.state == "closed" and kvm.group:
        closed = f"Join the group of /dev/kvm (adduser $USER {kvm.group}) and log in again."
    elif kvm.state == "closed":
        closed = "Give /dev/kvm to a group (chgrp kvm /dev/kvm, chmod 660 /dev/kvm) and join it."
    if found is None:
        seen = {
            "absent": "software emulation: this host has no /dev/kvm",
            "closed": "software emulation: /dev/kvm is there, but not yours to open",
            "open": "not known yet: /dev/kvm opens, but no guest kernel is there to try it with",
        }[kvm.state]
        todo = closed or ("Run `torpor lab prepare`." if kvm.state == "open" else "")
        return Finding("host", what, "warning", seen, todo)
    if found.name == "kvm":
        return Finding("host", what, "ok", f"KVM, on {found.cpu}: it ran the guest's kernel")
    slower = "Work in machines is 5 to 12 times slower than under KVM; all else is the same."
    return Finding("host", what, "warning", found.why, closed or slower)


def jail(found: Jail | None, problem: str, *, root: bool) -> list[Finding]:
    """Each part of the jail around QEMU."""
    if found is None:
        return [Finding("jail", "jail", "broken", problem, "Install QEMU (`./dev setup`).")]
    missing = {part.partition(":")[0]: part.partition(": ")[2] for part in found.missing}
    return [
        _part(
            "user of its own",
            active=found.own_user,
            seen="each machine's QEMU runs under a user id of its own",
            why=missing.get("a user of its own", ""),
            todo="Install util-linux."
            if root
            else "Nothing need be done; run as root to have machines apart from your own files.",
        ),
        _part(
            "namespaces",
            active=found.namespaces,
            seen="QEMU sees no network, no other processes, and can write no file by its path",
            why=missing.get("namespaces", ""),
            todo="Install bubblewrap, and see `user namespaces` below.",
        ),
        _part(
            "system calls",
            active=found.seccomp,
            seen="filtered by QEMU's own sandbox"
            + (", and by a filter around it" if found.namespaces else ""),
            why=missing.get("QEMU's sandbox", ""),
            todo="Use the distribution's QEMU.",
        ),
        _part(
            "files",
            active=found.namespaces and Path("/usr") not in found.seen,
            seen="QEMU sees its own program, libraries and firmware, and no shell",
            why=missing.get("only its files", "QEMU sees what its user sees, without namespaces"),
            todo="See `namespaces` above; install libc-bin.",
        ),
        *_limits(found, missing),
    ]


LIMITS = {
    "memory": "a QEMU that takes more than its machine needs is ended, and nobody else",
    "cpu": "QEMU gets processor time for its virtual processors and one more",
    "pids": "QEMU can start no more processes and threads than it needs",
}
"""What each control group's controller keeps from happening."""


def _limits(found: Jail, missing: dict[str, str]) -> Iterable[Finding]:
    for controller, seen in LIMITS.items():
        yield _part(
            f"limit of {controller}",
            active=found.groups is not None and controller not in found.groups.lacking,
            seen=seen,
            why=missing.get(f"limit of {controller}", ""),
            todo="Run Torpor as root, or in a group of its own: systemd-run --user --scope -p"
            " Delegate=yes; in a unit: Delegate=yes.",
        )
    yield _part(
        "limits of resources",
        active=found.resource_limits,
        seen="no core, and bounds on descriptors, file sizes and locked memory",
        why=missing.get("resource limits", ""),
        todo="Install util-linux.",
    )


def _part(what: str, *, active: bool, seen: str, why: str, todo: str) -> Finding:
    if active:
        return Finding("jail", what, "ok", f"active: {seen}")
    return Finding("jail", what, "warning", f"not active: {why}", todo)


def namespaces(sysctls: dict[str, int | None], found: Jail | None) -> Finding:
    """Whether ordinary users may make user namespaces; if not, which setting says so."""
    what = "user namespaces"
    active = found is not None and found.namespaces
    refusals = {
        "user.max_user_namespaces": (0, "Set user.max_user_namespaces=15000."),
        "kernel.unprivileged_userns_clone": (0, "Set kernel.unprivileged_userns_clone=1."),
        APPARMOR: (
            1,
            f"Give /usr/bin/bwrap an AppArmor profile with `userns,`, or set {APPARMOR}=0.",
        ),
    }
    for name, (refusing, todo) in refusals.items():
        if sysctls.get(name) == refusing and not active:
            return Finding("rights", what, "warning", f"refused: {name} is {refusing}", todo)
    if sysctls.get(APPARMOR) == 1:
        return Finding("rights", what, "ok", "restricted by AppArmor, but bubblewrap may make them")
    return Finding("rights", what, "ok", "no setting of the kernel refuses them")


def network(found: Probed) -> Finding:
    """Whether machines can be given a network card."""
    what = "network of machines"
    if found.works:
        return Finding("host", what, "ok", "each has a wire of its own to the wall; one was built")
    return Finding(
        "host",
        what,
        "broken",
        f"none: {found.why}. Machines are made without a network card",
        found.todo,
    )


def own_memory(refused: str | None, found: Jail | None) -> Finding:
    """Whether freeze can read, and thaw write, the memory of a machine that we started."""
    what = "memory of machines"
    if found is None:
        return Finding("rights", what, "warning", "not known without QEMU")
    if refused is None:
        return Finding("rights", what, "ok", "may be read and written")
    return Finding(
        "rights",
        what,
        "broken",
        f"may not be read: {refused}",
        "Freeze and thaw need ptrace: set kernel.yama.ptrace_scope below 2; in a container, allow"
        " SYS_PTRACE.",
    )


def adopted_memory(
    refused: str | None, found: Jail | None, sysctls: dict[str, int | None]
) -> Finding:
    """The same for machines that an earlier program had started."""
    what = "adopted machines"
    if found is None:
        return Finding("rights", what, "warning", "not known without QEMU")
    if refused is None:
        return Finding("rights", what, "ok", "their memory may be read and written as well")
    scope = sysctls.get("kernel.yama.ptrace_scope")
    todo = (
        "Make user namespaces possible (see above), or set kernel.yama.ptrace_scope=0."
        if scope == 1
        else "See `memory of machines`."
    )
    seen = f"can be reached, but not frozen, after a restart: {refused} (ptrace_scope {scope})"
    return Finding("rights", what, "warning", seen, todo)


def page_map(*, available: bool) -> Finding:
    """How written pages are found."""
    if available:
        seen = "PAGEMAP_SCAN: the kernel gives written pages as ranges"
    else:
        seen = "read word by word: the kernel has no PAGEMAP_SCAN (Linux 6.7); a little slower"
    return Finding("rights", "page map", "ok", seen)


def program(found: Program) -> Finding:
    """One program of the distribution."""
    tool = found.tool
    if found.path is not None:
        version = f"{found.version}, " if found.version else ""
        return Finding("programs", tool.name, "ok", f"{version}{found.path}")
    without = {
        "machines": "missing: no machine can run without it",
        "images": "missing: no image can be built without it",
        "jail": "missing: a part of the jail around machines is not active without it",
    }[tool.use]
    state: Literal["warning", "broken"] = "warning" if tool.use == "jail" else "broken"
    todo = f"Install the package {tool.package} (`./dev setup`)."
    return Finding("programs", tool.name, state, without, todo)


def subordinate_ids(found: bool, user: str, *, root: bool) -> Iterable[Finding]:
    """Whether an ordinary user can build images."""
    if root:
        return
    if found:
        yield Finding("programs", "subuid", "ok", f"/etc/subuid has ids for {user}")
        return
    yield Finding(
        "programs",
        "subuid",
        "warning",
        f"/etc/subuid has no ids for {user}: building images may fail",
        f"Give some: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}.",
    )


def memory(found: Memory) -> Finding:
    """Room for machines in the host's memory."""
    seen = f"{_size(found.available)} of {_size(found.total)} can be had"
    needed = SIZES[SIZE].memory_bytes + 256 * MIB
    if found.available < needed:
        todo = f"End other programs: one machine of 1 GiB needs {_size(needed)}."
        return Finding("room", "memory", "broken", seen, todo)
    if found.available < MEMORY_WANTED:
        todo = f"Proofs that run several machines at once want {_size(MEMORY_WANTED)}."
        return Finding("room", "memory", "warning", seen, todo)
    return Finding("room", "memory", "ok", seen)


def place(found: Place, what: str) -> Finding:
    """One of Torpor's directories: writable, and with room?"""
    name = "home" if found.variable == "TORPOR_HOME" else "cache"
    seen = f"{found.path} ({what}), {_size(found.free)} free"
    if not found.exists:
        seen += ", made when it is needed"
    if found.refused:
        todo = f"Set {found.variable} to a directory that is yours."
        return Finding("room", name, "broken", f"{found.path}: {found.refused}", todo)
    if found.free < DISK_NEEDED:
        todo = f"Free some space, or set {found.variable} to another disk."
        return Finding("room", name, "broken", seen, todo)
    if found.free < DISK_WANTED:
        todo = f"A first build and the proofs want {_size(DISK_WANTED)}."
        return Finding("room", name, "warning", seen, todo)
    return Finding("room", name, "ok", seen)


def leftovers(found: Iterable[Path]) -> Finding:
    """Laboratories of programs that were killed."""
    left = list(found)
    if not left:
        return Finding("room", "left behind", "ok", "nothing")
    names = ", ".join(str(lab) for lab in left)
    todo = "Run `torpor lab prepare`: it ends their machines and removes them."
    return Finding("room", "left behind", "warning", f"by programs that were killed: {names}", todo)


def snapshots(found: Kept) -> Finding:
    """Whether the snapshots here can be thawed, as after an upgrade of QEMU they may not."""
    what = "snapshots"
    if found.unreadable:
        seen = f"{len(found.unreadable)} of {found.count} cannot be read: {found.unreadable[0]}"
        return Finding("room", what, "warning", seen, "Run `torpor snapshot verify`.")
    if found.files_only:
        seen = (
            f"{len(found.files_only)} of {found.count} can only be booted from their files here:"
            f" {found.files_only[0]}"
        )
        todo = "Boot their disks, or go back to what made them; docs/upgrades.md says which."
        return Finding("room", what, "warning", seen, todo)
    seen = f"{found.count}, and all can be thawed here" if found.count else "none"
    return Finding("room", what, "ok", seen)


def server(found: Server) -> Iterable[Finding]:
    """Whether a server serves this home, and this user can speak to it."""
    group, what, here = "server", "server", found.presence
    if found.restoring:
        todo = "Run the same `torpor restore` again; docs/running.md says how to give it up."
        yield Finding(group, what, "broken", "a restore into the home is not finished", todo)
        return
    if here is None:
        yield Finding(group, what, "ok", "none serves this home; `torpor serve` starts one")
        return
    seen = f"Torpor {here.version} at {here.url}, process {here.pid}"
    if not found.answers:
        todo = f"See its log; if it hangs, kill -9 {here.pid}: machines run on, and the next"
        yield Finding(group, what, "broken", f"{seen}, does not answer", f"{todo} adopts them.")
    elif here.version != found.installed:
        todo = "Start it again: machines run on, and the new one adopts them."
        seen += f"; what is installed is {found.installed}"
        yield Finding(group, what, "warning", seen, todo)
    else:
        yield Finding(group, what, "ok", seen)
    if found.bearer == "readable":
        yield Finding(group, "token", "ok", f"that of its admin can be read: {found.token_file}")
    else:
        why = "is not there" if found.bearer == "absent" else "is not yours to read"
        todo = "Set TORPOR_TOKEN to one that an admin makes with `torpor token create`."
        yield Finding(group, "token", "warning", f"{found.token_file} {why}", todo)


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
