"""What each wall has and lets through, read off the command lines of all programs behind one."""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from torpor.images.confine import NETWORK_FILES, USER, Room, confined
from torpor.vm.bubblewrap import TOPS, directories, links
from torpor.vm.image_tools import Bench
from torpor.vm.jail import Jail

COMMAND = ("program", "--unshare-nothing")
QEMU_FILES = (Path("/usr/bin/qemu"), Path("/usr/share/qemu"))
LAYERS = (Path("/store/bottom"), Path("/store/top"))
ROOM = Room(Path("/cache/work"), 1 << 20, {"/input": Path("/cache/input")}, environment={"A": "b"})
FETCHING = Room(Path("/cache/work"), 1 << 20, network=True)
WORDS = {
    "--ro-bind": 2, "--ro-bind-try": 2, "--bind": 2, "--dev-bind": 2, "--symlink": 2, "--setenv": 2,
    "--dir": 1, "--proc": 1, "--dev": 1, "--tmpfs": 1, "--remount-ro": 1, "--hostname": 1,
    "--cap-drop": 1, "--cap-add": 1, "--chdir": 1, "--info-fd": 1, "--block-fd": 1, "--seccomp": 1,
}  # fmt: skip
"""How many words follow an option of bubblewrap; none follow another one."""


@dataclass(frozen=True)
class Wall:
    """The options of bubblewrap, each with its words, in their order; and what runs behind them."""

    options: list[tuple[str, ...]]
    command: list[str]

    @classmethod
    def of(cls, line: Sequence[str]) -> "Wall":
        """Read a command line, from the name of bubblewrap on."""
        start = next(place for place, word in enumerate(line) if Path(word).name == "bwrap")
        rest = list(line[start + 1 :])
        options = []
        while (option := rest.pop(0)) != "--":
            assert option.startswith("--"), option
            words = [rest.pop(0) for _ in range(WORDS.get(option, 0))]
            options.append((option, *words))
        return cls(options, rest)

    def all(self, *names: str) -> list[tuple[str, ...]]:
        """The words of all options with one of these names."""
        return [tuple(words) for name, *words in self.options if name in names]

    def has(self, name: str) -> bool:
        """Whether an option is there that nothing follows."""
        return (name,) in self.options


def of_qemu() -> Wall:
    """That of a machine's QEMU."""
    jail = Jail(own_user=True, namespaces=True, seccomp=True, missing=(), seen=QEMU_FILES)
    line = jail.wrap(list(COMMAND), uid=7, info_fd=9, kvm=False, gate=11, calls=12)
    return Wall.of(line)


def of_disk_tools() -> Wall:
    """That of QEMU's programs for disk layers."""
    return Wall.of(Bench(LAYERS, Path("/store/new"), jailed=True).wrap(COMMAND))


def of_image_program(monkeypatch: pytest.MonkeyPatch, user: int, room: Room) -> Wall:
    """That of a program that works on an image for a user of the host."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    return Wall.of(confined(room, COMMAND))


@pytest.fixture
def wall(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Wall:
    """The wall that a test is to look at."""
    return {
        "qemu": of_qemu,
        "disk tools": of_disk_tools,
        "image, by root": lambda: of_image_program(monkeypatch, 0, ROOM),
        "image, by a user": lambda: of_image_program(monkeypatch, 1000, ROOM),
        "fetch, by root": lambda: of_image_program(monkeypatch, 0, FETCHING),
        "fetch, by a user": lambda: of_image_program(monkeypatch, 1000, FETCHING),
    }[request.param]()


QEMU, TOOLS = ["qemu"], ["disk tools"]
BY_ROOT, BY_A_USER = ["image, by root", "fetch, by root"], ["image, by a user", "fetch, by a user"]
FETCHES = ["fetch, by root", "fetch, by a user"]
ALL = [*QEMU, *TOOLS, *BY_ROOT, *BY_A_USER]


def behind(names: Iterable[str]) -> pytest.MarkDecorator:
    """Look at each of these walls."""
    return pytest.mark.parametrize("wall", list(names), indirect=True)


@behind(ALL)
def test_a_program_sees_no_process_and_no_variable_and_has_no_terminal_of_ours(wall: Wall) -> None:
    for kind in ("pid", "ipc", "uts", "cgroup-try"):
        assert wall.has(f"--unshare-{kind}")
    assert wall.has("--new-session")
    names = [name for name, *_ in wall.options]
    assert "--clearenv" in names
    assert "--setenv" not in names[: names.index("--clearenv")]
    assert wall.all("--proc") == [("/proc",)]
    assert wall.all("--chdir") == [("/",)]


@behind(ALL)
def test_the_program_and_its_words_come_after_the_wall(wall: Wall) -> None:
    end = wall.command.index("program")
    assert wall.command[end : end + 2] == list(COMMAND)
    assert wall.command[end + 2 :] in ([], ["-sandbox", wall.command[-1]])


@behind(name for name in ALL if name not in FETCHES)
def test_a_program_has_no_network(wall: Wall) -> None:
    assert wall.has("--unshare-net")


@behind(FETCHES)
def test_only_what_fetches_has_the_network(wall: Wall) -> None:
    assert not wall.has("--unshare-net")


@behind(name for name in ALL if name not in BY_ROOT)
def test_a_program_has_no_capabilities(wall: Wall) -> None:
    assert wall.has("--unshare-user")
    assert wall.all("--cap-drop", "--cap-add") == [("ALL",)]


@behind(BY_ROOT)
def test_roots_program_becomes_another_user_and_then_has_no_capabilities(wall: Wall) -> None:
    assert not wall.has("--unshare-user")
    assert wall.all("--cap-drop", "--cap-add") == [("ALL",), ("CAP_SETUID",), ("CAP_SETGID",)]
    assert wall.command[: wall.command.index("--")] == [
        "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--inh-caps=-all",
        "--no-new-privs",
    ]  # fmt: skip


@behind(name for name in ALL if name not in QEMU)
def test_a_program_ends_with_us(wall: Wall) -> None:
    assert wall.has("--die-with-parent")


@behind(QEMU)
def test_qemu_outlives_us_in_a_wall_that_has_no_way_to_another(wall: Wall) -> None:
    assert not wall.has("--die-with-parent")
    assert wall.has("--disable-userns")
    assert wall.all("--info-fd", "--block-fd", "--seccomp") == [("9",), ("11",), ("12",)]


# What it sees


def read_only(wall: Wall) -> dict[str, str]:
    """What of the host can be read, by where it is seen; the system's own directories left out."""
    seen = {inside: outside for outside, inside in wall.all("--ro-bind", "--ro-bind-try")}
    return {each: seen[each] for each in seen if Path(each) not in directories()}


def same(*paths: str) -> dict[str, str]:
    """Paths that are seen where they are."""
    return {path: path for path in paths}


SYSTEM = same("/usr", "/etc/ld.so.cache")
PYTHON = Path(sys.base_prefix)
OF_IMAGES = SYSTEM | same("/etc/alternatives")
if not PYTHON.is_relative_to("/usr"):
    OF_IMAGES |= same(str(PYTHON))


@behind(QEMU)
def test_qemu_sees_its_own_files_and_writes_none(wall: Wall) -> None:
    assert read_only(wall) == same("/usr/bin/qemu", "/usr/share/qemu", "/etc/ld.so.cache")
    assert wall.all("--bind", "--dir", "--tmpfs", "--dev") == []
    assert wall.all("--dev-bind") == [("/dev/null",) * 2, ("/dev/urandom",) * 2]
    assert [option for option in wall.options if option[0] == "--remount-ro"] == wall.options[-3:-1]
    assert wall.all("--remount-ro") == [("/proc",), ("/",)]


@behind(TOOLS)
def test_disk_tools_read_their_layers_and_write_one_file(wall: Wall) -> None:
    layers = {"/layers/0": "/store/bottom", "/layers/1": "/store/top"}
    assert read_only(wall) == SYSTEM | layers
    assert wall.all("--bind", "--dev-bind") == [("/store/new", "/target")]
    assert wall.all("--dir", "--tmpfs", "--setenv") == []


@behind(["image, by root", "image, by a user"])
def test_what_works_on_an_image_reads_its_input_and_writes_one_directory(wall: Wall) -> None:
    assert read_only(wall) == OF_IMAGES | {"/input": "/cache/input"}
    assert wall.all("--bind", "--dev-bind") == [("/cache/work", "/room")]
    variables = {name for name, _ in wall.all("--setenv")}
    assert variables == {"PATH", "HOME", "TMPDIR", "LC_ALL", "A"}


@behind(FETCHES)
def test_what_fetches_sees_what_a_resolver_and_tls_need_besides(wall: Wall) -> None:
    assert read_only(wall) == OF_IMAGES | same(*NETWORK_FILES)
    assert wall.all("--bind", "--dev-bind") == [("/cache/work", "/room")]


def test_without_a_directory_to_write_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = of_image_program(monkeypatch, 0, Room(None, 0))
    assert wall.all("--bind", "--dev-bind") == []
    assert read_only(wall) == OF_IMAGES


def test_without_namespaces_disk_tools_run_as_ordinary_programs() -> None:
    bench = Bench(LAYERS, Path("/store/new"), jailed=False)
    assert bench.wrap(COMMAND) == list(COMMAND)
    assert (bench.seen, bench.seen_target) == (("/store/bottom", "/store/top"), "/store/new")


def test_what_is_at_the_top_is_a_link_inside_where_it_is_one_outside() -> None:
    made = links()
    pairs = dict(zip(made[2::3], made[1::3], strict=True))
    assert made[::3] == ["--symlink"] * len(pairs)
    tops = [Path("/", name) for name in TOPS if Path("/", name).exists()]
    assert {*pairs, *map(str, directories())} == {*map(str, tops)}
    assert all(str(Path(path).readlink()) == target for path, target in pairs.items())
