"""Programs that draw on a terminal, through a freeze, as a person at it sees them."""

import asyncio
import signal
from collections.abc import Callable

import pyte
import pytest

from tests.machine.conftest import Start
from torpor.images import Recipe, debian_image, golden, silent
from torpor.vm import SIZES, Command, Exec, Host, Identity, Machine, Output, Terminal, Wanted

pytestmark = pytest.mark.machine

PROGRAMS = Recipe("terminals", packages=(*Recipe().packages, "htop", "vim-tiny"))


class Xterm(pyte.Screen):
    """A screen that takes vim's question about keys (CSI ? 4 m), no colours as pyte thinks."""

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        if not private:
            super().select_graphic_rendition(*attributes)


class Screen:
    """A command on a terminal, and what stands on the screen of whoever sits at it."""

    def __init__(self, running: Exec, size: Terminal) -> None:
        self.running = running
        self._screen = Xterm(size.columns, size.rows)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    async def until(self, seen: Callable[[list[str]], bool], what: str) -> None:
        """Watch until the screen shows it."""
        try:
            async with asyncio.timeout(60):
                while not seen(self.lines):
                    item = await self.running.next_output()
                    assert isinstance(item, Output), f"it ended before it showed {what}"
                    self._stream.feed(item.data)
        except TimeoutError:
            raise AssertionError(f"no {what} in:\n" + "\n".join(self.lines)) from None

    async def shows(self, text: str) -> None:
        await self.until(lambda lines: any(text in line for line in lines), text)

    async def press(self, keys: str) -> None:
        await self.running.write(keys.encode())

    def resize(self, size: Terminal) -> None:
        self._screen.resize(size.rows, size.columns)


async def opened(machine: Machine, size: Terminal, *argv: str) -> Screen:
    return Screen(await machine.agent.start(Command(argv, terminal=size)), size)


@pytest.fixture
async def at(start: Start, host: Host) -> Machine:
    """A machine with an editor and a process viewer."""
    made = start.maker
    image = await debian_image(made.cache, PROGRAMS, silent)
    snapshot = await golden(made, image, SIZES["mars-2vcpu-1gb"], silent)
    return await host.thaw(snapshot, Identity.of("terminals"))


async def frozen_and_thawed(host: Host, machine: Machine, *screens: Screen) -> Machine:
    frozen = await host.freeze(machine, Wanted("stop"))
    again = await host.thaw(frozen.manifest.id)
    for screen in screens:
        await screen.running.attach(again.agent.channel)
    return again


async def test_an_editor_a_viewer_and_a_shell_go_on(host: Host, at: Machine) -> None:
    size = Terminal(24, 80)
    editor = await opened(at, size, "/usr/bin/vi", "/root/letter")
    viewer = await opened(at, size, "/usr/bin/htop", "-d", "10")
    shell = await opened(at, size, "/bin/bash", "--norc", "--noprofile")
    await editor.shows("letter")
    await editor.press("iDear reader,\r")
    await editor.shows("Dear reader,")
    await viewer.shows("PID")
    await shell.press("word=kept; sleep 1000\r")
    await shell.shows("sleep 1000")

    machine = await frozen_and_thawed(host, at, editor, viewer, shell)

    await editor.press("yours.\x1b:wq\r")
    await editor.running.wait()
    letter = await machine.agent.read_file("/root/letter")
    assert letter == b"Dear reader,\nyours.\n"

    # The viewer draws on what it had drawn before, and follows a new size.
    larger = Terminal(40, 120)
    viewer.resize(larger)
    await machine.agent.resize(viewer.running.id, larger)
    await viewer.until(lambda lines: "Quit" in lines[-1], "its keys on the last line of 40")
    await viewer.press("q")
    assert (await viewer.running.wait()).ok

    # What runs in the foreground of the shell is interrupted, stopped and continued.
    await shell.press("\x03")
    await shell.press("echo $word $?\r")
    await shell.shows("kept 130")
    await shell.press("sed -u 's/e$/E/;s/o$/O/'\r")
    await shell.shows("sed -u")
    await shell.press("one\n")
    await shell.shows("onE")
    await shell.press("\x1a")
    await shell.shows("Stopped")

    machine = await frozen_and_thawed(host, machine, shell)

    await shell.press("fg\r")
    # A line feed: it ends the line also if the shell has not yet given its terminal away.
    await shell.press("two\n")
    await shell.shows("twO")
    await shell.press("\x04")
    await shell.press("exit 5\r")
    assert (await shell.running.wait()).code == 5


async def test_a_machine_that_is_forked_has_the_terminal_twice(host: Host, at: Machine) -> None:
    size = Terminal(24, 80)
    shell = await opened(at, size, "/bin/bash", "--norc", "--noprofile")
    await shell.press("word=first\r")
    forked = await host.fork(at, 1)
    child = forked.children[0]
    assert isinstance(child, Machine)
    await shell.press("echo $word again\r")
    await shell.shows("first again")
    theirs = Screen(await child.agent.attach(shell.running.id), size)
    await theirs.press("echo $word there\r")
    await theirs.shows("first there")
    assert not any("first there" in line for line in shell.lines)
    for machine in (at, child):
        await machine.agent.signal(shell.running.id, signal.SIGKILL)
