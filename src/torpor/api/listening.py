"""The sockets on which a server listens, and the URLs at which they are reached."""

import socket
from ipaddress import ip_address

from torpor.settings import Settings
from torpor.settings.model import is_loopback

DEAD_MILLISECONDS = 120_000
"""After how long a peer that takes nothing of what was sent to it is given up (tcp(7),
TCP_USER_TIMEOUT), be it dead or just not reading: streams would otherwise wait for it for ever, and
commands for these."""


class ListenError(Exception):
    """The address cannot be listened on. The text says what to do."""


def listen(settings: Settings) -> socket.socket:
    """Return a socket that listens where the settings say. Raises :exc:`ListenError`."""
    host, port = settings.address
    if settings.authentication == "none" and not is_loopback(host):
        raise ListenError(
            f"Without authentication the server does not listen on {host}, which others reach."
            " Nothing was started. Ask for tokens, or listen on 127.0.0.1."
        )
    return _listening(host, port, f"{settings.listen} cannot be listened on", "listen")


def listen_for_previews(settings: Settings) -> socket.socket | None:
    """Return a socket that listens for previews, None if there are to be none. Raises
    :exc:`ListenError`."""
    if settings.preview_address is None:
        return None
    host, port = settings.preview_address
    said = settings.preview_listen or f"{host}:{port}, the port after that of `listen`,"
    return _listening(host, port, f"{said} cannot be listened on for previews", "preview_listen")


def _listening(host: str, port: int, failed: str, setting: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Linux gives these to the connections that are accepted.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_MILLISECONDS)
            listener.bind(address)
            listener.listen(1024)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise ListenError(
            f"{failed}: {(error.strerror or str(error)).lower()}. Nothing was started. End what"
            f" listens there, or set `{setting}` to another address."
        ) from error
    return listener


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """Return the URL at which a socket is reached."""
    scheme = "https" if tls else "http"
    host, port, *_ = listener.getsockname()
    if ip_address(host).is_unspecified:  # of all addresses this computer's own is one
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
