"""Following events: which one was the newest, and how to ask for those after it."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from torpor.client import fields
from torpor.client.call import Call, nothing, path, query
from torpor.client.egress_records import Decision, decision
from torpor.client.errors import ApiError, told_error
from torpor.client.fields import Said
from torpor.client.machine_records import FileChange, file_change
from torpor.client.records import Event, event
from torpor.client.sse import Frame, Frames

LAST = "session.destroyed"
"""The type of the last event that a session has."""
DESTROYED = "SESSION_STATUS_DESTROYED"
END = "stream.end"
"""The type of the last frame of a stream that is over."""


T_co = TypeVar("T_co", covariant=True)


class Followed(Protocol[T_co]):
    """What is followed over as many connections as it takes. ``over`` says that there will be no
    more."""

    over: bool

    def call(self) -> Call[None]:
        """Return the call for what comes after the newest that was had."""

    def take(self, piece: bytes) -> Iterator[T_co]:
        """Yield what is complete with this piece, each once."""


class Following:
    """One reader of events, over as many connections as it takes. ``cursor`` is the id of the
    newest event that it had; ``over`` says that there will be no more."""

    def __init__(self, session: str | None, after: str | None, *, follow: bool) -> None:
        self._path = path("events") if session is None else path("sessions", session, "events")
        self._one = session is not None
        self._follow = follow
        self.over = False
        self.cursor = after
        self._frames = Frames()

    def call(self) -> Call[None]:
        """Return the call for what comes after the cursor."""
        self._frames = Frames()  # half a frame of a connection that was lost is not to be joined
        return Call(
            "GET",
            self._path,
            nothing,
            query=query(cursor=self.cursor, replay_only=not self._follow),
            headers={"accept": "text/event-stream"},
        )

    def take(self, piece: bytes) -> Iterator[Event]:
        """Yield the events that are complete with this piece, each once."""
        for frame in self._frames.feed(piece):
            said = frame.document()
            if frame.type == "error":
                raise _error(said)
            if not frame.id:
                # How things stand, not something that happened.
                self.over = fields.perhaps_part(said, "data").get("status") == DESTROYED
                continue
            if self.cursor is not None and frame.id <= self.cursor:
                continue  # the server sends each at least once
            found = event(said)
            self.cursor = frame.id
            self.over = self.over or (self._one and found.type == LAST)
            yield found


class FollowingDecisions:
    """One reader of the decisions about a session; the same for these."""

    def __init__(
        self, session: str, after: str | None, allowed: bool | None, host: str | None
    ) -> None:
        self._path = path("sessions", session, "egress", "decisions", "stream")
        self._allowed = None if allowed is None else str(allowed).lower()
        self._host = host
        self.over = False
        self.cursor = after
        self._frames = Frames()

    def call(self) -> Call[None]:
        """Return the call for what comes after the cursor."""
        self._frames = Frames()
        return Call(
            "GET",
            self._path,
            nothing,
            query=query(cursor=self.cursor, allowed=self._allowed, host=self._host),
            headers={"accept": "text/event-stream"},
        )

    def take(self, piece: bytes) -> Iterator[Decision]:
        """Yield the decisions that are complete with this piece, each once."""
        for frame in self._frames.feed(piece):
            said = frame.document()
            if frame.type == "error":
                raise _error(said)
            self.over = self.over or frame.type == END
            if not frame.id or (self.cursor is not None and frame.id <= self.cursor):
                continue
            self.cursor = frame.id
            yield decision(said)


def change_of(frame: Frame) -> FileChange:
    """Return the change that a frame of a watch tells of."""
    said = frame.document()
    if frame.type == "error":
        raise _error(said)
    return file_change(said)


def _error(said: Said) -> ApiError:
    return told_error(fields.part(said, "error") if "error" in said else said)
