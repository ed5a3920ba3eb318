"""What ends TLS at the wall for the machines of each session, with the secrets that it has."""

import ssl
from collections.abc import Callable, Sequence

from torpor.network.errors import NetworkError
from torpor.network.injection import Held
from torpor.network.inspect.authority import Authority
from torpor.network.inspect.terminator import Terminator
from torpor.sessions import Sessions


class Terminators:
    """Makes them. Walls are put up before there are :class:`Sessions` that know of secrets: until
    they are given, no request to a host that may have some goes out."""

    def __init__(self, authority: Authority, trust: Callable[[], ssl.SSLContext]) -> None:
        """``trust`` makes the context by which hosts are verified."""
        self._authority = authority
        self._trust = trust
        self.sessions: Sessions | None = None

    def of_session(self, session: str) -> Terminator:
        """Return what ends TLS for one machine of a session."""

        async def held() -> Sequence[Held]:
            if self.sessions is None:
                raise NetworkError(
                    "The server is just starting, and cannot say which secrets there are.",
                    state="Nothing was sent.",
                    todo="Try again.",
                )
            return await self.sessions.secrets.held(session)

        return Terminator(self._authority, held, self._trust)
