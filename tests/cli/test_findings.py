"""Each line of ``torpor doctor``: fine where all is well, and telling where it is not."""

from dataclasses import replace
from pathlib import Path

import pytest

from torpor.cli import findings
from torpor.cli.facts import TOOLS, Facts, Kept, Kvm, Memory, Place, Program, System, Tool
from torpor.cli.findings import GIB, Finding, diagnose
from torpor.cli.server_facts import Server
from torpor.network.link import Probed
from torpor.settings.presence import Presence
from torpor.vm import Accelerator, Jail
from torpor.vm.cgroup_trees import CONTROLLERS, Tree

KVM = Accelerator("kvm", "KVM ran the guest kernel.", (10, 0, 0), "Some CPU")
EMULATION = Accelerator("tcg", "Software emulation, because of it.", (7, 2, 0), "qemu-max")
GROUPS = Tree(2, tuple((name, Path("/sys/fs/cgroup/torpor")) for name in CONTROLLERS))
JAIL = Jail(
    own_user=True,
    namespaces=True,
    seccomp=True,
    missing=(),
    seen=(Path("/usr/bin/qemu"),),
    groups=GROUPS,
    resource_limits=True,
)
BARE = Jail(
    own_user=False,
    namespaces=False,
    seccomp=False,
    missing=(
        "a user of its own: only root can give one; QEMU runs as you",
        "namespaces: bwrap: No permissions to create new namespace",
        "QEMU's sandbox: this QEMU was built without seccomp",
        "only its files: QEMU's libraries cannot be listed",
        "limit of memory: the group /x was not given to us",
        "limit of cpu: the group /x was not given to us",
        "limit of pids: the group /x was not given to us",
        "resource limits: the program prlimit is missing",
    ),
)
HOME = Place(Path("/srv/t"), "TORPOR_HOME", True, "", 50 * GIB, 90 * GIB)
GOOD = Facts(
    system=System("Linux", "x86_64", "6.12", "3.13.1"),
    root=False,
    user="ann",
    accelerator=KVM,
    accelerator_problem="",
    kvm=Kvm("open", "kvm"),
    jail=JAIL,
    jail_problem="",
    sysctls={"kernel.yama.ptrace_scope": 1},
    own_memory_refused=None,
    adopted_memory_refused=None,
    subordinate_ids=True,
    programs=tuple(Program(tool, f"/usr/bin/{tool.name}", "1.2") for tool in TOOLS),
    pagemap_scan=True,
    memory=Memory(16 * GIB, 12 * GIB),
    home=HOME,
    cache=replace(HOME, path=Path("/srv/c"), variable="TORPOR_CACHE"),
    leftovers=(),
    server=Server(
        Path("/srv/t/admin-token"),
        installed="1.0",
        presence=Presence("http://127.0.0.1:8470", 412, 1, "1.0"),
        answers=True,
        bearer="readable",
    ),
)


def line(facts: Facts, what: str) -> Finding:
    """The one finding about ``what``."""
    (found,) = [finding for finding in diagnose(facts) if finding.what == what]
    return found


def test_a_good_host_has_nothing_to_do() -> None:
    assert [f.what for f in diagnose(GOOD) if f.state != "ok"] == []


def test_whatever_is_not_ok_says_what_to_do() -> None:
    bad = replace(
        GOOD,
        accelerator=EMULATION,
        jail=BARE,
        own_memory_refused="not permitted",
        adopted_memory_refused="not permitted",
        subordinate_ids=False,
        programs=tuple(Program(tool, None) for tool in TOOLS),
        memory=Memory(GIB, GIB),
        home=replace(HOME, free=0),
        cache=replace(HOME, refused="no"),
        leftovers=(Path("/srv/t/lab-1"),),
    )
    assert [f.what for f in diagnose(bad) if f.state != "ok" and not f.todo] == []


@pytest.mark.parametrize(
    ("what", "change", "state", "said"),
    [
        ("system", {"system": System("Linux", "aarch64", "6", "3.11")}, "broken", "aarch64"),
        ("accelerator", {"accelerator": EMULATION}, "warning", "because of it"),
        (
            "accelerator",
            {"accelerator": None, "accelerator_problem": "QEMU is not installed."},
            "broken",
            "not installed",
        ),
        ("accelerator", {"accelerator": None, "kvm": Kvm("absent")}, "warning", "no /dev/kvm"),
        ("accelerator", {"accelerator": None}, "warning", "lab prepare"),
        (
            "accelerator",
            {"accelerator": EMULATION, "kvm": Kvm("closed", "virt")},
            "warning",
            "adduser $USER virt",
        ),
        (
            "accelerator",
            {"accelerator": EMULATION, "kvm": Kvm("closed")},
            "warning",
            "chgrp kvm /dev/kvm",
        ),
        ("jail", {"jail": None, "jail_problem": "not known"}, "broken", "not known"),
        (
            "network of machines",
            {"link": Probed("to make a tap failed: No such device", "Load the module tun.")},
            "broken",
            "without a network card",
        ),
        ("user of its own", {"jail": BARE}, "warning", "only root can give one"),
        ("namespaces", {"jail": BARE}, "warning", "No permissions to create"),
        ("system calls", {"jail": BARE}, "warning", "without seccomp"),
        ("files", {"jail": BARE}, "warning", "cannot be listed"),
        ("limit of memory", {"jail": BARE}, "warning", "was not given to us"),
        ("limit of cpu", {"jail": BARE}, "warning", "was not given to us"),
        ("limit of pids", {"jail": BARE}, "warning", "was not given to us"),
        ("limits of resources", {"jail": BARE}, "warning", "prlimit is missing"),
        ("memory of machines", {"own_memory_refused": "refused"}, "broken", "ptrace"),
        ("adopted machines", {"adopted_memory_refused": "refused"}, "warning", "ptrace_scope=0"),
        ("page map", {"pagemap_scan": False}, "ok", "word by word"),
        ("subuid", {"subordinate_ids": False}, "warning", "usermod --add-subuids"),
        ("memory", {"memory": Memory(16 * GIB, GIB)}, "broken", "1.0 GiB"),
        ("memory", {"memory": Memory(16 * GIB, 2 * GIB)}, "warning", "2.0 GiB"),
        ("home", {"home": replace(HOME, free=GIB // 2)}, "broken", "0.5 GiB"),
        ("home", {"home": replace(HOME, free=2 * GIB)}, "warning", "2.0 GiB"),
        ("home", {"home": replace(HOME, refused="it is not yours")}, "broken", "TORPOR_HOME"),
        (
            "cache",
            {"cache": replace(GOOD.cache, refused="it is not yours")},
            "broken",
            "TORPOR_CACHE",
        ),
        ("left behind", {"leftovers": (Path("/srv/t/lab-1"),)}, "warning", "/srv/t/lab-1"),
        ("snapshots", {"kept": Kept(3)}, "ok", "3, and all can be thawed"),
        ("snapshots", {"kept": Kept(3, ("QEMU is new",))}, "warning", "1 of 3 can only be booted"),
        ("snapshots", {"kept": Kept(3, (), ("it is damaged",))}, "warning", "it is damaged"),
    ],
)
def test_each_thing_that_can_be_wrong_is_told(
    what: str, change: dict[str, object], state: str, said: str
) -> None:
    assert line(GOOD, what).state == "ok" if what != "jail" else True
    found = line(replace(GOOD, **change), what)
    assert found.state == state
    assert said in f"{found.seen} {found.todo}"


@pytest.mark.parametrize(
    ("sysctl", "refusing"),
    [
        ("user.max_user_namespaces", 0),
        ("kernel.unprivileged_userns_clone", 0),
        ("kernel.apparmor_restrict_unprivileged_userns", 1),
    ],
)
def test_the_setting_that_refuses_namespaces_is_named(sysctl: str, refusing: int) -> None:
    refused = findings.namespaces({sysctl: refusing}, BARE)
    assert refused.state == "warning"
    assert sysctl in refused.seen
    assert sysctl in refused.todo
    # The same setting, where the jail's namespaces work all the same (a profile allows them).
    assert findings.namespaces({sysctl: refusing}, JAIL).state == "ok"


def test_a_setting_that_allows_namespaces_is_not_blamed() -> None:
    allowing = {
        "user.max_user_namespaces": 15000,
        "kernel.unprivileged_userns_clone": 1,
        "kernel.apparmor_restrict_unprivileged_userns": 0,
    }
    assert findings.namespaces(allowing, BARE).state == "ok"


@pytest.mark.parametrize(
    ("use", "state"), [("machines", "broken"), ("images", "broken"), ("jail", "warning")]
)
def test_a_missing_program_is_told_with_its_package(use: str, state: str) -> None:
    tool = Tool("frob", "frob-utils", use)  # type: ignore[arg-type]
    assert findings.program(Program(tool, "/usr/bin/frob", "2.0")).state == "ok"
    missing = findings.program(Program(tool, None))
    assert missing.state == state
    assert "frob-utils" in missing.todo


def test_root_needs_no_ids_of_its_own() -> None:
    assert [f for f in diagnose(replace(GOOD, root=True)) if f.what == "subuid"] == []


def test_a_server_is_told_with_where_it_is() -> None:
    found = line(GOOD, "server")
    assert found.state == "ok"
    assert "Torpor 1.0 at http://127.0.0.1:8470, process 412" in found.seen
    none = replace(GOOD, server=replace(GOOD.server, presence=None, answers=False))
    assert line(none, "server").state == "ok"
    assert [each.what for each in diagnose(none) if each.what == "token"] == []


@pytest.mark.parametrize(
    ("change", "what", "state", "words"),
    [
        ({"answers": False}, "server", "broken", "kill -9 412"),
        ({"installed": "1.1"}, "server", "warning", "Start it again"),
        ({"bearer": "closed"}, "token", "warning", "TORPOR_TOKEN"),
        ({"bearer": "absent"}, "token", "warning", "TORPOR_TOKEN"),
        ({"restoring": True}, "server", "broken", "torpor restore"),
    ],
)
def test_what_is_wrong_with_the_server(change: dict, what: str, state: str, words: str) -> None:
    found = line(replace(GOOD, server=replace(GOOD.server, **change)), what)
    assert found.state == state
    assert words in found.todo
