"""Why a machine's process went, from what QEMU and the guest said."""

import asyncio
import socket
from pathlib import Path

import pytest

from torpor.vm.console import Console
from torpor.vm.endings import LOG_READ, Cause, cause_of, explain_end, read_log

RUNS = "vm_state_notify running 1 reason 9 (running)\n"
STOPPED = "vm_state_notify running 0 reason 4 (paused)\n"
ENDS = "vm_state_notify running 0 reason 10 (shutdown)\n"


@pytest.mark.parametrize(
    ("reason", "log", "cause"),
    [
        ("guest-reset", "", Cause.REBOOT),
        ("guest-shutdown", "", Cause.POWER_OFF),
        ("guest-panic", "", Cause.PANIC),
        ("host-signal", "", Cause.SIGNAL),
        (None, RUNS, Cause.CRASH),
        (None, RUNS + STOPPED + RUNS, Cause.CRASH),
        (None, "", Cause.CRASH),
        (None, RUNS + ENDS, Cause.REBOOT),
        (None, RUNS + "qemu_system_shutdown_request reason=6\n" + ENDS, Cause.POWER_OFF),
        (None, RUNS + "qemu_system_shutdown_request reason=8\n" + ENDS, Cause.PANIC),
        (None, "7@1796048089.98:qemu_system_shutdown_request reason=4\n" + ENDS, Cause.SIGNAL),
        ("unheard-of", RUNS + ENDS, Cause.REBOOT),
        (None, "the guest wrote vm_state_notify (shutdown)\n", Cause.CRASH),
    ],
)
def test_the_cause_is_found_by_event_or_log(reason: str | None, log: str, cause: Cause) -> None:
    assert cause_of(reason, log, "") is cause


@pytest.mark.parametrize(
    ("console", "cause"),
    [
        ("Kernel panic - not syncing: no init\nCall Trace:\n", Cause.PANIC),
        ("Kernel panic - not syncing: no\n[ 4.5] reboot: Restarting system\n", Cause.REBOOT),
        ("Kernel panic - not syncing: no\n[ 4.9] sysrq: Resetting\n", Cause.REBOOT),
        ("kernel PANIC at the disco\n", Cause.REBOOT),
    ],
)
def test_a_panic_before_the_driver_is_there_is_known_by_the_console(
    console: str, cause: Cause
) -> None:
    assert cause_of("guest-reset", "", console) is cause
    assert cause_of("guest-shutdown", "", console) is Cause.POWER_OFF


async def test_only_what_this_process_printed_counts(tmp_path: Path) -> None:
    file = tmp_path / "console.log"
    file.write_text("Kernel panic - not syncing: of an earlier boot\n")
    ours, theirs = socket.socketpair()
    console = Console(file)
    ours.setblocking(False)
    await console.follow(ours)
    await asyncio.to_thread(theirs.sendall, b"x" * 70_000 + b"\nlast\n")
    async with asyncio.timeout(30):
        while not console.tail().endswith("last"):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    theirs.close()
    await console.drain()
    # More came than is kept: nothing is left of what was before.
    assert set(console.since_followed()) == set("x\nlast")
    await console.close()
    again = Console(file)
    assert again.since_followed() == ""
    assert again.tail().endswith("last")


async def test_an_end_tells_what_qemu_said_and_the_console(tmp_path: Path) -> None:
    file = tmp_path / "console.log"
    file.write_text("up\nKernel panic - not syncing: x\nCall Trace:\n")
    console = Console(file)
    crash = explain_end("m1", Cause.CRASH, console, "qemu: out of memory\n")
    assert crash.cause == "crash"
    assert "QEMU said: qemu: out of memory" in str(crash)
    panic = explain_end("m1", Cause.PANIC, console, "")
    assert panic.console.startswith("Kernel panic")
    for cause in Cause:
        assert "m1" in explain_end("m1", cause, console, "").summary


def test_only_the_end_of_the_log_is_read(tmp_path: Path) -> None:
    file = tmp_path / "qemu.log"
    assert read_log(file) == ""
    file.write_bytes(b"\xff" * (LOG_READ + 5) + b"end")
    assert read_log(file).endswith("end")
    assert len(read_log(file)) == LOG_READ
