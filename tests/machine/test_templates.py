"""A template of an image in a registry: built by a real server that is killed in the middle, and
sessions of it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images import guest_trees
from tests.images.oci_builder import layer, layout
from tests.images.registry import Registry, serving
from tests.machine.conftest import Start
from tests.machine.serving import a_server, destroy_all, left_over, until
from torpor.client import Client, ConflictError
from torpor.images import silent
from torpor.images.runtime import guest_runtime

pytestmark = pytest.mark.machine


@pytest.fixture
def registry(start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    """A registry that has a small image."""
    runtime = asyncio.run(guest_runtime(start.maker.cache, silent)).path
    content = layer(*guest_trees.alpine_like(runtime, tmp_path))
    image = layout(tmp_path / "oci", content, config={"Env": ["FROM=afar", "PATH=/bin"]})
    for name in ("HOME", "XDG_RUNTIME_DIR"):  # no log-ins of who runs the tests
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)
    with serving(image) as server:
        yield server


def log(client: Client, template: str, build: str) -> str:
    return client.read_template_build_log(client.get_template_build_log_url(template, build))


def test_a_template_is_built_through_a_kill_and_sessions_start_from_it(
    start: Start, registry: Registry
) -> None:
    host = f"127.0.0.1:{registry.server_port}"
    registry.free.clear()
    with a_server(start, template_insecure_registries=host) as server:
        with server.waiting_client() as client:
            client.create_template("tools", f"{host}/team/tools:1")
            (build,) = client.list_template_builds("tools").items
            with pytest.raises(ConflictError, match="no image of it yet"):
                client.create_session("early", template="tools")
            until(lambda: " fetching\n" in log(client, "tools", build.id), 300)
        asyncio.run(server.kill())
        registry.free.set()
        asyncio.run(server.start())
        with server.waiting_client() as client:
            until(lambda: client.get_template("tools").status == "READY", 300)
            said = log(client, "tools", build.id)
            assert "begun anew" in said
            assert f"done: {registry.manifest['digest']}" in said
            (found,) = client.list_template_builds("tools").items
            assert (found.id, found.source.digest) == (build.id, registry.manifest["digest"])
            session = client.create_session("first", template="tools", wait=True)
            assert session.template == found.template
            ran = client.run("first", ["sh", "-c", "cat /etc/os-release; echo $FROM"])
            assert b"Alpine" in ran.stdout
            assert ran.stdout.endswith(b"afar\n")
            # The session needs its template no more.
            client.delete_template("tools")
            images = server.home / "images"
            assert [*(images / "names").iterdir(), *(images / "disks").iterdir()] == []
            client.pause_session("first")
            assert client.run("first", ["cat", "/etc/alpine-release"]).stdout == b"3.20.0\n"
            destroy_all(client)
            # One that is deleted in the middle leaves nothing.
            registry.free.clear()
            client.create_template("two", f"{host}/team/two")
            (build,) = client.list_template_builds("two").items
            until(lambda: " fetching\n" in log(client, "two", build.id), 300)
            client.delete_template("two")
            assert [*(images / "names").iterdir(), *(images / "disks").iterdir()] == []
        assert left_over(server) == []
