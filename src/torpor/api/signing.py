"""URLs that need no token because what they allow is signed: for one thing, and for a while.

A client of the API that asks for such a URL is given one that carries who asked, in which role, for
what and until when. Whoever has it can do that one thing. What is signed is not secret.
"""

import hashlib
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from itsdangerous import BadData, URLSafeSerializer

from torpor.api.bearers import Caller
from torpor.api.permissions import GRANTED
from torpor.api.requests import SIGNED
from torpor.sessions.model import Actor
from torpor.store import keys
from torpor.store.database import Database
from torpor.store.records import SigningKey
from torpor.store.rows import now

PURPOSE = "urls"
LONGEST = 4096


@dataclass(frozen=True)
class Signed:
    """What was signed: ``purpose`` says what for, ``claims`` of what, ``ends_at`` until when, in
    seconds since 1970."""

    purpose: str
    caller: Caller
    claims: Mapping[str, Any]
    ends_at: float


class Signer:
    """Signs with the newest of the keys, and takes what was signed with any of them."""

    def __init__(self, known: list[SigningKey]) -> None:
        self._serializer = URLSafeSerializer(
            [each.secret for each in known],
            salt=b"torpor signed url",
            signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256},
        )

    @classmethod
    async def open(cls, database: Database) -> "Signer":
        """Read the keys; the first start makes one."""
        async with database.read() as conn:
            known = await keys.of(conn, PURPOSE)
        if not known:
            new = SigningKey(secrets.token_hex(8), PURPOSE, secrets.token_hex(32), now())
            async with database.write() as conn:
                known = await keys.of(conn, PURPOSE)  # another server may have been quicker
                if not known:
                    await keys.insert(conn, new)
                    known = [new]
        return cls(known)

    def path(
        self,
        purpose: str,
        caller: Caller,
        claims: Mapping[str, Any],
        *,
        seconds: float,
        ending: str = "",
    ) -> str:
        """Return the path of a URL that allows ``purpose`` for so long. ``ending`` leads to the
        route that serves it, and is not signed: what it allows is."""
        said = [purpose, caller.actor.id, caller.actor.name, caller.role, dict(claims)]
        text: str = self._serializer.dumps([*said, round(time.time() + seconds, 3)])
        if len(text) > LONGEST:
            raise ValueError(f"{len(text)} letters are too many for a signed path")
        return f"{SIGNED}{text}{ending}"

    def read(self, path: str) -> Signed | None:
        """Return what the path of a request allows; None if it allows nothing, or no longer."""
        if not path.startswith(SIGNED):
            return None
        text, _, _ = path.removeprefix(SIGNED).partition("/")
        if len(text) > LONGEST:
            return None
        try:
            purpose, actor, name, role, claims, ends_at = self._serializer.loads(text)
        except BadData:
            return None
        if time.time() >= ends_at or role not in GRANTED:
            return None
        return Signed(purpose, Caller(Actor(actor, name), role), claims, ends_at)
