"""How the value of a secret comes into a request. Headers are pairs of bytes, as h11 and h2 have
them; names are compared without case."""

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, quote_plus, unquote_plus

from torpor.network.bindings import BasicUse, Binding, HeaderUse, PlaceholderUse, QueryUse

Header = tuple[bytes, bytes]

LARGEST_BODY = 64 << 10
"""Bytes of a body in which a placeholder is looked for."""
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Held:
    """A binding, with the value that its secret has now."""

    binding: Binding
    value: str

    def __repr__(self) -> str:
        return f"Held({self.binding!r})"  # the value is for no log


@dataclass(frozen=True)
class Injected:
    """A request as it goes out. ``used`` says whether a value is in it."""

    headers: tuple[Header, ...]
    target: bytes
    used: bool


def inject(held: Held, headers: Sequence[Header], target: bytes) -> Injected:
    """Return a request's headers and target with a secret in them. What the machine itself says in
    that place is removed."""
    use, value = held.binding.use, held.value
    match use:
        case HeaderUse(name, template):
            kept = without(headers, name.encode())
            added = (name.encode(), template.replace("{}", value).encode())
            return Injected((*kept, added), target, used=True)
        case BasicUse(user):
            kept = without(headers, b"authorization")
            credentials = base64.b64encode(f"{user}:{value}".encode())
            return Injected((*kept, (b"authorization", b"Basic " + credentials)), target, used=True)
        case QueryUse(name):
            return Injected(tuple(headers), _with_parameter(target, name, value), used=True)
        case PlaceholderUse(text):
            swapped = tuple(_swapped(each, text.encode(), value.encode()) for each in headers)
            return Injected(swapped, target, used=swapped != tuple(headers))


def without(headers: Sequence[Header], name: bytes) -> tuple[Header, ...]:
    """Return headers without those of a name."""
    return tuple(each for each in headers if each[0].lower() != name)


def looks_into_body(held: Held, headers: Sequence[Header]) -> bool:
    """Say whether a request's body may have a placeholder that is to be swapped."""
    use = held.binding.use
    return (
        isinstance(use, PlaceholderUse)
        and use.in_body
        and _media_type(headers) in (JSON, FORM)
        and not any(name.lower() == b"content-encoding" for name, _ in headers)
    )


def inject_body(held: Held, headers: Sequence[Header], body: bytes) -> bytes:
    """Return a whole body with the value where the placeholder was, written as its type wants."""
    use = held.binding.use
    assert isinstance(use, PlaceholderUse)
    if _media_type(headers) == JSON:
        value = json.dumps(held.value)[1:-1]
    else:
        value = quote_plus(held.value)
    return body.replace(use.text.encode(), value.encode())


def _media_type(headers: Sequence[Header]) -> str:
    found = [value for name, value in headers if name.lower() == b"content-type"]
    return found[0].decode("latin-1").partition(";")[0].strip().lower() if len(found) == 1 else ""


def _with_parameter(target: bytes, name: str, value: str) -> bytes:
    path, _, query = target.decode("latin-1").partition("?")
    # As servers split it: some take ';' for '&'.
    pairs = [each for part in query.split("&") for each in part.split(";")]
    kept = [each for each in pairs if each and unquote_plus(each.partition("=")[0]) != name]
    if kept == [each for each in pairs if each]:
        kept = [each for each in query.split("&") if each]
    kept.append(f"{quote(name, safe='[]')}={quote(value, safe='')}")
    return f"{path}?{'&'.join(kept)}".encode("latin-1")


_UNTOUCHED = frozenset(
    (b"host", b":authority", b":path", b":method", b":scheme", b"content-length", b"connection")
)


def _swapped(header: Header, text: bytes, value: bytes) -> Header:
    name, said = header
    if name.lower() in _UNTOUCHED:
        return header
    if text in said:
        return (name, said.replace(text, value))
    scheme, _, credentials = said.partition(b" ")
    if scheme.lower() == b"basic":
        # Clients write user and password so; git and curl among them.
        try:
            plain = base64.b64decode(credentials.strip(), validate=True)
        except binascii.Error:
            return header
        if text in plain:
            return (name, scheme + b" " + base64.b64encode(plain.replace(text, value)))
    return header
