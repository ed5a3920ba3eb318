"""Secrets and real machines: they trust the wall of their host, and have nothing worth stealing."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.machine.conftest import Start
from tests.machine.serving import a_server, destroy_all
from torpor.client import Client
from torpor.lab.server import Server
from torpor.network.inspect.authority import Authority

pytestmark = pytest.mark.machine

CANARY = "canary-3f9a61c0-never-in-a-machine"
GREET = """
import socket, ssl, threading
server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
server.load_cert_chain("/root/leaf.pem")
one, two = socket.socketpair()
def serve():
    with server.wrap_socket(two, server_side=True) as served:
        served.sendall(b"hello")
threading.Thread(target=serve, daemon=True).start()
with ssl.create_default_context().wrap_socket(one, server_hostname="api.example.test") as client:
    print(client.recv(5).decode())
"""


@pytest.fixture
def server(start: Start) -> Iterator[Server]:
    with a_server(start) as served:
        yield served


def leaf(home: Path) -> bytes:
    """Return the certificate of a host with its key, as the wall makes it."""
    authority = Authority.open(home / "authority")
    key = authority._leaf_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return key + authority._leaf("api.example.test").public_bytes(serialization.Encoding.PEM)


def trusts(client: Client, session: str, home: Path) -> None:
    """See that programs in a session trust the wall, by each of the ways there are."""
    client.write_file(session, "/root/leaf.pem", leaf(home))
    for command in (
        ["python3", "-c", GREET],  # by the variable
        ["env", "-u", "SSL_CERT_FILE", "python3", "-c", GREET],  # by the hash
        ["sh", "-c", "openssl verify -CAfile /etc/ssl/certs/ca-certificates.crt /root/leaf.pem"],
    ):
        ran = client.run(session, command)
        assert ran.status == 0, (command, ran.stdout, ran.stderr)
    said = client.run(session, ["env"]).stdout.decode()
    assert "NODE_EXTRA_CA_CERTS=/etc/torpor/wall.pem\n" in said
    found = client.run(session, ["grep", "-rl", "PRIVATE KEY", "/etc/torpor", "/etc/ssl/certs"])
    assert found.stdout == b""


def holds(directory: Path, word: bytes) -> list[Path]:
    """Return the files that hold a word anywhere."""
    found = []
    for file in directory.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.stat().st_size:
            with (
                file.open("rb") as opened,
                mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as whole,
            ):
                if whole.find(word) >= 0:
                    found.append(file)
    return found


def test_a_machine_trusts_the_wall_and_has_no_secret(server: Server) -> None:
    home = server.home
    with server.waiting_client() as client:
        client.set_secret(
            "KEY", CANARY, bindings=[{"host": "api.example.test", "placeholder": True}]
        )
        session = client.create_session("one", idle_timeout=0, wait=True)
        client.grant_secret(session.id, "KEY", although_open=True)
        trusts(client, session.id, home)
        text = client.get_secret("KEY").bindings[0]["placeholder"]
        client.start_exec(session.id, "exec sleep 1000")
        assert client.run(session.id, ["sh", "-c", "echo $KEY"]).stdout.decode() == f"{text}\n"
        client.pause_session(session.id)
        assert holds(home, text.encode()), "what is looked for would be found"
        assert holds(home, CANARY.encode()) == []
        client.resume_session(session.id)
        trusts(client, session.id, home)
        (child,) = client.fork_session(session.id).sessions
        trusts(client, client.get_session(child.id).id, home)
        destroy_all(client)
