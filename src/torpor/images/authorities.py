"""Certificate authorities of the host's network that images are to trust besides their own."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor import settings
from torpor.images.errors import ImageError
from torpor.images.programs import run

CERTIFICATE = re.compile(
    r"-----BEGIN (X509 |TRUSTED |)CERTIFICATE-----.*?-----END \1CERTIFICATE-----", re.DOTALL
)
MAX_BYTES = 8 << 20
NAMES = (".pem", ".crt", ".cer")


@dataclass(frozen=True)
class Authorities:
    """Certificates as PEM texts, without repetition and in a fixed order."""

    certificates: tuple[str, ...] = ()

    @property
    def digests(self) -> tuple[str, ...]:
        """The SHA-256 of each, as it belongs to an image's key."""
        return tuple(hashlib.sha256(text.encode()).hexdigest() for text in self.certificates)


def wanted_authorities(environ: Mapping[str, str] = os.environ) -> Authorities:
    """Read the certificates that the settings ask for. Raises ImageError."""
    path = settings.extra_authorities(environ)
    return Authorities() if path is None else read_authorities(path)


def read_authorities(path: Path) -> Authorities:
    """Read a PEM file, or all in a directory that are called .pem, .crt or .cer.

    Raises ImageError if there is no certificate in one of them, or something else.
    """
    try:
        files = [path]
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if each.suffix in NAMES)
        texts = [(file, _text(file)) for file in files]
    except OSError as error:
        raise _refused(f"{error.filename or path} cannot be read: {error.strerror}.") from None
    if not texts:
        raise _refused(f"{path} has no file called {', '.join(NAMES)}.")
    found = {each: None for file, text in texts for each in _certificates(file, text)}
    return Authorities(tuple(sorted(found)))


async def plan_of(authorities: Authorities, lock: int | None) -> dict[str, Any] | None:
    """What ``finish.py`` is told to add to an image. Raises ImageError."""
    if not authorities.certificates:
        return None
    hashed = []
    for text in authorities.certificates:
        lines: list[str] = []
        # Who looks a certificate up in a directory, as OpenSSL does, finds it by this name.
        await run(
            "sh", "-c", 'printf "%s\\n" "$1" | openssl x509 -noout -subject_hash', "sh", text,
            lock=lock, on_line=lines.append, advice="Install the package openssl.",
        )  # fmt: skip
        hashed.append([lines[-1], text + "\n"])
    return {
        "bundle": "\n".join(authorities.certificates) + "\n",
        "files": {
            f"torpor-{digest[:16]}.crt": text + "\n"
            for digest, text in zip(authorities.digests, authorities.certificates, strict=True)
        },
        "hashed": hashed,
    }


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _refused(f"{file} has more than {MAX_BYTES} bytes.")
    try:
        return content.decode("ascii")
    except UnicodeDecodeError:
        raise _refused(f"{file} is not a PEM file.") from None


def _certificates(file: Path, text: str) -> list[str]:
    if "PRIVATE KEY-----" in text:
        raise _refused(f"{file} holds a private key, which no image must get.")
    found = []
    for match in CERTIFICATE.finditer(text):
        lines = [line.strip() for line in match[0].splitlines()]
        certificate = "\n".join(line for line in lines if line)
        try:
            ssl.create_default_context(cadata=certificate)
        except (ssl.SSLError, ValueError) as error:
            raise _refused(f"{file} has a certificate that cannot be read: {error}.") from None
        found.append(certificate)
    if not found:
        raise _refused(f"{file} has no PEM certificate.")
    return found


def _refused(what: str) -> ImageError:
    return ImageError(
        what,
        "No image was made.",
        "Set TORPOR_EXTRA_CA to a file or a directory of PEM certificates, or not at all.",
    )
