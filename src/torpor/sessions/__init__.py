"""Sessions: machines that a team can use, over every pause and every crash.

host = await LocalHost.open(home, cache, report)
sessions = await Sessions.open(database, host, transfers=TransferLimits(home / "transfers"))
session = await sessions.create(NewSession(name="first"), by)
async with sessions.use(session.id, by) as used:
    await used.agent.run("/bin/uname", "-a")
"""

from torpor.sessions.configs import Configs
from torpor.sessions.creation import Defaults
from torpor.sessions.errors import (
    ConflictError,
    DestroyedError,
    FailedError,
    InvalidError,
    NoRoomError,
    NotFoundError,
    SessionError,
    TooLargeError,
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
from torpor.sessions.secrets import NewSecret, Secrets
from torpor.sessions.service import Sessions
from torpor.sessions.transfers import NewTransfer, Progress, TransferLimits, Transfers
from torpor.sessions.use import InUse
from torpor.sessions.watch import Keeping
from torpor.sessions.workspace_model import NewWorkspace, WorkspaceLimits
from torpor.sessions.workspaces import Workspaces

__all__ = [
    "SYSTEM",
    "Actor",
    "Changes",
    "Configs",
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
    "NewSecret",
    "NewSession",
    "NewTransfer",
    "NewWorkspace",
    "NoRoomError",
    "NotFoundError",
    "Paused",
    "PortConnection",
    "Ports",
    "Previews",
    "Progress",
    "Ran",
    "Resumed",
    "RolledBack",
    "RoomLimits",
    "Secrets",
    "SessionError",
    "Sessions",
    "Started",
    "TooLargeError",
    "TransferLimits",
    "Transfers",
    "Tree",
    "WorkspaceLimits",
    "Workspaces",
]
