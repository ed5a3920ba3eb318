"""The head of an HTTP/2 request, judged as strictly as that of HTTP/1.1: what is taken here is said
in HTTP/1.1 to the session."""

import base64
import re
import secrets

from torpor.network.heads import LARGEST, MOST, NEVER, Head, HeadError, check_host, check_target

_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_PATH = re.compile(rb"[!-~]+")
_LENGTH = re.compile(rb"[0-9]{1,18}")


def head_of(pairs: list[tuple[bytes, bytes]], *, whole: bool) -> tuple[Head, bytes | None]:
    """Return what a request says, as strict as that of HTTP/1.1 is read, and the key of the
    WebSocket that it asks for, if it does. ``whole``: nothing follows. Raises :exc:`HeadError`."""
    pseudo = {name: value for name, value in pairs if name.startswith(b":")}
    headers = [pair for pair in pairs if not pair[0].startswith(b":")]
    if len(headers) > MOST or sum(len(n) + len(v) for n, v in pairs) > LARGEST:
        raise HeadError(431, "the head of the request is too large")
    for name, value in headers:
        bad = not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or value != value.strip()
        if bad or name in (b"connection", b"transfer-encoding", b"upgrade"):
            raise HeadError(400, "a header is none")
    method = pseudo.get(b":method", b"").decode("latin-1")
    tunnel = method == "CONNECT" and b":protocol" in pseudo
    if not _METHOD.fullmatch(method):
        raise HeadError(400, "the method is none")
    if method in NEVER and not tunnel:
        raise HeadError(405, f"{method} is not passed on")
    if tunnel and pseudo[b":protocol"] != b"websocket":
        raise HeadError(501, "nothing but a WebSocket is spoken over CONNECT here")
    if any(n == b"expect" and v.lower() != b"100-continue" for n, v in headers):
        raise HeadError(417, "nothing but 100-continue can be expected")
    path = pseudo.get(b":path", b"")
    if not _PATH.fullmatch(path):
        raise HeadError(400, "the target is no path")
    authority = _authority(pseudo.get(b":authority"), headers)
    apart = (b"host", b"cookie", b"sec-websocket-key") if tunnel else (b"host", b"cookie")
    rest = [pair for pair in headers if pair[0] not in apart]
    crumbs = [value for name, value in headers if name == b"cookie"]
    if crumbs:
        rest.append((b"cookie", b"; ".join(crumbs)))
    key = None
    if tunnel:
        method, key = "GET", base64.b64encode(secrets.token_bytes(16))
        rest += [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
        rest.append((b"sec-websocket-key", key))
    length = _length(headers)
    if (whole or tunnel) and length:
        raise HeadError(400, "the body is not there that Content-Length tells of")
    length = 0 if whole or tunnel else length
    said = (b"host", authority.encode("latin-1")), *rest
    return Head(method, check_target(path.decode("ascii")), authority, said, length), key


def _authority(said: bytes | None, headers: list[tuple[bytes, bytes]]) -> str:
    hosts = [value for name, value in headers if name == b"host"]
    named = [*hosts] if said is None else [said, *hosts]
    if not named or len({each.lower() for each in named}) > 1:
        raise HeadError(400, "there must be one host")
    return check_host(named[0].decode("latin-1"))


def _length(headers: list[tuple[bytes, bytes]]) -> int | None:
    lengths = [value for name, value in headers if name == b"content-length"]
    if len(lengths) > 1 or not all(_LENGTH.fullmatch(each) for each in lengths):
        raise HeadError(400, "there may be one Content-Length, a number")
    return int(lengths[0]) if lengths else None
