"""Real builds into the shared cache, and a boot of what they made with a stub for an agent."""

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.images.test_authorities import certificate
from torpor.cli.app import app
from torpor.images import (
    GuestParts,
    Image,
    ImageError,
    Names,
    Recipe,
    debian_image,
    guest_parts,
    parts,
    silent,
)
from torpor.images.ext4_read import Disk
from torpor.settings import default_places

pytestmark = pytest.mark.machine

BOOT_LIMIT_S = 180  # 4 s on a quiet host
STUB = Path(__file__).with_name("stub_agent.py")


@pytest.fixture(scope="module")
def cache() -> Path:
    return default_places().cache


@pytest.fixture(scope="module")
def image(cache: Path) -> Image:
    return asyncio.run(debian_image(cache, Recipe(), silent))


@pytest.fixture(scope="module")
def real_parts(cache: Path) -> GuestParts:
    return asyncio.run(guest_parts(cache, silent))


@pytest.fixture
def stub_parts(
    cache: Path, real_parts: GuestParts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> GuestParts:
    """Parts whose tools disk has the stub; all else is that of the shared cache."""
    for kind in ("guest-packages", "guest-runtime", "kernel"):
        (tmp_path / kind).symlink_to(cache / kind)
    site = {
        "__main__.py": parts.MAIN,
        "torpor/__init__.py": b"",
        "torpor/guest/__init__.py": b"",
        "torpor/guest/agent.py": STUB.read_bytes(),
    }
    monkeypatch.setattr(parts, "agent_source", lambda: site)
    return asyncio.run(guest_parts(tmp_path, silent))


def boot(guest: GuestParts, disks: dict[str, tuple[Path, str, bool]]) -> str:
    """Boot under emulation until the machine ends; returns its console.

    `disks`: serial to path, format, read-only.
    """
    khz = re.search(r"^bogomips\s*: (\d+)", Path("/proc/cpuinfo").read_text(), re.M)
    assert khz is not None
    append = (
        "console=ttyS0 quiet loglevel=4 panic=-1 tsc=reliable"
        f" tsc_early_khz={int(khz[1]) // 2 * 1000} nowatchdog"
    )
    command = ["qemu-system-x86_64", "-M", "microvm,x-option-roms=on,acpi=on,pit=on,pic=on,rtc=on"]
    command += ["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "512", "-smp", "2"]
    command += ["-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-serial", "stdio"]
    command += ["-kernel", str(guest.kernel), "-initrd", str(guest.initramfs), "-append", append]
    for serial, (path, form, read_only) in disks.items():
        node = {
            "driver": form,
            "node-name": serial,
            "read-only": read_only,
            "file": {"driver": "file", "filename": str(path), "locking": "off"},
        }
        command += ["-blockdev", json.dumps(node)]
        command += ["-device", f"virtio-blk-device,drive={serial},serial={serial}"]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOOT_LIMIT_S, check=False
    )
    return ended.stdout.decode(errors="replace") + ended.stderr.decode(errors="replace")


def layer_over(image: Image, path: Path) -> Path:
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-b", image.root, "-F", "raw", path], check=True
    )
    return path


def test_file_systems_are_clean(image: Image, real_parts: GuestParts) -> None:
    for path in (image.root, real_parts.tools):
        checked = subprocess.run(["/sbin/e2fsck", "-fn", path], capture_output=True, check=False)
        assert checked.returncode == 0, checked.stdout


def test_second_call_finds_everything_in_the_cache(cache: Path, image: Image) -> None:
    async def again() -> None:
        async with asyncio.timeout(2):
            assert await debian_image(cache, Recipe(), lambda step: pytest.fail(str(step))) == image

    asyncio.run(again())


def test_pid_1_prepares_the_machine_and_outlives_what_users_do(
    image: Image, stub_parts: GuestParts, tmp_path: Path
) -> None:
    # The root disk second: the kernel's vda must not be what decides.
    console = boot(
        stub_parts,
        {
            "torpor-tools": (stub_parts.tools, "raw", True),
            "torpor-root": (layer_over(image, tmp_path / "root.qcow2"), "qcow2", False),
        },
    )
    found = re.search(r"^FACTS (.*?)\r?$", console, re.M)
    assert found, console
    facts = json.loads(found[1])
    assert facts == {
        "cgroup": "/agent",
        "controllers": ["cpu", "cpuset", "io", "memory", "pids"],
        "user_cgroup_is_at_sys_fs_cgroup": True,
        "hostname": "torpor",
        "machine_id_digits": 32,
        "loopback": True,
        "module_loaded_on_open": True,
        "shared_memory": True,
        "stdin_link": True,
        "tmp_mode": "0o1777",
        "run_mode": "0o755",
        "tools_writable": False,
        "unreaped_orphans": 0,
        "ignored_signals": [],
    }
    assert "torpor: the agent ended with status 3; starting it again" in console
    assert "STARTED AGAIN" in console
    assert "Power down" in console
    assert "panic" not in console


def test_machine_without_its_tools_disk_says_so_and_ends(
    image: Image, real_parts: GuestParts, tmp_path: Path
) -> None:
    console = boot(
        real_parts,
        {"torpor-root": (layer_over(image, tmp_path / "root.qcow2"), "qcow2", False)},
    )
    assert "torpor: no disk with the serial torpor-tools" in console
    assert "Kernel panic" in console


@pytest.fixture
def packages_only(cache: Path, image: Image, tmp_path: Path) -> Path:
    """A cache that has the default image's packages and nothing else."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/root-tar").symlink_to(cache / "root-tar")
    return tmp_path / "cache"


def test_a_built_image_trusts_the_authorities_of_the_settings(
    packages_only: Path, image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = certificate(tmp_path, "authority")
    monkeypatch.setenv("TORPOR_EXTRA_CA", str(authority))
    trusting = asyncio.run(debian_image(packages_only, Recipe(), silent))
    assert trusting.digest != image.digest
    text = authority.read_bytes().strip()
    with Disk(trusting.root) as disk:
        files = dict(disk.walk())
        bundle = b"".join(disk.read(files[b"etc/ssl/certs/ca-certificates.crt"]))
        assert bundle.count(text) == 1
        assert bundle.count(b"BEGIN CERTIFICATE") > 50
    with Disk(image.root) as disk:
        others = {path for path, _ in disk.walk()}
    added = {path for path in files.keys() - others if b"certificates/torpor-" in path}
    assert len(added) == 1
    assert all(files[path].uid == files[path].gid == 0 for path in files.keys() - others)


def test_an_image_is_built_by_name(
    packages_only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_CACHE", str(packages_only))
    monkeypatch.setenv("TORPOR_HOME", str(tmp_path / "home"))
    said = CliRunner().invoke(app, ["image", "build", "--name", "mine", "--json"])
    assert said.exit_code == 0, said.output
    built = json.loads(said.stdout)
    assert built["recipe"]["packages"] == list(Recipe().packages)
    assert built["source"] == "debian:bookworm"
    named = Names(tmp_path / "home").image("mine")
    assert named.root.samefile(next(packages_only.glob("root/*/root.raw")))


async def test_an_image_of_packages_that_do_not_exist(tmp_path: Path) -> None:
    unknown = Recipe(name="unknown", packages=("no-such-package-as-this",))
    with pytest.raises(ImageError, match="no-such-package-as-this"):
        await debian_image(tmp_path, unknown, silent)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
