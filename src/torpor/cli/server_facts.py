"""What ``torpor doctor`` looks at of the server of this home, as plain data."""

import http.client
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import torpor
from torpor.cli.server import TOKEN_FILE
from torpor.settings.presence import Presence, presence

PATIENCE = 5.0
RESTORING = "restoring"
"""The directory in a home of a restore that is under way (:mod:`torpor.backup.staging`)."""


@dataclass(frozen=True)
class Server:
    """The server that serves a home, if one does, and whether it ``answers``.

    ``bearer`` is how this user may read the token that it has left for its admin. ``installed`` is
    the version of Torpor that asks. ``restoring``: a restore into the home is not finished.
    """

    token_file: Path
    installed: str = torpor.__version__
    presence: Presence | None = None
    answers: bool = False
    bearer: Literal["readable", "closed", "absent"] = "absent"
    restoring: bool = False


def server_of(home: Path) -> Server:
    """Look whether a home has a server. Asks that one whether it is well, and nobody else."""
    file = home / TOKEN_FILE
    found = presence(home)
    bearer: Literal["readable", "closed", "absent"] = "closed"
    try:
        if not file.exists():
            bearer = "absent"
        elif os.access(file, os.R_OK):
            bearer = "readable"
    except PermissionError:
        pass  # before Python 3.12 that is no mere no
    return Server(
        file,
        presence=found,
        answers=found is not None and _answers(found.url),
        bearer=bearer,
        restoring=(home / RESTORING).exists() if os.access(home, os.X_OK) else False,
    )


def _answers(url: str) -> bool:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE)
    if where.scheme == "https":
        # Whether somebody answers is all that is asked; no secret is shown.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            where.hostname or "", where.port, timeout=PATIENCE, context=context
        )
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
