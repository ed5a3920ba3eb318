"""The client of Torpor's API: :class:`Client`, and :class:`AsyncClient` for coroutines.

It needs nothing of the other packages. What is asked for is described once, in ``calls``, as plain
data; the two clients only send that and wait for it.
"""

from torpor.client.async_client import AsyncClient
from torpor.client.client import Client
from torpor.client.errors import (
    AnswerError,
    ApiError,
    ClientError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    RateLimitedError,
    ServerError,
    TargetError,
    TimedOutError,
    UnauthorizedError,
    UnavailableError,
    UnreachableError,
)
from torpor.client.exec_stream import (
    Disconnected,
    Exit,
    Gap,
    Item,
    Output,
    Paused,
    Reconnected,
    Resumed,
)
from torpor.client.machine_records import (
    Exec,
    FileChange,
    FileEntry,
    FileStatus,
    Process,
    Ran,
    Terminal,
)
from torpor.client.records import (
    Checkpoint,
    Event,
    Forked,
    ForkFailure,
    History,
    Node,
    Page,
    Recoverable,
    RolledBack,
    Session,
)
from torpor.client.service_records import HostStatus, NewToken, Sample, Size, Token, Who
from torpor.client.target import URL, is_local
from torpor.client.tries import Patience

__all__ = [
    "URL",
    "AnswerError",
    "ApiError",
    "AsyncClient",
    "Checkpoint",
    "Client",
    "ClientError",
    "ConflictError",
    "Disconnected",
    "Event",
    "Exec",
    "Exit",
    "FileChange",
    "FileEntry",
    "FileStatus",
    "ForbiddenError",
    "ForkFailure",
    "Forked",
    "Gap",
    "History",
    "HostStatus",
    "InvalidError",
    "Item",
    "NewToken",
    "Node",
    "NotFoundError",
    "Output",
    "Page",
    "Patience",
    "Paused",
    "Process",
    "Ran",
    "RateLimitedError",
    "Reconnected",
    "Recoverable",
    "Resumed",
    "RolledBack",
    "Sample",
    "ServerError",
    "Session",
    "Size",
    "TargetError",
    "Terminal",
    "TimedOutError",
    "Token",
    "UnauthorizedError",
    "UnavailableError",
    "UnreachableError",
    "Who",
    "is_local",
]
