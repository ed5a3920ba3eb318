"""What both clients make of httpx: its settings, and its errors as ours."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from torpor.client.call import Answer, Call, encoded
from torpor.client.errors import (
    TargetError,
    TimedOutError,
    UnreachableError,
    UntrustedError,
)
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
        "verify": trust(target),
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=20),
    }


def trust(target: Target) -> ssl.SSLContext:
    """Return by what the server's certificate is judged. Raises :exc:`TargetError`."""
    if not target.secure:
        # Reading the authorities takes longer than a request; without TLS none is asked.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = httpx.create_ssl_context()
    if target.authorities is not None:
        try:
            context.load_verify_locations(target.authorities)
        except OSError as error:  # ssl.SSLError is one
            why = (error.strerror or str(error)).lower()
            raise TargetError(
                f"The authorities in {target.authorities} cannot be read: {why}. Set TORPOR_CA to"
                " a file of certificates in PEM."
            ) from error
    return context


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
        if (distrusted := distrust(error)) is not None:
            raise UntrustedError(url, distrusted) from error
        raise UnreachableError(url, _why(error, "no connection in time")) from error
    except httpx.TimeoutException as error:
        raise TimedOutError(url, "it did not answer in time", sent=True) from error
    except httpx.TransportError as error:
        raise UnreachableError(url, _why(error, "it broke"), sent=True) from error


def distrust(error: BaseException | None) -> str | None:
    """Return why the server's certificate is not trusted, None if an error is not that."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error.verify_message.rstrip(".").lower()
        error = error.__cause__ or error.__context__
    return None


def _why(error: Exception, otherwise: str) -> str:
    return str(error).removeprefix("[Errno 111] ").lower() or otherwise
