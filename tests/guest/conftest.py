"""The agent as a process of this host, spoken to through a socket in place of its port.

Everything is real but the machine: frames, commands, pipes. The channel is lost as in a freeze:
bytes are cut off anywhere, in both directions.
"""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import torpor.guest
from tests.waiting import eventually
from torpor.vm import GuestAgent
from torpor.vm.channel import Channel
from torpor.vm.holding import Holding

AGENT = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from torpor.guest import errands, link, mounts, starts, streams, succession
from torpor.guest.agent import Agent
mounts.MOUNTINFO = sys.argv[4]
errands.LIMIT = starts.START_LIMIT = 1.0
streams.HOLD_GRACE = float(sys.argv[3])
link.CLOSED_FOR = 0.1
succession.PLACE = sys.argv[2] + "/agents"
agent = Agent(int(sys.argv[1]), Path(sys.argv[2]))
while True:
    agent = agent.run()
"""


AS_ROOT = ("unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c",
           'mount -t tmpfs none /root && exec "$@"', "sh")  # fmt: skip
"""Before a command line: it is root in a user namespace, with an empty home of root's."""


needs_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@cache
def agent_rights() -> tuple[str, ...] | None:
    """What a guest agent's command line begins with, so that it has a root's rights: nothing for
    root. None where an ordinary user cannot have them."""
    if os.geteuid() == 0:
        return ()
    tried = subprocess.run([*AS_ROOT, "true"], capture_output=True, check=False)
    return AS_ROOT if tried.returncode == 0 else None


def place_of_agent(directory: Path) -> Path:
    """Where the agent has what is its own, apart from what tests put into their directory."""
    return directory.with_name(f"{directory.name}-agent")


def open_to_all(directory: Path) -> None:
    """Let every user into a directory of a test's, which pytest has closed to all but its own."""
    top = Path(tempfile.gettempdir())
    for each in (directory, *directory.parents):
        if each == top:
            return
        each.chmod(each.stat().st_mode | 0o055)


def open_descriptors(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except PermissionError:
        return 0  # it has ended and is not waited for yet, and who looks is not root


class Guest:
    """An agent, and the host's end of its port."""

    def __init__(
        self,
        directory: Path,
        grace: float = 60.0,
        mounts: str | None = None,
        within: Sequence[str] = (),
    ) -> None:
        """``mounts`` are those that the agent sees, as mountinfo tells of them; else the real
        ones. ``within`` are words before its command line, which end in running it in their
        place."""
        rights = agent_rights()
        if rights is None:
            pytest.skip("a guest agent needs root, or user namespaces for ordinary users")
        directory = place_of_agent(directory)
        directory.mkdir()
        # As on a tools disk every user may read it; the checkout may be closed to others.
        (directory / "torpor").mkdir()
        (directory / "torpor/__init__.py").touch()
        left_out = shutil.ignore_patterns("__pycache__")
        of_agent = Path(torpor.guest.__file__).parent
        shutil.copytree(of_agent, directory / "torpor/guest", ignore=left_out)
        seen = "/proc/self/mountinfo"
        if mounts is not None:
            seen = str(directory / "mountinfo")
            Path(seen).write_text(mounts)
        for name, text in (("procs", "0"), ("freeze", "0"), ("events", "frozen 0\n")):
            (directory / f"cgroup.{name}").write_text(text)
        self.port, theirs = socket.socketpair()
        theirs.setblocking(False)
        with theirs:
            arguments = [str(theirs.fileno()), str(directory), str(grace), seen]
            self.process = subprocess.Popen(
                [*rights, *within, sys.executable, "-c", AGENT, *arguments],
                pass_fds=[theirs.fileno()],
            )

    async def attach(self, holding: Holding | None = None) -> GuestAgent:
        """Begin a new epoch, as another machine's host would after a thaw."""
        ours = socket.socket(fileno=os.dup(self.port.fileno()))
        channel = Channel(ours, holding=holding)
        return GuestAgent(channel, await channel.attach(10))

    def spawner(self) -> int:
        """The process that starts commands, a child of the agent."""
        tasks = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(tasks.read_text().split()[0])

    async def descriptors(self) -> int:
        await asyncio.sleep(0.2)  # until the pipes of what has ended are closed
        return sum(map(open_descriptors, (self.process.pid, self.spawner())))

    async def closes_all_but(self, count: int) -> None:
        """See that no more descriptors than these stay open, however long that takes here."""
        await eventually(self.descriptors, lambda found: found <= count)

    def memory(self) -> int:
        """Bytes of the agent's anonymous memory.

        All of it: what it still shares with the processes that were forked from it becomes private
        whenever one of the two writes to it, and has not grown then.
        """
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        sizes = (line.split() for line in text.splitlines()[1:])
        return sum(int(words[1]) << 10 for words in sizes if words[0] == "Anonymous:")

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


WORK = """
import json, sys
from torpor.guest.work import do_work
sys.exit(do_work(json.loads(sys.argv[1])))
"""


def work(
    name: str, *, stdin: bytes = b"", fails: str | None = None, **arguments: Any
) -> tuple[bytes, dict[str, Any]]:
    """Do work in a process of its own, as the spawner would; return what it wrote and its report.

    ``fails`` is the code of the error with which it is to end.
    """
    line = [sys.executable, "-c", WORK, json.dumps({"name": name, **arguments})]
    done = subprocess.run(line, input=stdin, capture_output=True, timeout=120, check=False)
    said = json.loads(done.stderr.splitlines()[-1]) if done.stderr else {}
    assert (done.returncode, said.get("code")) == ((1, fails) if fails else (0, None)), done.stderr
    return done.stdout, said


LOCAL, MAY_HANG = "", "40 1 0:40 / /far rw - fuse.sshfs far:/ rw\n"


@pytest.fixture(params=[LOCAL, MAY_HANG], ids=["local", "may-hang"])
def guest(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Guest]:
    """An agent in a machine where all files answer, or where some may not."""
    started = Guest(tmp_path, mounts=request.param)
    yield started
    started.end()


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(serve: Serve, address: str = "127.0.0.1") -> AsyncIterator[int]:
    """Serve on a port of this host's loopback, which is that of the agent here."""
    writers: list[asyncio.StreamWriter] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await serve(reader, writer)

    started = await asyncio.start_server(served, address, 0)
    yield started.sockets[0].getsockname()[1]
    started.close()
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
