"""Who may speak to a server that asks for no token: programs of this computer, and no web page that
somebody happens to look at.

A browser lets any page send requests to this computer, and a page whose name is made to lead here
(DNS rebinding) even read the answers. It says, though, where a request comes from.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from torpor.api.errors import Problem, RefusedError
from torpor.api.requests import header
from torpor.settings.model import is_loopback

_OWN_SITE = ("same-origin", "none")
"""What a browser says in Sec-Fetch-Site of this server's own pages, and of what a user typed."""


def check_origin(scope: Mapping[str, Any]) -> None:
    """Raise :exc:`RefusedError` for a request to another name than this computer's own, and for one
    that a page of another origin makes."""
    host = header(scope, b"host") or ""
    if not is_loopback(_name_of(f"//{host}")):
        raise _refused(
            f"This server asks for no token, and so serves only this computer, not {host!r}.",
            "Call it 127.0.0.1, [::1] or localhost; or have it ask for tokens.",
        )
    origin = header(scope, b"origin")
    site = header(scope, b"sec-fetch-site")
    own = origin is None or origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())
    if not own or (site is not None and site not in _OWN_SITE):
        raise _refused(
            "This server asks for no token, and so serves no pages of other origins.",
            "Have it ask for tokens.",
        )


def _name_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _refused(message: str, todo: str) -> RefusedError:
    return RefusedError(Problem(403, "foreign_origin", message, "Nothing was done.", todo))
