"""Events."""

from typing import Any

from pydantic import Field

from torpor.api.schemas.body import Answered, Time


class EventBody(Answered):
    """Something that happened: the `data` of a frame of an event stream."""

    event_id: str | None = Field(
        None,
        description="A ULID: ids sort as the events happened. A frame that is about the stream,"
        " such as `stream.state`, has none.",
        examples=["01JT9Q0M7V3WZ2K4N8XG5B6C1D"],
    )
    session_id: str | None = Field(None, description="The session that it is of, if it is of one.")
    type: str = Field(description="What kind of thing.", examples=["session.paused"])
    created_at: Time
    data: dict[str, Any] = Field(description="What more is to say.", examples=[{"reason": "idle"}])
    actor: str | None = Field(
        None, description="Torpor: who did it: a token's id, or `system`.", examples=["system"]
    )
