"""What both clients make of websockets: its settings, and its errors as ours."""

from collections.abc import Mapping
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from torpor.client.errors import (
    ClientError,
    UnreachableError,
    UntrustedError,
    api_error,
    told_error,
)
from torpor.client.exec_stream import LARGEST_FRAME
from torpor.client.target import Target
from torpor.client.transport import distrust, trust

OPEN_SECONDS = 30.0
"""How long opening a stream may take: the server looks up the session, and may be busy."""
REFUSED = 4000
"""From here on a close code is an application's own: 4000 and the status that HTTP would have."""


def settings(target: Target) -> dict[str, Any]:
    """Return what both of websockets' clients connect with."""
    return {
        "additional_headers": target.headers,
        "user_agent_header": "torpor",
        "open_timeout": OPEN_SECONDS,
        "max_size": LARGEST_FRAME,
        # Most of it is small, and what is large is not text.
        "compression": None,
        "proxy": None if target.local else True,
        **({"ssl": trust(target)} if target.secure else {}),
    }


def refusal(error: Exception, url: str) -> ClientError:
    """Return what kept a WebSocket from being opened: the server's own word, if it gave one."""
    if isinstance(error, InvalidStatus):
        response = error.response
        headers = {name.lower(): value for name, value in response.headers.raw_items()}
        return api_error(response.status_code, bytes(response.body or b""), headers)
    if (distrusted := distrust(error)) is not None:
        return UntrustedError(url, distrusted)
    if isinstance(error, TimeoutError):
        return UnreachableError(url, "no connection in time")
    if isinstance(error, InvalidHandshake):
        return UnreachableError(url, f"it does not speak WebSocket here ({error})")
    return UnreachableError(url, str(error) or type(error).__name__)


def closing(error: ConnectionClosed, said: Mapping[str, Any] | None = None) -> ClientError | None:
    """Return the refusal that a close of the server's means, None if it means none. ``said`` is
    what the server said before, if it said something."""
    close = error.rcvd
    if close is None or not REFUSED + 400 <= close.code < REFUSED + 600:
        return None if said is None else told_error(said)
    return told_error(
        said or {"id": close.reason, "message": f"The server closed the stream: {close.reason}"},
        status=close.code - REFUSED,
    )


def said(error: ConnectionClosed) -> str:
    """Return what there is to say of a connection that was lost."""
    return (error.rcvd.reason if error.rcvd is not None else "") or "it was closed"


def ended(error: ConnectionClosed, url: str) -> bytes:
    """Return nothing if the other end closed the connection in order; else raise why not."""
    refused = closing(error)
    if refused is not None:
        raise refused from error
    if error.rcvd is None or error.rcvd.code not in (1000, 1001):
        raise UnreachableError(url, said(error), sent=True) from error
    return b""
