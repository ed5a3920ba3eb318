"""Control groups: where they can be made, made for real, and found again."""

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor.vm.cgroup_trees import MACHINES, PROGRAM, Mount, Tree, find_tree, mounts
from torpor.vm.cgroups import Group, find_groups, make_group, renew_limits
from torpor.vm.limits import Limits

MIB = 1 << 20
LIMITS = Limits(memory=64 * MIB, cpus=2, processes=20, descriptors=100, file=MIB)


# Where they can be made


def tree_of_version_2(
    root: Path, *groups: str, offered: str = "cpuset cpu io memory pids"
) -> tuple[str, Path]:
    """A directory that looks like a mounted tree of version 2, with these groups."""
    above = [str(each) for group in groups for each in Path(group).parents]
    for group in dict.fromkeys(["", *above, *groups]):
        (root / group).mkdir(parents=True, exist_ok=True)
        (root / group / "cgroup.controllers").write_text(offered)
        (root / group / "cgroup.subtree_control").write_text("")
        (root / group / "cgroup.procs").write_text("")
    return f"30 23 0:26 / {root} rw,relatime - cgroup2 cgroup2 rw\n", root


def given(tree: Tree | str) -> dict[str, Path]:
    assert isinstance(tree, Tree), tree
    return dict(tree.parents)


def test_root_makes_groups_in_one_of_its_own_at_the_top(tmp_path: Path) -> None:
    mountinfo, root = tree_of_version_2(tmp_path, "user.slice/session", MACHINES)
    found = find_tree(root=True, mountinfo=mountinfo, own_groups="0::/user.slice/session\n")
    assert set(given(found).values()) == {root / MACHINES}
    assert (root / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"
    assert (root / MACHINES / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"
    assert isinstance(found, Tree)
    assert found.version == 2
    assert found.lacking == ()


def test_a_user_without_a_group_of_its_own_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mountinfo, _ = tree_of_version_2(tmp_path, "session")
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = find_tree(root=False, mountinfo=mountinfo, own_groups="0::/session\n")
    assert isinstance(found, str)
    assert "was not given to us" in found
    assert "Delegate=yes" in found


def test_a_delegated_group_is_used_by_a_user(tmp_path: Path) -> None:
    mountinfo, root = tree_of_version_2(tmp_path, "unit/program")
    found = find_tree(root=False, mountinfo=mountinfo, own_groups="0::/unit/program\n")
    assert set(given(found).values()) == {root / "unit"}  # the program itself sits in a child of it


def test_a_program_that_moved_before_uses_the_same_group_again(tmp_path: Path) -> None:
    mountinfo, root = tree_of_version_2(tmp_path, f"unit/{PROGRAM}")
    found = find_tree(root=True, mountinfo=mountinfo, own_groups=f"0::/unit/{PROGRAM}\n")
    assert set(given(found).values()) == {root / "unit"}


def test_controllers_that_are_missing_are_said(tmp_path: Path) -> None:
    mountinfo, _ = tree_of_version_2(tmp_path, MACHINES, offered="cpu memory")
    found = find_tree(root=True, mountinfo=mountinfo, own_groups="0::/\n")
    assert isinstance(found, Tree)
    assert found.lacking == ("pids",)


def test_a_hybrid_host_without_memory_in_version_2_uses_version_1(tmp_path: Path) -> None:
    two, _ = tree_of_version_2(tmp_path / "unified", offered="hugetlb")
    for name in ("memory/here", "cpu,cpuacct"):
        (tmp_path / name).mkdir(parents=True)
    mountinfo = two + (
        f"32 31 0:29 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
        f"33 31 0:30 / {tmp_path}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    )
    own = "4:memory:/here\n2:cpu,cpuacct:/\n0::/\n"
    found = find_tree(root=True, mountinfo=mountinfo, own_groups=own)
    assert given(found) == {"memory": tmp_path / "memory/here", "cpu": tmp_path / "cpu,cpuacct"}
    assert isinstance(found, Tree)
    assert (found.version, found.lacking) == (1, ("pids",))


def test_a_user_is_told_of_each_tree_of_version_1_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("memory", "cpu"):
        (tmp_path / name).mkdir()
    line = "32 31 0:29 / {0}/{1} rw - cgroup cgroup rw,{1}\n"
    mountinfo = "".join(line.format(tmp_path, name) for name in ("cpu", "memory"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    found = find_tree(root=False, mountinfo=mountinfo, own_groups="4:memory:/\n2:cpu:/\n")
    assert found == f"not ours to write: {tmp_path}/memory, {tmp_path}/cpu"


def test_a_host_without_control_groups_says_so() -> None:
    found = find_tree(root=True, mountinfo="23 1 0:20 / / rw - ext4 /dev/vda rw\n", own_groups="")
    assert found == "the host has no control groups mounted"


def test_a_container_sees_a_part_of_the_tree(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    line = f"35 31 0:32 /docker/1 {tmp_path} rw - cgroup cgroup rw,memory\n"
    found = find_tree(root=True, mountinfo=line, own_groups="4:memory:/docker/1/inner\n")
    assert given(found) == {"memory": tmp_path / "inner"}
    found = find_tree(root=True, mountinfo=line, own_groups="4:memory:/elsewhere\n")
    assert given(found) == {"memory": tmp_path}


def test_names_of_places_are_read_as_the_kernel_writes_them() -> None:
    (found,) = mounts(r"35 31 0:32 /a\040b /sys/fs/c\134d rw shared:5 - cgroup2 cgroup2 rw")
    assert found == Mount(Path(r"/sys/fs/c\d"), "/a b", 2, ("rw",))


# What is set under version 2, on a directory that stands for a group


def test_limits_of_version_2_are_what_the_kernel_expects(tmp_path: Path) -> None:
    tree = Tree(2, tuple((name, tmp_path) for name in ("memory", "cpu", "pids")))
    group = make_group(tree, "machine", LIMITS)
    assert group.places == (tmp_path / "machine",)
    assert {file.name: file.read_text() for file in group.places[0].iterdir()} == {
        "memory.max": str(64 * MIB),
        "cpu.max": "200000 100000",
        "pids.max": "20",
    }  # files that a kernel may lack are left out where they are not there


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("memory.events", "low 0\noom 3\noom_kill 1\n", True),
        ("memory.events", "low 0\noom 3\noom_kill 0\n", False),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", True),
        ("nothing", "", False),
    ],
)
def test_a_kill_for_memory_is_read_in_both_versions(
    tmp_path: Path, file: str, text: str, said: bool
) -> None:
    (tmp_path / file).write_text(text)
    assert Group((tmp_path,)).out_of_memory() == said


# Real ones


@pytest.fixture
def tree() -> Tree:
    """The host's own."""
    found = find_tree(root=os.geteuid() == 0)
    if isinstance(found, str):
        pytest.skip(f"no control groups can be made here: {found}")
    return found


@pytest.fixture
def name() -> Iterator[str]:
    """A group's name; nothing of it is left in the end."""
    name = f"torpor-test-{secrets.token_hex(4)}-one"
    yield name
    assert find_groups(name) == {}


TAKES_MEMORY = """
import sys
sys.stdin.readline()
kept = []
while True:
    kept.append(b"x" * (1 << 20))
"""


async def in_group(group: Group, code: str) -> subprocess.Popen[bytes]:
    child = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", code], stdin=subprocess.PIPE
    )
    await asyncio.to_thread(group.join, child.pid)
    assert child.stdin is not None
    child.stdin.write(b"go\n")
    child.stdin.close()
    return child


async def test_who_takes_more_memory_than_allowed_is_killed_and_nobody_else(
    tree: Tree, name: str
) -> None:
    if "memory" in tree.lacking:
        pytest.skip("this host has no memory controller")
    group = make_group(tree, name, LIMITS)
    other = make_group(tree, f"{name}-other", LIMITS)
    bystander = await in_group(other, "import sys, time; sys.stdin.readline(); time.sleep(600)")
    child = await in_group(group, TAKES_MEMORY)
    assert await asyncio.to_thread(child.wait) == -9
    assert group.out_of_memory()
    assert not other.out_of_memory()
    assert bystander.poll() is None
    await group.remove()
    await other.remove()
    assert await asyncio.to_thread(bystander.wait) == -9


async def test_more_processes_than_allowed_cannot_be_started(tree: Tree, name: str) -> None:
    if "pids" in tree.lacking:
        pytest.skip("this host has no pids controller")
    group = make_group(tree, name, LIMITS)
    code = (
        "import os, sys, time\nsys.stdin.readline()\n"
        "for count in range(100):\n"
        "    try:\n        pid = os.fork()\n"
        "    except BlockingIOError:\n        sys.exit(count)\n"
        "    if pid == 0:\n        time.sleep(600)\n"
    )
    child = await in_group(group, code)
    assert await asyncio.to_thread(child.wait) == LIMITS.processes - 1
    await group.remove()  # with all that are still in it


async def test_a_group_is_found_by_its_name_wherever_it_is(tree: Tree, name: str) -> None:
    group = make_group(tree, name, LIMITS)
    assert find_groups(name[:-4]) == {name: Group(tuple(sorted(group.places)))}
    assert group.processes() == set()
    await group.remove()
    await group.remove()  # a second time is nothing


def test_a_group_that_cannot_be_made_leaves_nothing(tree: Tree, name: str) -> None:
    bad = Limits(memory=-5, cpus=2, processes=20, descriptors=100, file=MIB)
    with pytest.raises(OSError, match="nvalid"):
        make_group(tree, name, bad)


async def test_under_version_2_the_kernel_ends_all_of_a_group_at_once(name: str) -> None:
    trees = [each for each in mounts(Path("/proc/self/mountinfo").read_text()) if each.version == 2]
    if not trees or not os.access(trees[0].directory, os.W_OK):
        pytest.skip("no tree of version 2 that is ours is mounted here")
    group = Group((trees[0].directory / name,))
    group.places[0].mkdir()
    code = "import os, sys, time\nsys.stdin.readline()\nos.fork()\nprint(1)\ntime.sleep(600)\n"
    child = await in_group(group, code)
    async with asyncio.timeout(30):
        while len(group.processes()) < 2:  # noqa: ASYNC110 - a fork has no event
            await asyncio.sleep(0.01)
    assert (group.places[0] / "cgroup.kill").exists()
    await group.remove()
    assert await asyncio.to_thread(child.wait) == -9


def test_limits_that_were_taken_away_are_set_again(tmp_path: Path) -> None:
    """systemd takes the controllers from a unit's groups when it starts the unit anew, and they
    come back without limits."""
    group = tmp_path / "torpor-x-m"
    group.mkdir()
    (group / "cgroup.controllers").write_text("cpu memory")
    for file in ("memory.max", "cpu.max"):
        (group / file).write_text("max")
    renew_limits(Group((group,)), LIMITS)
    assert (group / "memory.max").read_text() == str(64 * MIB)
    assert (group / "cpu.max").read_text() == "200000 100000"
    assert not (group / "pids.max").exists(), "a controller that is not there gets none"
