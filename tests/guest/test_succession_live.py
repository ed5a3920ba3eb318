"""A newer agent takes over from one that runs, see conftest.py."""

import asyncio
import compileall
import hashlib
import os
import signal
import sys
import zipfile
from pathlib import Path

import pytest

import torpor.guest
from tests.guest.conftest import Guest, place_of_agent, server
from torpor.vm import AgentCode, Command, Exec, GuestAgent, GuestError, Output, Terminal

COUNT = "n=0; while read -r line; do n=$((n + 1)); echo $n $line; done; echo end $n"


def pack(directory: Path, name: str, **changes: str) -> AgentCode:
    """Pack an agent of other code: ours, with modules ``changes`` appended to."""
    source = directory / name / "torpor" / "guest"
    source.mkdir(parents=True)
    (source.parent / "__init__.py").touch()
    for file in Path(torpor.guest.__path__[0]).glob("*.py"):
        text = file.read_text() + changes.get(file.stem, "")
        if file.stem == "digest":
            text = f"DIGEST = {name!r}\n"
        if file.stem == "succession":
            text += f"\nPLACE = {str(place_of_agent(directory) / 'agents')!r}\n"
        (source / file.name).write_text(text)
    compileall.compile_dir(directory / name, quiet=1, legacy=True)
    archive = directory / f"{name}.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for compiled in (directory / name).rglob("*.pyc"):
            packed.write(compiled, compiled.relative_to(directory / name))
    return AgentCode(name, archive)


async def replaced(guest: Guest, agent: GuestAgent, newer: AgentCode) -> GuestAgent:
    await agent.replace(newer)
    await agent.channel.close()
    again = await guest.attach()
    assert again.welcome.code == newer.digest
    return again


async def read_until(running: Exec, text: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(20):
        while text not in seen:
            item = await running.next_output()
            assert isinstance(item, Output)
            seen += item.data
    return seen


async def test_commands_terminals_and_connections_go_on(guest: Guest, tmp_path: Path) -> None:
    agent = await guest.attach()
    assert agent.welcome.code == ""
    counter = await agent.start(Command(("/bin/sh", "-c", COUNT), stdin=True))
    terminal = await agent.start(Command(("cat",), terminal=Terminal()))
    limited = await agent.start(Command(("sleep", "1000"), limit=4.0))
    async with server(_greet) as port:
        connection = await agent.dial(port)
        await counter.write(b"a\n")
        await read_until(counter, b"1 a")
        await terminal.write(b"typed\r")
        await read_until(terminal, b"typed\r\ntyped\r\n")

        for name in ("second", "third"):
            agent = await replaced(guest, agent, pack(tmp_path, name))
            for each in (counter, terminal, limited, connection):
                await each.attach(agent.channel)
            await counter.write(f"{name}\n".encode())
            await read_until(counter, name.encode())
            await terminal.write(f"{name}\r".encode())
            await read_until(terminal, f"{name}\r\n{name}\r\n".encode())
            await connection.write(name.encode())
            assert await connection.read() == b"hello " + name.encode()
            assert (await agent.run("echo", name)).stdout == f"{name}\n".encode()

        await agent.resize(terminal.id, Terminal(10, 10))
        await counter.close_stdin()
        assert await read_until(counter, b"end") == b"end 3\n"
        assert (await counter.wait()).ok
        assert (await limited.wait()).timed_out
        await terminal.close_stdin()
        await terminal.wait()
        connection.close()
    await agent.channel.close()


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(100):
        writer.write(b"hello " + data)
    writer.close()


async def test_output_and_input_under_way_are_whole(guest: Guest, tmp_path: Path) -> None:
    agent = await guest.attach()
    data = os.urandom(2 << 20)
    running = await agent.start(Command(("cat",), stdin=True))
    got = bytearray()

    async def send(part: bytes) -> None:
        await running.write(part)

    async def receive() -> None:
        while len(got) < len(data):
            item = await running.next_output()
            assert isinstance(item, Output)
            got.extend(item.data)

    sending = asyncio.create_task(send(data[: 1 << 20]))
    async with asyncio.timeout(30):
        while len(got) < 300_000:
            item = await running.next_output()
            assert isinstance(item, Output)
            got.extend(item.data)
    sending.cancel()
    agent = await replaced(guest, agent, pack(tmp_path, "newer"))
    await running.attach(agent.channel)
    async with asyncio.timeout(60):
        await asyncio.gather(send(data[running.written :]), receive())
    await running.close_stdin()
    assert (await running.wait()).ok
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    await agent.channel.close()


async def test_what_ended_before_can_still_be_read(guest: Guest, tmp_path: Path) -> None:
    agent = await guest.attach()
    ended = await agent.start(Command(("/bin/sh", "-c", "echo kept; exit 4")))
    await ended.wait()
    agent = await replaced(guest, agent, pack(tmp_path, "newer"))
    again = await agent.attach(ended.id)
    assert await again.collect() == (b"kept\n", b"")
    assert again.exit is not None
    assert again.exit.code == 4
    await agent.channel.close()


async def test_a_dozen_aftermath_leave_nothing(guest: Guest, tmp_path: Path) -> None:
    agent = await guest.attach()
    running = await agent.start(Command(("sleep", "1000")))
    agent = await replaced(guest, agent, pack(tmp_path, "newer-0"))
    before = await guest.descriptors()
    for number in range(1, 12):
        agent = await replaced(guest, agent, pack(tmp_path, f"newer-{number}"))
        await agent.run("true")
    await agent.signal(running.id, signal.SIGKILL)
    await running.attach(agent.channel)
    assert (await running.wait()).signal == signal.SIGKILL
    await guest.closes_all_but(before)
    children = Path(f"/proc/{guest.process.pid}/task/{guest.process.pid}/children")
    async with asyncio.timeout(20):
        while len(children.read_text().split()) > 1:  # the older spawners end and are reaped
            await agent.channel.request("ping")
    assert len(list((place_of_agent(tmp_path) / "agents").iterdir())) == 1
    await agent.channel.close()


async def test_code_that_cannot_be_loaded_leaves_the_agent_as_it_was(
    guest: Guest, tmp_path: Path
) -> None:
    agent = await guest.attach()
    running = await agent.start(Command(("/bin/sh", "-c", COUNT), stdin=True))
    broken = pack(tmp_path, "broken", agent="\nraise RuntimeError('of no use')\n")
    with pytest.raises(GuestError, match="of no use"):
        await agent.replace(broken)
    await running.write(b"still\n")
    await read_until(running, b"1 still")
    assert (await agent.run("echo", "here")).stdout == b"here\n"
    newer = pack(tmp_path, "newer")
    again = await replaced(guest, agent, newer)  # and a better one can come
    assert (await again.run("echo", "there")).stdout == b"there\n"
    await again.channel.close()


async def test_code_with_another_digest_is_refused(guest: Guest, tmp_path: Path) -> None:
    agent = await guest.attach()
    newer = pack(tmp_path, "newer")
    with pytest.raises(GuestError, match="digest"):
        await agent.channel.request(
            "agent.replace", {"sha256": "0" * 64, "handovers": [1]}, newer.archive.read_bytes()
        )
    with pytest.raises(GuestError, match="form"):
        await agent.channel.request("agent.replace", {"sha256": "0" * 64, "handovers": [99]}, b"")
    assert (await agent.run(sys.executable, "-c", "print(1)")).stdout == b"1\n"
    await agent.channel.close()
