"""News of what was committed, for this server and for all others on the same database.

News say that something of a kind has changed, and its id; what it is now is read from the database.
The kinds that there are:

===== =============================================
``s``  events of a session, by its id; :data:`NONE` for those of none
``t``  a token, by its id
``l``  a link to a port of a session, by its id
``e``  the egress log of a session, by its id
``b``  a template, by its id: it was built, or deleted
===== =============================================
"""

import logging
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

log = logging.getLogger("torpor.store")

NONE = "-"
"""The id of what has none."""
MISSED = ""
"""What is told in place of an id when news may have been missed: anything may have changed."""
LARGEST = 7900
"""Bytes of one message between servers (PostgreSQL's NOTIFY takes fewer than 8000)."""

Call = Callable[[str], None]


class News:
    """Who wants to know what."""

    def __init__(self) -> None:
        self._calls: defaultdict[str, list[Call]] = defaultdict(list)
        self._me = secrets.token_hex(4)

    def on(self, kind: str, call: Call) -> None:
        """Have ``call`` be given the id of all news of a kind from now on, or :data:`MISSED`."""
        self._calls[kind].append(call)

    def tell(self, told: Iterable[tuple[str, str]]) -> None:
        """Tell news, each a kind and an id."""
        for kind, name in told:
            for call in self._calls.get(kind, ()):
                try:
                    call(name)
                except Exception:  # one that fails keeps the news from nobody else
                    log.exception("news of %s were not taken", kind)

    def missed(self) -> None:
        """Tell everybody that news may have been missed."""
        self.tell((kind, MISSED) for kind in list(self._calls))

    def messages(self, told: Iterable[tuple[str, str]]) -> Iterator[str]:
        """Yield news as messages to other servers."""
        message = self._me
        for kind, name in told:
            one = f" {kind}:{name}"
            if len(message) + len(one) > LARGEST:
                yield message
                message = self._me
            message += one
        yield message

    def heard(self, message: str) -> None:
        """Tell the news in a message; those of our own have been told."""
        sender, *each = message.split(" ")
        if sender != self._me:
            self.tell(tuple(one.split(":", 1)) for one in each)  # type: ignore[misc]
