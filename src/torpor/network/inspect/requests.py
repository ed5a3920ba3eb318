"""What becomes of a request between the machine and a host: it is refused, or goes out, with a
secret or without."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from torpor.network.bindings import Asked, Scheme, choose
from torpor.network.errors import NetworkError
from torpor.network.injection import Header, Held, inject, looks_into_body, without
from torpor.network.inspect.watch import Watch
from torpor.network.redaction import Redactor
from torpor.network.verdicts import Destination

LookUp = Callable[[], Awaitable[Sequence[Held]]]
"""Returns what a machine's session holds at this moment. Raises :exc:`NetworkError` if that cannot
be told."""

REMEMBERED = 64
"""Values of one connection that are redacted: those of before a rotation may still be on their
way back."""


@dataclass(frozen=True)
class Passed:
    """A request as it goes out. ``body`` is what its body is to be looked through for, ``whole``
    the body that it has then, if it is looked through."""

    headers: tuple[Header, ...]
    target: bytes
    body: Held | None = None
    whole: bytes | None = None


@dataclass(frozen=True)
class Refused:
    """What a request that does not go out is answered: an HTTP status, and the reason."""

    status: int
    why: str


class Requests:
    """Judges the requests of one connection, each by itself."""

    def __init__(self, to: Destination, look_up: LookUp, watch: Watch) -> None:
        assert to.name is not None
        self._name, self._port = to.name, to.port
        self._look_up = look_up
        self._watch = watch
        self._values: dict[str, None] = {}

    async def judge(
        self,
        method: str,
        target: bytes,
        authorities: Sequence[bytes],
        headers: Sequence[Header],
        scheme: Scheme = "https",
    ) -> Passed | Refused:
        """Return what becomes of a request. ``authorities`` is all that it says of whom it is for
        (Host, ``:authority``)."""
        refused = self._misdirected(method, target, authorities)
        if refused is not None:
            self._watch.told(refused.why)
            return refused
        try:
            held = [
                each
                for each in await self._look_up()
                if each.binding.concerns(self._name, self._port)
            ]
        except NetworkError as error:
            self._watch.told(error.happened)
            return Refused(503, f"The secrets of this session cannot be looked up: {error}")
        if not held:
            return Passed(tuple(headers), target)
        self._remember(held)
        # What comes back is looked through for echoes, so it must come as it is.
        out: tuple[Header, ...] = tuple(headers)
        for name in (b"accept-encoding", b"grpc-accept-encoding", b"sec-websocket-extensions"):
            out = without(out, name)
        out = (*out, (b"accept-encoding", b"identity"))
        asked = Asked(scheme, self._name, self._port, method, target.decode("latin-1"))
        choice = choose((each.binding for each in held), asked)
        if choice.binding is None:
            self._watch.told(choice.why)
            return Passed(out, target)
        chosen = next(each for each in held if each.binding is choice.binding)
        injected = inject(chosen, out, target)
        if injected.used:
            self._watch.used(chosen.binding.secret)
        body = chosen if looks_into_body(chosen, out) else None
        return Passed(injected.headers, injected.target, body)

    def used_in_body(self, held: Held) -> None:
        """Note that a secret was put into a body."""
        self._watch.used(held.binding.secret)

    @property
    def redacts(self) -> bool:
        """Whether what comes back is to be looked through."""
        return bool(self._values)

    def redactor(self) -> Redactor:
        """Return what takes echoes out of one response."""
        return Redactor(self._values)

    def _misdirected(
        self, method: str, target: bytes, authorities: Sequence[bytes]
    ) -> Refused | None:
        if method == "CONNECT":
            return Refused(405, "The wall is no proxy: connect to the host itself.")
        if not authorities:
            return Refused(400, "The request does not say which host it is for.")
        for each in authorities:
            if not self._is_here(each):
                shown = each.decode("latin-1")
                return Refused(
                    421,
                    f"This connection is to {self._name}:{self._port}, and the request for"
                    f" {shown!r}: the wall lets none through to another host.",
                )
        if not target.startswith(b"/") and not (target == b"*" and method == "OPTIONS"):
            return Refused(400, "The request's target is not a path.")
        return None

    def _is_here(self, authority: bytes) -> bool:
        name, colon, port = authority.decode("latin-1").lower().partition(":")
        if colon and port != str(self._port):
            return False
        if not colon and self._port != 443:
            return False  # what the port of https is, is left out, and no other
        return name.removesuffix(".") == self._name

    def _remember(self, held: Sequence[Held]) -> None:
        for each in held:
            self._values.pop(each.value, None)
            self._values[each.value] = None
        while len(self._values) > REMEMBERED:
            del self._values[next(iter(self._values))]
