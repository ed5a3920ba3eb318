"""The generated methods (``client.harness``). They return errors where the others raise them."""

from tests.conformance.cases_by_hand import AGENTS_BASE, BODY, WRONG_PAGE
from tests.conformance.checks import (
    FEWER,
    NO_BALANCE,
    NO_BASES,
    NO_INSIGHTS,
    NO_RULES,
    RULES,
    cramped,
    deleted,
    destroyed,
    ran,
    removed,
    some_of_three,
    status,
)
from tests.conformance.judging import Case, Difference, call
from tests.conformance.needs import (
    CONTENT,
    MANIFEST,
    build,
    checkpoint,
    config,
    destroyed_session,
    download,
    empty_upload,
    ended_upload,
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
from tests.conformance.world import NOWHERE, data

YAML = {"content_type": "application/x-yaml"}
NO_SLOTS = "values for `secrets` and `oauth_assignments` are refused (400): manifests have no slots"
MANY = "also up to 64 children"
ANY_PORT = "ready at once, and whether or not somebody listens; also for any other port (`port`)"

GENERATED = (
    Case("list_configs", call(search="n"), (400, call(page_size=500))),
    Case(
        "create_config",
        call({"name": name, "manifest_yaml": MANIFEST}),
        (400, call({"name": name, "manifest_yaml": "sise: big"})),
        differs=(
            Difference(
                NO_INSIGHTS,
                call({"name": name, "manifest_yaml": "", "insights": {"logs": True}}),
                400,
            ),
        ),
    ),
    Case("get_config", call(config), (404, call(NOWHERE))),
    Case("delete_config", call(new_config), (409, call(used_config)), then=deleted),
    Case(
        "create_config_clone",
        call(config, {"name": name}),
        (404, call(NOWHERE, {"name": name})),
        differs=(Difference(NO_SLOTS, call(config, {"name": name, "secrets": {"a": "b"}}), 400),),
    ),
    Case("list_config_sessions", call(used_config), (404, call(NOWHERE))),
    Case(
        "list_sessions",
        call(name=session_name),
        (400, call(search="x" * 65)),
        holds=lambda answer: len(answer["sessions"]) == 1,
    ),
    Case(
        "create_session",
        call({"name": name, "config_id": config}, x_device_uuid="laptop"),
        (404, call({"name": name, "config_id": NOWHERE})),
    ),
    Case(
        "validate_session_policy",
        call(data(MANIFEST.encode()), **YAML),
        (400, call(data(b"sise: big"), **YAML)),
        holds=lambda answer: answer["ok"] is True,
        differs=(
            Difference(
                NO_RULES, call(data(RULES.encode()), **YAML), lambda answer: answer["ok"] is False
            ),
        ),
    ),
    Case("list_session_sandbox_sizes", call(), (401, call(by="nobody"))),
    Case("delete_session", call(new_session), (404, call(NOWHERE)), then=destroyed),
    Case("get_session", call(session), (404, call(NOWHERE))),
    Case(
        "update_session",
        call(session, {"resume_on_topoff": False}),
        (400, call(session, {})),
        differs=(Difference(NO_BALANCE, call(session, {"resume_on_topoff": True}), 400),),
    ),
    Case("list_session_checkpoints", call(session), (404, call(NOWHERE))),
    Case("create_session_checkpoint", call(session), (404, call(NOWHERE))),
    Case("get_session_checkpoint", call(session, checkpoint), (404, call(session, "x"))),
    Case("delete_session_checkpoint", call(session, new_checkpoint), (404, call(NOWHERE, "x"))),
    Case("revert_session_checkpoint", call(session, checkpoint), (404, call(session, "x"))),
    Case(
        "create_session_fork",
        call(session),
        (400, call(session, {"count": 0})),
        holds=lambda answer: len(answer["sessions"]) == 1,
        differs=(
            Difference(FEWER, call(session, {"count": 3}), some_of_three, cramped),
            Difference(
                MANY, call(session, {"count": 5}), lambda answer: len(answer["sessions"]) == 5
            ),
        ),
    ),
    Case("post_session_pause", call(new_session), (409, call(warm_session)), then=status("PAUSED")),
    Case(
        "post_session_resume",
        call(paused_session),
        (404, call(destroyed_session)),
        then=status("READY"),
    ),
    Case(
        "post_session_sandbox_exec",
        call(session, {"argv": ["echo", "a b"], "workdir": "/", "stdin": ""}),
        (403, call(session, {"argv": ["true"]}, by="viewer")),
        holds=ran,
    ),
    Case(
        "get_session_workspace_download",
        call(session, path="found"),
        (404, call(session, path="nothing")),
        holds=lambda answer: answer[:-73] == CONTENT and answer[-73:-65] == b"DOWSSHA1",
    ),
    Case(
        "create_session_workspace_transfer",
        call(session, {"direction": "upload", "path": "a", "size_bytes": "5"}),
        (400, call(session, {"direction": "sideways", "path": "a"})),
    ),
    Case("get_session_workspace_transfer", call(session, download), (404, call(session, "x"))),
    Case(
        "cancel_session_workspace_transfer",
        call(session, upload),
        (404, call(session, "x")),
        holds=lambda answer: answer["aborted"] is True,
    ),
    Case(
        "commit_session_workspace_transfer",
        call(session, empty_upload),
        (409, call(session, upload)),
    ),
    Case(
        "create_session_workspace_part_upload_urls",
        call(session, upload, {"part_numbers": [1]}),
        (409, call(session, ended_upload, {"part_numbers": [1]})),
    ),
    Case(
        "create_session_workspace_upload",
        call(session, data(CONTENT), path="b"),
        (400, call(session, data(CONTENT), path="b", x_content_sha256="0" * 64)),
        holds=lambda answer: answer["bytes_written"] == len(CONTENT),
    ),
    Case(
        "get_session_events",
        call(session, replay_only=True, device_id="laptop"),
        (404, call(NOWHERE, replay_only=True)),
        note="the client reads none of the events, and without `replay_only` never returns: "
        "`agents.sessions.stream` is for them",
    ),
    Case(
        "get_session_port_forward",
        call(session, 8000),
        (404, call(NOWHERE, 8000)),
        refused=400,
        note="400 to a request that is no WebSocket's, as there; the client opens none",
    ),
    Case(
        "get_session_ingress",
        call(session),
        (404, call(NOWHERE)),
        differs=(
            Difference(
                ANY_PORT,
                call(session, params={"port": "8001"}),
                lambda answer: (
                    answer["ingress_url"]["port"] == 8001
                    and answer["ingress_url"]["state"] == "INGRESS_URL_STATE_READY"
                ),
            ),
        ),
    ),
    Case("list_templates", call(page_size=5), (400, call(**WRONG_PAGE))),
    Case(
        "create_template",
        call(BODY),
        (400, call({"name": name})),
        differs=(Difference(NO_BASES, call(AGENTS_BASE), 400),),
    ),
    Case("get_template", call(template), (404, call(NOWHERE))),
    Case(
        "update_template",
        call(new_template, {"source_oci_ref": source}),
        (404, call(NOWHERE, {"source_oci_ref": source})),
        differs=(Difference(NO_BASES, call(template, {"base_template": "codex-base"}), 400),),
    ),
    Case("delete_template", call(new_template), (403, call(template, by="viewer")), then=removed),
    Case("list_template_builds", call(template), (404, call(NOWHERE))),
    Case("get_template_build", call(template, build), (404, call(template, NOWHERE))),
)
