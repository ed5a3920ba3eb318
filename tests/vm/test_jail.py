import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from torpor.images.confine import USER
from torpor.vm import jail as jails
from torpor.vm.jail import FIRST_UID, UIDS, Jail, detect, pick_uid, qemu_files
from torpor.vm.limits import Limits
from torpor.vm.wire import Wire

QEMUS = (Path("/usr/bin/qemu"), Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/share/qemu"))
WHOLE = Jail(own_user=True, namespaces=True, seccomp=True, missing=(), seen=QEMUS)
LIMITS = Limits(memory=1 << 30, cpus=2, processes=90, descriptors=500, file=1 << 33)


def wrap(jail: Jail, *, kvm: bool = False) -> list[str]:
    return jail.wrap(["qemu", "-M", "microvm"], uid=FIRST_UID + 7, info_fd=9, kvm=kvm)


def after(line: list[str], word: str) -> str:
    return line[line.index(word) + 1]


def test_qemu_is_nobody_in_namespaces_of_its_own_under_a_filter() -> None:
    line = wrap(WHOLE)
    user, bubblewrap = line[: line.index("bwrap")], line[line.index("bwrap") :]
    assert user == [
        "setpriv", f"--reuid={FIRST_UID + 7}", f"--regid={FIRST_UID + 7}", "--clear-groups",
        "--no-new-privs", "--",
    ]  # fmt: skip
    for kind in ("user", "ipc", "pid", "net", "uts"):
        assert f"--unshare-{kind}" in bubblewrap
    assert "--clearenv" in bubblewrap
    assert after(bubblewrap, "--cap-drop") == "ALL"
    assert after(bubblewrap, "--info-fd") == "9"
    jailed = bubblewrap[bubblewrap.index("--") + 1 :]
    assert jailed[:3] == ["qemu", "-M", "microvm"]
    sandbox = after(jailed, "-sandbox").split(",")
    assert sandbox[0] == "on"
    assert {"obsolete=deny", "elevateprivileges=deny", "spawn=deny", "resourcecontrol=deny"} <= {
        *sandbox
    }


def test_a_machine_outlives_the_program_that_started_it() -> None:
    assert "--die-with-parent" not in wrap(WHOLE)


def test_only_what_qemu_needs_can_be_seen_and_nothing_can_be_written() -> None:
    line = wrap(WHOLE)
    bound = [(word, line[i + 1]) for i, word in enumerate(line) if "bind" in word]
    assert [place for word, place in bound if not word.startswith("--ro-bind")] == [
        "/dev/null", "/dev/urandom",
    ]  # fmt: skip
    read_only = {place for word, place in bound if word.startswith("--ro-bind")}
    assert read_only == {*map(str, QEMUS), "/etc/ld.so.cache"}
    assert "--dev" not in line
    frozen = [line[i + 1] for i, word in enumerate(line) if word == "--remount-ro"]
    assert frozen == ["/proc", "/"]


def test_limits_come_first_so_that_they_hold_for_all_that_follows() -> None:
    line = replace(WHOLE, resource_limits=True).wrap(
        ["qemu"], uid=FIRST_UID, info_fd=9, kvm=False, limits=LIMITS
    )
    assert line[: line.index("setpriv")] == [
        "prlimit", "--core=1:1", "--nofile=500:500", f"--fsize={1 << 33}:{1 << 33}",
        "--memlock=0:0", "--nproc=90:90", "--",
    ]  # fmt: skip


def test_processes_of_a_shared_user_are_not_counted() -> None:
    mine = replace(WHOLE, resource_limits=True, own_user=False)
    line = mine.wrap(["qemu"], uid=0, info_fd=9, kvm=False, limits=LIMITS)
    assert [word for word in line if word.startswith("--nproc")] == []


def test_qemu_waits_at_the_gate_with_namespaces_and_without() -> None:
    line = WHOLE.wrap(["qemu"], uid=0, info_fd=9, kvm=False, gate=11)
    assert after(line, "--block-fd") == "11"
    bare = Jail(own_user=False, namespaces=False, seccomp=False, missing=())
    line = bare.wrap(["qemu", "-x"], uid=0, info_fd=9, kvm=False, gate=11)
    assert line[:2] == ["sh", "-c"]
    assert "/proc/self/fd/11" in line[2]
    assert line[-2:] == ["qemu", "-x"]


def test_the_gate_comes_before_qemus_user_who_could_not_open_it() -> None:
    walls = replace(WHOLE, namespaces=False, resource_limits=True)
    line = walls.wrap(["qemu"], uid=FIRST_UID, info_fd=9, kvm=False, gate=11, limits=LIMITS)
    assert line.index("sh") < line.index("prlimit") < line.index("setpriv")


def test_the_device_of_kvm_is_given_only_when_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "/dev/kvm" not in wrap(WHOLE)
    real = Path.stat
    tmp_path.joinpath("kvm").touch()
    monkeypatch.setattr(
        Path, "stat", lambda p, **k: real(tmp_path / "kvm" if str(p) == "/dev/kvm" else p, **k)
    )
    line = wrap(WHOLE, kvm=True)
    assert "/dev/kvm" in [line[i + 1] for i, word in enumerate(line) if word == "--dev-bind"]
    assert f"--groups={(tmp_path / 'kvm').stat().st_gid}" in line
    assert "--clear-groups" not in line


@pytest.mark.parametrize(
    ("jail", "first", "lacks"),
    [
        (Jail(False, True, True, ()), "bwrap", "setpriv"),
        (Jail(True, False, True, ()), "setpriv", "bwrap"),
        (Jail(True, True, False, ()), "setpriv", "-sandbox"),
        (Jail(False, False, False, ()), "qemu", "setpriv"),
    ],
)
def test_what_a_host_does_not_allow_is_left_out(jail: Jail, first: str, lacks: str) -> None:
    line = wrap(jail)
    assert line[0] == first
    assert lacks not in line
    assert "microvm" in line


def test_each_machine_has_a_user_of_its_own() -> None:
    assert pick_uid([], "0" * 32) == FIRST_UID
    taken = [FIRST_UID, FIRST_UID + 1, FIRST_UID + 3, 0, 1000]
    assert pick_uid(taken, "0" * 32) == FIRST_UID + 2
    assert pick_uid(range(FIRST_UID, FIRST_UID + UIDS - 1), "5" * 32) == FIRST_UID + UIDS - 1
    assert FIRST_UID + UIDS == USER


def test_two_homes_give_no_user_twice() -> None:
    homes = ("00000001", "0000ffff", "8badf00d")
    first = [pick_uid([], home) for home in homes]
    assert len(set(first)) == 3
    assert pick_uid(first, homes[0]) not in first


# Detection

Programs = Callable[..., None]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Makes a PATH with these programs alone: links to the host's, or lines of shell."""

    def make(*names: str, **lines: str) -> None:
        path = tmp_path / "programs"
        path.mkdir()
        for name in names:
            found = shutil.which(name)
            if found is None:
                pytest.skip(f"{name} is not installed here")
            (path / name).symlink_to(found)
        for name, line in lines.items():
            program = path / name.replace("_", "-").replace("x86-64", "x86_64")
            program.write_text(f"#!/bin/sh\n{line}\n")
            program.chmod(0o755)
        monkeypatch.setenv("PATH", str(path))

    return make


PASSES = 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
QEMU = "echo '-sandbox on'"
LISTED = "echo 'libc.so.6 => /usr/lib/x86_64-linux-gnu/libc.so.6 (0x0)'"


async def test_a_host_with_all_programs_has_all_of_the_jail(programs: Programs) -> None:
    programs("true", "prlimit", setpriv=PASSES, bwrap=PASSES, qemu_system_x86_64=QEMU, ldd=LISTED)
    found = await detect()
    assert (found.namespaces, found.seccomp, found.resource_limits) == (True, True, True)
    assert found.own_user == (os.geteuid() == 0)
    assert Path("/usr") not in found.seen
    missing = [why for why in found.missing if not why.startswith("limit of")]  # as the host has it
    assert len(missing) == (os.geteuid() != 0)


async def test_a_host_without_any_program_has_none_and_says_why(programs: Programs) -> None:
    programs()
    found = await detect()
    assert (found.own_user, found.namespaces, found.seccomp) == (False, False, False)
    reasons = " ".join(found.missing)
    assert "bwrap (package bubblewrap) is missing" in reasons
    assert "prlimit (package util-linux) is missing" in reasons
    assert "qemu-system-x86_64" in reasons
    if os.geteuid() == 0:
        assert "setpriv (package util-linux) is missing" in reasons


async def test_a_user_who_is_not_root_has_no_other_user_to_give(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs("true", bwrap=PASSES, qemu_system_x86_64=QEMU)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = await detect()
    assert not found.own_user
    assert found.namespaces
    assert "a user of its own: only root can give one; QEMU runs as you" in found.missing


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "echo one >&2; echo 'bwrap: No permissions to create new namespace' >&2; exit 1",
            "No perm",
        ),
        ("exit 3", "ended with status 3"),
    ],
)
async def test_namespaces_that_are_not_allowed_are_told_with_the_reason(
    programs: Programs, line: str, why: str
) -> None:
    programs("true", setpriv=PASSES, bwrap=line, qemu_system_x86_64=QEMU)
    found = await detect()
    assert not found.namespaces
    (reason,) = (each for each in found.missing if each.startswith("namespaces"))
    assert why in reason


@pytest.mark.parametrize(
    "line",
    [
        "echo 'qemu: -sandbox help: sandbox support is not enabled in this QEMU'; exit 1",
        "echo 'There is no option group sandbox' ; exit 1",
    ],
)
async def test_a_qemu_without_a_filter_is_noticed(programs: Programs, line: str) -> None:
    programs("true", setpriv=PASSES, bwrap=PASSES, qemu_system_x86_64=line)
    found = await detect()
    assert not found.seccomp
    assert [why for why in found.missing if "built without seccomp" in why]


async def test_no_shell_and_no_interpreter_is_among_what_qemu_sees() -> None:
    if shutil.which(jails.QEMU) is None:
        pytest.skip("QEMU is not installed here")
    seen = await qemu_files()
    assert Path("/usr") not in seen
    held = {
        file.name
        for place in seen
        for file in ([place] if place.is_file() else place.rglob("*"))
        if file.is_file() and os.access(file, os.X_OK) and ".so" not in file.name
    }
    assert jails.QEMU in held
    shells = {"sh", "bash", "dash", "busybox", "perl", "env", "node", "ruby", "lua", "gdb"}
    assert held & shells == set()
    assert [
        name for name in held if name.startswith(("python", "perl5", "gcc", "qemu-bridge"))
    ] == []


async def test_where_libraries_cannot_be_listed_qemu_sees_all_programs_and_that_is_said(
    programs: Programs,
) -> None:
    programs("true", "prlimit", setpriv=PASSES, bwrap=PASSES, qemu_system_x86_64=QEMU)
    found = await detect()
    assert Path("/usr") in found.seen
    assert [why for why in found.missing if why.startswith("only its files: ")]


def test_a_machine_with_a_card_is_started_on_its_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(tap=30, users=31, network=32)
    ours = f"/proc/{os.getpid()}/fd"
    for user, more in ((0, []), (1000, [f"--user={ours}/31", "--preserve-credentials"])):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        line = replace(WHOLE, resource_limits=True).wrap(
            ["qemu"], uid=FIRST_UID, info_fd=9, kvm=False, limits=LIMITS, wire=wire
        )
        # Before it is nobody: whoever enters must have the rights to.
        assert line.index("nsenter") < line.index("prlimit") < line.index("setpriv")
        entering = line[: line.index("prlimit")]
        assert entering == ["nsenter", f"--net={ours}/32", *more, "--"]
        assert "--unshare-net" not in line
        assert "--unshare-user" in line
    assert "--unshare-net" in wrap(WHOLE)
    bare = replace(WHOLE, namespaces=False)
    line = bare.wrap(["qemu"], uid=0, info_fd=9, kvm=False, gate=11, wire=wire)
    assert line.index("sh") < line.index("nsenter")
