"""What is asked before something is destroyed, as somebody at a terminal sees it."""

from starlette.responses import JSONResponse, Response

from tests.cli.seats import seat
from tests.client.double import Double, session


def test_rm_asks_at_a_terminal(double: Double) -> None:
    environment = {"TORPOR_URL": double.url, "TORPOR_TOKEN": "t"}
    found = session("mine")
    double.on("GET", "sessions/mine", JSONResponse({"session": found}))
    double.on("DELETE", f"sessions/{found['session_id']}", Response(status_code=204))
    with seat(["rm", "mine"], environment) as at:
        at.shows("Destroy mine, with all of its snapshots?")
        at.press("n\r")
        assert at.ended() == 1
    assert {each.method for each in double.asked} == {"GET"}
    with seat(["rm", "mine"], environment) as at:
        at.shows("Destroy mine")
        at.press("y\r")
        assert at.ended() == 0
        at.shows("mine is destroyed")
    with seat(["rm", "--yes", "mine"], environment) as at:
        assert at.ended() == 0
    assert [each.method for each in double.asked].count("DELETE") == 2
