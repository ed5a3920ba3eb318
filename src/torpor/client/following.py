"""Following events: which one was the newest, and how to ask for those after it."""

from collections.abc import Iterator

from torpor.client import fields
from torpor.client.call import Call, nothing, path, query
from torpor.client.errors import ApiError, told_error
from torpor.client.fields import Said
from torpor.client.machine_records import FileChange, file_change
from torpor.client.records import Event, event
from torpor.client.sse import Frame, Frames

LAST = "session.destroyed"
"""The type of the last event that a session has."""
DESTROYED = "SESSION_STATUS_DESTROYED"


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


def change_of(frame: Frame) -> FileChange:
    """Return the change that a frame of a watch tells of."""
    said = frame.document()
    if frame.type == "error":
        raise _error(said)
    return file_change(said)


def _error(said: Said) -> ApiError:
    return told_error(fields.part(said, "error") if "error" in said else said)
