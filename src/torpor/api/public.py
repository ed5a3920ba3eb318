"""URLs of this server as others are to use them."""

from starlette.requests import HTTPConnection

from torpor.api.wiring import parts_of


def absolute(connection: HTTPConnection, path: str) -> str:
    """Return the URL of a path of this server: below the setting ``public_url``, else where the
    request was sent to, as it says itself (only who has sent it sees the answer)."""
    public = parts_of(connection).settings.public_url
    if public is None:
        public = f"{connection.url.scheme}://{connection.url.netloc}"
    return public + path
