"""The head of an HTTP/1.1 request, judged as it came, before a parser makes something of it.

Whatever two programs could read in two ways is refused, so that nobody on the way and nobody in the
session can take one request for another (RFC 9112, 11.2). h11 by itself takes a bare LF for a line
end, unfolds folded headers, lets Transfer-Encoding win over Content-Length, takes the same
Content-Length twice, and a target for another host than Host.
"""

import re
from dataclasses import dataclass

LARGEST = 64 << 10
"""Bytes of a head."""
MOST = 100
"""Headers of a request."""

_END = b"\r\n\r\n"
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)(?=.)", re.DOTALL)
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([!-~]+) HTTP/([0-9])\.([0-9])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*", re.DOTALL)
_HOST = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_ABSOLUTE = re.compile(r"https?://([^/?]*)(.*)", re.IGNORECASE)
_LENGTH = re.compile(rb"[0-9]{1,18}")
NEVER = frozenset(("CONNECT", "TRACE", "TRACK"))
"""Methods that are not passed on."""


class HeadError(Exception):
    """A head that is refused, with this status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Head:
    """What a head says: the ``target`` is a path and perhaps a query, ``authority`` the host that
    is meant, ``version`` HTTP's minor one. ``length`` is that of the body, None if it comes in
    chunks. Names of headers are in small letters."""

    method: str
    target: str
    authority: str
    headers: tuple[tuple[bytes, bytes], ...]
    length: int | None
    version: int = 1


def whole(data: bytes, looked: int = 0) -> int | None:
    """Return where the head ends that ``data`` begins with, None if it is not all there. Raises
    :exc:`HeadError` as soon as it can be none. The first ``looked`` bytes were in order the time
    before."""
    before = max(0, looked - len(_END))
    end = data.find(_END, before)
    head = data if end < 0 else data[: end + 2]
    if len(head) > LARGEST:
        raise HeadError(431, "the head of the request is too large")
    if _BARE.search(head, before):
        raise HeadError(400, "a line ends otherwise than with CR and LF")
    if _CONTROL.search(head, before):
        raise HeadError(400, "there is a control character in the head")
    if head.startswith(b"\r\n"):
        raise HeadError(400, "the request begins with an empty line")
    if head.count(b"\r\n") > MOST + 1:
        raise HeadError(431, "there are too many headers")
    return None if end < 0 else end + len(_END)


def judge(data: bytes) -> Head:
    """Return what a whole head says. Raises :exc:`HeadError`."""
    first, *lines = data.removesuffix(_END).split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise HeadError(400, "the first line is none of a request")
    if line[3] != b"1" or line[4] not in b"01":
        raise HeadError(505, "this version of HTTP is not spoken here")
    headers = tuple(_header(each) for each in lines)
    method, version = line[1].decode(), int(line[4])
    if method in NEVER:
        raise HeadError(405, f"{method} is not passed on")
    if any(n == b"expect" and v.lower() != b"100-continue" for n, v in headers):
        raise HeadError(417, "nothing but 100-continue can be expected")
    authority = _authority(headers)
    target = _target(line[2].decode("ascii"), authority)
    return Head(method, target, authority, headers, _length(headers, version), version)


def _header(line: bytes) -> tuple[bytes, bytes]:
    found = _HEADER.fullmatch(line)
    if found is None:
        raise HeadError(400, "a header is none, or folded")
    return found[1].lower(), found[2]


def _authority(headers: tuple[tuple[bytes, bytes], ...]) -> str:
    said = [value for name, value in headers if name == b"host"]
    if len(said) != 1:
        raise HeadError(400, "there must be one Host")
    return check_host(said[0].decode("latin-1"))


def check_host(host: str) -> str:
    """Return a host and perhaps a port as it came. Raises :exc:`HeadError`."""
    if not _HOST.fullmatch(host):
        raise HeadError(400, "Host names no host")
    return host


def _target(target: str, authority: str) -> str:
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is not None:
        if absolute[1].lower() != authority.lower():
            raise HeadError(400, "the target names another host than Host")
        target = absolute[2] if absolute[2].startswith("/") else f"/{absolute[2]}"
    return check_target(target)


def check_target(target: str) -> str:
    """Return a path and perhaps a query as it came. Raises :exc:`HeadError`."""
    if not target.startswith("/") or "#" in target:
        raise HeadError(400, "the target is no path")
    return target


def _length(headers: tuple[tuple[bytes, bytes], ...], version: int) -> int | None:
    """Return the length of the body, None if it comes in chunks."""
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if codings:
        if lengths or version == 0:
            raise HeadError(400, "a body in chunks has no length, and none is there in HTTP/1.0")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise HeadError(400, "the only transfer coding that is read is chunked")
        return None
    if len(lengths) > 1 or not all(_LENGTH.fullmatch(each) for each in lengths):
        raise HeadError(400, "there may be one Content-Length, a number")
    return int(lengths[0]) if lengths else 0
