"""A snapshot with an older guest agent is thawed by a newer Torpor."""

import zipfile
from pathlib import Path

import pytest

from tests.machine.conftest import Start
from torpor.vm import AgentCode, Command, Exec, Host, Identity, Output, Terminal, Wanted

pytestmark = pytest.mark.machine

COUNT = "n=0; while read -r line; do n=$((n + 1)); echo $n $line; done"


def changed(start: Start, directory: Path, digest: str, broken: bool = False) -> AgentCode:
    """The agent of this checkout as another one, by its digest."""
    archive = directory / f"{digest}.zip"
    with (
        zipfile.ZipFile(start.maker.parts.agent.archive) as old,
        zipfile.ZipFile(archive, "w") as new,
    ):
        for name in old.namelist():
            if name != "torpor/guest/digest.pyc":
                new.writestr(name, old.read(name))
        text = "raise RuntimeError('of no use')" if broken else f"DIGEST = {digest!r}"
        new.writestr("torpor/guest/digest.py", text)
    return AgentCode(digest, archive)


async def open_with(start: Start, home: Path, agent: AgentCode) -> Host:
    made = start.maker
    return await Host.open(
        home, made.accelerator, made.jail, golden=made.store(), agent=agent, links=made.links(0)
    )


async def lines(running: Exec, count: int) -> list[bytes]:
    seen = b""
    while seen.count(b"\n") < count:
        item = await running.next_output()
        assert isinstance(item, Output)
        seen += item.data
    return seen.splitlines()


async def test_commands_go_on_under_a_newer_agent(start: Start, home: Path, tmp_path: Path) -> None:
    first = await open_with(start, home, start.maker.parts.agent)
    machine = await first.thaw(start.golden, Identity.of("test"))
    assert machine.agent.welcome.code == start.maker.parts.agent.digest
    counter = await machine.agent.start(Command(("/bin/sh", "-c", COUNT), stdin=True))
    typing = await machine.agent.start(Command(("/bin/cat",), terminal=Terminal()))
    await counter.write(b"a\nb\n")
    assert await lines(counter, 2) == [b"1 a", b"2 b"]
    boot_id = machine.agent.welcome.boot_id
    frozen = await first.freeze(machine, Wanted("stop"))
    await first.close()

    second = await open_with(start, home, changed(start, tmp_path, "newer"))
    machine = await second.thaw(frozen.manifest.id)
    assert machine.agent_kept is None
    assert machine.agent.welcome.code == "newer"
    assert machine.agent.welcome.boot_id == boot_id
    await counter.attach(machine.agent.channel)
    await typing.attach(machine.agent.channel)
    await counter.write(b"c\n")
    assert await lines(counter, 1) == [b"3 c"]
    await typing.write(b"x\r")
    assert await lines(typing, 2) == [b"x", b"x"]
    assert (await machine.agent.run("/bin/echo", "new")).stdout == b"new\n"
    # The newer agent is part of what is frozen now.
    frozen = await second.freeze(machine, Wanted("stop"))
    machine = await second.thaw(frozen.manifest.id)
    assert machine.agent.welcome.code == "newer"
    await counter.attach(machine.agent.channel)
    await counter.write(b"d\n")
    assert await lines(counter, 1) == [b"4 d"]
    await second.end(machine)
    await second.close()


async def test_an_agent_that_cannot_be_replaced_works_on(
    start: Start, home: Path, tmp_path: Path
) -> None:
    host = await open_with(start, home, changed(start, tmp_path, "broken", broken=True))
    machine = await host.thaw(start.golden, Identity.of("test"))
    assert "of no use" in str(machine.agent_kept)
    assert machine.agent.welcome.code == start.maker.parts.agent.digest
    assert (await machine.agent.run("/bin/echo", "old")).stdout == b"old\n"
    await host.end(machine)
    await host.close()
