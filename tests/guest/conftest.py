"""The agent as a process of this host, spoken to through a socket in place of its port.

Everything is real but the machine: frames, commands, pipes. The channel is lost as in a freeze:
bytes are cut off anywhere, in both directions.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torpor.vm import GuestAgent
from torpor.vm.channel import Channel

AGENT = """
import sys
from pathlib import Path
from torpor.guest import link, streams
from torpor.guest.agent import Agent
streams.HOLD_GRACE = float(sys.argv[3])
link.CLOSED_FOR = 0.1
Agent(int(sys.argv[1]), Path(sys.argv[2])).run()
"""


class Guest:
    """An agent, and the host's end of its port."""

    def __init__(self, directory: Path, grace: float = 60.0) -> None:
        for name, text in (("procs", "0"), ("freeze", "0"), ("events", "frozen 0\n")):
            (directory / f"cgroup.{name}").write_text(text)
        self.port, theirs = socket.socketpair()
        theirs.setblocking(False)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", AGENT, str(theirs.fileno()), str(directory), str(grace)],
                pass_fds=[theirs.fileno()],
            )

    async def attach(self) -> GuestAgent:
        """Begin a new epoch, as another machine's host would after a thaw."""
        channel = Channel(socket.socket(fileno=os.dup(self.port.fileno())))
        return GuestAgent(channel, await channel.attach(10))

    def spawner(self) -> int:
        """The process that starts commands, a child of the agent."""
        tasks = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(tasks.read_text().split()[0])

    async def descriptors(self) -> int:
        await asyncio.sleep(0.2)  # until the pipes of what has ended are closed
        processes = (self.process.pid, self.spawner())
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in processes)

    def memory(self) -> int:
        """Bytes of the agent's private memory."""
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        sizes = (line.split() for line in text.splitlines()[1:])
        return sum(int(words[1]) << 10 for words in sizes if words[0].startswith("Private_"))

    def close_port(self) -> None:
        """Close the host's end, with nothing unread, which would be an error of sockets."""
        self.port.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            while self.port.recv(1 << 20):
                pass
        self.port.close()

    def end(self) -> None:
        self.port.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    started = Guest(tmp_path)
    yield started
    started.end()
