"""The methods that do not work, each with the reason; they are answered with 404."""

from tests.conformance.judging import Call, Case, call
from tests.conformance.needs import session
from tests.conformance.world import NOWHERE, data

NO_AGENTS = "this server runs no agents"
NO_TRIGGERS = "this server runs no agents, so nothing triggers them"
NO_PROVIDERS = "this server runs no agents, so it connects none to providers"
UNDESCRIBED = "named in public documentation, and not described"


def _all(reason: str, group: str, calls: dict[str, Call]) -> tuple[Case, ...]:
    return tuple(Case(f"{group}.{name}", made, no=reason) for name, made in calls.items())


def _sent(reason: str, requests: dict[str, tuple[str, str, Call]]) -> tuple[Case, ...]:
    return tuple(
        Case(name, made, no=reason, sent=(verb, f"/v2/agents/{path}"))
        for name, (verb, path, made) in requests.items()
    )


ANSWER = {"outcome": "HITL_OUTCOME_APPROVE"}
WITHOUT = (
    *_all(
        NO_AGENTS,
        "agents.sessions",
        {
            "relay_request": call(session, source_raw=b"{}"),
            "send_input": call(session, text="hello"),
            "resolve_hitl": call(session, "x", **ANSWER),
        },
    ),
    *_all(
        NO_PROVIDERS,
        "agents.sessions",
        {
            "start_provider_auth": call("github"),
            "poll_provider_auth": call("github", "https://example.com/poll"),
            "list_connections": call("github"),
            "create_connection": call("github", user_id="somebody"),
            "get_connection": call("github", NOWHERE),
            "delete_connection": call("github", NOWHERE),
        },
    ),
    *_all(
        NO_TRIGGERS,
        "agents.triggers",
        {
            "list": call(),
            "create": call({"name": "nightly"}),
            "get": call(NOWHERE),
            "update": call(NOWHERE, {"name": "weekly"}),
            "delete": call(NOWHERE),
            "rotate_secret": call(NOWHERE),
            "list_executions": call(NOWHERE),
            "get_execution": call(NOWHERE, NOWHERE),
            "cancel_execution": call(NOWHERE, NOWHERE),
            "get_by_session": call(session),
            "list_reusable_sessions": call(),
            "list_webhook_providers": call(),
        },
    ),
    *_all(
        NO_AGENTS,
        "session",
        {
            "run_streamed": call("hello", on=session),
            "run": call("hello", on=session),
            "send_input": call("hello", on=session),
            "relay": call(b"{}", on=session),
            "resolve_hitl": call("x", on=session, **ANSWER),
        },
    ),
    *_all(
        NO_AGENTS,
        "harness",
        {
            "post_session_hitl": call(session, "x", ANSWER),
            "create_session_input": call(session, {"text": "hello"}),
        },
    ),
    *_all(
        NO_TRIGGERS,
        "harness",
        {
            "list_triggers": call(),
            "create_trigger": call({"name": "nightly"}),
            "get_trigger_by_session": call(session),
            "list_reusable_sessions": call(),
            "get_trigger": call(NOWHERE),
            "update_trigger": call(NOWHERE, {"name": "weekly"}),
            "delete_trigger": call(NOWHERE),
            "list_trigger_executions": call(NOWHERE),
            "get_trigger_execution": call(NOWHERE, NOWHERE),
            "cancel_trigger_execution": call(NOWHERE, NOWHERE),
            "post_trigger_rotate_secret": call(NOWHERE),
            "post_trigger_webhook": call(NOWHERE, data(b"{}"), content_type="application/json"),
            "list_webhook_providers": call(),
        },
    ),
)

NEWER = (
    *_sent(NO_AGENTS, {"(to cancel a run)": ("POST", f"sessions/{NOWHERE}/cancel", call())}),
    *_sent(UNDESCRIBED, {"(messages of images)": ("GET", "image-messages", call())}),
)
"""What newer clients have than the one that is tested, and what the documentation names without a
method (in parentheses): sent without methods."""
