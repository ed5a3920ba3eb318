"""What ``torpor doctor --fix`` can put right, planned from the facts alone, and then done.

A fix is a file to be written, and commands to be run after it. Nothing is planned for what needs a
decision that is not ours: a weaker setting of the kernel, room on a disk, another computer.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torpor.cli.facts import Facts
from torpor.cli.findings import APPARMOR

SYSCTL_FILE = Path("/etc/sysctl.d/60-torpor.conf")
PROFILE_FILE = Path("/etc/apparmor.d/torpor-bwrap")
PROFILE = """\
# Written by `torpor doctor --fix`. Ubuntu lets only programs with a profile make user namespaces
# (kernel.apparmor_restrict_unprivileged_userns). bubblewrap needs them for the jail around QEMU;
# this profile allows it that, and restricts nothing. To undo: apparmor_parser -R this file, and
# remove it.
abi <abi/4.0>,
include <tunables/global>

profile torpor-bwrap /usr/bin/bwrap flags=(unconfined) {
  userns,
}
"""
SUBORDINATE = "100000-165535"
PROGRAMS = ("apt-get", "sudo", "usermod", "sysctl", "apparmor_parser")
"""What the fixes are done with, where it is there."""


@dataclass(frozen=True)
class Fix:
    """One change: ``what`` will be, the file and its content if one is written, the commands that
    follow, and what the user has to do ``afterwards``."""

    what: str
    file: Path | None = None
    content: str = ""
    commands: tuple[tuple[str, ...], ...] = ()
    afterwards: str = ""


@dataclass(frozen=True)
class Plan:
    """The fixes that can be made, and what stands against those that cannot."""

    fixes: tuple[Fix, ...]
    left: tuple[str, ...]


def plan(facts: Facts, programs: frozenset[str], torpor: str) -> Plan:
    """Return what can be put right on this host.

    ``programs`` are those of :data:`PROGRAMS` that are there, ``torpor`` is this program.
    """
    may = facts.root or "sudo" in programs
    fixes: list[Fix] = []
    left: list[str] = []
    for fix, needs in _wanted(facts, torpor):
        missing = [program for program in needs if program not in programs]
        if needs and not may:
            left.append(f"{fix.what}: only root can do that, and sudo is not installed.")
        elif missing:
            left.append(f"{fix.what}: {missing[0]} is not installed.")
        else:
            fixes.append(fix if facts.root or not needs else _with_sudo(fix))
    return Plan(tuple(fixes), tuple(left))


def _wanted(facts: Facts, torpor: str) -> Iterator[tuple[Fix, tuple[str, ...]]]:
    """Yield each fix, and the programs that it needs root for; none if it needs no root."""
    packages = sorted(
        {each.tool.package for each in facts.programs if each.path is None}
        | ({facts.link.package} if facts.link.package else set())
    )
    if packages:
        install = ("apt-get", "install", "--yes", "--no-install-recommends", *packages)
        yield Fix(f"Install {', '.join(packages)}", commands=(install,)), ("apt-get",)
    if facts.kvm.state == "closed" and facts.kvm.group:
        join = ("usermod", "--append", "--groups", facts.kvm.group, facts.user)
        yield (
            Fix(
                f"Add {facts.user} to the group {facts.kvm.group}, which may open /dev/kvm",
                commands=(join,),
                afterwards="Log out and in again.",
            ),
            ("usermod",),
        )
    yield from _namespaces(facts)
    if not facts.subordinate_ids and not facts.root:
        ids = ("--add-subuids", SUBORDINATE, "--add-subgids", SUBORDINATE)
        give = ("usermod", *ids, facts.user)
        yield Fix(f"Give {facts.user} ids to build images with", commands=(give,)), ("usermod",)
    for place in (facts.home, facts.cache):
        if not place.exists and not place.refused:
            make = ("mkdir", "--parents", "--mode=700", str(place.path))
            yield Fix(f"Make {place.path}", commands=(make,)), ()
    if facts.leftovers:
        names = ", ".join(str(each) for each in facts.leftovers)
        yield (
            Fix(
                f"End and remove what programs that were killed have left: {names}",
                commands=((torpor, "lab", "prepare"),),
            ),
            (),
        )


def _namespaces(facts: Facts) -> Iterator[tuple[Fix, tuple[str, ...]]]:
    if facts.jail is None or facts.jail.namespaces:
        return
    settings = []
    if facts.sysctls.get("user.max_user_namespaces") == 0:
        settings.append("user.max_user_namespaces = 15000")
    if facts.sysctls.get("kernel.unprivileged_userns_clone") == 0:
        settings.append("kernel.unprivileged_userns_clone = 1")
    if settings:
        content = (
            "# Written by `torpor doctor --fix`: the jail around QEMU needs user namespaces.\n"
        )
        yield (
            Fix(
                "Allow user namespaces",
                SYSCTL_FILE,
                content + "\n".join(settings) + "\n",
                (("sysctl", "--load", str(SYSCTL_FILE)),),
            ),
            ("sysctl",),
        )
    if facts.sysctls.get(APPARMOR) == 1:
        yield (
            Fix(
                "Allow bubblewrap, and no other program, user namespaces (an AppArmor profile)",
                PROFILE_FILE,
                PROFILE,
                (("apparmor_parser", "--replace", str(PROFILE_FILE)),),
            ),
            ("apparmor_parser",),
        )


def _with_sudo(fix: Fix) -> Fix:
    commands = tuple(("sudo", *command) for command in fix.commands)
    if fix.file is None:
        return Fix(fix.what, None, "", commands, fix.afterwards)
    # tee(1) writes what it is given on its standard input, see apply().
    return Fix(fix.what, fix.file, fix.content, (("sudo", "tee", str(fix.file)), *commands))


def apply(fix: Fix) -> str:
    """Make one change. Returns why it could not be made, or nothing; what was done before stays."""
    commands = list(fix.commands)
    try:
        if fix.file is not None:
            if commands[0][:2] == ("sudo", "tee"):
                _run(commands.pop(0), fix.content)
            else:
                fix.file.parent.mkdir(parents=True, exist_ok=True)
                fix.file.write_text(fix.content)
        for command in commands:
            _run(command)
    except (OSError, subprocess.CalledProcessError) as error:
        return str(error)
    return ""


def _run(command: tuple[str, ...], given: str | None = None) -> None:
    output = subprocess.DEVNULL if given is not None else None
    subprocess.run(command, check=True, input=given, text=True, stdout=output)
