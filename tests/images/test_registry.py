"""Imports from a registry: a small one on the loopback."""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.images.oci_builder import Member, layer, layout
from tests.images.registry import Registry, serving
from torpor.images import Asked, HostileImageError, ImageError, Imported, import_image, silent
from torpor.images.authorities import Authorities
from torpor.images.ext4_read import Disk
from torpor.images.layers import Limits


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    source = layout(
        tmp_path / "oci", layer(Member(b"from-afar", content=b"x")), config={"Cmd": ["/run"]}
    )
    with serving(source) as server:
        yield server


def fetched(tmp_path: Path, registry: Registry, **options: Any) -> Imported:
    asked = Asked(authorities=Authorities(), tls_verify=False, **options)
    reference = f"docker://127.0.0.1:{registry.server_port}/some/name:tag"
    return asyncio.run(import_image(tmp_path / "cache", reference, silent, asked))


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No log-ins and proxies of who runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "REGISTRY_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)


def test_an_image_of_a_registry(tmp_path: Path, registry: Registry) -> None:
    imported = fetched(tmp_path, registry)
    assert imported.manifest == registry.manifest["digest"]
    assert imported.image.config.cmd == ("/run",)
    with Disk(imported.image.root) as disk:
        assert b"from-afar" in dict(disk.walk())
    assert list((tmp_path / "cache/.building").iterdir()) == []


def test_a_registry_that_wants_to_know_who_asks(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.password = base64.b64encode(b"user:secret").decode()
    with pytest.raises(ImageError, match=r"(?i)unauthorized|authentication"):
        fetched(tmp_path, registry)
    auth = tmp_path / "auth.json"
    host = f"127.0.0.1:{registry.server_port}"
    auth.write_text(json.dumps({"auths": {host: {"auth": registry.password}}}))
    auth.chmod(0o600)
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(auth))
    assert fetched(tmp_path, registry).image.config.cmd == ("/run",)


def test_a_registry_without_a_certificate_is_not_believed(
    tmp_path: Path, registry: Registry
) -> None:
    reference = f"docker://127.0.0.1:{registry.server_port}/some/name:tag"
    with pytest.raises(ImageError, match=r"TLS|HTTPS"):
        asyncio.run(import_image(tmp_path / "cache", reference, silent))


def test_a_registry_that_never_ends(tmp_path: Path, registry: Registry) -> None:
    registry.endless = True
    with pytest.raises((HostileImageError, ImageError)):
        fetched(tmp_path, registry, limits=Limits(unpacked_bytes=8 << 20))
    assert list((tmp_path / "cache/.building").iterdir()) == []
