"""Processes, statistics, samples, the host, and figures for Prometheus."""

import httpx
import pytest

from tests.api.conftest import Api
from torpor.api.metrics import Metrics
from torpor.sessions.model import SYSTEM

REQUESTS = 'torpor_http_requests_total{method="GET"'


@pytest.fixture
async def one(api: Api) -> str:
    """A session called `one`."""
    return await api.ready(name="one")


async def test_what_a_machine_uses_is_shown_and_a_paused_one_is_not_woken_for_it(
    api: Api, one: str, client: httpx.AsyncClient
) -> None:
    shown = (await client.get("/sessions/one/statistics")).json()
    assert shown["host"]["vcpus"] == [1.5]
    await api.sessions.pause(one, SYSTEM)
    answer = await client.get("/sessions/one/statistics")
    assert (answer.status_code, answer.json()["id"]) == (409, "conflict")
    assert api.host.calls.count("start resume") == 0


async def test_samples_are_of_a_time(api: Api, one: str, client: httpx.AsyncClient) -> None:
    await api.sessions._watch.look()
    found = (await client.get("/sessions/one/samples")).json()["samples"]
    assert [each["resident_bytes"] for each in found] == [80 << 20]
    at = found[0]["at"]
    found = await client.get("/sessions/one/samples", params={"until": at[:4] + "-01-01T00:00:00Z"})
    assert found.json()["samples"] == []
    for wrong in ("yesterday", "2026-01-01T00:00:00", "", "0.5", "1767225600"):
        answer = await client.get("/sessions/one/samples", params={"since": wrong})
        assert answer.status_code == 400, wrong


async def test_the_host_is_shown(one: str, client: httpx.AsyncClient) -> None:
    shown = (await client.get("/host")).json()
    assert (shown["name"], shown["sessions"]["READY"]) == ("world", 1)
    assert shown["promised_free_bytes"] < shown["free_memory_bytes"]


async def test_prometheus_reads_figures(api: Api, one: str) -> None:
    async with api.client("viewer", follow_redirects=False) as client:
        await client.get("/sessions/nobody")
        await client.get("/no/such/path")
        await api.sessions._watch.look()
        await api.sessions.pause(one, SYSTEM)
        answer = await client.get("http://torpor/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    for line in (
        'torpor_sessions{status="PAUSED"} 1.0',
        'torpor_sessions{status="READY"} 0.0',
        'torpor_operations_total{kind="pause",result="done"} 1.0',
        'torpor_machine_cpu_seconds_total{mode="emulator"} 0.5',
        f'{REQUESTS},route="/v2/agents/sessions/{{session_id}}",status="404"}} 1.0',
        'torpor_http_requests_total{method="GET",route="none",status="404"} 1.0',
    ):
        assert line in lines, answer.text
    assert "nobody" not in answer.text


async def test_processes_are_listed_and_those_that_are_not_the_users_are_let_be(
    one: str, client: httpx.AsyncClient
) -> None:
    processes = (await client.get("/sessions/one/processes")).json()["processes"]
    assert processes
    assert {"pid", "argv", "cpu", "memory", "user"} <= processes[0].keys()
    answer = await client.post("/sessions/one/processes/1/signal", json={"signal": 15})
    assert (answer.status_code, answer.json()["id"]) == (403, "guest_eperm")
    for wrong in ({"signal": 0}, {"signal": "TERM"}, {"sig": 9}):
        answer = await client.post("/sessions/one/processes/1/signal", json=wrong)
        assert answer.status_code == 400


def test_what_is_counted_of_requests_does_not_grow_with_what_is_asked() -> None:
    metrics = Metrics()
    for method in ("GET", "BREW", "BREW-1", "BREW-2"):
        metrics.request(method, "", 401, 0.1)
    page = metrics.page().decode()
    assert 'torpor_http_requests_total{method="other",route="none",status="401"} 3.0' in page
    assert "BREW" not in page
