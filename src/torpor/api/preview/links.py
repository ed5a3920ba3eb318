"""The tokens of links: signed, so that nobody makes one, and noted, so that they can be revoked."""

from torpor.api.bearers import Bearers, Caller
from torpor.api.permissions import Permission
from torpor.api.requests import SIGNED
from torpor.api.signing import Signer
from torpor.sessions import Previews
from torpor.sessions.model import now
from torpor.store.records import PreviewLink

PURPOSE = "preview"


def link_token(signer: Signer, link: PreviewLink, caller: Caller) -> str:
    """Return the text that makes whoever has it one who may use a link."""
    left = max(0.0, (link.expires_at - now()).total_seconds())
    return signer.path(PURPOSE, caller, {"link": link.id}, seconds=left).removeprefix(SIGNED)


class Links:
    """Finds out what link a token is of."""

    def __init__(self, signer: Signer, previews: Previews, bearers: Bearers | None) -> None:
        self._signer = signer
        self._previews = previews
        self._bearers = bearers

    async def find(self, token: str) -> tuple[PreviewLink, Caller] | None:
        """Return the link that a token is of and whom it stands for, as long as it is good and so
        is the token of who made it; else None."""
        signed = self._signer.read(SIGNED + token)
        if signed is None or signed.purpose != PURPOSE:
            return None
        caller = signed.caller
        if self._bearers is not None and not self._bearers.stands(caller.actor.id):
            return None
        link = await self._previews.standing(str(signed.claims.get("link")))
        return (link, caller) if link is not None and caller.may(Permission.USE) else None
