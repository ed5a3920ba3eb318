"""Where previews are: the URLs of what listens on a port of a session, and how they are read.

Each has a name of its own, ``<port>-<session id>`` below the host of all previews: an origin of its
own in a browser. For programs, and where such names lead nowhere, there are paths besides.
"""

import re
from dataclasses import dataclass

from torpor.settings import Settings
from torpor.settings.model import is_loopback, parsed_origin

LINK = "torpor_link"
"""The parameter with which a link's token comes to the name of a port."""
DEFAULTS = {"http": 80, "https": 443}
_SESSION = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_LABEL = re.compile(rf"([1-9][0-9]{{0,4}})-({_SESSION})")
_PATH = re.compile(rf"(/s/({_SESSION})/([1-9][0-9]{{0,4}}))((?:[/?].*)?)", re.DOTALL)
_LINK_PATH = re.compile(r"(/l/([A-Za-z0-9._-]{1,4096}))((?:[/?].*)?)", re.DOTALL)


@dataclass(frozen=True)
class Place:
    """What a request is for: a ``port`` of a ``session``, both None where ``link`` says it, and the
    ``target`` there. ``prefix`` is what stands before that in the path, nothing if the port has a
    name of its own."""

    session: str | None
    port: int | None
    target: str
    prefix: str = ""
    link: str | None = None


@dataclass(frozen=True)
class Addresses:
    """Where previews are reached from outside: scheme, host and port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def of(cls, settings: Settings, port: int) -> "Addresses":
        """Return what the settings say, where previews are listened for at ``port``."""
        if settings.preview_url is not None:
            return cls(*parsed_origin(settings.preview_url))
        return cls("http" if settings.tls_certificate is None else "https", "localhost", port)

    @property
    def origin(self) -> str:
        """The origin of what is told by paths."""
        return f"{self.scheme}://{self._authority(self.host)}"

    def url(self, session: str, port: int) -> str:
        """Return the URL of a port of a session."""
        return f"{self.scheme}://{self._authority(f'{port}-{session}.{self.host}')}/"

    def path_url(self, session: str, port: int) -> str:
        """Return its URL as a path, for programs that show a token."""
        return f"{self.origin}/s/{session}/{port}/"

    def link_url(self, session: str, port: int, token: str) -> str:
        """Return the URL for whoever has a link."""
        return f"{self.url(session, port)}?{LINK}={token}"

    def place(self, authority: str, target: str) -> Place | None:
        """Return what a request means: ``authority`` is its host and perhaps a port, ``target`` its
        path and query as they came. None: nothing that there can be."""
        host = name_of(authority)
        label, dot, rest = host.partition(".")
        if dot and rest == self.host and (named := _LABEL.fullmatch(label)):
            port = _port(named[1])
            return None if port is None else Place(named[2], port, target)
        if host != self.host and not is_loopback(host):
            return None
        if found := _PATH.fullmatch(target):
            port = _port(found[3])
            return None if port is None else Place(found[2], port, found[4], found[1])
        if found := _LINK_PATH.fullmatch(target):
            return Place(None, None, found[3], found[1], found[2])
        return None

    def _authority(self, host: str) -> str:
        name = f"[{host}]" if ":" in host else host
        return name if DEFAULTS[self.scheme] == self.port else f"{name}:{self.port}"


def name_of(authority: str) -> str:
    """Return the host of ``host[:port]``, in small letters, without the brackets of an address."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].lower().removesuffix(".")


def _port(text: str) -> int | None:
    return int(text) if int(text) <= 65535 else None
