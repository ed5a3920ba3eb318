"""Values that the database keeps and cannot read: sealed with a key that is a file beside it.

The file, of mode 0600, has the key in 64 hexadecimal digits. What is sealed is, in base64, a nonce
of 12 bytes and what AES-256-GCM makes of the value; it opens only for what it was sealed for.
"""

import base64
import binascii
import hashlib
import os
import secrets
import tempfile
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from torpor.store.errors import StoreError

NONCE = 12


class SealError(StoreError):
    """What is sealed does not open, or there is no key."""


class Sealer:
    """Seals and opens with one key. Make it with :meth:`open`."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self.id = hashlib.sha256(b"torpor sealing key\0" + key).hexdigest()[:16]
        """The key's name, which tells nothing of it."""

    @classmethod
    def open(cls, file: Path) -> "Sealer":
        """Read the key, or make it, once. Raises :exc:`SealError`."""
        try:
            if not file.exists():
                _make(file)
            key = bytes.fromhex(file.read_text("ascii").strip())
        except (OSError, ValueError) as error:
            raise _unusable(file, str(error)) from error
        if len(key) != 32:
            raise _unusable(file, f"it has {len(key)} bytes")
        return cls(key)

    def seal(self, value: str, of: str) -> str:
        """Return a value sealed for ``of``."""
        nonce = os.urandom(NONCE)
        sealed = self._cipher.encrypt(nonce, value.encode(), of.encode())
        return base64.b64encode(nonce + sealed).decode()

    def unseal(self, sealed: str, of: str) -> str:
        """Return what was sealed for ``of``. Raises :exc:`SealError`."""
        try:
            content = base64.b64decode(sealed, validate=True)
            return self._cipher.decrypt(content[:NONCE], content[NONCE:], of.encode()).decode()
        except (InvalidTag, binascii.Error, ValueError) as error:
            raise SealError(
                "A sealed value does not open with this server's key.",
                state="Nothing was done.",
                todo="Bring the key of the server that sealed it, or set the value anew.",
            ) from error


def _make(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    made, name = tempfile.mkstemp(dir=file.parent)  # mode 0600
    try:
        with os.fdopen(made, "w") as opened:
            opened.write(secrets.token_hex(32) + "\n")
            opened.flush()
            os.fsync(opened.fileno())
        try:
            os.link(name, file)
        except FileExistsError:
            pass  # another program was faster
    finally:
        Path(name).unlink()
    directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _unusable(file: Path, why: str) -> SealError:
    return SealError(
        f"The key in {file} cannot be used: {why}.",
        state="No secret can be set or used.",
        todo="Bring it back from where it is kept; if it is lost, remove the file, and set all"
        " secrets anew.",
    )
