"""The server's own address, as those who ask see it."""

from starlette.requests import Request


def outside_url(request: Request, path: str) -> str:
    """Return the URL of a path of this server: with the scheme and the host that were asked for,
    which only who has asked is told."""
    return f"{str(request.base_url).rstrip('/')}{path}"
