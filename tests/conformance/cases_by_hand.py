"""The methods that the client has by hand, for sessions, configurations and templates."""

import contextlib
from collections.abc import Iterator
from typing import Any

from pydo.agents import WorkspaceTransferError

from tests.conformance import needs
from tests.conformance.judging import Case, Difference, Outcome, call
from tests.conformance.needs import (
    CONTENT,
    SOURCE,
    build,
    checkpoint,
    config,
    destroyed_session,
    download,
    empty_upload,
    ended_upload,
    file,
    last_event,
    manifest,
    name,
    new_checkpoint,
    new_config,
    new_session,
    new_template,
    paused_session,
    session,
    session_name,
    template,
    upload,
    used_config,
    warm_session,
)
from tests.conformance.world import NOWHERE, World
from torpor.vm import MIB

FAST = {"poll_interval": 0.02}
AGENT = "agent: codex\n"
RULES = "permissions:\n  rules:\n    - {tool: bash, action: deny}\n"

NO_AGENT = "a manifest with an agent is refused (400): this server runs no agents"
NO_BALANCE = "`resume_on_topoff=True` is refused (400): nothing is paused for want of a balance"
NO_RULES = "a rule is `unsupported`, and not `ok` if it is strict: no agent runs that it could bind"
NO_INSIGHTS = "`insights` that are on are refused (400): nothing collects them"
NO_BASES = "`base_template` is `sandbox` or `coding-base`, others are refused (400): no agents"
FEWER = "not all or none: of children, those that there is room for, and `errors` for the others"


@contextlib.contextmanager
def cramped(world: World) -> Iterator[None]:
    """Meanwhile there is room for a machine, which needs 202 MiB, and not for three."""
    host = world.api.host
    kept = host.memory
    host.memory -= world.api.sessions.free_memory() - 300 * MIB
    yield
    host.memory = kept


def some_of_three(answer: Any) -> bool:
    made, failed = len(answer["sessions"]), len(answer["errors"])
    return made + failed == 3 and made > 0 and failed > 0


def status(wanted: str) -> Any:
    """Hold when the session of a call has a status."""

    async def then(world: World, outcome: Outcome) -> bool:
        path = f"/sessions/{outcome.arguments[0]}"
        found: str = (await world.ask("GET", path))["session"]["status"]
        return found == f"SESSION_STATUS_{wanted}"

    return then


async def destroyed(world: World, outcome: Outcome) -> bool:
    return outcome.arguments[0] not in await _listed(world, "sessions", "session_id")


async def deleted(world: World, outcome: Outcome) -> bool:
    return outcome.arguments[0] not in await _listed(world, "configs", "id")


async def removed(world: World, outcome: Outcome) -> bool:
    return outcome.arguments[0] not in await _listed(world, "templates", "template_id")


async def _listed(world: World, kind: str, key: str) -> list[str]:
    found = await world.ask("GET", f"/{kind}", params={"page_size": 200})
    return [each[key] for each in found[kind]]


def ran(answer: Any) -> bool:
    return (answer["exit_code"], answer["stdout"], answer["stderr"]) == (0, "a b\n", "")


def in_order(answer: Any) -> bool:
    types = [each["type"] for each in answer]
    return types[:1] == ["session.created"] and "session.ready" in types


def one_before(answer: Any) -> bool:
    return len(answer.events) == 1 and answer.has_more is True


def tunnel(answer: Any) -> bool:
    return str(answer).startswith("wss://") and str(answer).endswith("/port-forward/8000")


SESSIONS = (
    Case(
        "list",
        call(page_size=200, name=session_name, status="SESSION_STATUS_READY"),
        (400, call(status="GOOD")),
        "list_sessions",
        lambda answer: len(answer["sessions"]) == 1,
    ),
    Case(
        "create_from_manifest",
        call(manifest),
        (400, call("sise: big\n")),
        "create_session",
        differs=(Difference(NO_AGENT, call(AGENT), 400),),
    ),
    Case(
        "create_from_config",
        call(name=name, config_id=config),
        (404, call(name=name, config_id=NOWHERE)),
        "create_session",
    ),
    Case("get", call(session), (404, call(NOWHERE)), "get_session"),
    Case("destroy", call(new_session), (403, call(session, by="viewer")), then=destroyed),
    Case("pause", call(new_session), (409, call(warm_session)), then=status("PAUSED")),
    Case("resume", call(paused_session), (404, call(destroyed_session)), then=status("READY")),
    Case(
        "update",
        call(session, resume_on_topoff=False),
        (409, call(destroyed_session, resume_on_topoff=False)),
        "update_session",
        differs=(Difference(NO_BALANCE, call(session, resume_on_topoff=True), 400),),
    ),
    Case(
        "validate_policy",
        call(manifest),
        (400, call("sise: big\n")),
        "validate_session_policy",
        lambda answer: answer["ok"] is True,
        differs=(Difference(NO_RULES, call(RULES), lambda answer: answer["ok"] is False),),
    ),
    Case("list_sandbox_sizes", call(), (401, call(by="nobody")), "list_session_sandbox_sizes"),
    Case(
        "exec_in_sandbox",
        call(session, argv=["echo", "a b"], workdir="/", timeout_seconds=30),
        (404, call(session, argv=["true"], workdir="/nowhere")),
        "post_session_sandbox_exec",
        ran,
    ),
    Case(
        "create_checkpoint",
        call(session, label="x"),
        (404, call(NOWHERE)),
        "create_session_checkpoint",
        lambda answer: answer["checkpoint"]["status"] == "READY",
    ),
    Case("list_checkpoints", call(session), (404, call(NOWHERE)), "list_session_checkpoints"),
    Case(
        "get_checkpoint",
        call(session, checkpoint),
        (404, call(session, "x")),
        "get_session_checkpoint",
    ),
    Case(
        "delete_checkpoint",
        call(session, new_checkpoint),
        (404, call(NOWHERE, "x")),
        "delete_session_checkpoint",
    ),
    Case(
        "rollback_to_checkpoint",
        call(session, checkpoint),
        (404, call(session, "x")),
        "revert_session_checkpoint",
    ),
    Case(
        "fork",
        call(session, from_checkpoint_id=checkpoint, count=2),
        (404, call(session, from_checkpoint_id="x")),
        "create_session_fork",
        lambda answer: len(answer["sessions"]) == 2,
        differs=(Difference(FEWER, call(session, count=3), some_of_three, cramped),),
    ),
    Case("port_forward_url", call(session, 8000), (ValueError, call(session, 80)), holds=tunnel),
    Case("stream", call(session, replay_only=True), (404, call(NOWHERE)), holds=in_order),
    Case(
        "history_page",
        call(session, before=last_event, limit=1),
        (404, call(NOWHERE, before=last_event)),
        holds=one_before,
    ),
    Case(
        "create_transfer",
        call(session, direction="upload", path="a", size_bytes=5),
        (400, call(session, direction="upload", path="../a", size_bytes=5)),
        "create_session_workspace_transfer",
    ),
    Case(
        "create_part_upload_urls",
        call(session, upload, part_numbers=[1]),
        (409, call(session, ended_upload, part_numbers=[1])),
        "create_session_workspace_part_upload_urls",
    ),
    Case(
        "create_part_upload_url",
        call(session, upload, part_number=1),
        (404, call(session, "x", part_number=1)),
        holds=lambda answer: answer["part_number"] == 1,
    ),
    Case(
        "commit_upload",
        call(session, empty_upload),
        (409, call(session, upload)),
        "commit_session_workspace_transfer",
    ),
    Case(
        "get_transfer",
        call(session, download),
        (404, call(session, "x")),
        "get_session_workspace_transfer",
    ),
    Case(
        "cancel_transfer",
        call(session, upload, reason="client_error"),
        (404, call(session, "x")),
        "cancel_session_workspace_transfer",
        lambda answer: answer["aborted"] is True,
    ),
    Case(
        "wait_transfer",
        call(session, download, **FAST),
        (WorkspaceTransferError, call(session, ended_upload, **FAST)),
        "get_session_workspace_transfer",
    ),
    Case(
        "workspace_upload",
        call(session, path="a", data=CONTENT, **FAST),
        (
            WorkspaceTransferError,
            call(session, path="a", data=CONTENT, content_sha256="0" * 64, **FAST),
        ),
        "get_session_workspace_transfer",
    ),
    Case(
        "workspace_download",
        call(session, path="found", require_checksum=True, **FAST),
        (WorkspaceTransferError, call(session, path="nothing", **FAST)),
        holds=lambda answer: answer == CONTENT,
    ),
)

CONFIGS = (
    Case("list", call(page_size=10), (400, call(page_size=201)), "list_configs"),
    Case(
        "create",
        call({"name": name, "manifest_yaml": needs.MANIFEST}),
        (400, call({"name": name, "manifest_yaml": "sise: big"})),
        "create_config",
        differs=(
            Difference(
                NO_INSIGHTS,
                call({"name": name, "manifest_yaml": "", "insights": {"logs": True}}),
                400,
            ),
        ),
    ),
    Case("get", call(config), (404, call(NOWHERE)), "get_config"),
    Case("delete", call(new_config), (409, call(used_config)), then=deleted),
    Case("list_sessions", call(used_config), (404, call(NOWHERE)), "list_config_sessions"),
)

WRONG_PAGE = {"page_token": "x"}
BODY = {"name": name, "base_template": "sandbox", "source_oci_ref": SOURCE}
AGENTS_BASE = {**BODY, "base_template": "codex-base"}
TEMPLATES = (
    Case("list", call(page_size=10), (400, call(**WRONG_PAGE)), "list_templates"),
    Case("get", call(template), (404, call(NOWHERE)), "get_template"),
    Case(
        "create",
        call(BODY),
        (400, call({"name": name})),
        "create_template",
        differs=(Difference(NO_BASES, call(AGENTS_BASE), 400),),
    ),
    Case(
        "update",
        call(new_template, {"source_oci_ref": "registry.test/x:2"}),
        (404, call(NOWHERE, {"source_oci_ref": SOURCE})),
        "update_template",
        differs=(Difference(NO_BASES, call(template, {"base_template": "codex-base"}), 400),),
    ),
    Case("delete", call(new_template), (404, call(NOWHERE)), "delete_template", then=removed),
    Case("list_builds", call(template), (404, call(NOWHERE)), "list_template_builds"),
    Case("get_build", call(template, build), (404, call(template, NOWHERE)), "get_template_build"),
    Case(
        "get_build_logs",
        call(template, build),
        (404, call(template, NOWHERE)),
        holds=lambda answer: answer["signed_url"].startswith("https://"),
    ),
)

AGENTS = (
    Case(
        "start",
        call(manifest),
        (400, call("sise: big\n")),
        holds=lambda answer: bool(answer.session_id),
        differs=(Difference(NO_AGENT, call(AGENT), 400),),
    ),
    Case("attach", call(session), holds=lambda answer: bool(answer.session_id)),
    Case(
        "attach_by_name",
        call(session_name),
        (LookupError, call("nobody")),
        holds=lambda answer: bool(answer.session_id),
    ),
    Case(
        "create_session",
        call(body={"manifest": manifest}),
        (403, call(body={"manifest": manifest}, by="viewer")),
        "create_session",
        differs=(Difference(NO_AGENT, call(body={"manifest": AGENT}), 400),),
    ),
    Case("destroy_session", call(session_id=new_session), (404, call(session_id=NOWHERE))),
)


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
    Case("pause", call(on=new_session), (409, call(on=warm_session)), then=status("PAUSED")),
    Case("resume", call(on=paused_session), (404, call(on=nowhere)), then=status("READY")),
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
