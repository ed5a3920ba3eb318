"""Who may use a preview: judged for each request, before anything is looked up or woken.

Whoever may not gets the same answer whether or not there is such a session.
"""

import math
from dataclasses import dataclass

from torpor.api.bearers import ANYBODY, Bearers, Caller
from torpor.api.permissions import Permission
from torpor.api.preview.addresses import LINK, Addresses, Place
from torpor.api.preview.headers import COOKIE, OWN_AUTHORIZATION, cookies
from torpor.api.preview.links import Links
from torpor.api.preview.pages import FORBIDDEN, NOBODY, Page, page, redirect
from torpor.network.heads import Head
from torpor.sessions.model import now
from torpor.store.records import PreviewLink

AUTHORIZATION = b"authorization"
_OURS = b"bearer torpor_"
_LOOKING = ("GET", "HEAD")


@dataclass(frozen=True)
class Admitted:
    """Somebody who may use a port of a session: by a token in the header ``shown``, or by a
    ``link``."""

    session: str
    port: int
    caller: Caller
    link: PreviewLink | None = None
    shown: bytes | None = None


class Admission:
    """Judges requests. ``bearers`` is None where no authentication is asked for."""

    def __init__(self, addresses: Addresses, bearers: Bearers | None, links: Links) -> None:
        self._addresses = addresses
        self._bearers = bearers
        self._links = links

    async def judge(self, head: Head, place: Place) -> Admitted | Page:
        """Return who a request is of, or what it is answered with."""
        nobody = page(NOBODY, accept_of(head))
        if place.link is not None:
            return await self._by_link(place.link, place) or nobody
        shown = _token(head)
        if shown is not None:
            name, token = shown
            caller = self._bearers.find(token) if self._bearers else ANYBODY
            if caller is None:
                return nobody
            return self._by_token(caller, place, name) or page(FORBIDDEN, accept_of(head))
        coming = _link_in(head.target) if not place.prefix and head.method in _LOOKING else None
        if coming is not None:
            token, rest = coming
            admitted = await self._by_link(token, place)
            return nobody if admitted is None else self._arrival(admitted, token, rest)
        return await self._by_what_a_browser_adds(head, place) or nobody

    async def _by_what_a_browser_adds(self, head: Head, place: Place) -> Admitted | None:
        """Whom a request is of that shows nothing by itself, unless another page has made it."""
        if not self._of_own_page(head):
            return None
        if not place.prefix:
            for each in cookies(head.headers, COOKIE):
                admitted = await self._by_link(each.decode("latin-1"), place)
                if admitted is not None:
                    return admitted
        return self._by_token(ANYBODY, place, None) if self._bearers is None else None

    def _by_token(self, caller: Caller, place: Place, shown: bytes | None) -> Admitted | None:
        assert place.session is not None
        assert place.port is not None
        if not caller.may(Permission.USE):
            return None
        return Admitted(place.session, place.port, caller, shown=shown)

    async def _by_link(self, token: str, place: Place) -> Admitted | None:
        found = await self._links.find(token)
        if found is None:
            return None
        link, caller = found
        if place.session not in (None, link.session) or place.port not in (None, link.port):
            return None
        return Admitted(link.session, link.port, caller, link)

    def _arrival(self, admitted: Admitted, token: str, rest: str) -> Page:
        """Return the answer that leaves a link's token in a cookie, and leads to what it is for."""
        assert admitted.link is not None
        seconds = max(1, math.ceil((admitted.link.expires_at - now()).total_seconds()))
        cookie = f"{COOKIE.decode()}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax"
        if self._addresses.scheme == "https":
            cookie += "; Secure"
        return redirect(303, rest, (b"set-cookie", cookie.encode("ascii")))

    def _of_own_page(self, head: Head) -> bool:
        """Return whether a request is of a page of this very origin, of what a user has typed, or
        just leads here. Of other pages a browser tells that, and previews are neighbours."""
        said = {name: value for name, value in head.headers if name.startswith(b"sec-fetch-")}
        site = said.get(b"sec-fetch-site", b"none")
        if site not in (b"same-origin", b"none"):
            leads = said.get(b"sec-fetch-mode") == b"navigate" and head.method in _LOOKING
            return leads and said.get(b"sec-fetch-dest", b"document") == b"document"
        own = f"{self._addresses.scheme}://{head.authority}".lower().encode()
        origins = [value.lower() for name, value in head.headers if name == b"origin"]
        return all(each == own for each in origins)


def accept_of(head: Head) -> str:
    """Return what kinds of answer a request takes."""
    return b",".join(v for name, v in head.headers if name == b"accept").decode("latin-1").lower()


def _token(head: Head) -> tuple[bytes, str] | None:
    """Return the name of the header that shows a token of ours, and that; a header that is there
    twice shows none that is good."""
    own = [value for name, value in head.headers if name == OWN_AUTHORIZATION]
    if own:
        scheme, _, token = own[0].decode("latin-1").partition(" ")
        good = len(own) == 1 and scheme.lower() == "bearer"
        return OWN_AUTHORIZATION, token.strip() if good else ""
    usual = [value for name, value in head.headers if name == AUTHORIZATION]
    if any(value.lower().startswith(_OURS) for value in usual):
        token = usual[0].decode("latin-1").partition(" ")[2]
        return AUTHORIZATION, token.strip() if len(usual) == 1 else ""
    return None


def _link_in(target: str) -> tuple[str, str] | None:
    """Return the link's token in a query, and the target without it; None if there is none."""
    path, _, query = target.partition("?")
    parts = query.split("&") if query else []
    tokens = [each for each in parts if each.startswith(f"{LINK}=")]
    if not tokens:
        return None
    rest = "&".join(each for each in parts if each not in tokens)
    return tokens[0].partition("=")[2], f"{path}?{rest}" if rest else path
