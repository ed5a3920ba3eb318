"""The processes of a machine, as its agent tells of them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from torpor.vm.answers import broken, number
from torpor.vm.channel import Channel, plain

PAGE = 100
MOST = 100_000
"""Processes that are taken from one machine; a guest that tells of more is not believed."""
MOST_WORDS = 300
MOST_TEXT = 32 << 20
"""What names and words of all of them may come to, in characters, and 64 more for each."""


@dataclass(frozen=True)
class Process:
    """One process. ``argv`` is cut to some 256 bytes, and ``cut`` says so; a kernel's word for its
    state is ``state`` (proc(5)). Bytes that are not UTF-8 are shown as ``\\xff``.

    ``started`` is in seconds of the machine's running time since its boot, ``cpu`` in seconds,
    ``memory`` in resident bytes. ``exec`` is the id of the command in whose session it is, if that
    still runs. ``user`` says that it is the user's, and may be sent signals.
    """

    pid: int
    ppid: int
    session: int
    uid: int
    name: str
    argv: tuple[str, ...]
    cut: bool
    state: str
    started: float
    cpu: float
    memory: int
    threads: int
    exec: str | None
    user: bool


async def list_processes(channel: Channel) -> AsyncIterator[Process]:
    """Yield the processes, in the order of their numbers. Raises :exc:`GuestError` and the
    channel's errors."""
    after: int | None = 0
    count = text = 0
    while after is not None:
        answer, _ = await channel.request("processes", {"after": after, "count": PAGE})
        page = answer.get("processes")
        following = answer.get("next")
        if not isinstance(page, list) or len(page) > PAGE:
            raise broken("processes")
        if following is not None and (type(following) is not int or following <= after):
            raise broken("next")  # else it could lead us on for ever
        count += PAGE  # numbers that it covers, also if all of them are left out
        if count > MOST:
            raise broken("processes")
        for each in page:
            found = _parse(each)
            text += sum(64 + len(word) for word in (found.name, *found.argv))
            if text > MOST_TEXT:
                raise broken("argv")
            yield found
        after = following


def _parse(said: object) -> Process:
    if not isinstance(said, dict):
        raise broken("processes")
    argv = said.get("argv")
    if not isinstance(argv, list) or len(argv) > MOST_WORDS:
        raise broken("argv")
    exec_id = said.get("exec")
    return Process(
        pid=number(said, "pid"),
        ppid=number(said, "ppid"),
        session=number(said, "session"),
        uid=number(said, "uid"),
        name=plain(said.get("name"), 64),
        argv=tuple(plain(word, 1024) for word in argv),
        cut=said.get("cut") is True,
        state=plain(said.get("state"), 1),
        started=number(said, "started_ns") / 1e9,
        cpu=number(said, "cpu_ns") / 1e9,
        memory=number(said, "memory"),
        threads=number(said, "threads"),
        exec=None if exec_id is None else plain(exec_id, 128),
        user=said.get("user") is True,
    )
