"""``torpor serve`` with a certificate, and commands that find and trust it."""

import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.certificates import Authority
from torpor.client import Client

ROOT = Path(__file__).resolve().parents[2]
TORPOR = [sys.executable, "-c", "from torpor.cli import main; main()"]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    directory = tmp_path / "certificates"
    directory.mkdir()
    return Authority(directory)


@pytest.fixture
def serving(tmp_path: Path, authority: Authority) -> Iterator[tuple[str, dict[str, str]]]:
    """Where a server is, and the environment of commands on its computer."""
    certificate, key = authority.vouch("localhost", "127.0.0.1", "*.previews.test")
    home = {"TORPOR_HOME": str(tmp_path / "home"), "TORPOR_CACHE": str(tmp_path / "cache")}
    of_server = {
        "TORPOR_TLS_CERTIFICATE": str(certificate),
        "TORPOR_TLS_KEY": str(key),
        "TORPOR_PREVIEW_LISTEN": "127.0.0.1:0",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cli.served"],
        cwd=ROOT,
        env={**os.environ, **home, **of_server},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        said = ""
        while not (at := re.search(r"Torpor is at (\S+)\. ", said)):
            line = server.stderr.readline()
            assert line, said
            said += line
        yield at[1], {**os.environ, **home, "TORPOR_CA": str(authority.file)}
        server.send_signal(signal.SIGTERM)
        server.stdout.read()
        server.stderr.read()
    assert server.returncode == 0


def test_commands_find_it_and_trust_it_by_its_authority_alone(
    serving: tuple[str, dict[str, str]],
) -> None:
    url, environment = serving
    assert url.startswith("https://127.0.0.1:")
    said = subprocess.run(
        [*TORPOR, "status"], env=environment, capture_output=True, text=True, check=False
    )
    assert (said.returncode, url in said.stdout) == (0, True), said.stderr
    without = {name: value for name, value in environment.items() if name != "TORPOR_CA"}
    said = subprocess.run(
        [*TORPOR, "status"], env=without, capture_output=True, text=True, check=False
    )
    assert said.returncode == 1
    assert "its certificate is not trusted here" in said.stderr
    assert "TORPOR_CA" in said.stderr


def test_previews_have_a_port_of_their_own_with_the_same_certificate(
    serving: tuple[str, dict[str, str]], authority: Authority
) -> None:
    url, _ = serving
    with Client(url, authorities=str(authority.file)) as client:
        session = client.create_session("one", wait=True)
        address = httpx.URL(client.get_ingress(session.id).url)
    assert (address.scheme, address.host) == ("https", f"8000-{session.id}.localhost")
    assert f":{address.port}" not in url
    trusting = ssl.create_default_context(cafile=authority.file)
    with httpx.Client(verify=trusting, trust_env=False, http2=True) as browser:
        host = f"{address.host}:{address.port}"
        found = browser.get(
            f"https://127.0.0.1:{address.port}/",
            headers={"host": host, "origin": "https://evil.example"},
            extensions={"sni_hostname": "localhost"},
        )
        assert (found.status_code, found.http_version) == (421, "HTTP/2")
    with httpx.Client(verify=trusting, trust_env=False, http2=True) as browser:
        where = f"https://127.0.0.1:{address.port}/s/{session.id}/8000/"
        assert browser.get(where, headers={"origin": "https://evil.example"}).status_code == 401


@pytest.mark.parametrize("wrong", ["mismatch", "missing"])
def test_a_certificate_that_cannot_be_used_is_one_line_and_nothing_is_served(
    tmp_path: Path, authority: Authority, wrong: str
) -> None:
    certificate, key = authority.vouch("localhost")
    _, other = authority.vouch("localhost", called="other")
    home = {"TORPOR_HOME": str(tmp_path / "home"), "TORPOR_CACHE": str(tmp_path / "cache")}
    shown = [certificate, other] if wrong == "mismatch" else [tmp_path / "none", key]
    said = subprocess.run(
        [*TORPOR, "serve", "--tls-certificate", str(shown[0]), "--tls-key", str(shown[1])],
        env={**os.environ, **home},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode == 1
    assert "tls_certificate" in said.stderr
    assert len(said.stderr.splitlines()) == 1
