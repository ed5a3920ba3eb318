"""The client of Torpor's API: :class:`Client`, and :class:`AsyncClient` for coroutines.

It needs nothing of the other packages. What is asked for is described once, in ``calls``, as plain
data; the two clients only send that and wait for it.

``AsyncClient`` is imported when it is first asked for: who only waits needs no asyncio.
"""

from typing import TYPE_CHECKING, Any

from torpor.client.client import Client
from torpor.client.config_records import Config
from torpor.client.egress_records import Decision, Egress, Flow
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
    UntrustedError,
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
    Unpacked,
)
from torpor.client.preview_records import Ingress, Preview
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
    Tree,
)
from torpor.client.secret_records import Secret
from torpor.client.service_records import HostStatus, NewToken, Sample, Size, Token, Who
from torpor.client.target import URL, is_local
from torpor.client.template_records import Build, ImageReference, Template
from torpor.client.transfer_records import Transfer
from torpor.client.tries import Patience
from torpor.client.workspace_records import Workspace

if TYPE_CHECKING:
    from torpor.client.async_client import AsyncClient

__all__ = [
    "URL",
    "AnswerError",
    "ApiError",
    "AsyncClient",
    "Build",
    "Checkpoint",
    "Client",
    "ClientError",
    "Config",
    "ConflictError",
    "Decision",
    "Disconnected",
    "Egress",
    "Event",
    "Exec",
    "Exit",
    "FileChange",
    "FileEntry",
    "FileStatus",
    "Flow",
    "ForbiddenError",
    "ForkFailure",
    "Forked",
    "Gap",
    "History",
    "HostStatus",
    "ImageReference",
    "Ingress",
    "InvalidError",
    "Item",
    "NewToken",
    "Node",
    "NotFoundError",
    "Output",
    "Page",
    "Patience",
    "Paused",
    "Preview",
    "Process",
    "Ran",
    "RateLimitedError",
    "Reconnected",
    "Recoverable",
    "Resumed",
    "RolledBack",
    "Sample",
    "Secret",
    "ServerError",
    "Session",
    "Size",
    "TargetError",
    "Template",
    "Terminal",
    "TimedOutError",
    "Token",
    "Transfer",
    "Tree",
    "UnauthorizedError",
    "UnavailableError",
    "Unpacked",
    "UnreachableError",
    "UntrustedError",
    "Who",
    "Workspace",
    "is_local",
]


def __getattr__(name: str) -> Any:
    if name != "AsyncClient":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torpor.client.async_client import AsyncClient

    return AsyncClient
