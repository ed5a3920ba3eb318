"""Bodies of any size, taken as they come: the client is held up when nobody takes them."""

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request

from torpor.api.errors import refused

STALLED_SECONDS = 120.0
"""For how long a client may send nothing of a body that it has begun: while it is awaited, the
session that it is for cannot be idle."""


async def body_pieces(request: Request) -> AsyncIterator[bytes]:
    """Yield a request's body as it comes. Raises ClientDisconnect if the client goes before its
    end."""
    pieces = aiter(request.stream())
    while True:
        try:
            async with asyncio.timeout(STALLED_SECONDS):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise refused(
                408,
                "request_timeout",
                f"No byte of the body has come for {STALLED_SECONDS:.0f} s.",
                todo="Send it again.",
            ) from None
        if piece:
            yield piece
