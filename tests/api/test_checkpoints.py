"""Checkpoints, forks and the tree over HTTP."""

import httpx
import pytest

from tests.api.conftest import Api
from torpor.sessions.model import SYSTEM
from torpor.vm import MIB


@pytest.fixture
async def one(api: Api) -> str:
    """A session called `one`."""
    return await api.ready(name="one")


async def test_a_checkpoint_is_made_listed_shown_gone_back_to_and_deleted(
    api: Api, one: str, client: httpx.AsyncClient
) -> None:
    answer = await client.post("/sessions/one/checkpoints", json={"label": "before"})
    made = answer.json()["checkpoint"]
    assert made["checkpoint_id"].startswith("cp_")
    assert (made["kind"], made["label"], made["status"]) == ("explicit", "before", "READY")
    assert (made["session_id"], made["generation"], made["size_bytes"]) == (one, 1, 10 * MIB)
    path = f"/sessions/one/checkpoints/{made['checkpoint_id']}"
    assert (await client.get(path)).json()["checkpoint"]["snapshot_id"] == made["snapshot_id"]
    durable = await client.post("/sessions/one/checkpoints", params={"durable": "true"})
    assert durable.json()["checkpoint"]["durable"] is True
    page = (await client.get("/sessions/one/checkpoints", params={"page_size": 1})).json()
    assert [each["label"] for each in page["checkpoints"]] == [""]
    rest = {"page_token": page["next_page_token"]}
    page = (await client.get("/sessions/one/checkpoints", params=rest)).json()
    assert [each["label"] for each in page["checkpoints"]] == ["before"]
    assert page["next_page_token"] == ""
    await api.sessions.ports.opened(one, SYSTEM, 80)
    back = (await client.post(path + "/rollback", json={})).json()
    assert back["session"]["session_id"] == one
    assert len(back["not_undone"]) == 1
    for _ in range(2):
        gone = await client.delete(path)
        assert gone.json() == {"checkpoint_id": made["checkpoint_id"], "deleted": True}
    assert (await client.get(path)).status_code == 404


async def test_a_session_is_forked(api: Api, one: str, client: httpx.AsyncClient) -> None:
    forked = (await client.post("/sessions/one/fork", json={"count": 3})).json()
    assert (len(forked["sessions"]), forked["errors"], forked["not_undone"]) == (3, [], [])
    child = forked["sessions"][0]
    assert (child["parent_session_id"], child["status"]) == (one, "SESSION_STATUS_PROVISIONING")
    assert child["fork_from_checkpoint_id"].startswith("cp_")
    assert child["fork_id"]
    (only,) = (await client.post("/sessions/one/fork")).json()["sessions"]
    tree = (await client.get("/sessions/one/tree")).json()
    assert {each["session_id"] for each in tree["children"]} == {
        each["session_id"] for each in [*forked["sessions"], only]
    }
    first, second = tree["snapshots"]
    assert len(first["children"]) == 3
    assert (second["children"], second["parent_snapshot_id"]) == (
        [only["session_id"]],
        first["snapshot_id"],
    )
    assert (first["current"], second["current"]) == (False, True)
    for count in (0, 65, "2"):
        answer = await client.post("/sessions/one/fork", json={"count": count})
        assert answer.status_code == 400


async def test_children_for_which_there_is_no_room_are_named_one_by_one(
    api: Api, one: str, client: httpx.AsyncClient
) -> None:
    needed = (await client.post("/sessions/one/fork", json={"count": 1})).json()
    assert needed["errors"] == []
    taken = 100_000 * MIB - api.sessions.free_memory()
    each = taken // 2
    api.host.memory = taken + each * 3 + each // 2
    key = {"idempotency-key": "k"}
    forked = (await client.post("/sessions/one/fork", json={"count": 10}, headers=key)).json()
    again = (await client.post("/sessions/one/fork", json={"count": 10}, headers=key)).json()
    assert again["errors"] == forked["errors"]
    assert 0 < len(forked["sessions"]) < 10
    assert len(forked["sessions"]) + len(forked["errors"]) == 10
    assert forked["errors"][0]["id"] == "no_room"
    assert forked["errors"][0]["index"] == len(forked["sessions"])
    api.host.memory = 0
    answer = await client.post("/sessions/one/fork", json={"count": 2})
    assert (answer.status_code, answer.json()["id"]) == (503, "no_room")
