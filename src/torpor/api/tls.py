"""TLS: the server's certificate, which may be renewed while the server runs."""

import asyncio
import logging
import ssl
from pathlib import Path

from torpor.settings import Settings

log = logging.getLogger("torpor.server")

LOOK_EVERY = 60.0
"""Seconds between two looks whether the files have changed."""

Stamp = tuple[tuple[int, int, int], ...]


class TlsError(Exception):
    """The certificate or its key cannot be used. The text says what to do."""


class Certificate:
    """A certificate and its key, and the contexts that show them: connections that are made get
    what the files have now, those that are open go on. Made by :meth:`of`."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self._contexts: list[ssl.SSLContext] = []
        self._seen = self._stamp()
        self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    @classmethod
    def of(cls, settings: Settings) -> "Certificate | None":
        """Return what the settings name, None if they name none. Raises :exc:`TlsError`."""
        if settings.tls_certificate is None or settings.tls_key is None:
            return None
        return cls(Path(settings.tls_certificate), Path(settings.tls_key))

    def context(self, *protocols: str) -> ssl.SSLContext:
        """Return a context for a listener that speaks ``protocols`` (their names in ALPN)."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        made.set_alpn_protocols(protocols)
        self._load(made)
        self._contexts.append(made)
        return made

    def look(self) -> bool:
        """Take what is in the files if they have changed; return whether it was taken. What cannot
        be used is told in the log, and what was used before stays."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return False
            self._seen = stamp
            # In a context that nobody uses first: one that was half loaded shows nothing at all.
            self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            for each in self._contexts:
                self._load(each)
        except TlsError as error:
            log.warning("the certificate was not renewed: %s", error)
            return False
        log.info("the certificate was read again")
        return True

    async def watch(self) -> None:
        """Look now and then, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self.look()

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            # Without a password at hand OpenSSL would ask for one on the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: b"")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise TlsError(
                f"{self._certificate} and {self._key} cannot be used for TLS: {_words(error)}."
                " See that `tls_certificate` and `tls_key` are PEM files that this user may read,"
                " that they belong together, and that the key has no password."
            ) from error

    def _stamp(self) -> Stamp:
        found = []
        for file in (self._certificate, self._key):
            try:
                status = file.stat()
            except OSError as error:
                raise TlsError(
                    f"{file} cannot be read: {_words(error)}. See what `tls_certificate` and"
                    " `tls_key` are set to."
                ) from error
            found.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return tuple(found)


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return (getattr(error, "strerror", None) or str(error)).lower()
