"""Any image boots, and is inside what its source was, through freeze, thaw and fork."""

import asyncio
import hashlib
import json
import os
import stat
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.images import guest_trees
from tests.images.oci_builder import Member, layer, layout
from tests.machine.conftest import Start
from torpor.images import (
    Asked,
    Image,
    Maker,
    Recipe,
    command_in,
    debian_image,
    golden,
    import_image,
    silent,
)
from torpor.images.authorities import Authorities
from torpor.images.runtime import guest_runtime
from torpor.vm import Host, Identity, Machine, Shape, Wanted

pytestmark = pytest.mark.machine

SHAPE = Shape(1, 256)
TOOLS = "/run/torpor/tools"
PYTHON = (
    f"{TOOLS}/lib/ld.so", "--inhibit-cache", "--library-path", f"{TOOLS}/lib",
    "--argv0", f"{TOOLS}/bin/python3.11", f"{TOOLS}/bin/python3.11", "-I", "-S", "-B",
)  # fmt: skip
WALK = """
import hashlib, json, os, stat, sys
device, found = os.lstat("/").st_dev, []
for parent, names, files in os.walk(b"/"):
    names[:] = [n for n in names if os.lstat(os.path.join(parent, n)).st_dev == device]
    for name in names + files:
        path = os.path.join(parent, name)
        status = os.lstat(path)
        digest = hashlib.sha256()
        if stat.S_ISREG(status.st_mode) and status.st_size < 1 << 28:
            with open(path, "rb") as file:
                digest.update(file.read())
        found.append([
            os.fsdecode(path[1:]), status.st_mode, status.st_uid, status.st_gid,
            status.st_size if stat.S_ISREG(status.st_mode) else 0, digest.hexdigest(),
            os.fsdecode(os.readlink(path)) if os.path.islink(path) else "",
            [os.major(status.st_rdev), os.minor(status.st_rdev)],
            {n: os.getxattr(path, n, follow_symlinks=False).hex()
             for n in os.listxattr(path, follow_symlinks=False)},
        ])
json.dump(found, sys.stdout)
"""
PARTS = """
import hashlib, json, os, sys
digests = []
with open("/large", "rb") as file:
    for at, size in json.loads(sys.argv[1]):
        file.seek(at)
        digests.append(hashlib.sha256(file.read(size)).hexdigest())
    print(json.dumps([os.fstat(file.fileno()).st_size, os.fstat(file.fileno()).st_blocks * 512,
                      digests]))
"""
MADE_AT_BOOT = {"proc", "sys", "dev", "run", "tmp", "lib", "lost+found"}
MADE_AT_BOOT |= {"etc", "etc/machine-id", "etc/hostname", "etc/resolv.conf", "workspace"}
KINDS = {
    tarfile.REGTYPE: stat.S_IFREG,
    tarfile.LNKTYPE: stat.S_IFREG,
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
    tarfile.FIFOTYPE: stat.S_IFIFO,
}


async def imported(made: Maker, source: Path, name: str) -> Image:
    asked = Asked(authorities=Authorities())
    return (await import_image(made.cache, str(source), silent, asked, name)).image


def expected(members: Sequence[Member]) -> dict[str, list[Any]]:
    """What the walk inside must find of these, without the directories that nobody named."""
    found: dict[str, list[Any]] = {}
    by_name = {each.name: each for each in members}
    for each in members:
        what = by_name[each.link] if each.kind == tarfile.LNKTYPE else each
        found[os.fsdecode(each.name)] = [
            KINDS[each.kind] | what.mode, what.uid, what.gid, len(what.content),
            hashlib.sha256(what.content).hexdigest(),
            os.fsdecode(what.link), list(what.device),
            {name: value.hex() for name, value in what.xattrs.items()},
        ]  # fmt: skip
    return found


async def walked(machine: Machine) -> dict[str, list[Any]]:
    result = await machine.agent.run(*PYTHON, "-c", WALK)
    assert result.exit.ok, result.stderr
    return {path: rest for path, *rest in json.loads(result.stdout)}


def check(found: Mapping[str, list[Any]], wanted: Mapping[str, list[Any]]) -> None:
    """Every file is as it was, and there are no others but what a boot makes."""
    assert {path: found.get(path) for path in wanted} == wanted
    above = {str(parent) for path in wanted for parent in Path(path).parents}
    others = {path for path in found if not path.startswith("lib/modules")} - wanted.keys()
    assert others - above - MADE_AT_BOOT == set()


async def workspace(machine: Machine) -> tuple[int, int]:
    """The mode and the owner of the workspace of a machine."""
    status = await machine.agent.stat("/workspace")
    assert status is not None
    assert status.type == "directory"
    return stat.S_IMODE(status.mode), status.uid


async def whole_life(
    made: Maker, host: Host, image: Image, program: Sequence[str], says: bytes
) -> Machine:
    """Boot an image, run its own program, carry files; freeze, thaw and fork it. Returns what was
    thawed, where all has been there again."""
    start = await golden(made, image, SHAPE, silent)
    machine = await host.thaw(start, Identity.of("image"))

    async def works(each: Machine) -> None:
        result = await each.agent.run(*program)
        assert (result.stdout, result.exit.code) == (says, 0)

    await works(machine)
    assert await workspace(machine) == (0o755, 0)
    odd = "/a new\ndirectory/-file \U0001f4a4"
    content = os.urandom(300_000)
    await machine.agent.write_file(odd, content, mode=0o640, parents=True)
    assert await machine.agent.read_file(odd) == content
    status = await machine.agent.stat(odd)
    assert status is not None
    assert (stat.S_IMODE(status.mode), status.size) == (0o640, len(content))
    frozen = await host.freeze(machine, Wanted("stop"))
    thawed = await host.thaw(frozen.manifest.id)
    await works(thawed)
    assert await thawed.agent.read_file(odd) == content
    forked = await host.fork(thawed, 2)
    for child in forked.children:
        assert isinstance(child, Machine), child
        await works(child)
        assert await child.agent.read_file(odd) == content
        await host.end(child)
    await thawed.agent.write_file(odd, b"")  # what the test put there is not the image's
    return thawed


def without_ours(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {path: rest for path, rest in found.items() if not path.startswith("a new\n")}


@pytest.fixture(scope="session")
def runtime(start: Start) -> Path:
    """The stage with the guest's own programs."""
    return asyncio.run(guest_runtime(start.maker.cache, silent)).path


@pytest.mark.parametrize(
    ("kind", "program", "says"),
    [
        ("alpine", ("/bin/sh", "-c", "cat /etc/alpine-release"), b"3.20.0\n"),
        ("distroless", ("/app/cat", "/etc/passwd"), b"nonroot:x:65532:65532:nonroot:"),
        ("bare", ("/cat", "/proc/sys/kernel/ostype"), b"Linux\n"),
        ("small", ("/cat", "/many/42/4242"), b"file 4242\n"),
        ("odd", ("/cat", "/odd/-rf"), b"c"),
    ],
)
async def test_an_oci_image_lives(
    kind: str,
    program: Sequence[str],
    says: bytes,
    start: Start,
    host: Host,
    runtime: Path,
    tmp_path: Path,
) -> None:
    members = {
        "alpine": lambda: guest_trees.alpine_like(runtime, tmp_path),
        "distroless": lambda: guest_trees.distroless(runtime),
        "bare": lambda: guest_trees.bare(runtime),
        "small": lambda: guest_trees.small_files(runtime),
        "odd": lambda: guest_trees.odd_names(runtime),
    }[kind]()
    if kind == "distroless":
        says = next(each.content for each in members if each.name == b"etc/passwd")
    image = await imported(start.maker, layout(tmp_path / "oci", layer(*members)), kind)
    machine = await whole_life(start.maker, host, image, program, says)
    check(without_ours(await walked(machine)), expected(members))
    if any(each.name == b"bin/hello" for each in members):
        hello = await machine.agent.run("/bin/hello")
        assert hello.stdout == b"hello from musl\n"
    if kind == "distroless":
        with pytest.raises(Exception, match=r"No such file|ENOENT"):
            await machine.agent.shell("true")


async def test_an_image_with_systemd_lives(start: Start, host: Host) -> None:
    recipe = Recipe(name="systemd", packages=("systemd-sysv", "dbus"))
    image = await debian_image(start.maker.cache, recipe, silent, authorities=Authorities())
    program = ("/bin/sh", "-c", "readlink /sbin/init; cat /proc/1/comm")
    machine = await whole_life(
        start.maker, host, image, program, b"/lib/systemd/systemd\nbusybox\n"
    )
    says = await machine.agent.run("/usr/bin/systemctl", "is-system-running")
    assert says.stdout == b"offline\n"


async def test_the_default_image_lives(start: Start, host: Host) -> None:
    program = ("/usr/bin/python3", "-c", "print(6 * 7)")
    await whole_life(start.maker, host, start.image, program, b"42\n")


async def test_an_image_with_a_file_of_5_gib_lives(
    start: Start, host: Host, runtime: Path, home: Path
) -> None:
    tree = guest_trees.large_tree(runtime, home / "tree")
    image = await imported(start.maker, tree, "large")
    machine = await whole_life(
        start.maker, host, image, ("/cat", "/proc/sys/kernel/ostype"), b"Linux\n"
    )
    spans = [(at, len(content)) for at, content in guest_trees.LARGE_PARTS.items()]
    spans += [(1 << 29, 1 << 20)]
    result = await machine.agent.run(*PYTHON, "-c", PARTS, json.dumps(spans))
    assert result.exit.ok, result.stderr
    size, stored, digests = json.loads(result.stdout)
    contents = [*guest_trees.LARGE_PARTS.values(), bytes(1 << 20)]
    assert size == guest_trees.LARGE_SIZE
    assert stored < 1 << 20
    assert digests == [hashlib.sha256(each).hexdigest() for each in contents]


async def test_commands_get_what_the_image_says(
    start: Start, host: Host, runtime: Path, tmp_path: Path
) -> None:
    members = guest_trees.alpine_like(runtime, tmp_path)
    config = {
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": ["echo $GREETING; pwd; id -u"],
        "Env": ["GREETING=hello there"],
        "User": "nobody",
        "WorkingDir": "/tmp",
    }
    source = layout(tmp_path / "oci", layer(*members), config=config)
    image = await imported(start.maker, source, "config")
    machine = await host.thaw(await golden(start.maker, image, SHAPE, silent), Identity.of("own"))
    running = await machine.agent.start(command_in(image.config, image.config.argv()))
    assert (await running.collect())[0] == b"hello there\n/tmp\n65534\n"
    assert await workspace(machine) == (0o755, 65534)
    other = command_in(
        image.config, image.config.argv("echo $GREETING; id -u"), env={"GREETING": "x"}, user="0"
    )
    running = await machine.agent.start(other)
    assert (await running.collect())[0] == b"x\n0\n"
