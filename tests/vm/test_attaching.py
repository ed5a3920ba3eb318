"""A machine's agent is attached to, also if the first connection to it is of no use."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.vm.test_channel import welcome
from torpor.guest import wire
from torpor.guest.wire import Decoder, Kind
from torpor.vm.errors import ChannelLostError, UnansweredError
from torpor.vm.launch import AGENT
from torpor.vm.machine import Machine
from torpor.vm.manifest import MachineRecord
from torpor.vm.processes import ProcessId


class Port:
    """QEMU's end of an agent's port: serves one connection at a time, and answers from the
    connection numbered ``answers`` on."""

    def __init__(self, answers: int) -> None:
        self.connections = 0
        self._answers = answers
        self._one = asyncio.Lock()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._one:
            self.connections += 1
            decoder = Decoder()
            while data := await reader.read(1 << 16):
                for frame in decoder.feed(data):
                    if frame.kind == Kind.HELLO and self.connections >= self._answers:
                        hello, _ = wire.parse_document(frame.payload)
                        writer.write(welcome(hello["epoch"]))
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def port(directory: Path, answers: int) -> AsyncIterator[Port]:
    """Serve the port of the machine in ``directory``."""
    made = Port(answers)
    async with await asyncio.start_unix_server(made.serve, directory / AGENT):
        yield made


@pytest.fixture
async def machine(
    tmp_path: Path, some_record: MachineRecord, sleeper: ProcessId
) -> AsyncIterator[Machine]:
    machine = Machine(tmp_path, replace(some_record, process=sleeper))
    yield machine
    await machine.disconnect()


@pytest.mark.parametrize("answers", [1, 2])
async def test_a_connection_of_no_use_is_made_anew(
    machine: Machine, tmp_path: Path, answers: int
) -> None:
    async with port(tmp_path, answers) as serving:
        agent = await machine.attach(1.5)
        assert agent.welcome.agent_id == "a"
        assert serving.connections == answers
        await agent.channel.close()


async def test_an_agent_that_is_silent_is_given_up(machine: Machine, tmp_path: Path) -> None:
    async with port(tmp_path, 100) as serving:
        with pytest.raises(UnansweredError):
            await machine.attach(0.3)
        assert serving.connections == 2


async def test_who_asks_at_the_same_time_gets_the_same(machine: Machine, tmp_path: Path) -> None:
    async with port(tmp_path, 1) as serving:
        agents = await asyncio.gather(*(machine.attached() for _ in range(5)))
        assert len({id(agent) for agent in agents}) == 1
        assert serving.connections == 1
        agents[0].channel.lose(ChannelLostError("It was lost."))
        again = await asyncio.gather(*(machine.attached() for _ in range(5)))
        assert len({id(agent) for agent in again}) == 1
        assert serving.connections == 2
        await again[0].channel.close()


async def test_a_machine_without_a_port_cannot_be_reached(machine: Machine) -> None:
    with pytest.raises(ChannelLostError, match="cannot be reached"):
        await machine.attach(1)
