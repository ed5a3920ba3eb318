"""What a service manager is told of this server: sd_notify(3), a datagram to a socket it names.

Started by anything else, nothing is told.
"""

import os
import socket

VARIABLE = "NOTIFY_SOCKET"


class Supervisor:
    """Tells whoever started this server how far it is. A message that cannot be sent is lost: the
    server serves all the same."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._status = ""

    @classmethod
    def of_environment(cls) -> "Supervisor":
        """Take the socket that the environment names, and hide it from what is started later."""
        return cls(os.environ.pop(VARIABLE, None))

    def ready(self) -> None:
        """Tell that requests are served."""
        self._send("READY=1", "STATUS=serving")

    def status(self, words: str) -> None:
        """Tell what is being done, in one line."""
        if words != self._status:
            self._status = words
            self._send(f"STATUS={words}")

    def stopping(self) -> None:
        """Tell that the end has begun."""
        self._send("STOPPING=1", "STATUS=stopping")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # An address that begins with @ is one of Linux's abstract ones (unix(7)).
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        text = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)
                out.sendto(text.encode(), name)
        except OSError:
            pass  # nobody listens, or nobody reads: it is for their information
