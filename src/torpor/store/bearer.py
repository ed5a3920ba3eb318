"""Bearer tokens as text: ``torpor_<id>_<secret>``. Of the secret only its hash is kept.

A hash without salt and work factor is enough here: the secret is 256 random bits, which nobody
guesses from its hash, and not a word that a person chose.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

_SECRET_BYTES = 32
_TOKEN = re.compile(r"torpor_([0-9a-f]{16})_([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True)
class NewToken:
    """A token that was just made. ``text`` is what its owner shows, and is known only now."""

    id: str
    text: str
    sha256: str

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r})"  # the secret shall not reach a log


def new_token() -> NewToken:
    """Make a token."""
    identity, secret = secrets.token_hex(8), secrets.token_hex(_SECRET_BYTES)
    return NewToken(identity, f"torpor_{identity}_{secret}", _sha256(secret))


def parse(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a token, or None if the text cannot be one."""
    match = _TOKEN.fullmatch(text)
    return (match[1], match[2]) if match else None


def matches(secret: str, sha256: str | None) -> bool:
    """Return whether a secret is the one of this hash, after the same time whatever the answer.

    ``sha256`` None (there is no such token) is never matched, and takes as long.
    """
    same = hmac.compare_digest(_sha256(secret), sha256 or "0" * 64)
    return same and sha256 is not None


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
