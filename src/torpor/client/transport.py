"""What both clients make of httpx: its settings, and its errors as ours."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from torpor.client.call import Answer, Call, encoded
from torpor.client.errors import TimedOutError, UnreachableError
from torpor.client.target import Target

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 45.0
"""How long a stream of events may be silent: the server sends a comment every 15 s."""


def settings(target: Target) -> dict[str, Any]:
    """Return what both of httpx's clients are made with."""
    return {
        "base_url": target.url,
        "headers": target.headers | {"user-agent": "torpor"},
        # Neither a proxy nor ~/.netrc has anything to say on the way to this very computer.
        "trust_env": not target.local,
        # Reading the authorities takes longer than a request; without TLS none is asked.
        "verify": True
        if target.url.startswith("https:")
        else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
    }


def timeout(seconds: float) -> httpx.Timeout:
    """Return the limits of one request: ``seconds`` of silence."""
    return httpx.Timeout(seconds, connect=CONNECT_SECONDS)


def request_of(client: httpx.Client | httpx.AsyncClient, call: Call[Any], content: Any) -> Any:
    """Return httpx's request for a call."""
    return client.build_request(
        call.method,
        call.path + encoded(call.query),
        headers=dict(call.headers),
        content=content,
        timeout=timeout(call.seconds),
    )


def answer_of(response: httpx.Response) -> Answer:
    """Return the answer that a response, read whole, is."""
    return Answer(response.status_code, dict(response.headers), response.content)


@contextmanager
def told(url: str) -> Iterator[None]:
    """Raise httpx's errors as :exc:`UnreachableError`."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise UnreachableError(url, _why(error, "no connection in time")) from error
    except httpx.TimeoutException as error:
        raise TimedOutError(url, "it did not answer in time", sent=True) from error
    except httpx.TransportError as error:
        raise UnreachableError(url, _why(error, "it broke"), sent=True) from error


def _why(error: Exception, otherwise: str) -> str:
    return str(error).removeprefix("[Errno 111] ").lower() or otherwise
