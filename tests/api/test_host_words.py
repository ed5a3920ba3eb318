"""Who may only look reads no words of the host's: paths, what QEMU said, a machine's console."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import BASE, Api
from tests.waiting import eventually
from torpor.api.permissions import Permission, needs_of
from torpor.images import ImageError
from torpor.sessions import NewTransfer
from torpor.sessions.model import SYSTEM
from torpor.sessions.workspace_model import NewWorkspace
from torpor.store.errors import DiskError
from torpor.store.records import Role, Status
from torpor.vm import ChannelLostError, LaunchError, SnapshotError, VmError

HOME = "/srv/home-of-the-host"


def path(name: str) -> str:
    """Return a path of the host, to be looked for."""
    return f"{HOME}/{name}"


async def failed(api: Api) -> str:
    """Return a session that did not come to run."""
    api.host.refuse["start"] = LaunchError(f"QEMU cannot open {path('session.failed')}.")
    async with api.client() as client:
        made = (await client.post("/sessions", json={"name": "failed"})).json()["session"]
    found = str(made["session_id"])
    await eventually(lambda: api.sessions.get(found), lambda each: each.status is Status.FAILED)
    return found


async def unbuilt(api: Api) -> str:
    """Return the build of a template that came to nothing."""
    said = path("template.build_failed")
    api.host.refuse["build_image"] = ImageError(f"skopeo cannot read {said}.", "", "")
    async with api.client() as client:
        source = "registry.test/team/tools:1"
        body = {"name": "tools", "base_template": "sandbox", "source_oci_ref": source}
        await client.post("/templates", json=body)
    await eventually(lambda: types(api), lambda found: "template.build_failed" in found)
    _, page = await api.sessions.templates.builds("tools", 1)
    return page.items[0].id


async def troubled(api: Api) -> str:
    """Return a session that has been through a lot."""
    session = await api.ready(name="troubled")
    api.host.refuse["agent"] = ChannelLostError(f"Nobody at {path('session.detached')}.")
    with pytest.raises(ChannelLostError):
        async with api.sessions.use(session, SYSTEM):
            pass
    machine = (await api.sessions.get(session)).machine or ""
    api.host.holding_of(machine).begin(machine, Path(path("session.held")))
    await api.sessions._watch.look()
    api.host.holding_of(machine).end()
    api.host.refuse["durable"] = VmError(f"{path('snapshot.not_durable')}: no space.")
    await api.sessions.checkpoint(session, SYSTEM, label="lost")
    await eventually(lambda: types(api), lambda found: "snapshot.not_durable" in found)

    async def verify(snapshot: str) -> None:
        raise SnapshotError(f"{path('snapshot.lost')} is torn.")

    api.host.verify = verify  # type: ignore[method-assign]
    await api.again()
    return session


async def transfer_of(api: Api, session: str) -> str:
    """Return a transfer that could not be made ready."""
    api.host.refuse["agent"] = VmError(f"{path('transfer.failed')} is gone.")
    new = NewTransfer("download", b"/workspace/x")
    made = await api.sessions.transfers.create(session, SYSTEM, new)
    await eventually(
        lambda: api.sessions.transfers.get(session, made.id),
        lambda found: found.transfer.status == "failed",
    )
    return made.id


async def workspace_of(api: Api) -> str:
    """Return a workspace of which nothing was left."""
    made = (await api.sessions.workspaces.create(NewWorkspace(1, "notes"), SYSTEM)).workspace
    session = await api.ready(name="holder", workspace_id=made.id)
    api.host.refuse["release_disk"] = SnapshotError(f"{path('workspace.failed')} is torn.")
    await api.sessions.destroy(session, SYSTEM)
    assert (await api.sessions.workspaces.get(made.id)).state == "FAILED"
    return made.id


async def types(api: Api) -> list[str]:
    """Return the types of the events so far."""
    return [each.type for each in await api.events()]


async def facts_of(api: Api) -> None:
    """Have the host tell of itself in words."""
    found = await api.host.facts()
    told = replace(found, why=path("why"), jail_missing=(path("jail"),))

    async def facts() -> Any:
        return told

    api.host.facts = facts  # type: ignore[method-assign]


async def read_all(
    api: Api, role: Role, session: str, build: str, transfer: str, workspace: str
) -> str:
    """Return all that a role can read without using a session."""
    (checkpoint,), _ = await api.sessions.checkpoints(session)
    config = (await api.sessions.get(session)).config
    said = []
    async with api.client(role) as client:
        for route in api.app.routes:
            wanted = needs_of(route)
            assert wanted is not None
            methods = getattr(route, "methods", ())
            if wanted.permission not in (Permission.READ, Permission.NONE) or "GET" not in methods:
                continue
            where = str(route.path).format(  # type: ignore[attr-defined]
                session_id=session,
                checkpoint_id=checkpoint.checkpoint,
                config_id=config,
                template_id="tools",
                build_id=build,
                transfer_id=transfer,
                workspace_id=workspace,
            )
            params = {"replay_only": "true"} if where.endswith(("/events", "/stream")) else {}
            if where == f"{BASE}/sessions":
                params = {"status": "SESSION_STATUS_ALL"}
            answer = await client.get(f"http://torpor{where}", params=params)
            said.append(answer.text)
    return "\n".join(said)


async def test_why_something_failed_is_for_those_who_may_use_sessions(api: Api) -> None:
    await failed(api)
    build = await unbuilt(api)
    session = await troubled(api)
    transfer = await transfer_of(api, session)
    workspace = await workspace_of(api)
    await facts_of(api)

    async def statistics(machine: str) -> Any:
        raise VmError(f"{path('statistics')} cannot be read.")

    api.host.statistics = statistics  # type: ignore[method-assign]
    roles: tuple[Role, ...] = ("operator", "admin")
    for role in roles:
        said = await read_all(api, role, session, build, transfer, workspace)
        for name in (
            "session.failed", "session.detached", "session.held", "snapshot.not_durable",
            "snapshot.lost", "template.build_failed", "transfer.failed",
            "workspace.failed", "why", "jail", "statistics",
        ):  # fmt: skip
            assert path(name) in said, (role, name)
    roles = ("viewer", "approver")
    for role in roles:
        said = await read_all(api, role, session, build, transfer, workspace)
        assert HOME not in said
        for seen in (
            "SESSION_STATUS_FAILED",
            "snapshot.lost",
            "operation.failed",
            "template.build_failed",
            "transfer.failed",
            "workspace.failed",
            "machine_failed",
        ):
            assert seen in said, (role, seen)


async def test_what_is_wrong_with_the_database_is_not_for_everybody(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @contextlib.asynccontextmanager
    async def read() -> AsyncIterator[None]:
        raise DiskError(f"{path('torpor.db')} could not be read.", todo=f"Look at {HOME}.")
        yield

    monkeypatch.setattr(api.database, "read", read)

    async def asked(role: Role | None, where: str) -> httpx.Response:
        async with api.client(role) as client:
            answer = await client.get(where)
        assert (answer.status_code, answer.json()["id"]) == (503, "database_unable")
        assert answer.headers["retry-after"]
        return answer

    for role, where in ((None, "http://torpor/readyz"), ("viewer", "/sessions")):
        answer = await asked(role, where)  # type: ignore[arg-type]
        assert HOME not in answer.text
        assert "log" in answer.json()["message"]
        request = answer.json()["request_id"]
        assert f"request {request}: {path('torpor.db')} could not be read." in caplog.messages
    assert path("torpor.db") in (await asked("operator", "/sessions")).text
    async with api.client("viewer") as client:
        answer = await client.get("/events", params={"replay_only": "true"})
        assert "event: error" in answer.text
        assert HOME not in answer.text
