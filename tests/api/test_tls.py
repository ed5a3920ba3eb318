"""TLS: the API over it, its certificate renewed while it runs, and what cannot be used."""

import asyncio
import json
import logging
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from tests.api.conftest import Api, served
from tests.certificates import Authority
from tests.guest.conftest import server
from torpor.api.tls import Certificate, TlsError
from torpor.client import AsyncClient, TargetError, UntrustedError
from torpor.settings import Settings


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    directory = tmp_path / "certificates"
    directory.mkdir()
    return Authority(directory)


@pytest.fixture
def certificate(authority: Authority) -> Certificate:
    """One for this computer."""
    return Certificate(*authority.vouch("localhost", "127.0.0.1"))


def shown(address: str, authority: Authority, name: str = "localhost") -> ssl.SSLSocket:
    """Connect to where a server is, with TLS."""
    import socket

    context = ssl.create_default_context(cafile=authority.file)
    host, port = address.split(":")
    return context.wrap_socket(socket.create_connection((host, int(port)), 5), server_hostname=name)


async def test_the_client_asks_and_streams_over_tls(
    api: Api, authority: Authority, certificate: Certificate
) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data.upper())
            await writer.drain()

    await api.ready(name="one")
    async with (
        server(shout) as port,
        served(api, certificate=certificate) as address,
        AsyncClient(
            f"https://{address}", api.tokens["operator"], authorities=str(authority.file)
        ) as client,
    ):
        assert (await client.get_session("one")).name == "one"
        async with client.forward("one", port) as stream:
            await stream.write(b"hello")
            assert await stream.read() == b"HELLO"


@pytest.mark.filterwarnings("ignore")  # DigitalOcean's client and what it stands on warn of theirs
async def test_digitaloceans_client_works_by_changing_its_endpoint(
    api: Api, authority: Authority, certificate: Certificate
) -> None:
    from pydo import Client

    session = await api.ready(name="one")
    async with served(api, certificate=certificate) as address:
        url = f"https://{address}"
        client = Client(
            api.tokens["operator"],
            endpoint=url,
            agents_endpoint=url,
            connection_verify=str(authority.file),
        )

        async def ask(name: str, *arguments: Any) -> dict[str, Any]:
            found: dict[str, Any] = await asyncio.to_thread(
                getattr(client.harness, name), session, *arguments
            )
            return found

        found = await asyncio.to_thread(client.agents.sessions.get, session)
        assert found["session"]["name"] == "one"
        ingress = (await ask("get_session_ingress"))["ingress_url"]
        assert ingress["url"] == api.addresses.url(session, 8000)
        assert ingress["state"] == "INGRESS_URL_STATE_READY"
        assert (await ask("get_session_port_forward", 8000))["id"] == "upgrade_required"
        client.close()


async def test_a_certificate_of_nobody_is_told_as_that_and_not_tried_again(
    api: Api, certificate: Certificate
) -> None:
    async with (
        served(api, certificate=certificate) as address,
        AsyncClient(f"https://{address}", "torpor_t_s") as client,
    ):
        with pytest.raises(UntrustedError, match="Set TORPOR_CA") as error:
            await client.who_am_i()
        assert not error.value.sent
        with pytest.raises(UntrustedError):
            async with client.forward("one", 1):
                pass


async def test_a_name_that_is_not_in_it_is_not_trusted(api: Api, authority: Authority) -> None:
    other = Certificate(*authority.vouch("torpor.example"))
    async with served(api, certificate=other) as address:
        trusting = str(authority.file)
        async with AsyncClient(f"https://{address}", "t", authorities=trusting) as client:
            with pytest.raises(UntrustedError):
                await client.who_am_i()


async def test_a_renewed_certificate_is_shown_to_who_comes_next(
    api: Api, authority: Authority, certificate: Certificate
) -> None:
    async with served(api, certificate=certificate) as address:
        with await asyncio.to_thread(shown, address, authority) as open_one:
            first = open_one.getpeercert(binary_form=True)
            assert not certificate.look()
            authority.vouch("localhost", "127.0.0.1")
            assert certificate.look()
            with await asyncio.to_thread(shown, address, authority) as next_one:
                assert next_one.getpeercert(binary_form=True) != first
            await asyncio.to_thread(open_one.sendall, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await asyncio.to_thread(open_one.recv, 64)).startswith(b"HTTP/1.1 200")


async def test_a_renewal_that_is_half_done_changes_nothing_until_it_is_whole(
    api: Api, authority: Authority, certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(api, certificate=certificate) as address:
        with await asyncio.to_thread(shown, address, authority) as before:
            first = before.getpeercert(binary_form=True)
        new, key = authority.vouch("localhost", "127.0.0.1", called="new")
        old, old_key = new.with_name("server.pem"), new.with_name("server-key.pem")
        old.write_bytes(new.read_bytes())
        with caplog.at_level(logging.WARNING, "torpor.server"):
            assert not certificate.look()
        assert "not renewed" in caplog.text
        with await asyncio.to_thread(shown, address, authority) as meanwhile:
            assert meanwhile.getpeercert(binary_form=True) == first
        old_key.unlink()
        assert not certificate.look()
        old_key.write_bytes(key.read_bytes())
        assert certificate.look()
        with await asyncio.to_thread(shown, address, authority) as after:
            assert after.getpeercert(binary_form=True) != first


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.* is deprecated:DeprecationWarning")
async def test_old_versions_of_tls_are_not_spoken(
    api: Api, authority: Authority, certificate: Certificate
) -> None:
    context = ssl.create_default_context(cafile=authority.file)
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with served(api, certificate=certificate) as address:
        host, port = address.split(":")
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection(host, int(port), ssl=context)


async def test_the_api_offers_http_1_1_and_nothing_else(
    api: Api, authority: Authority, certificate: Certificate
) -> None:
    context = ssl.create_default_context(cafile=authority.file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with served(api, certificate=certificate) as address:
        host, port = address.split(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.close()
        await writer.wait_closed()


@pytest.fixture
def silent_terminal() -> Iterator[None]:
    """Whatever asks for a password on the terminal finds none."""
    with open(os.devnull) as nothing:
        kept = os.dup(0)
        os.dup2(nothing.fileno(), 0)
        yield
        os.dup2(kept, 0)
        os.close(kept)


def test_files_that_cannot_be_used_are_told_in_words(
    authority: Authority, tmp_path: Path, silent_terminal: None
) -> None:
    certificate, key = authority.vouch("localhost")
    _, other = authority.vouch("localhost", called="other")
    locked = tmp_path / "locked.pem"
    loaded = serialization.load_pem_private_key(key.read_bytes(), None)
    locked.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    for wrong, words in (
        ((certificate, other), "cannot be used for TLS: .*mismatch"),
        ((certificate, certificate), "cannot be used for TLS"),
        ((certificate, locked), "the key has no password"),
        ((tmp_path / "none", key), "none cannot be read: no such file"),
    ):
        with pytest.raises(TlsError, match=words):
            Certificate(*wrong)


def test_settings_name_both_or_none(authority: Authority) -> None:
    certificate, key = map(str, authority.vouch("localhost"))
    assert Certificate.of(Settings()) is None
    assert Certificate.of(Settings(tls_certificate=certificate, tls_key=key)) is not None
    for one in ({"tls_certificate": certificate}, {"tls_key": key}):
        with pytest.raises(ValueError, match="TLS needs both"):
            Settings(**one)


def test_authorities_that_are_none_are_told(tmp_path: Path) -> None:
    file = tmp_path / "authorities.pem"
    for text in (None, "", "nothing"):
        if text is not None:
            file.write_text(text)
        with pytest.raises(TargetError, match="Set TORPOR_CA to a file"):
            AsyncClient("https://localhost:1", authorities=str(file))


def test_the_doctor_asks_a_server_with_tls_too(authority: Authority) -> None:
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from torpor.cli.server_facts import _answers

    class Well(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({}).encode())

        def log_message(self, *_: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.vouch("torpor.example"))
    with HTTPServer(("127.0.0.1", 0), Well) as well:
        well.socket = context.wrap_socket(well.socket, server_side=True)
        serving = threading.Thread(target=well.serve_forever)
        serving.start()
        port = well.server_address[1]
        assert _answers(f"https://127.0.0.1:{port}")
        well.shutdown()
        serving.join()
    assert not _answers(f"https://127.0.0.1:{port}")
