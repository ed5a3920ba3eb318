"""The methods of what others return: the handle of a session, its events, a download."""

from pydo.agents import WorkspaceTransferError

from tests.conformance.checks import (
    FAST,
    FEWER,
    NO_BALANCE,
    TRIPS,
    cramped,
    destroyed,
    in_order,
    one_before,
    ran,
    some_of_three,
    status,
    tunnel,
)
from tests.conformance.judging import Case, Difference, call
from tests.conformance.needs import (
    CONTENT,
    checkpoint,
    destroyed_session,
    file,
    last_event,
    new_checkpoint,
    new_session,
    paused_session,
    session,
    warm_session,
)
from tests.conformance.world import NOWHERE, World


async def nowhere(world: World) -> str:
    return NOWHERE


HANDLE = (
    Case(
        "refresh",
        call(on=session),
        (404, call(on=nowhere)),
        holds=lambda answer: answer["status"] == "SESSION_STATUS_READY",
    ),
    Case(
        "wait_until_ready",
        call(on=new_session, **FAST),
        (RuntimeError, call(on=destroyed_session, **FAST)),
        holds=lambda answer: answer.status == "SESSION_STATUS_READY",
    ),
    Case(
        "pause",
        call(on=new_session),
        (409, call(on=warm_session)),
        then=status("PAUSED"),
        trips=TRIPS,
    ),
    Case(
        "resume",
        call(on=paused_session),
        (404, call(on=nowhere)),
        then=status("READY"),
        trips=TRIPS,
    ),
    Case(
        "update",
        call(on=session, resume_on_topoff=False),
        (404, call(on=nowhere, resume_on_topoff=False)),
        "update_session",
        differs=(Difference(NO_BALANCE, call(on=session, resume_on_topoff=True), 400),),
    ),
    Case(
        "exec",
        call("echo", "a b", on=session, workdir="/"),
        (404, call("true", on=nowhere)),
        "post_session_sandbox_exec",
        ran,
    ),
    Case(
        "create_checkpoint",
        call(on=session, label="x"),
        (404, call(on=nowhere)),
        "create_session_checkpoint",
    ),
    Case("list_checkpoints", call(on=session), (404, call(on=nowhere)), "list_session_checkpoints"),
    Case(
        "get_checkpoint",
        call(checkpoint, on=session),
        (404, call("x", on=session)),
        "get_session_checkpoint",
    ),
    Case(
        "delete_checkpoint",
        call(new_checkpoint, on=session),
        (404, call("x", on=nowhere)),
        "delete_session_checkpoint",
    ),
    Case(
        "rollback",
        call(checkpoint, on=session),
        (404, call("x", on=session)),
        "revert_session_checkpoint",
    ),
    Case(
        "fork",
        call(on=session, count=2),
        (404, call(on=nowhere)),
        "create_session_fork",
        lambda answer: len(answer["sessions"]) == 2,
        differs=(Difference(FEWER, call(on=session, count=3), some_of_three, cramped),),
    ),
    Case(
        "port_forward_url", call(8000, on=session), (ValueError, call(80, on=session)), None, tunnel
    ),
    Case("stream", call(on=session, replay_only=True), (404, call(on=nowhere)), holds=in_order),
    Case(
        "history",
        call(on=session, before=last_event, limit=1),
        (404, call(on=nowhere, before="x")),
        holds=one_before,
    ),
    Case(
        "upload_file",
        call(on=session, path="a", data=CONTENT, **FAST),
        (400, call(on=session, path="../a", data=CONTENT, **FAST)),
        "get_session_workspace_transfer",
    ),
    Case(
        "download_file",
        call(on=session, path="found", **FAST),
        (WorkspaceTransferError, call(on=session, path="nothing", **FAST)),
        holds=lambda answer: answer == CONTENT,
    ),
    Case("destroy", call(on=new_session), (403, call(on=session, by="viewer")), then=destroyed),
)

STREAMS = (
    Case("events.close", call()),
    Case("download.read", call(), holds=lambda answer: answer == CONTENT),
    Case("download.save", call(file), holds=lambda answer: answer == len(CONTENT)),
    Case("download.close", call()),
)
