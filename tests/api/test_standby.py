"""A server that stands by says so, and leaves its address to the one that it becomes."""

import socket

import httpx
import pytest
import websockets

from torpor.api.server import config_of
from torpor.api.standby import APP, answering

PATHS = ["/readyz", "/v2/agents/sessions", "/metrics", "/", "/v2/agents/sessions/x/exec"]


async def test_it_answers_that_it_waits_until_it_waits_no_longer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = "http://{}:{}".format(*listener.getsockname())
        for _ in range(2):
            async with answering(listener, config_of(APP)), httpx.AsyncClient(base_url=url) as http:
                assert (await http.get("/healthz")).json() == {"status": "ok"}
                for path in PATHS:
                    for method in ("GET", "POST", "DELETE"):
                        answer = await http.request(method, path)
                        assert answer.status_code == 503
                        assert answer.json()["id"] == "standby"
                        assert answer.headers["retry-after"] == "1"
                        assert "another one has the host" in answer.json()["message"]
                address = url.replace("http", "ws") + "/v2/agents/sessions/x/port-forward/80"
                async with websockets.connect(address) as opened:
                    with pytest.raises(websockets.ConnectionClosed) as closed:
                        await opened.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 4503
        assert listener.fileno() > 0
