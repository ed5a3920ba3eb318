"""What is passed on of headers, in both directions, and what is put in their place."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torpor.api.preview.addresses import Addresses, Place

Pairs = list[tuple[bytes, bytes]]

COOKIE = b"torpor_preview"
"""The cookie that carries a link's token."""
SANDBOX = b"sandbox allow-scripts allow-forms allow-popups allow-downloads allow-modals"
"""What a page may that has no origin of its own: nothing with that of the other pages there."""
OWN_AUTHORIZATION = b"torpor-authorization"

_HOP = frozenset(
    (
        b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate",
        b"proxy-authorization", b"te", b"trailer", b"transfer-encoding", b"upgrade",
        b"http2-settings", b"content-length",
    )
)  # fmt: skip
"""What is of one connection alone, or says where a body ends, which each connection says itself."""
_OURS = frozenset((b"host", b"forwarded", b"x-real-ip", OWN_AUTHORIZATION))
_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_LOCATION = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Outside:
    """How a request came: at which ``authority``, from which ``peer``, and for which place."""

    addresses: Addresses
    authority: str
    peer: str
    place: Place
    session: str
    port: int

    @property
    def origin(self) -> bytes:
        """The origin that a browser has it for."""
        return f"{self.addresses.scheme}://{self.authority}".lower().encode()

    @property
    def cookies(self) -> bytes:
        """What cookies of a place without an origin of its own are called before their names."""
        return f"torpor-{self.session}-{self.port}-".encode()


def inward(
    headers: Iterable[tuple[bytes, bytes]], outside: Outside, *, shown: bytes | None
) -> Pairs:
    """Return the headers with which a request goes to a session. ``shown`` is the name of the one
    that had a token of ours in it, which stays here."""
    headers = list(headers)
    dropped = {*_HOP, *_OURS, *_named(headers)} | ({shown} if shown else set())
    local = f"localhost:{outside.port}".encode()
    passed: Pairs = [(b"host", local)]
    for name, value in headers:
        # Some programs take an underscore in a name for a hyphen.
        plain = name.replace(b"_", b"-")
        if name in dropped or plain in _OURS or plain.startswith(b"x-forwarded-"):
            continue
        if name == b"cookie":
            value = _kept_cookies(value, outside)
            if not value:
                continue
        elif name == b"origin" and value.lower() == outside.origin:
            value = b"http://" + local  # the same origin inside as it is outside
        passed.append((name, value))
    passed += [
        (b"x-forwarded-for", outside.peer.encode()),
        (b"x-forwarded-host", outside.authority.encode()),
        (b"x-forwarded-proto", outside.addresses.scheme.encode()),
    ]
    if outside.place.prefix:
        passed.append((b"x-forwarded-prefix", outside.place.prefix.encode()))
    return passed


def outward(headers: Iterable[tuple[bytes, bytes]], outside: Outside) -> Pairs:
    """Return the headers with which an answer goes out."""
    headers = list(headers)
    dropped = _HOP | _named(headers)
    if not any(name == b"transfer-encoding" for name, _ in headers):
        dropped -= {b"content-length"}
    shared = bool(outside.place.prefix)
    passed: Pairs = []
    for name, value in headers:
        if name in dropped or (shared and name == b"service-worker-allowed"):
            continue
        if name == b"location":
            value = _outside_location(value, outside)
        elif name == b"set-cookie":
            value = _outside_cookie(value, outside)
            if not value:
                continue
        passed.append((name, value))
    if shared:
        passed.append((b"content-security-policy", SANDBOX))
    if outside.place.link:
        passed.append((b"referrer-policy", b"no-referrer"))
    return passed


def cookies(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    """Return the values of all cookies of a name."""
    found = []
    for name, value in headers:
        if name == b"cookie":
            for each in value.split(b";"):
                its_name, _, its_value = each.strip().partition(b"=")
                if its_name == wanted:
                    found.append(its_value)
    return found


def upgrade_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return what a request wants its connection to become; None if nothing, or HTTP/2."""
    headers = list(headers)
    wanted = [value for name, value in headers if name == b"upgrade"]
    if len(wanted) != 1 or b"upgrade" not in _named(headers) or b"h2c" in wanted[0].lower():
        return None
    return wanted[0]


def _named(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """Return what Connection names."""
    said = b",".join(value for name, value in headers if name == b"connection")
    return {each.strip().lower() for each in said.split(b",")}


def _kept_cookies(value: bytes, outside: Outside) -> bytes:
    kept = []
    for each in value.split(b";"):
        name, equals, rest = each.strip().partition(b"=")
        if outside.place.prefix:
            if not name.startswith(outside.cookies):
                continue  # of another program at the same host
            name = name.removeprefix(outside.cookies)
        if name and name != COOKIE:
            kept.append(name + equals + rest)
    return b"; ".join(kept)


def _outside_cookie(value: bytes, outside: Outside) -> bytes:
    """Return what sets a cookie for this place alone, nothing if it would be ours."""
    first, *attributes = value.split(b";")
    if first.partition(b"=")[0].strip() == COOKIE:
        return b""
    said = [each.strip() for each in attributes]
    dropped = (b"domain", b"path") if outside.place.prefix else (b"domain",)
    kept = [each for each in said if each.partition(b"=")[0].strip().lower() not in dropped]
    if outside.place.prefix:
        first = outside.cookies + first.strip()
        kept.append(b"Path=" + outside.place.prefix.encode() + b"/")
    return b"; ".join((first, *kept))


def _outside_location(value: bytes, outside: Outside) -> bytes:
    """Return where a redirect leads from outside."""
    found = _LOCATION.fullmatch(value)
    if found is not None:
        host = found[1].decode("latin-1").lower()
        if host not in {f"{name}:{outside.port}" for name in _LOCAL}:
            return value
        rest = found[2] if found[2].startswith(b"/") else b"/" + found[2]
        return outside.origin + outside.place.prefix.encode() + rest
    if outside.place.prefix and value.startswith(b"/") and not value.startswith(b"//"):
        return outside.place.prefix.encode() + value
    return value
