"""Snapshots of a session: checkpoints, forks, rollbacks, the tree."""

from torpor.client import fields
from torpor.client.call import LONG, Answer, Call, document, keyed, nothing, path, query
from torpor.client.fields import Said
from torpor.client.records import (
    Checkpoint,
    Forked,
    Page,
    RolledBack,
    Tree,
    checkpoint,
    forked,
    rolled_back,
    tree,
)


def create_checkpoint(
    session: str, *, label: str = "", durable: bool = False, key: str | None = None
) -> Call[Checkpoint]:
    """Take a snapshot of a session, which runs on. ``durable`` returns only when a power cut could
    not undo it."""
    return Call(
        "POST",
        path("sessions", session, "checkpoints"),
        _one,
        query=query(durable=durable),
        headers=keyed(key),
        content=document(label=label or None),
        seconds=LONG,
    )


def list_checkpoints(
    session: str, *, limit: int | None = None, after: str | None = None
) -> Call[Page[Checkpoint]]:
    """Return a session's checkpoints, the newest first; :attr:`Page.next` is the ``after`` of the
    following page."""
    return Call(
        "GET",
        path("sessions", session, "checkpoints"),
        lambda answer: _page(answer.json()),
        query=query(page_size=limit, page_token=after),
    )


def get_checkpoint(session: str, checkpoint: str) -> Call[Checkpoint]:
    """Return one checkpoint."""
    return Call("GET", path("sessions", session, "checkpoints", checkpoint), _one)


def delete_checkpoint(session: str, checkpoint: str) -> Call[None]:
    """Remove a checkpoint; what came from it keeps what it needs."""
    where = path("sessions", session, "checkpoints", checkpoint)
    return Call("DELETE", where, nothing, seconds=LONG, gone_is_done=True)


def roll_back(session: str, checkpoint: str, *, key: str | None = None) -> Call[RolledBack]:
    """Put a session back to a checkpoint; its machine of now goes only when the other one runs.

    :attr:`RolledBack.not_undone` names what happened since and has an effect outside.
    """
    return Call(
        "POST",
        path("sessions", session, "checkpoints", checkpoint, "rollback"),
        lambda answer: rolled_back(answer.json()),
        headers=keyed(key),
        seconds=LONG,
    )


def fork_session(
    session: str, *, count: int = 1, checkpoint: str | None = None, key: str | None = None
) -> Call[Forked]:
    """Make ``count`` sessions (1 to 64) that go on from where this one stands, or from one of its
    checkpoints; it runs on itself.

    There may be fewer of them than asked for: :attr:`Forked.failures` says why. If there is none
    at all the first reason is raised.
    """
    return Call(
        "POST",
        path("sessions", session, "fork"),
        lambda answer: forked(answer.json()),
        headers=keyed(key),
        content=document(count=count, from_checkpoint_id=checkpoint),
        seconds=LONG,
    )


def get_tree(session: str) -> Call[Tree]:
    """Return all snapshots of a session; :attr:`Node.parent` makes a tree of them."""
    return Call("GET", path("sessions", session, "tree"), lambda answer: tree(answer.json()))


def _one(answer: Answer) -> Checkpoint:
    return checkpoint(fields.part(answer.json(), "checkpoint"))


def _page(said: Said) -> Page[Checkpoint]:
    return Page(
        fields.parts(said, "checkpoints", checkpoint), fields.perhaps_text(said, "next_page_token")
    )
