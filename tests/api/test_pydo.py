"""DigitalOcean's own Python client, against this server.

By itself it sends no token over plain HTTP; here a policy of its library's does.
"""

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
    StreamConsumedError,
)
from azure.core.pipeline.policies import HeadersPolicy
from pydo import Client
from pydo.aio import Client as AsyncClient

from tests.api.conftest import Api, served

pytestmark = pytest.mark.filterwarnings("ignore")

MANIFEST = "name: one\nsize: mars-2vcpu-1gb\nenv:\n  A: b\nidle_timeout: 15m\n"
T = TypeVar("T")


def shows(token: str) -> HeadersPolicy:
    """Show a token over plain HTTP too."""
    return HeadersPolicy({"Authorization": f"Bearer {token}"})


@pytest.fixture
async def address(api: Api) -> AsyncIterator[str]:
    """Where the API is served."""
    async with served(api) as where:
        yield f"http://{where}"


@pytest.fixture
def sessions(api: Api, address: str) -> Any:
    """The client's operations on sessions, to be called in a thread."""
    token = api.tokens["operator"]
    client = Client(token, agents_endpoint=address, authentication_policy=shows(token))
    return client.agents.sessions


async def aside(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call something that blocks."""
    return await asyncio.to_thread(call, *args, **kwargs)


async def test_a_session_is_made_used_and_destroyed(api: Api, sessions: Any) -> None:
    made = (await aside(sessions.create_from_manifest, MANIFEST))["session"]
    session = made["session_id"]
    assert (made["status"], made["idle_timeout_seconds"]) == ("SESSION_STATUS_PROVISIONING", 900)
    ran = await aside(
        sessions.exec_in_sandbox, session, argv=["sh", "-c", "echo $A; pwd >&2"], workdir="/usr",
        timeout_seconds=30,
    )  # fmt: skip
    assert (ran["exit_code"], ran["stdout"], ran["stderr"]) == (0, "b\n", "/usr\n")
    assert await aside(sessions.pause, session) is None
    found = await aside(sessions.get, session)
    assert found["session"]["status"] == "SESSION_STATUS_PAUSED"
    assert await aside(sessions.resume, session) is None
    listed = await aside(sessions.list, page_size=10, name="one", status="SESSION_STATUS_READY")
    assert [each["session_id"] for each in listed["sessions"]] == [session]
    assert listed["next_page_token"] == ""
    changed = await aside(sessions.update, session, resume_on_topoff=False)
    assert changed["session"]["session_id"] == session
    with pytest.raises(HttpResponseError, match="balance"):
        await aside(sessions.update, session, resume_on_topoff=True)
    sizes = await aside(sessions.list_sandbox_sizes)
    assert sizes["sizes"][0].keys() == {
        "slug", "vcpus", "memory_mb", "price_per_hour_usd", "price_per_month_usd",
    }  # fmt: skip
    assert await aside(sessions.destroy, session) is None
    assert (await aside(sessions.list))["sessions"] == []


async def test_checkpoints_rollback_and_fork(sessions: Any) -> None:
    session = (await aside(sessions.create_from_manifest, MANIFEST))["session"]["session_id"]
    await aside(sessions.exec_in_sandbox, session, argv=["true"])
    made = (await aside(sessions.create_checkpoint, session, label="x"))["checkpoint"]
    checkpoint = made["checkpoint_id"]
    found = await aside(sessions.get_checkpoint, session, checkpoint)
    assert (found["checkpoint"]["label"], found["checkpoint"]["status"]) == ("x", "READY")
    listed = await aside(sessions.list_checkpoints, session, page_size=5)
    assert [each["checkpoint_id"] for each in listed["checkpoints"]] == [checkpoint]
    forked = await aside(sessions.fork, session, from_checkpoint_id=checkpoint, count=2)
    assert [each["parent_session_id"] for each in forked["sessions"]] == [session] * 2
    back = await aside(sessions.rollback_to_checkpoint, session, checkpoint)
    assert back["session"]["session_id"] == session
    gone = await aside(sessions.delete_checkpoint, session, checkpoint)
    assert gone["deleted"] is True


async def test_events_are_streamed_and_paged(api: Api, sessions: Any) -> None:
    session = await api.ready(name="one")

    def replay(**how: Any) -> Any:
        with sessions.stream(session, replay_only=True, **how) as stream:
            return [event["type"] for event in stream], stream

    types, stream = await aside(replay)
    assert types == ["session.created", "session.progress", "session.ready"]
    assert stream.oldest_event_id is not None
    ids = [event.id for event in await api.events(session)]
    types, _ = await aside(replay, replay_from=ids[1])
    assert types == ["session.ready"]
    page = await aside(sessions.history_page, session, before=ids[2], limit=1)
    assert ([each["event_id"] for each in page.events], page.has_more) == ([ids[1]], True)
    page = await aside(sessions.history_page, session, before=page.next_before)
    assert ([each["event_id"] for each in page.events], page.has_more) == ([ids[0]], False)

    def live() -> list[str]:
        with sessions.stream(session) as stream:
            return [event["type"] for event in stream]

    following = asyncio.ensure_future(aside(live))
    await asyncio.sleep(0.3)
    await aside(sessions.destroy, session)
    assert (await asyncio.wait_for(following, 10))[-1] == "session.destroyed"


async def test_errors_are_those_that_it_knows(api: Api, sessions: Any, address: str) -> None:
    with pytest.raises(ResourceNotFoundError):
        await aside(sessions.get, "nobody")
    await aside(sessions.create_from_manifest, MANIFEST)
    with pytest.raises(ResourceExistsError):
        await aside(sessions.create_from_manifest, MANIFEST)
    with pytest.raises(HttpResponseError, match="'sise' is not known"):
        await aside(sessions.create_from_manifest, "sise: big\n")
    with pytest.raises(ResourceNotFoundError, match="configuration"):
        await aside(sessions.create_from_config, name="two", config_id="x")
    nobody = Client("x", agents_endpoint=address, authentication_policy=shows("x"))
    with pytest.raises(ClientAuthenticationError):
        await aside(nobody.agents.sessions.list)


async def test_the_same_without_blocking(api: Api, address: str) -> None:
    token = api.tokens["operator"]
    async with AsyncClient(
        token,
        agents_endpoint=address,
        authentication_policy=shows(token),
    ) as client:
        sessions = client.agents.sessions
        session = (await sessions.create_from_manifest(MANIFEST))["session"]["session_id"]
        ran = await sessions.exec_in_sandbox(session, argv=["echo", "hi"])
        assert ran["stdout"] == "hi\n"
        checkpoint = (await sessions.create_checkpoint(session))["checkpoint"]["checkpoint_id"]
        assert len((await sessions.fork(session, count=2))["sessions"]) == 2
        await sessions.rollback_to_checkpoint(session, checkpoint)
        # It is done; then the client reads the answer, which has no body, twice.
        with pytest.raises(StreamConsumedError):
            await sessions.pause(session)
        found = await sessions.get(session)
        assert found["session"]["status"] == "SESSION_STATUS_PAUSED"
        with pytest.raises(StreamConsumedError):
            await sessions.resume(session)
        found = await sessions.get(session)
        assert found["session"]["status"] == "SESSION_STATUS_READY"
        async with await sessions.stream(session, replay_only=True) as stream:
            types = [event["type"] async for event in stream]
        assert "checkpoint.created" in types
        assert len((await sessions.list())["sessions"]) == 3
        await sessions.destroy(session)


# Configurations

SUMMARY = {
    "id", "name", "content_hash", "agentspec_schema_version", "created_by", "created_at",
    "updated_at",
}  # fmt: skip


async def test_configurations_are_made_listed_used_and_deleted(api: Api, address: str) -> None:
    token = api.tokens["operator"]
    client = Client(token, agents_endpoint=address, authentication_policy=shows(token))
    configs, sessions = client.agents.configs, client.agents.sessions
    body = {"name": "web", "manifest_yaml": MANIFEST}
    made = (await aside(configs.create, body))["config"]
    assert made.keys() >= SUMMARY | {"manifest", "credentials"}
    assert made["manifest"]["spec"]["env"] == {"A": "b"}
    assert made["agentspec_schema_version"] == "agents.digitalocean.com/flat.v1"
    assert (await aside(configs.get, made["id"]))["config"] == made
    listed = await aside(configs.list, page_size=10)
    assert [each["id"] for each in listed["configs"]] == [made["id"]]
    assert listed["configs"][0].keys() == SUMMARY
    session = (await aside(sessions.create_from_config, name="one", config_id=made["id"]))[
        "session"
    ]
    assert (session["name"], session["config_id"]) == ("one", made["id"])
    found = await aside(configs.list_sessions, made["id"], page_size=1, status="SESSION_STATUS_ALL")
    assert [each["session_id"] for each in found["sessions"]] == [session["session_id"]]
    with pytest.raises(ResourceExistsError, match="that of sessions: one"):
        await aside(configs.delete, made["id"])
    with pytest.raises(ResourceExistsError, match="is a configuration web already"):
        await aside(configs.create, body)
    with pytest.raises(ResourceExistsError, match="is a session one already"):
        await aside(sessions.create_from_config, name="one", config_id=made["id"])
    with pytest.raises(HttpResponseError, match="'sise' is not known"):
        await aside(configs.create, {"name": "x", "manifest_yaml": "sise: big"})
    with pytest.raises(HttpResponseError, match="page_size"):
        await aside(configs.list, page_size=201)
    with pytest.raises(HttpResponseError, match="status"):
        await aside(configs.list_sessions, made["id"], status="GOOD")
    await aside(sessions.destroy, session["session_id"])
    assert await aside(configs.delete, made["id"]) is None
    for call in (configs.get, configs.delete, configs.list_sessions):
        with pytest.raises(ResourceNotFoundError):
            await aside(call, made["id"])


async def test_the_same_by_the_generated_operations(api: Api, address: str) -> None:
    token = api.tokens["operator"]
    client = Client(token, endpoint=address, authentication_policy=shows(token))
    harness = client.harness
    made = (await aside(harness.create_config, {"name": "web", "manifest_yaml": MANIFEST}))[
        "config"
    ]
    assert (await aside(harness.get_config, made["id"]))["config"] == made
    clone = (await aside(harness.create_config_clone, made["id"], {"name": "two"}))["config"]
    assert (clone["content_hash"], clone["id"] == made["id"]) == (made["content_hash"], False)
    listed = await aside(harness.list_configs, search="TW")
    assert [each["id"] for each in listed["configs"]] == [clone["id"]]
    assert (await aside(harness.list_configs, page_size=500))["id"] == "invalid_request"
    body = {"name": "one", "config_id": clone["id"], "resume_on_topoff": False}
    session = await aside(
        harness.create_session, body, x_device_uuid="laptop", resume_on_topoff=False
    )
    assert session["session"]["config_id"] == clone["id"]
    found = await aside(harness.list_config_sessions, clone["id"])
    assert [each["name"] for each in found["sessions"]] == ["one"]
    assert (await aside(harness.delete_config, clone["id"]))["id"] == "config_in_use"
    await aside(harness.delete_session, session["session"]["session_id"], x_device_uuid="laptop")
    assert await aside(harness.delete_config, clone["id"]) is None
    # It returns these errors; they are no exceptions.
    assert (await aside(harness.delete_config, clone["id"]))["id"] == "not_found"
    assert (await aside(harness.get_config, clone["id"]))["id"] == "not_found"
    assert (await aside(harness.list_config_sessions, clone["id"]))["id"] == "not_found"
    taken = await aside(harness.create_config, {"name": "WEB", "manifest_yaml": ""})
    assert taken["id"] == "already_exists"
    slots = {"name": "three", "secrets": {"a": "b"}}
    assert "slots" in (await aside(harness.create_config_clone, made["id"], slots))["message"]
    locked = await aside(harness.list_sessions, status="SESSION_STATUS_LOCKED")
    assert locked["sessions"] == []


async def test_a_policy_is_looked_at(api: Api, sessions: Any, address: str) -> None:
    said = await aside(sessions.validate_policy, MANIFEST)
    assert (said["ok"], said["agent"], said["verdicts"]) == (True, "none", [])
    rules = MANIFEST + "permissions:\n  rules:\n    - {tool: bash, action: deny}\n"
    said = await aside(sessions.validate_policy, rules)
    assert (said["ok"], said["verdicts"][0]["verdict"]) == (False, "unsupported")
    with pytest.raises(HttpResponseError, match="'sise' is not known"):
        await aside(sessions.validate_policy, "sise: big\n")
    token = api.tokens["operator"]
    client = Client(token, endpoint=address, authentication_policy=shows(token))
    validate = client.harness.validate_session_policy
    said = await aside(validate, io.BytesIO(rules.encode()), content_type="application/x-yaml")
    assert said["ok"] is False


async def test_configurations_without_blocking(api: Api, address: str) -> None:
    token = api.tokens["operator"]
    async with AsyncClient(
        token,
        endpoint=address,
        agents_endpoint=address,
        authentication_policy=shows(token),
    ) as client:
        configs, sessions, harness = client.agents.configs, client.agents.sessions, client.harness
        made = (await configs.create({"name": "web", "manifest_yaml": MANIFEST}))["config"]
        assert (await configs.get(made["id"]))["config"] == made
        assert len((await configs.list(page_size=5))["configs"]) == 1
        created = await sessions.create_from_config(name="one", config_id=made["id"])
        session = created["session"]["session_id"]
        found = await configs.list_sessions(made["id"])
        assert [each["session_id"] for each in found["sessions"]] == [session]
        with pytest.raises(ResourceExistsError):
            await configs.delete(made["id"])
        clone = (await harness.create_config_clone(made["id"], {"name": "two"}))["config"]
        assert (await harness.get_config(clone["id"]))["config"]["name"] == "two"
        assert len((await harness.list_configs())["configs"]) == 2
        assert len((await harness.list_config_sessions(made["id"]))["sessions"]) == 1
        assert (await harness.create_config({"name": "two", "manifest_yaml": ""}))["id"] == (
            "already_exists"
        )
        assert (await harness.delete_config(made["id"]))["id"] == "config_in_use"
        await sessions.destroy(session)
        await configs.delete(made["id"])
        with pytest.raises(ResourceNotFoundError):
            await configs.get(made["id"])
        older = "apiVersion: agents.digitalocean.com/v1alpha1\nkind: Agent\nspec:\n"
        with pytest.raises(HttpResponseError, match="agent"):
            await sessions.create_from_manifest(older + "  runtime: {adapter: codex}\n")
        assert (await sessions.validate_policy(MANIFEST))["ok"] is True
