"""What a machine trusts: in each distribution, once, and only as long as it is told."""

import hashlib
import ssl
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority as Public
from torpor.guest import trust, trusted
from torpor.network.inspect.authority import Authority

DEBIAN = {"etc/ssl/certs/ca-certificates.crt": None, "usr/local/share/ca-certificates/": None}
TREES: dict[str, dict[str, str | None]] = {
    "debian": DEBIAN | {"etc/ssl/certs/java/cacerts": None},
    "alpine": {
        "etc/ssl/certs/ca-certificates.crt": None,
        "etc/ssl/cert.pem": "certs/ca-certificates.crt",
    },
    "fedora": {
        "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem": None,
        "etc/pki/ca-trust/source/anchors/": None,
        "etc/pki/tls/certs/ca-bundle.crt": "../../ca-trust/extracted/pem/tls-ca-bundle.pem",
        "etc/ssl/certs": "../pki/tls/certs",
        "etc/pki/ca-trust/extracted/java/cacerts": None,
    },
    "distroless": {"etc/ssl/certs/ca-certificates.crt": None},
    "bare": {},
}


@pytest.fixture
def public(tmp_path: Path) -> Public:
    """Somebody whom the world trusts."""
    return Public(tmp_path)


@pytest.fixture
def wall(tmp_path: Path) -> Authority:
    return Authority.open(tmp_path / "authority")


def tree(root: Path, kind: str, public: Public) -> Path:
    for name, link in TREES[kind].items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if link is not None:
            place.symlink_to(link)
        elif name.endswith("/"):
            place.mkdir(exist_ok=True)
        elif name.endswith("cacerts"):
            place.write_bytes(java([("public", b"public certificate")]))
        else:
            place.write_bytes(public.file.read_bytes())
            place.chmod(0o444)
    return root


def java(entries: list[tuple[str, bytes]]) -> bytes:
    """Return a key store of Java, as keytool writes it, with a private key among the rest."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(entries) + 1)
    for alias, certificate in entries:
        body += struct.pack(">I", 2) + text(alias) + struct.pack(">Q", 1) + text("X.509")
        body += struct.pack(">I", len(certificate)) + certificate
    body += struct.pack(">I", 1) + text("mine") + struct.pack(">QI", 1, 3) + b"key"
    body += struct.pack(">I", 1) + text("X.509") + struct.pack(">I", 4) + b"mine"
    words = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    return body + hashlib.sha1(words + body, usedforsecurity=False).digest()


def text(word: str) -> bytes:
    return struct.pack(">H", len(word)) + word.encode()


def greets(wall: Authority, **trusts: Any) -> bool:
    """Return whether a client that trusts this takes the wall for a host."""
    client = ssl.create_default_context(**trusts)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="h.test")
    two = wall.context("h.test", ()).wrap_bio(to_server, to_client, server_side=True)
    for _ in range(6):
        for each in (one, two):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return True


def content(root: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(each.relative_to(root)): (each.read_bytes(), each.stat().st_mode)
        for each in root.rglob("*")
        if each.is_file()
    }


@pytest.mark.parametrize("kind", TREES)
def test_every_bundle_has_it_besides_what_was_there(
    tmp_path: Path, public: Public, wall: Authority, kind: str
) -> None:
    root = tree(tmp_path / "root", kind, public)
    root.mkdir(exist_ok=True)
    assert trust.trust(wall.told(), str(root))
    bundles = [root / each for each in trust.BUNDLES if (root / each).exists()]
    for bundle in [*bundles, root / trusted.WHOLE]:
        assert greets(wall, cafile=str(bundle)), bundle
    assert greets(wall, cafile=str(root / trusted.ALONE))
    for bundle in bundles:
        assert public.file.read_text() in bundle.read_text()
        assert bundle.read_text().count(trust.BEGIN) == 1
        assert bundle.stat().st_mode & 0o777 == 0o444
    assert "PRIVATE" not in (root / trusted.WHOLE).read_text()


@pytest.mark.parametrize("kind", TREES)
def test_told_again_nothing_is_written(
    tmp_path: Path, public: Public, wall: Authority, kind: str
) -> None:
    root = tree(tmp_path / "root", kind, public)
    root.mkdir(exist_ok=True)
    trust.trust(wall.told(), str(root))
    times = {each: each.lstat().st_mtime_ns for each in root.rglob("*")}
    assert not trust.trust(wall.told(), str(root))
    assert {each: each.lstat().st_mtime_ns for each in root.rglob("*")} == times


@pytest.mark.parametrize("kind", TREES)
def test_another_installation_takes_the_place_of_the_one_before(
    tmp_path: Path, public: Public, wall: Authority, kind: str
) -> None:
    root = tree(tmp_path / "root", kind, public)
    root.mkdir(exist_ok=True)
    trust.trust(wall.told(), str(root))
    once = content(root)
    other = Authority.open(tmp_path / "other")
    trust.trust(other.told(), str(root))
    for bundle in [root / each for each in trust.BUNDLES if (root / each).exists()]:
        assert greets(other, cafile=str(bundle))
        assert not greets(wall, cafile=str(bundle))
    trust.trust(wall.told(), str(root))
    again = content(root)
    volatile = {trusted.MARK, *(each for each in again if each.endswith("cacerts"))}
    assert {k: v for k, v in once.items() if k not in volatile} == {
        k: v for k, v in again.items() if k not in volatile
    }


def test_a_bundle_that_was_made_anew_gets_it_again(
    tmp_path: Path, public: Public, wall: Authority
) -> None:
    root = tree(tmp_path / "root", "debian", public)
    trust.trust(wall.told(), str(root))
    bundle = root / "etc/ssl/certs/ca-certificates.crt"
    bundle.chmod(0o644)
    bundle.write_text(public.file.read_text())
    assert trust.trust(wall.told(), str(root))
    assert greets(wall, cafile=str(bundle))
    # And what makes it anew finds it: one certificate a file, as update-ca-certificates wants.
    (source,) = (root / "usr/local/share/ca-certificates").iterdir()
    assert source.suffix == ".crt"
    assert source.read_text().count("BEGIN CERTIFICATE") == 1


def test_openssl_finds_it_by_its_hash(tmp_path: Path, public: Public, wall: Authority) -> None:
    root = tree(tmp_path / "root", "debian", public)
    (pem,) = wall.told()
    (root / f"etc/ssl/certs/{pem['hash']}.0").write_text(public.file.read_text())
    trust.trust(wall.told(), str(root))
    assert greets(wall, capath=str(root / "etc/ssl/certs"))
    said = subprocess.run(
        ["openssl", "x509", "-noout", "-subject_hash"], input=pem["pem"], text=True, check=True,
        capture_output=True,
    )  # fmt: skip
    assert said.stdout.strip() == pem["hash"]
    assert (root / f"etc/ssl/certs/{pem['hash']}.0").read_text() == public.file.read_text()


def test_java_trusts_it_and_keeps_what_it_had(
    tmp_path: Path, public: Public, wall: Authority
) -> None:
    root = tree(tmp_path / "root", "debian", public)
    store = root / "etc/ssl/certs/java/cacerts"
    for _ in range(2):
        trust.trust(wall.told(), str(root))
        data = store.read_bytes()
        assert [alias for alias, _ in trust._entries(data)] == ["public", "mine", "torpor-wall-1"]
        der = ssl.PEM_cert_to_DER_cert(wall.told()[0]["pem"])
        assert data[:-20].endswith(struct.pack(">I", len(der)) + der)
        words = "changeit".encode("utf-16-be") + b"Mighty Aphrodite" + data[:-20]
        assert hashlib.sha1(words, usedforsecurity=False).digest() == data[-20:]
        (root / trusted.MARK).unlink()


@pytest.mark.parametrize(
    "store",
    [b"", b"\xfe\xed\xfe\xed", b"0\x82PKCS12" + bytes(60), java([])[:-1] + b"?", bytes(100)],
)
def test_a_store_of_another_kind_or_password_is_left(store: bytes) -> None:
    assert trust.with_authorities(store, [b"x"]) is None


def test_what_cannot_be_written_keeps_nothing_else_from_it(
    tmp_path: Path, public: Public, wall: Authority
) -> None:
    root = tree(tmp_path / "root", "debian", public)
    (root / "etc/ssl/certs/java/cacerts").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2" + bytes(40))
    (root / "usr/local/share/ca-certificates").rmdir()
    (root / "usr/local/share/ca-certificates").write_text("a file")
    assert trust.trust(wall.told(), str(root))
    assert greets(wall, cafile=str(root / "etc/ssl/certs/ca-certificates.crt"))


def test_commands_are_told_only_of_what_is_there(
    tmp_path: Path, public: Public, wall: Authority
) -> None:
    root = tree(tmp_path / "root", "debian", public)
    assert trusted.environment(str(root)) == {}
    trust.trust(wall.told(), str(root))
    said = trusted.environment(str(root))
    assert said["NODE_EXTRA_CA_CERTS"] == "/etc/torpor/wall.pem"
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT",
                 "GIT_SSL_CAINFO", "DENO_CERT"):  # fmt: skip
        assert Path(str(root) + said[name]).exists()


@pytest.mark.parametrize("wrong", [None, 1, [1], [{"pem": "x"}], ["x"]])
def test_what_the_host_cannot_mean_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="no authorities"):
        trust.told(wrong)
