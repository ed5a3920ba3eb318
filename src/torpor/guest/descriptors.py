"""Descriptors of the agent and its children."""

import os
import resource
import socket

MOST = 64 << 10
"""Descriptors that the agent may have open."""
_SO_SNDBUFFORCE = 32  # asm-generic/socket.h; the socket module does not name it


def socket_pair(size: int) -> tuple[socket.socket, socket.socket]:
    """Return two sockets that carry messages of up to ``size`` bytes, each whole."""
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in pair:
        # A message must fit. SO_SNDBUF ends at net.core.wmem_max, which is less, but the other is
        # for CAP_NET_ADMIN only.
        try:
            end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 * size)
        except PermissionError:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * size)
    return pair


def allow_many_descriptors() -> None:
    """Allow this process, which holds three for each running command, as many as it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(hard, MOST)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def close_all(fds: list[int]) -> None:
    """Close descriptors; those that are -1 there are none of."""
    for fd in fds:
        if fd >= 0:
            os.close(fd)
