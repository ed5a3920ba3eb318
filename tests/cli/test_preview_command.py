"""Previews, as a shell asks for them."""

import json
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from tests.cli.test_server_commands import ID, says
from tests.client.double import AT, Double

URL = f"http://8000-{ID}.localhost:8471/"
ADDRESS = {
    "ingress_url_id": f"{ID}-8000", "session_id": ID, "port": 8000, "created_at": AT,
    "state": "INGRESS_URL_STATE_READY", "url": URL,
    "path_url": f"http://localhost:8471/s/{ID}/8000/",
}  # fmt: skip


def link(name: str = "pv_1", **changes: Any) -> dict[str, Any]:
    """Return a link as the API has it."""
    return {
        "preview_id": name, "session_id": ID, "port": 8000, "label": "for Ana", "url": URL,
        "path_url": ADDRESS["path_url"], "created_at": AT, "created_by": "t",
        "expires_at": "2999-05-04T08:05:42Z", **changes,
    }  # fmt: skip


def test_the_address_alone_is_on_standard_output(double: Double) -> None:
    double.on("GET", "sessions/one/ingress", JSONResponse({"ingress_url": ADDRESS}))
    said = says(double, "preview", "one", "8000")
    assert (said.exit_code, said.stdout) == (0, f"{URL}\n")
    assert "/s/" in said.stderr
    assert double.asked[0].query == (("port", "8000"),)
    said = says(double, "preview", "one", "8000", "-o", "json")
    assert json.loads(said.stdout)["url"] == URL


@pytest.mark.parametrize(("age", "seconds"), [("30m", 1800), ("1h", 3600), ("7d", 604800)])
def test_a_link_alone_is_on_standard_output(double: Double, age: str, seconds: int) -> None:
    made = link(link_url=f"{URL}?torpor_link=x")
    double.on("POST", "sessions/one/previews", JSONResponse({"preview": made}, 201))
    said = says(double, "preview", "one", "8000", "--share", age, "--label", "for Ana")
    assert (said.exit_code, said.stdout) == (0, f"{URL}?torpor_link=x\n")
    asked = double.one("POST", "sessions/one/previews")
    assert asked.said == {"port": 8000, "expires_in_seconds": seconds, "label": "for Ana"}
    assert asked.headers["idempotency-key"]


def test_links_are_listed_and_revoked(double: Double) -> None:
    links = [
        link(),
        link("pv_2", revoked_at=AT, label="[red]\x1b[2J"),
        link("pv_3", expires_at=AT),
    ]
    double.on("GET", "sessions/one/previews", JSONResponse({"previews": links}))
    said = says(double, "preview", "one")
    first, second, third = said.stdout.splitlines()[1:]
    assert "pv_1" in first
    assert "2999-05-04" in first
    assert "revoked" in second
    assert "\x1b" not in second
    assert "over since" in third
    double.on("DELETE", "sessions/one/previews/pv_1", Response(status_code=204))
    said = says(double, "preview", "one", "--revoke", "pv_1")
    assert said.stdout == "Link pv_1 is revoked.\n"


@pytest.mark.parametrize(
    "words",
    [
        ("one", "0"),
        ("one", "--share", "1h"),
        ("one", "80", "--share", "1y"),
        ("one", "80", "--share", "0h"),
        ("one", "80", "--label", "x"),
        ("one", "80", "--revoke", "pv_1"),
    ],
)
def test_what_makes_no_sense_is_wrong_usage(double: Double, words: tuple[str, ...]) -> None:
    assert says(double, "preview", *words).exit_code == 2
    assert double.asked == []
