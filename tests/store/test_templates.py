from collections.abc import AsyncIterator

import pytest
from sqlalchemy.exc import IntegrityError

from tests.store.made import build, later, session, template
from torpor.store import Database, Transaction, builds, sessions, templates
from torpor.store.errors import NameTakenError
from torpor.store.records import Status


@pytest.fixture
async def conn(database: Database) -> AsyncIterator[Transaction]:
    async with database.write() as conn:
        yield conn


async def test_a_template_is_found_by_its_id_and_by_its_name_whatever_its_case(
    conn: Transaction,
) -> None:
    await templates.insert(conn, template("Tools", id="t1"))
    for called in ("t1", "Tools", "tools"):
        found = await templates.find(conn, called)
        assert found == template("Tools", id="t1")
    assert await templates.find(conn, "tool") is None


async def test_an_id_is_stronger_than_a_name_that_looks_like_it(conn: Transaction) -> None:
    await templates.insert(conn, template("t1", id="t2"))
    await templates.insert(conn, template("other", id="t1"))
    found = await templates.find(conn, "t1")
    assert found is not None
    assert found.id == "t1"


async def test_a_name_is_held_until_its_template_is_deleted(conn: Transaction) -> None:
    await templates.insert(conn, template("tools", id="t1"))
    with pytest.raises(NameTakenError, match="template t1") as taken:
        await templates.insert(conn, template("TOOLS", id="t2"))
    assert taken.value.holder == "t1"
    await templates.update(conn, "t1", deleted_at=later(1))
    await templates.insert(conn, template("TOOLS", id="t2"))
    assert [each.id for each in (await templates.page(conn, 10)).items] == ["t2"]
    assert await templates.find(conn, "t1") is None
    assert (await templates.get(conn, "t1")) is not None


async def test_pages_go_from_the_newest_to_the_oldest(conn: Transaction) -> None:
    for number in range(5):
        await templates.insert(conn, template(f"n{number}", created_at=later(number)))
        await builds.insert(conn, build(f"b{number}", "id-of-n0", created_at=later(number)))
    page = await templates.page(conn, 3)
    rest = await templates.page(conn, 3, page.next_cursor)
    assert [each.name for each in page.items + rest.items] == ["n4", "n3", "n2", "n1", "n0"]
    assert rest.next_cursor is None
    of_first = await builds.page(conn, "id-of-n0", 4)
    assert [each.id for each in of_first.items] == ["b4", "b3", "b2", "b1"]
    assert (await builds.page(conn, "id-of-n1", 4)).items == []


async def test_builds_wait_in_the_order_in_which_they_were_asked_for(conn: Transaction) -> None:
    for name in ("a", "b"):
        await templates.insert(conn, template(name))
    states = ("SUCCEEDED", "BUILDING", "FAILED", "PENDING")
    for number, status in enumerate(states):
        of = "id-of-a" if number < 2 else "id-of-b"
        await builds.insert(
            conn, build(f"b{9 - number}", of, status=status, created_at=later(number))
        )
    assert [each.id for each in await builds.unfinished(conn)] == ["b8", "b6"]
    assert [each.id for each in await builds.unfinished(conn, "id-of-b")] == ["b6"]


async def test_a_build_is_one_of_a_template(conn: Transaction) -> None:
    with pytest.raises(IntegrityError):
        await builds.insert(conn, build("b1", "nobody"))


async def test_images_are_needed_by_templates_and_by_sessions_that_start(
    conn: Transaction,
) -> None:
    gone = later(9)
    await templates.insert(conn, template("a", current_build="current"))
    await templates.insert(conn, template("gone", current_build="deleted", deleted_at=gone))
    for name, of in (
        ("current", "a"), ("old", "a"), ("starting", "a"), ("forgotten", "a"), ("deleted", "gone"),
    ):  # fmt: skip
        image = None if name == "forgotten" else f"t-{name}"
        await builds.insert(
            conn, build(name, f"id-of-{of}", image=image, status="SUCCEEDED", created_at=later(1))
        )
    await builds.insert(conn, build("making", "id-of-a", image="t-making", status="BUILDING"))
    await builds.insert(conn, build("failed", "id-of-a", image="t-failed", status="FAILED"))
    await sessions.insert(
        conn, session("s", image="t-starting", template="a", status=Status.PROVISIONING)
    )
    await sessions.insert(conn, session("r", image="t-old", template="a"))
    unneeded = {each.id for each in await builds.unneeded(conn)}
    assert unneeded == {"old", "failed", "deleted"}
    await sessions.update(conn, "id-of-s", status=Status.READY)
    assert "starting" in {each.id for each in await builds.unneeded(conn)}


async def test_of_a_long_log_the_newest_lines_are_kept(
    conn: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "MOST_LINES", 3)
    await templates.insert(conn, template("a"))
    for name in ("b1", "b2"):
        await builds.insert(conn, build(name, "id-of-a"))
    for number in range(5):
        line = await builds.add_line(conn, "b1", later(number), f"line {number}")
        assert line.number == number + 1
    await builds.add_line(conn, "b2", later(0), "other")
    kept = await builds.lines(conn, "b1")
    assert [(each.number, each.text) for each in kept] == [
        (3, "line 2"), (4, "line 3"), (5, "line 4"),
    ]  # fmt: skip
    assert [each.text for each in await builds.lines(conn, "b2")] == ["other"]
