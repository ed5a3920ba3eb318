"""Finds the addresses of names, as this host does, in threads of its own.

``getaddrinfo`` knows the host's configuration (resolv.conf, nsswitch.conf, systemd-resolved), and
blocks for as long as a name server is silent: half a minute and more. asyncio would run it in the
threads that everything else waits for, of which there are six on two processors.
"""

import asyncio
import queue
import socket
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, Literal

from torpor.network.hostnames import is_normal

Address = IPv4Address | IPv6Address
Outcome = Literal["found", "empty", "missing", "failed"]
"""It has addresses; it exists and has none; it does not exist; that could not be found out."""

THREADS: Final = 64
PER_ASKER: Final = 8
"""How many names one asker can have looked up at a time; its others wait for these."""
PATIENCE: Final = 10.0
"""Seconds after which an asker is told that a name could not be resolved."""
FRESH: Final = {"found": 30.0, "empty": 10.0, "missing": 5.0, "failed": 1.0}
"""Seconds for which an answer is given again. ``getaddrinfo`` does not tell how long it is good."""
MOST_KEPT: Final = 10_000
MOST_WAITING: Final = 256
"""How many names one asker can have waiting for a thread."""
HOSTS: Final = Path("/etc/hosts")


@dataclass(frozen=True)
class Resolved:
    """What was found for a name, and in words why there are no addresses."""

    outcome: Outcome
    addresses: tuple[Address, ...] = ()
    why: str = ""


def host_lookup(name: str) -> Resolved:
    """Ask the host, and wait. The name is taken as a whole: no domain of the host's own is tried
    behind it, which would have it ask for names that nobody meant."""
    if listed := _in_hosts_file(name):
        return Resolved("found", listed)
    try:
        found = socket.getaddrinfo(f"{name}.".encode(), None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return Resolved(_OUTCOMES.get(error.errno, "failed"), why=str(error.strerror))
    except OSError as error:
        return Resolved("failed", why=str(error))
    # Link-local addresses come with the interface behind a '%'.
    texts = dict.fromkeys(str(each[4][0]).partition("%")[0] for each in found)
    return Resolved("found", tuple(ip_address(text) for text in texts))


_OUTCOMES: Final[dict[int | None, Outcome]] = {
    socket.EAI_NONAME: "missing",
    socket.EAI_NODATA: "empty",
    socket.EAI_AGAIN: "failed",
    socket.EAI_FAIL: "failed",
}


def _in_hosts_file(name: str) -> tuple[Address, ...]:
    """Return what hosts(5) says of a name: glibc does not find it there with its last dot."""
    try:
        text = HOSTS.read_text("utf-8", "replace")
    except OSError:
        return ()
    found: list[Address] = []
    for line in text.splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if name in (each.lower() for each in names):
            with suppress(ValueError):
                found.append(ip_address(address))
    return tuple(dict.fromkeys(found))


class Resolver:
    """Resolves names for many askers, one question at a time for each name.

    An asker that has names looked up which nobody answers waits for them itself: it has at most
    ``per_asker`` of the threads. ``lookup`` asks for one name, and blocks.
    """

    def __init__(
        self,
        lookup: Callable[[str], Resolved] = host_lookup,
        *,
        threads: int = THREADS,
        per_asker: int = PER_ASKER,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookup = lookup
        self._threads = threads
        self._per_asker = per_asker
        self._patience = patience
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, Resolved]] = OrderedDict()
        self._asked: dict[str, asyncio.Future[Resolved]] = {}
        self._waiting: OrderedDict[str, deque[str]] = OrderedDict()
        """Names that no thread has yet, by who asked for them first: askers take turns."""
        self._under_way: Counter[str] = Counter()
        """How many names of each asker a thread has."""
        self._work: queue.SimpleQueue[tuple[str, str, asyncio.AbstractEventLoop] | None]
        self._work = queue.SimpleQueue()
        self._started = 0
        self._busy = 0
        self._closed = False

    async def resolve(self, name: str, asker: str = "") -> Resolved:
        """Return the addresses of a name, in its normal form. Never raises for what is not found;
        says ``failed`` after the time that an asker is patient."""
        if not is_normal(name):
            return Resolved("missing", why="no host can have such a name")
        kept = self._kept.get(name)
        if kept is not None and self._clock() < kept[0]:
            return kept[1]
        if self._closed:
            return Resolved("failed", why="the resolver is closed")
        future = self._asked.get(name)
        if future is None:
            names = self._waiting.get(asker, ())
            if len(names) >= MOST_WAITING:
                return Resolved("failed", why=f"{len(names)} names wait to be resolved already")
            future = asyncio.get_running_loop().create_future()
            self._asked[name] = future
            self._waiting.setdefault(asker, deque()).append(name)
            self._hand_out()
        # An asker that gives up does not take the answer from the others: nobody cancels it.
        await asyncio.wait((future,), timeout=self._patience)
        if not future.done():
            return Resolved("failed", why=f"no answer within {self._patience:g} s")
        return future.result()

    def close(self) -> None:
        """Let the threads go, each after what it waits for; who still waits is told."""
        self._closed = True
        self._waiting.clear()
        for _ in range(self._started):
            self._work.put(None)
        for future in self._asked.values():
            if not future.done():
                future.set_result(Resolved("failed", why="the resolver is closed"))
        self._asked.clear()

    def _hand_out(self) -> None:
        """Give names that wait to threads, one of each asker in turn."""
        loop = asyncio.get_running_loop()
        for asker in list(self._waiting):
            if self._busy >= self._threads:
                return
            if self._under_way[asker] >= self._per_asker:
                continue
            names = self._waiting.pop(asker)
            name = names.popleft()
            if names:
                # To the end: the next free thread is another asker's.
                self._waiting[asker] = names
            self._under_way[asker] += 1
            self._busy += 1
            if self._started < self._busy:
                # They are of the system's ending, not waited for: a silent name server must not
                # keep the program from it.
                threading.Thread(target=self._serve, name="resolver", daemon=True).start()
                self._started += 1
            self._work.put((name, asker, loop))

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            name, asker, loop = work
            try:
                resolved = self._lookup(name)
            except Exception as error:
                # Who waits is told, and the thread goes on: it would be missed for good.
                resolved = Resolved("failed", why=f"the look-up ended with {error!r}")
            # A loop that has ended meanwhile takes no more calls.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answered, name, asker, resolved)

    def _answered(self, name: str, asker: str, resolved: Resolved) -> None:
        self._busy -= 1
        self._under_way[asker] -= 1
        if not self._under_way[asker]:
            del self._under_way[asker]
        if self._closed:
            return
        self._kept.pop(name, None)
        self._kept[name] = (self._clock() + FRESH[resolved.outcome], resolved)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        future = self._asked.pop(name)
        if not future.done():
            future.set_result(resolved)
        self._hand_out()
