"""How a command ends: errors in one line, signals with their statuses, after the cleaning up."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import typer

from torpor.cli.running import PlaceError, explain, make_writable, run
from torpor.images import ImageError
from torpor.vm import FreezeError, VmError


def ends_with(work: Coroutine[Any, Any, Any]) -> int:
    with pytest.raises(typer.Exit) as ended:
        run(work)
    return int(ended.value.exit_code)


def test_the_result_is_returned() -> None:
    async def work() -> int:
        return 7

    assert run(work()) == 7


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (VmError("It fell over.", state="It lies there.", todo="Lift it."), "Lift it."),
        (ImageError("No image.", "Nothing is there.", "Try again."), "Try again."),
        (OSError(errno.ENOSPC, "No space left on device", "some/file"), "The disk is full"),
        (OSError(errno.EDQUOT, "Quota exceeded"), "The disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "some/file"), "some/file"),
        (ExceptionGroup("two", [VmError("One."), VmError("Two.")]), "One.\nTwo."),
    ],
)
def test_an_error_that_users_can_cause_is_told_once_without_a_traceback(
    error: Exception, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work() -> None:
        raise error

    assert ends_with(work()) == 1
    shown = capsys.readouterr()
    assert shown.err.count(said) == 1
    assert "Traceback" not in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), ExceptionGroup("both", [VmError("x"), KeyError("a bug")])]
)
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(type(error)):
        run(work())


def test_a_closed_pipe_is_not_an_error_of_ours() -> None:
    assert explain(BrokenPipeError(errno.EPIPE, "Broken pipe")) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_the_work_clean_up_and_gives_the_status(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaned = []

    async def work() -> None:
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), number)
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), number)
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.1)  # the second signal does not cut this short
            cleaned.append(True)

    assert ends_with(work()) == 128 + number
    assert cleaned == [True]
    assert "Interrupted" in capsys.readouterr().err


def test_what_fails_because_of_the_signal_is_not_told_as_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise FreezeError("A program that the terminal ended as well failed.") from None

    assert ends_with(work()) == 130
    assert "failed" not in capsys.readouterr().err


def test_a_place_that_cannot_be_written_names_its_variable(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(PlaceError, match=r"not a directory.*Set TORPOR_HOME to"):
        make_writable(file / "home", "TORPOR_HOME", "snapshots")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_of_somebody_else_names_its_variable(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PlaceError, match=r"permission denied.*Set TORPOR_CACHE to"):
        make_writable(tmp_path, "TORPOR_CACHE", "images")


def test_a_place_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    for mode in (0o777, 0o1777, 0o702):
        tmp_path.chmod(mode)
        with pytest.raises(PlaceError, match=r"by everybody.*set TORPOR_CACHE"):
            make_writable(tmp_path, "TORPOR_CACHE", "images")
    tmp_path.chmod(0o775)
    make_writable(tmp_path, "TORPOR_CACHE", "images")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a directory somebody else's")
def test_a_place_that_is_somebody_elses_is_not_used(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    (tmp_path / "link").symlink_to(home)
    for place in (home, tmp_path / "link"):
        with pytest.raises(PlaceError, match="belongs to user 65534"):
            make_writable(place, "TORPOR_HOME", "snapshots")


def test_nothing_is_made_that_others_can_write_to_whatever_the_umask_is(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "os.umask(0)\n"
        "from torpor.cli.running import writable_places\n"
        "from torpor.images.names import Names\n"
        "from torpor.vm import Store\n"
        "places = writable_places()\n"
        "Store(places.home)\n"
        "with Names(places.home)._locked():\n"
        "    (places.cache / 'new').mkdir()\n"
    )
    environment = {"TORPOR_HOME": str(tmp_path / "a/home"), "TORPOR_CACHE": str(tmp_path / "b/c")}
    command = [sys.executable, "-c", program]
    subprocess.run(command, env=os.environ | environment, check=True, timeout=60)
    made = list(tmp_path.rglob("*"))
    assert len(made) > 8
    assert [each for each in made if each.stat().st_mode & 0o022] == []
    assert (tmp_path / "a/home").stat().st_mode & 0o777 == 0o700


def test_a_signal_reaches_the_program_as_a_shell_sees_it() -> None:
    program = (
        "import asyncio, sys, typer\n"
        "from torpor.cli.running import run\n"
        "async def work():\n"
        "    try:\n"
        "        print('works', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "    finally:\n"
        "        print('cleaned up', flush=True)\n"
        "app = typer.Typer()\n"
        "app.command()(lambda: run(work()))\n"
        "app()\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "works\n"
    started.send_signal(signal.SIGTERM)
    out, err = started.communicate(timeout=30)
    assert started.returncode == 128 + signal.SIGTERM
    assert out == "cleaned up\n"
    assert "Traceback" not in err
