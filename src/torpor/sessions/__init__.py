"""Sessions: machines that a team can use, over every pause and every crash.

sessions = await Sessions.open(database, await LocalHost.open(home, cache, report))
session = await sessions.create(NewSession(name="first"), by)
async with sessions.use(session.id, by) as used:
    await used.agent.run("/bin/uname", "-a")
"""

from torpor.sessions.creation import Defaults
from torpor.sessions.errors import (
    ConflictError,
    DestroyedError,
    FailedError,
    InvalidError,
    NoRoomError,
    NotFoundError,
    SessionError,
)
from torpor.sessions.execs import Execs, Ran, Started
from torpor.sessions.following import Following, Paused, Resumed
from torpor.sessions.hosts import Facts, MachineHost
from torpor.sessions.local import LocalHost
from torpor.sessions.model import (
    SYSTEM,
    Actor,
    Changes,
    Forked,
    Key,
    NewSession,
    RolledBack,
    Tree,
)
from torpor.sessions.ports import PortConnection, Ports
from torpor.sessions.previews import Previews
from torpor.sessions.room import RoomLimits
from torpor.sessions.service import Sessions
from torpor.sessions.use import InUse
from torpor.sessions.watch import Keeping

__all__ = [
    "SYSTEM",
    "Actor",
    "Changes",
    "ConflictError",
    "Defaults",
    "DestroyedError",
    "Execs",
    "Facts",
    "FailedError",
    "Following",
    "Forked",
    "InUse",
    "InvalidError",
    "Keeping",
    "Key",
    "LocalHost",
    "MachineHost",
    "NewSession",
    "NoRoomError",
    "NotFoundError",
    "Paused",
    "PortConnection",
    "Ports",
    "Previews",
    "Ran",
    "Resumed",
    "RolledBack",
    "RoomLimits",
    "SessionError",
    "Sessions",
    "Started",
    "Tree",
]
