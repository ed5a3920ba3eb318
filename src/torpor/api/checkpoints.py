"""Checkpoints of sessions, the way back to them, and forks."""

from typing import Annotated

from fastapi import Query

from torpor.api.bearers import Caller
from torpor.api.errors import problem_of
from torpor.api.permissions import Permission, needs
from torpor.api.routes import SESSION, errors, router
from torpor.api.schemas.checkpoints import (
    CheckpointBody,
    CheckpointDeleted,
    CheckpointPage,
    ForkBody,
    ForkedBody,
    ForkError,
    NewCheckpoint,
    Node,
    OneCheckpoint,
    RolledBackBody,
    TreeBody,
)
from torpor.api.sessions import LARGEST_PAGE, PAGE, PageSize, PageToken, session_body
from torpor.api.wiring import Asker, By, Idempotency, Service, SessionId
from torpor.sessions.errors import SessionError
from torpor.store.records import Snapshot

routes = router("checkpoints")

CHECKPOINT = SESSION + "/checkpoints/{checkpoint_id}"


def checkpoint_body(row: Snapshot, caller: Caller) -> CheckpointBody:
    """Return a checkpoint as it is shown to ``caller``."""
    return CheckpointBody(
        checkpoint_id=row.checkpoint or "",
        session_id=row.session,
        created_at=row.created_at,
        kind="explicit" if row.kind == "checkpoint" else "implicit",
        label=row.label,
        status="FAILED" if row.status == "LOST" else row.status,
        error_message=row.error if caller.may(Permission.USE) else None,
        event_id=row.event,
        size_bytes=row.stored_bytes,
        snapshot_id=row.id,
        generation=row.generation,
        durable=row.durable,
    )


@routes.post(
    SESSION + "/checkpoints",
    responses=errors(400, 404, 409, 415, 503, 507),
    summary="Make a checkpoint",
)
@needs(Permission.USE)
async def create_checkpoint(
    service: Service,
    session_id: SessionId,
    caller: Asker,
    key: Idempotency,
    body: NewCheckpoint | None = None,
    durable: Annotated[
        bool, Query(description="Torpor: answer only when it survives a power cut.")
    ] = False,
) -> OneCheckpoint:
    """Keep the state of a session, memory and all. It runs on; it stands still for a moment.

    A paused session is not woken: its newest snapshot becomes the checkpoint.
    """
    label = body.label if body else ""
    row = await service.checkpoint(session_id, caller.actor, label=label, durable=durable, key=key)
    return OneCheckpoint(checkpoint=checkpoint_body(row, caller))


@routes.get(
    SESSION + "/checkpoints",
    responses=errors(400, 404),
    summary="List checkpoints",
)
@needs(Permission.READ)
async def list_checkpoints(
    service: Service,
    session_id: SessionId,
    caller: Asker,
    page_size: PageSize = PAGE,
    page_token: PageToken = "",
) -> CheckpointPage:
    """List the checkpoints of a session, the newest first, a page at a time."""
    limit = PAGE if page_size < 1 else min(page_size, LARGEST_PAGE)
    rows, following = await service.checkpoints(session_id, limit, page_token or None)
    return CheckpointPage(
        checkpoints=[checkpoint_body(each, caller) for each in rows],
        next_page_token=following or "",
    )


@routes.get(
    CHECKPOINT,
    responses=errors(404),
    summary="Show a checkpoint",
)
@needs(Permission.READ)
async def get_checkpoint(
    service: Service, session_id: SessionId, checkpoint_id: str, caller: Asker
) -> OneCheckpoint:
    """Show one checkpoint of a session."""
    row = await service.get_checkpoint(session_id, checkpoint_id)
    return OneCheckpoint(checkpoint=checkpoint_body(row, caller))


@routes.delete(CHECKPOINT, responses=errors(404, 409), summary="Delete a checkpoint")
@needs(Permission.USE)
async def delete_checkpoint(
    service: Service, session_id: SessionId, checkpoint_id: str, by: By
) -> CheckpointDeleted:
    """Delete a checkpoint. What other snapshots need of it stays until they go. One that is not
    there is no error."""
    await service.delete_checkpoint(session_id, checkpoint_id, by)
    return CheckpointDeleted(checkpoint_id=checkpoint_id, deleted=True)


@routes.post(
    CHECKPOINT + "/rollback",
    responses=errors(404, 409, 503, 507),
    summary="Roll back to a checkpoint",
)
@needs(Permission.USE)
async def rollback(
    service: Service, session_id: SessionId, checkpoint_id: str, caller: Asker, key: Idempotency
) -> RolledBackBody:
    """Put a session back to a checkpoint, under the same id. Its machine goes only when the one
    that takes its place runs, so a checkpoint that cannot be thawed leaves it as it was."""
    done = await service.rollback(session_id, caller.actor, checkpoint_id, key=key)
    return RolledBackBody(
        session=session_body(done.session, caller), not_undone=list(done.not_undone)
    )


@routes.post(
    SESSION + "/fork",
    responses=errors(400, 404, 409, 415, 503, 507),
    summary="Fork a session",
)
@needs(Permission.USE)
async def fork_session(
    service: Service,
    session_id: SessionId,
    caller: Asker,
    key: Idempotency,
    body: ForkBody | None = None,
) -> ForkedBody:
    """Make children of a session: each a session of its own that goes on from the same state, with
    an identity and random numbers of its own.

    Without a checkpoint the state is that of now, and one is made of it. If there is no room for
    all, those that there is room for are made, and the answer says why the others are not; only if
    none could be made the answer is an error.
    """
    wanted = body or ForkBody(count=1, from_checkpoint_id=None)
    forked = await service.fork(
        session_id,
        caller.actor,
        count=wanted.count,
        checkpoint=wanted.from_checkpoint_id or None,
        key=key,
    )
    failed = [each for each in forked.children if isinstance(each, SessionError)]
    if len(failed) == len(forked.children):
        raise failed[0]
    return ForkedBody(
        sessions=[
            session_body(each, caller, warnings=forked.warnings)
            for each in forked.children
            if not isinstance(each, SessionError)
        ],
        errors=[
            _fork_error(index, each)
            for index, each in enumerate(forked.children)
            if isinstance(each, SessionError)
        ],
        not_undone=list(forked.not_undone),
    )


def _fork_error(index: int, error: SessionError) -> ForkError:
    problem = problem_of(error)
    assert problem is not None
    return ForkError(
        index=index,
        id=problem.id,
        message=problem.message,
        state=problem.state or None,
        todo=problem.todo or None,
        facts=dict(problem.facts) or None,
    )


@routes.get(
    SESSION + "/tree",
    responses=errors(404),
    summary="Show the tree of snapshots",
)
@needs(Permission.READ)
async def get_tree(service: Service, session_id: SessionId, caller: Asker) -> TreeBody:
    """Torpor: show the snapshots of a session and what was forked from which."""
    tree = await service.tree(session_id)
    return TreeBody(
        session=session_body(tree.session, caller),
        snapshots=[
            Node(
                snapshot_id=row.id,
                parent_snapshot_id=row.parent,
                kind=row.kind,
                generation=row.generation,
                created_at=row.created_at,
                status=row.status,
                durable=row.durable,
                size_bytes=row.stored_bytes,
                checkpoint_id=row.checkpoint,
                label=row.label,
                current=row.id == tree.session.snapshot,
                children=[
                    child.id
                    for child in tree.children
                    if row.checkpoint is not None and child.forked_from == row.checkpoint
                ],
            )
            for row in tree.snapshots
        ],
        children=[session_body(each, caller) for each in tree.children],
    )
