"""DigitalOcean's own Python client, against this server.

By itself it sends no token over plain HTTP; here a policy of its library's does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.core.pipeline.policies import HeadersPolicy
from azure.core.pipeline.transport import AsyncioRequestsTransport
from pydo import Client
from pydo.aio import Client as AsyncClient

from tests.api.conftest import Api, served

pytestmark = pytest.mark.filterwarnings("ignore")

MANIFEST = "name: one\nsize: mars-2vcpu-1gb\nenv:\n  A: b\nidle_timeout: 15m\n"
T = TypeVar("T")


class Transport(AsyncioRequestsTransport):
    """What sends requests without aiohttp; it does not know the names of all time limits."""

    async def send(self, request: Any, **options: Any) -> Any:
        options.pop("read_timeout", None)
        return await super().send(request, **options)


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
    with pytest.raises(HttpResponseError, match="config_id"):
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
        transport=Transport(),
    ) as client:
        sessions = client.agents.sessions
        session = (await sessions.create_from_manifest(MANIFEST))["session"]["session_id"]
        ran = await sessions.exec_in_sandbox(session, argv=["echo", "hi"])
        assert ran["stdout"] == "hi\n"
        checkpoint = (await sessions.create_checkpoint(session))["checkpoint"]["checkpoint_id"]
        assert len((await sessions.fork(session, count=2))["sessions"]) == 2
        await sessions.rollback_to_checkpoint(session, checkpoint)
        await sessions.pause(session)
        await sessions.resume(session)
        found = await sessions.get(session)
        assert found["session"]["status"] == "SESSION_STATUS_READY"
        async with await sessions.stream(session, replay_only=True) as stream:
            types = [event["type"] async for event in stream]
        assert "checkpoint.created" in types
        assert len((await sessions.list())["sessions"]) == 3
        await sessions.destroy(session)
