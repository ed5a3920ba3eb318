"""Configurations: what is asked for, and what is made of the answers."""

from datetime import UTC, datetime

import pytest
from starlette.responses import JSONResponse, Response

from tests.client.double import AT, Double, config, session
from torpor.client import AsyncClient, Client, ConflictError, Page

CANONICAL = {"kind": "Agent", "spec": {"env": {"LANG": "C.UTF-8"}}}


def test_a_configuration_is_kept_and_read(double: Double, client: Client) -> None:
    double.on("POST", "configs", JSONResponse({"config": config(manifest=CANONICAL)}, 201))
    for manifest in ("size: x\n", b"size: x\n"):
        made = client.create_config("web", manifest, key="k1")
    for asked in double.asked:
        assert asked.headers["idempotency-key"] == "k1"
        assert asked.said == {"name": "web", "manifest_yaml": "size: x\n"}
    assert (made.id, made.name, made.content_hash) == ("id-of-web", "web", "1f" * 32)
    assert made.schema_version == "agents.digitalocean.com/flat.v1"
    assert (made.manifest, made.created_by) == (CANONICAL, "tok_1")
    assert made.created_at == datetime(2026, 5, 4, 8, 5, 42, 120000, tzinfo=UTC)


async def test_both_clients_ask_for_the_same(
    double: Double, client: Client, async_client: AsyncClient
) -> None:
    double.on("GET", "configs/web", JSONResponse({"config": config(manifest=CANONICAL)}))
    double.on("POST", "configs/web/clone", JSONResponse({"config": config("two")}, 201))
    double.on("DELETE", "configs/web", Response(status_code=204))
    assert client.get_config("web") == await async_client.get_config("web")
    assert client.clone_config("web", "two") == await async_client.clone_config("web", "two")
    assert client.delete_config("web") is None
    assert await async_client.delete_config("web") is None
    clones = [each for each in double.asked if each.method == "POST"]
    assert [each.said for each in clones] == [{"name": "two"}] * 2
    assert all(each.headers["idempotency-key"] for each in clones)


def test_lists_of_configurations_and_of_their_sessions_go_on(
    double: Double, client: Client
) -> None:
    double.on(
        "GET",
        "configs",
        JSONResponse({"configs": [config("b")], "next_page_token": "c"}),
        JSONResponse({"configs": [config("a")], "next_page_token": ""}),
    )
    first = client.list_configs(search="x", limit=1)
    last = client.list_configs(after=first.next)
    assert last == Page(last.items, None)
    assert [each.name for each in first.items + last.items] == ["b", "a"]
    assert first.items[0].manifest == {}
    assert double.asked[0].query == (("search", "x"), ("page_size", "1"))
    assert double.asked[1].query == (("page_token", "c"),)
    page = {"sessions": [session(config_id="id-of-web")], "next_page_token": ""}
    double.on("GET", "configs/web/sessions", JSONResponse(page))
    found = client.list_config_sessions("web", status="all", limit=3, after="d")
    assert [each.config for each in found.items] == ["id-of-web"]
    assert double.asked[2].query == (
        ("status", "SESSION_STATUS_ALL"), ("page_size", "3"), ("page_token", "d"),
    )  # fmt: skip


def test_a_session_is_created_of_a_configuration(double: Double, client: Client) -> None:
    double.on("POST", "sessions", JSONResponse({"session": session(config_id="id-of-web")}))
    made = client.create_session_from_config("one", "web", wait=True, key="k1")
    asked = double.one("POST", "sessions")
    assert asked.said == {"name": "one", "config_id": "web"}
    assert (asked.query, asked.headers["idempotency-key"]) == ((("wait", "ready"),), "k1")
    assert made.config == "id-of-web"


def test_one_that_is_in_use_is_a_conflict(double: Double, client: Client) -> None:
    body = {"id": "config_in_use", "message": "It is used.", "request_id": "r", "created_at": AT}
    double.on("DELETE", "configs/web", JSONResponse(body, 409))
    with pytest.raises(ConflictError, match="It is used"):
        client.delete_config("web")
