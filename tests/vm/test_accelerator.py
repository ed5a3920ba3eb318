import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from torpor.vm import accelerator
from torpor.vm.accelerator import Accelerator, host_boot_id, probe, qemu_version, tsc_khz
from torpor.vm.errors import HostError

FakeQemu = Callable[[str], None]
Kvm = Callable[[Callable[[int], bool]], None]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that is all of PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    return programs


@pytest.fixture
def qemu(path: Path) -> FakeQemu:
    """Puts a program on PATH that runs a line of shell in QEMU's place."""

    def put(line: str) -> None:
        program = path / accelerator.QEMU
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)

    return put


class Boots:
    """Stands in for the trial boot, and counts."""

    def __init__(self, answer: str | None) -> None:
        self.answer = answer
        self.kernels: list[Path] = []

    async def __call__(self, kernel: Path) -> str | None:
        self.kernels.append(kernel)
        return self.answer


@pytest.fixture
def kvm(monkeypatch: pytest.MonkeyPatch) -> Kvm:
    """Says what ``os.access`` answers for the device of KVM."""
    real = os.access

    def allow(allowed: Callable[[int], bool]) -> None:
        monkeypatch.setattr(
            os,
            "access",
            lambda path, mode: allowed(mode) if path == "/dev/kvm" else real(path, mode),
        )

    return allow


# The TSC


@pytest.mark.parametrize(
    ("line", "khz"),
    [
        ("bogomips\t: 4800.00", 2_400_000),
        ("bogomips : 5187.81", 2_593_905),
        ("BogoMIPS\t: 48.00", 24_000),
        ("bogomips:0.01", 5),
    ],
)
def test_the_tsc_runs_at_half_the_bogomips(line: str, khz: int) -> None:
    assert tsc_khz(f"processor\t: 0\n{line}\nprocessor\t: 1\nbogomips\t: 1.00\n") == khz


def test_a_host_without_bogomips_is_refused() -> None:
    with pytest.raises(HostError, match="bogomips"):
        tsc_khz("processor : 0\n")


def test_only_emulation_tells_the_kernel_of_the_tsc() -> None:
    emulated = Accelerator("tcg", "", (7, 2, 0), "qemu-max")
    assert "tsc=reliable tsc_early_khz=" in emulated.kernel_arguments
    assert "tcg,thread=multi,tb-size=512" in emulated.arguments
    native = Accelerator("kvm", "", (7, 2, 0), "Xeon")
    assert native.kernel_arguments == ""
    assert native.arguments == ("-accel", "kvm", "-cpu", "host")


# The version


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)", (7, 2, 22)),
        ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)", (10, 0, 2)),
        ("QEMU emulator version 9.2.0-rc1 (v9.2.0-rc1)", (9, 2, 0)),
        ("QEMU emulator version 8.2.50 (v8.2.0-1234-gabcdef)", (8, 2, 50)),
        ("QEMU emulator version 8.2", (8, 2, 0)),
        ("QEMU emulator version 8.2.2+ds", (8, 2, 2)),
    ],
)
async def test_the_version_is_read(
    qemu: FakeQemu, said: str, version: tuple[int, int, int]
) -> None:
    qemu(f"echo '{said}'; echo 'Copyright (c) 2003-2022 Fabrice Bellard and others'")
    assert await qemu_version() == version


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("echo QEMU emulator version 7.1.9", r"QEMU 7\.1\.9 is too old"),
        ("echo QEMU emulator version 2.12.0", "too old"),
        ("echo no idea", "does not tell its version"),
        ("printf 'version \\377\\376'", "does not tell its version"),
        ("exit 1", "does not tell its version"),
    ],
)
async def test_a_qemu_that_does_not_serve_is_refused(qemu: FakeQemu, line: str, why: str) -> None:
    qemu(line)
    with pytest.raises(HostError, match=why):
        await qemu_version()


@pytest.mark.usefixtures("path")
async def test_a_host_without_qemu_is_told_what_to_install() -> None:
    with pytest.raises(HostError, match="qemu-system-x86"):
        await qemu_version()


# The verdict


@pytest.fixture
def verdicts(tmp_path: Path, qemu: FakeQemu) -> Path:
    qemu("echo QEMU emulator version 9.1.2")
    return tmp_path / "cache" / "accelerator.json"


@pytest.mark.parametrize("answer", [None, "this host has no /dev/kvm."])
async def test_the_verdict_of_the_trial_boot_holds_and_is_kept(
    verdicts: Path, answer: str | None
) -> None:
    boots = Boots(answer)
    kernel = Path("kernel")
    first = await probe(kernel, verdicts, boots)
    assert (first.name, first.qemu_version) == ("tcg" if answer else "kvm", (9, 1, 2))
    assert (answer or "KVM ran") in first.why
    assert await probe(kernel, verdicts, boots) == first
    assert boots.kernels == [kernel]
    assert [path.name for path in verdicts.parent.iterdir()] == ["accelerator.json"]


@pytest.mark.parametrize("change", ["boot", "QEMU", "user", "kvm"])
async def test_a_verdict_holds_for_one_boot_one_qemu_one_user_and_their_rights(
    verdicts: Path, qemu: FakeQemu, kvm: Kvm, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    kvm(lambda _: False)
    await probe(Path("kernel"), verdicts, Boots("it did not run."))
    if change == "boot":
        monkeypatch.setattr(accelerator, "host_boot_id", lambda: "another")
    elif change == "QEMU":
        qemu("echo QEMU emulator version 9.1.3")
    elif change == "user":
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    else:
        kvm(lambda _: True)  # as when somebody was added to the group
    boots = Boots(None)
    assert (await probe(Path("kernel"), verdicts, boots)).name == "kvm"
    assert len(boots.kernels) == 1


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", '"text"', "{}", '{"key": {}}', '{"key": null}', "\x00"]
)
async def test_a_verdict_that_cannot_be_read_is_made_anew(verdicts: Path, text: str) -> None:
    verdicts.parent.mkdir()
    verdicts.write_text(text)
    assert (await probe(Path("kernel"), verdicts, Boots(None))).name == "kvm"
    assert json.loads(verdicts.read_text())["key"]["boot_id"] == host_boot_id()


# The trial boot


@pytest.fixture
def kvm_opens(kvm: Kvm) -> None:
    kvm(lambda _: True)


async def test_a_host_without_the_device_is_told_so(verdicts: Path, kvm: Kvm) -> None:
    kvm(lambda _: False)
    found = await probe(Path("kernel"), verdicts)
    assert found.why == "Software emulation, because this host has no /dev/kvm."


async def test_a_user_without_the_right_is_told_so(verdicts: Path, kvm: Kvm) -> None:
    kvm(lambda mode: mode == os.F_OK)
    found = await probe(Path("kernel"), verdicts)
    # What to do depends on whose the device is: `torpor doctor` says it.
    assert found.why == "Software emulation, because this user may not open /dev/kvm."


VERSION = 'if [ "$1" = --version ]; then echo QEMU emulator version 9.1.2; exit; fi'


@pytest.mark.usefixtures("kvm_opens")
@pytest.mark.parametrize(
    ("line", "name", "why"),
    [
        ("echo '[    0.000000] Linux version 6.1'; exec /bin/sleep 60", "kvm", "KVM ran"),
        ("printf 'Linux ver'; /bin/sleep 0.1; echo 'sion 6.1'; exec /bin/sleep 60", "kvm", "KVM"),
        ("echo starting; exec /bin/sleep 60", "tcg", "to its first line in 0.5 s"),
        ("echo first; echo 'failed to initialize kvm' >&2; exit 1", "tcg", "failed to initialize"),
        ("exit 1", "tcg", "no output"),
    ],
)
async def test_what_the_trial_boot_saw_is_the_reason(
    verdicts: Path,
    qemu: FakeQemu,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    name: str,
    why: str,
) -> None:
    monkeypatch.setattr(accelerator, "KVM_LIMIT", 0.5 if "starting" in line else 10)
    qemu(f"{VERSION}\necho $$ > {verdicts.parent.parent}/pid\n{line}")
    found = await probe(Path("kernel"), verdicts)
    assert found.name == name
    assert why in found.why
    assert not Path("/proc", (verdicts.parent.parent / "pid").read_text().strip()).exists()


@pytest.mark.usefixtures("kvm_opens")
async def test_a_trial_boot_that_is_cancelled_leaves_no_process(
    verdicts: Path, qemu: FakeQemu
) -> None:
    said = verdicts.parent.parent / "pid"
    qemu(f"{VERSION}\necho $$ > {said}.new; /bin/mv {said}.new {said}; exec /bin/sleep 60")
    task = asyncio.create_task(probe(Path("kernel"), verdicts))
    async with asyncio.timeout(10):
        while not said.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not Path("/proc", said.read_text().strip()).exists()
    assert not verdicts.exists()
