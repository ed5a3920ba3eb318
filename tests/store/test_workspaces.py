from collections.abc import AsyncIterator

import pytest
from sqlalchemy.exc import IntegrityError

from tests.store.made import later, session, workspace
from torpor.store import Database, Transaction, WorkspaceQuery, rows, sessions, workspaces


@pytest.fixture
async def conn(database: Database) -> AsyncIterator[Transaction]:
    async with database.write() as conn:
        yield conn


async def test_a_workspace_comes_back_as_it_was(conn: Transaction) -> None:
    await sessions.insert(conn, session("one"))
    whole = workspace(
        "notes", session="id-of-one", stored_bytes=1 << 40, saved_at=later(1), error="it broke"
    )
    await workspaces.insert(conn, whole)
    await workspaces.insert(conn, workspace(None, id="w2"))
    assert await workspaces.get(conn, whole.id) == whole
    assert await workspaces.get(conn, "w2") == workspace(None, id="w2")
    assert await workspaces.of_session(conn, "id-of-one") == whole
    assert await workspaces.of_session(conn, "id-of-two") is None
    assert await workspaces.count(conn) == 2


async def test_a_session_holds_one_and_a_name_is_nobodys(conn: Transaction) -> None:
    await sessions.insert(conn, session("one"))
    await workspaces.insert(conn, workspace("notes", id="w1", session="id-of-one"))
    await workspaces.insert(conn, workspace("Notes", id="w2", created_at=later(1)))
    await workspaces.insert(conn, workspace("notes", id="w3", created_at=later(2)))
    with pytest.raises(IntegrityError):
        async with rows.taken_back_alone(conn):
            await workspaces.update(conn, "w2", session="id-of-one")
    assert [each.id for each in await workspaces.named(conn, "NOTES", 9)] == ["w1", "w2", "w3"]
    assert [each.id for each in await workspaces.named(conn, "notes")] == ["w1", "w2"]
    assert await workspaces.named(conn, "note") == []


async def test_only_what_is_in_one_of_the_states_is_changed(conn: Transaction) -> None:
    await workspaces.insert(conn, workspace("notes"))
    changed = await workspaces.update(conn, "id-of-notes", ("AVAILABLE",), state="ATTACHING")
    assert changed == workspace("notes", state="ATTACHING")
    with pytest.raises(KeyError):
        await workspaces.update(conn, "id-of-notes", ("AVAILABLE",), state="ATTACHING")
    with pytest.raises(KeyError):
        await workspaces.update(conn, "id-of-none", state="ATTACHING")
    await workspaces.remove(conn, "id-of-notes")
    assert await workspaces.get(conn, "id-of-notes") is None


async def test_pages_go_from_the_newest_to_the_oldest_and_choose_a_state(
    conn: Transaction,
) -> None:
    for number in range(5):
        state = "FAILED" if number % 2 else "AVAILABLE"
        made = workspace(f"n{number}", created_at=later(number), state=state)
        await workspaces.insert(conn, made)
    page = await workspaces.page(conn, WorkspaceQuery(3))
    rest = await workspaces.page(conn, WorkspaceQuery(3, page.next_cursor))
    assert [each.name for each in page.items + rest.items] == ["n4", "n3", "n2", "n1", "n0"]
    assert rest.next_cursor is None
    failed = await workspaces.page(conn, WorkspaceQuery(state="FAILED"))
    assert [each.name for each in failed.items] == ["n3", "n1"]
    found = await workspaces.in_state(conn, ("AVAILABLE",), None)
    assert [each.name for each in found] == ["n0", "n2", "n4"]
    await workspaces.insert(conn, workspace("there", host="there"))
    found = await workspaces.in_state(conn, ("AVAILABLE",), "there")
    assert [each.name for each in found] == ["there"]
