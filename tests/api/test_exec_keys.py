"""Commands that are asked for twice are started once."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import Api
from tests.api.test_execs import in_use
from tests.waiting import eventually
from torpor.sessions import ConflictError, FailedError, Key
from torpor.sessions.model import SYSTEM
from torpor.store import operations
from torpor.vm import ChannelLostError, Exec, GuestError

KEY = Key("k", "d")
HEADERS = {"idempotency-key": "k"}


class Killed(BaseException):
    """The program was killed here."""


async def killed(*_: Any) -> None:
    """Stand for what the program was killed in."""
    raise Killed


@pytest.fixture
async def one(api: Api) -> str:
    """A session called `one`."""
    return await api.ready(name="one")


@pytest.fixture
def marking(tmp_path: Path) -> list[str]:
    """A command that adds a line to a file, and runs on."""
    return ["sh", "-c", f"echo started >>{tmp_path}/marks; sleep 60"]


async def marks(api: Api) -> list[str]:
    """Return a line for each time that the command was started."""
    file = api.root / "marks"
    return file.read_text().split() if file.exists() else []


async def started_once(api: Api, session: str, exec_id: str) -> None:
    """Check that a command is the only one of its session, and was started once."""
    assert await eventually(lambda: marks(api), bool) == ["started"]
    assert [each.id for each in await api.sessions.execs.list(session, SYSTEM)] == [exec_id]


async def told(api: Api, session: str) -> list[str]:
    """Return the commands of whose start events tell."""
    found = await api.events(session)
    return [each.data["exec_id"] for each in found if each.type == "exec.started"]


async def test_a_start_that_is_asked_for_again_is_answered_as_the_first_time(
    api: Api, one: str, client: httpx.AsyncClient, marking: list[str]
) -> None:
    body = {"argv": marking}
    asked = (client.post("/sessions/one/execs", json=body, headers=HEADERS) for _ in range(10))
    answers = {answer.text for answer in await asyncio.gather(*asked)}
    later = await client.post("/sessions/one/execs", json=body, headers=HEADERS)
    assert answers == {later.text}
    exec_id = later.json()["exec"]["exec_id"]
    await started_once(api, one, exec_id)
    assert await told(api, one) == [exec_id]
    other = await client.post("/sessions/one/execs", json={"argv": ["true"]}, headers=HEADERS)
    assert (other.status_code, other.json()["id"]) == (409, "conflict")


async def test_also_after_the_server_was_started_anew_and_the_command_is_forgotten(
    api: Api, one: str, marking: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await api.sessions.execs.start(one, SYSTEM, marking, key=KEY)
    await api.again()

    async def none(*_: Any) -> None:
        raise AssertionError("nothing is to be asked of the machine")

    with monkeypatch.context() as patch:
        patch.setattr(Exec, "start", none)
        assert await api.sessions.execs.start(one, SYSTEM, marking, key=KEY) == first
    await started_once(api, one, first.id)


@pytest.mark.parametrize("paused", [False, True])
async def test_a_start_in_which_the_server_was_killed_is_gone_on_with(
    api: Api, one: str, marking: list[str], monkeypatch: pytest.MonkeyPatch, *, paused: bool
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(api.sessions._operations, "written", killed)
        with pytest.raises(Killed):
            await api.sessions.execs.start(one, SYSTEM, marking, key=KEY)
    assert await told(api, one) == []
    if paused:
        await api.sessions.pause(one, SYSTEM)
    await api.again()
    with pytest.raises(ConflictError, match="another request"):
        await api.sessions.execs.start(one, SYSTEM, ["true"], key=Key("k", "other"))
    found = await api.sessions.execs.start(one, SYSTEM, marking, key=KEY)
    await started_once(api, one, found.id)
    assert await told(api, one) == [found.id]
    async with api.database.read() as conn:
        assert await operations.unfinished(conn) == []


async def test_a_start_that_the_machine_never_heard_of_is_made(
    api: Api, one: str, marking: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Exec, "start", killed)
        with pytest.raises(Killed):
            await api.sessions.execs.start(one, SYSTEM, marking, key=KEY)
    await api.again()
    found = await api.sessions.execs.start(one, SYSTEM, marking, key=KEY)
    await started_once(api, one, found.id)


async def test_a_start_whose_answer_was_lost_for_good_is_found_again(
    api: Api, one: str, marking: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Exec.start

    async def lost(*given: Any) -> Exec:
        (await real(*given)).detach()
        raise ChannelLostError("The channel is lost.")

    with monkeypatch.context() as patch:
        patch.setattr(Exec, "start", lost)
        with pytest.raises(FailedError, match="again and again"):
            await api.sessions.execs.start(one, SYSTEM, marking, key=KEY)
    found = await api.sessions.execs.start(one, SYSTEM, marking, key=KEY)
    await started_once(api, one, found.id)


async def test_a_start_left_behind_by_a_session_that_is_gone_is_given_up(
    api: Api, one: str, marking: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Exec, "start", killed)
        with pytest.raises(Killed):
            await api.sessions.execs.start(one, SYSTEM, marking, key=KEY)
    await api.sessions.destroy(one, SYSTEM)
    await api.again()
    async with api.database.read() as conn:
        assert await operations.unfinished(conn) == []


async def test_a_command_that_could_not_be_started_is_tried_again_under_its_key(
    api: Api, one: str, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    with pytest.raises(GuestError, match="ENOENT"):
        await api.sessions.execs.start(one, SYSTEM, [str(program)], key=KEY)
    program.write_text(f"#!/bin/sh\necho started >>{tmp_path}/marks\n")
    program.chmod(0o755)
    found = await api.sessions.execs.start(one, SYSTEM, [str(program)], key=KEY)
    await started_once(api, one, found.id)


async def test_who_goes_while_a_command_is_being_started_leaves_it_told_and_unfollowed(
    api: Api, one: str, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go = asyncio.Event(), asyncio.Event()
    real = api.sessions.events.add

    async def held(kind: str, *rest: Any, **data: Any) -> Any:
        writing.set()
        await go.wait()
        return await real(kind, *rest, **data)

    monkeypatch.setattr(api.sessions.events, "add", held)
    running = asyncio.create_task(api.sessions.execs.run(one, SYSTEM, ["yes"]))
    await writing.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    go.set()
    await eventually(lambda: told(api, one), bool)
    (exec_id,) = await told(api, one)
    await eventually(lambda: in_use(api, one), lambda uses: uses == 0)

    async def written() -> int:
        shown = await client.get(f"/sessions/one/execs/{exec_id}")
        return int(shown.json()["exec"]["output_end"])

    await eventually(written, lambda end: end > 8 << 20)  # nobody holds it up
    await api.sessions.execs.signal(one, SYSTEM, exec_id, 9)


async def test_what_takes_no_key_refuses_one(api: Api, client: httpx.AsyncClient) -> None:
    takes = set()
    for route in api.app.routes:
        if "POST" not in getattr(route, "methods", ()):
            continue
        path = route.path.format(  # type: ignore[attr-defined]
            session_id="nobody",
            exec_id="x",
            pid=1,
            checkpoint_id="x",
            config_id="x",
            template_id="x",
            transfer_id="x",
        ).removeprefix("/v2/agents")
        async with api.client("admin") as admin:
            answer = await admin.post(path, headers=HEADERS, content=b"{}")
        if "Idempotency-Key" not in answer.text:
            takes.add(path.rpartition("/")[2])
        else:
            assert answer.status_code == 400
    assert takes == {
        "sessions", "pause", "resume", "checkpoints", "rollback", "fork", "execs", "configs",
        "clone", "templates", "transfers", "previews", "workspaces",
    }  # fmt: skip
