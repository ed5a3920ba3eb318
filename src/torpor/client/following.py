"""Following events: which one was the newest, and how to ask for those after it."""

from collections.abc import Iterator

from torpor.client.call import Call, nothing, path, query
from torpor.client.errors import told_error
from torpor.client.machine_records import FileChange, file_change
from torpor.client.records import Event, event
from torpor.client.sse import Frame, Frames


class Following:
    """One reader of events, over as many connections as it takes. ``cursor`` is the id of the
    newest event that it had."""

    def __init__(self, session: str | None, after: str | None, *, follow: bool) -> None:
        self._path = path("events") if session is None else path("sessions", session, "events")
        self._follow = follow
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
            if frame.type == "error":
                raise told_error(frame.document())
            if not frame.id:
                continue  # how things stand, not something that happened
            found = event(frame.document())
            self.cursor = frame.id
            yield found


def change_of(frame: Frame) -> FileChange:
    """Return the change that a frame of a watch tells of."""
    if frame.type == "error":
        raise told_error(frame.document())
    return file_change(frame.type, frame.document())
