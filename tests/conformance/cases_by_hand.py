"""The methods that the client has by hand, for sessions, configurations and templates."""

from pydo.agents import WorkspaceTransferError

from tests.conformance import needs
from tests.conformance.checks import (
    AGENT,
    FAST,
    FEWER,
    NO_AGENT,
    NO_BALANCE,
    NO_BASES,
    NO_INSIGHTS,
    NO_RULES,
    RULES,
    TRIPS,
    cramped,
    deleted,
    destroyed,
    in_order,
    one_before,
    ran,
    removed,
    some_of_three,
    status,
    tunnel,
)
from tests.conformance.judging import Case, Difference, call
from tests.conformance.needs import (
    CONTENT,
    build,
    checkpoint,
    config,
    destroyed_session,
    download,
    empty_upload,
    ended_upload,
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
    source,
    template,
    upload,
    used_config,
    warm_session,
)
from tests.conformance.world import NOWHERE

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
    Case("pause", call(new_session), (409, call(warm_session)), then=status("PAUSED"), trips=TRIPS),
    Case(
        "resume",
        call(paused_session),
        (404, call(destroyed_session)),
        then=status("READY"),
        trips=TRIPS,
    ),
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
BODY = {"name": name, "base_template": "sandbox", "source_oci_ref": source}
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
        call(new_template, {"source_oci_ref": source}),
        (404, call(NOWHERE, {"source_oci_ref": source})),
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
