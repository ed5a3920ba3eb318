"""Admission: a machine is started only if its memory can be had."""

from dataclasses import dataclass

from torpor.sessions.errors import NoRoomError
from torpor.sessions.hosts import MachineHost
from torpor.vm import MIB

OVERHEAD = 64 * MIB
"""What QEMU takes for a machine beyond the guest's pages: its own memory, and under emulation the
translated code of a guest that has little to do. (34 MiB were measured for an idle one.)"""


@dataclass(frozen=True)
class RoomLimits:
    """In bytes: ``reserve`` stays free whatever happens, ``most`` is what all machines together may
    take (None: all there is), ``growth`` what a machine is expected to write soon after it was
    started."""

    reserve: int = 512 * MIB
    most: int | None = None
    growth: int = 128 * MIB


class Room:
    """What has been promised to the machines that run or are being started.

    A machine that was just started has not yet written what it is going to write: what it was
    promised and has not taken counts as taken.
    """

    def __init__(self, host: MachineHost, limits: RoomLimits) -> None:
        self._host = host
        self._limits = limits
        self._promised: dict[str, int] = {}
        self._taken: dict[str, int] = {}

    def take(self, session: str, snapshot: str | None) -> None:
        """Promise a session the memory of one more machine, from ``snapshot`` on (None: of an image
        whose golden snapshot may be still to be made). Raises :exc:`NoRoomError`."""
        needed = OVERHEAD + self._limits.growth
        if snapshot is not None:
            needed += self._host.memory_needed(snapshot)
        free = self.free()
        if needed > free:
            raise NoRoomError(
                f"There is no room for one more machine: it is expected to take"
                f" {needed // MIB} MiB, and {max(free, 0) // MIB} MiB are free beyond the"
                f" {self._limits.reserve // MIB} MiB that are kept back.",
                state="Nothing was started.",
                todo="Pause or remove other sessions, or wait.",
                needed=needed,
                free=max(free, 0),
            )
        self._promised[session] = self._promised.get(session, 0) + needed

    def give_back(self, session: str) -> None:
        """Take back what was promised: the session has no machine any more."""
        self._promised.pop(session, None)
        self._taken.pop(session, None)

    def adopt(self, session: str) -> None:
        """Count a machine that runs already."""
        self._promised.setdefault(session, OVERHEAD + self._limits.growth)

    def took(self, session: str, private: int) -> None:
        """Note what a session's machine has by now, in bytes."""
        if session in self._promised:
            self._taken[session] = private

    def free(self) -> int:
        """Return the bytes that can be promised now; negative if too much has been."""
        outstanding = sum(
            max(0, promised - self._taken.get(session, 0))
            for session, promised in self._promised.items()
        )
        free = self._host.free_memory() - outstanding - self._limits.reserve
        if self._limits.most is not None:
            used = sum(
                max(promised, self._taken.get(session, 0))
                for session, promised in self._promised.items()
            )
            free = min(free, self._limits.most - used)
        return free
