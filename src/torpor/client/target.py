"""Which server, and with which token."""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from torpor.client.errors import TargetError

URL = "http://127.0.0.1:8470"
"""Where a server listens unless it is told otherwise."""


@dataclass(frozen=True)
class Target:
    """A server's address, without a slash at its end, and the token to show it."""

    url: str
    token: str | None = field(default=None, repr=False)
    authorities: str | None = None
    """A file of certificates by which the server is trusted, besides the usual ones."""

    @property
    def local(self) -> bool:
        """Whether the server is on this computer, so that no proxy leads to it."""
        return is_local(self.url)

    @property
    def secure(self) -> bool:
        """Whether the server is spoken to with TLS."""
        return self.url.startswith("https:")

    @property
    def headers(self) -> dict[str, str]:
        """What every request says."""
        return {} if self.token is None else {"authorization": f"Bearer {self.token}"}

    def websocket(self, path: str) -> str:
        """Return the address of a WebSocket; ``path`` may have a query."""
        return f"ws{self.url.removeprefix('http')}{path}"


def target(
    url: str | None = None,
    token: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    authorities: str | None = None,
) -> Target:
    """Return what is given, else what ``TORPOR_URL``, ``TORPOR_TOKEN`` and ``TORPOR_CA`` say, else
    the address on this computer and no token. Raises :exc:`TargetError`."""
    where = (url or environ.get("TORPOR_URL") or URL).strip().rstrip("/")
    parts = _parts(where)
    if parts is None or parts.query or parts.fragment:
        raise TargetError(
            f"{where!r} is no address of a server. Give one like {URL}, or https://host:port."
        )
    if parts.username is not None or parts.password is not None:
        raise TargetError(
            "The address of the server has a user or a password in it. Torpor takes a token:"
            " set TORPOR_TOKEN."
        )
    secret = (token or environ.get("TORPOR_TOKEN") or "").strip()
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise TargetError("The token has characters that no token has. See what TORPOR_TOKEN is.")
    return Target(where, secret or None, authorities or environ.get("TORPOR_CA") or None)


def is_local(url: str) -> bool:
    """Whether the address is one of this computer alone."""
    parts = _parts(url)
    host = "" if parts is None else parts.hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parts(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for one that is no number
    except ValueError:
        return None
    return parts if parts.scheme in ("http", "https") and parts.hostname else None
