"""Requests to previews: each is judged, passed on and told of, or answered here."""

import logging
import time
from http import HTTPStatus

from torpor.api.bearers import Bearers, TokenEndedError
from torpor.api.errors import UNFORESEEN, UNTOLD, Problem, RefusedError, problem_of
from torpor.api.metrics import Metrics
from torpor.api.preview.addresses import Addresses, Place, name_of
from torpor.api.preview.admission import Admission, Admitted, accept_of
from torpor.api.preview.headers import Outside
from torpor.api.preview.inbound import BadBodyError, GoneError, Inbound
from torpor.api.preview.pages import MISDIRECTED, NOBODY, NOTHING, Page, page, redirect
from torpor.api.preview.passing import Passing
from torpor.api.streaming import first_of
from torpor.network.heads import HeadError
from torpor.sessions import Sessions
from torpor.store.records import PreviewLink

log = logging.getLogger("torpor.preview")

TOLD_EVERY = 3600.0
"""Seconds after which it is told again that somebody uses a port."""
MOST_TOLD = 10_000
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class LinkEndedError(Exception):
    """A link was revoked, or is over, while something was under way with it."""


class Serving:
    """Serves requests, one at a time each, many side by side."""

    def __init__(
        self,
        addresses: Addresses,
        admission: Admission,
        bearers: Bearers | None,
        sessions: Sessions,
        passing: Passing,
        metrics: Metrics,
    ) -> None:
        self._addresses = addresses
        self._admission = admission
        self._bearers = bearers
        self._sessions = sessions
        self._passing = passing
        self._metrics = metrics
        self._told: dict[tuple[str, str, int], float] = {}

    async def serve(self, inbound: Inbound) -> None:
        """Answer a request, whatever comes of it."""
        begun = time.monotonic()
        place = self._addresses.place(inbound.head.authority, inbound.head.target)
        admitted: Admitted | None = None
        error = None
        try:
            found = await self._judged(inbound, place)
            if isinstance(found, Page):
                await _answer(inbound, found)
                return
            admitted = found
            inbound.peer.known()
            await self._use(inbound, admitted, place)
        except GoneError:
            inbound.abort()
        except Exception as failure:
            problem = _problem(failure, admitted)
            error = problem.id
            await _tell(inbound, problem)
        finally:
            self._note(inbound, admitted, error, time.monotonic() - begun)

    async def refuse(self, inbound: Inbound, error: HeadError) -> None:
        """Answer a request whose head is refused."""
        phrase = HTTPStatus(error.status).phrase.lower().replace(" ", "_")
        said = Problem(error.status, phrase, f"{str(error).capitalize()}.", "Nothing was done.")
        await _tell(inbound, said)
        self._note(inbound, None, phrase, 0.0)

    async def _judged(self, inbound: Inbound, place: Place | None) -> Admitted | Page:
        head, name = inbound.head, inbound.peer.name
        if name is not None and name_of(head.authority) != name.lower():
            return page(MISDIRECTED, accept_of(head))
        if place is None:
            return page(NOTHING, accept_of(head))
        found = await self._admission.judge(head, place)
        if isinstance(found, Admitted) and not place.target.startswith("/"):
            # Without it what the page calls ./x is somewhere else.
            return redirect(308, f"{place.prefix}/{place.target}")
        return found

    async def _use(self, inbound: Inbound, admitted: Admitted, place: Place | None) -> None:
        assert place is not None
        actor = admitted.caller.actor
        outside = Outside(
            self._addresses, inbound.head.authority, inbound.peer.address, place,
            admitted.session, admitted.port,
        )  # fmt: skip

        async def opened() -> None:
            await self._tell_of(admitted)

        async def work() -> None:
            await self._sessions.get(admitted.session)
            await self._passing.pass_on(inbound, outside, actor, admitted.shown, opened)

        works = [work()]
        if admitted.link is not None:
            works.append(self._ended(admitted.link))
        if self._bearers is None:
            await first_of(*works)
        else:
            async with self._bearers.while_valid(actor.id):
                await first_of(*works)

    async def _ended(self, link: PreviewLink) -> None:
        await self._sessions.previews.ended(link)
        raise LinkEndedError

    async def _tell_of(self, admitted: Admitted) -> None:
        """Have an event tell that a port is used: once an hour for each link and each token."""
        link = admitted.link
        who = link.id if link else admitted.caller.actor.id
        key, moment = (who, admitted.session, admitted.port), time.monotonic()
        if moment - self._told.get(key, -TOLD_EVERY) < TOLD_EVERY:
            return
        self._told[key] = moment
        if len(self._told) > MOST_TOLD:
            del self._told[next(iter(self._told))]
        more = {"preview": link.id} if link else {}
        try:
            await self._sessions.ports.opened(
                admitted.session, admitted.caller.actor, admitted.port, **more
            )
        except BaseException:
            self._told.pop(key, None)
            raise

    def _note(
        self, inbound: Inbound, admitted: Admitted | None, error: str | None, seconds: float
    ) -> None:
        """Write the request's line: no path, which is the session's, and may be secret."""
        method = inbound.head.method if inbound.head.method in _METHODS else "other"
        status = inbound.status or 499
        self._metrics.request(method, "preview", status, seconds)
        link = admitted.link if admitted else None
        fields = {
            "method": method,
            "session": admitted.session if admitted else None,
            "port": admitted.port if admitted else None,
            "status": status,
            "milliseconds": round(seconds * 1000, 1),
            "token": admitted.caller.actor.id if admitted else None,
            "preview": link.id if link else None,
            "client": inbound.peer.address,
            "error": error,
        }
        log.info("preview %s %d", method, status, extra={"fields": fields})


def _problem(error: Exception, admitted: Admitted | None) -> Problem:
    """Return how an error is answered: to who came by a link, without the host's own words."""
    if isinstance(error, TokenEndedError | LinkEndedError):
        return NOBODY
    if isinstance(error, BadBodyError):
        return Problem(400, "bad_request", "The body of the request is none.")
    problem = problem_of(error)
    if problem is None:
        log.error("a request to a preview failed", exc_info=error)
        return UNFORESEEN
    if problem.id == "guest_econnrefused" and admitted:
        return Problem(
            502,
            problem.id,
            f"Nobody listens on port {admitted.port} of this session.",
            todo="Start what is to listen there; on the machine's loopback is enough.",
        )
    if isinstance(error, RefusedError) or (admitted is not None and admitted.link is None):
        return problem
    # Whoever came by a link is nobody that we know: why a session fails is not for them.
    log.warning("a request to a preview failed: %s", problem.message)
    return Problem(problem.status, problem.id, UNTOLD, headers=problem.headers)


async def _tell(inbound: Inbound, problem: Problem) -> None:
    """Answer with a problem; an answer that has begun is cut off."""
    if inbound.status:
        inbound.abort()
        return
    await _answer(inbound, page(problem, accept_of(inbound.head)))


async def _answer(inbound: Inbound, found: Page) -> None:
    bare = inbound.head.method == "HEAD"
    length = (b"content-length", str(len(found.body)).encode())
    try:
        reason = HTTPStatus(found.status).phrase.encode()
        await inbound.start(found.status, [*found.headers, length], reason)
        if found.body and not bare:
            await inbound.send(found.body)
        await inbound.end()
    except GoneError:
        inbound.abort()
