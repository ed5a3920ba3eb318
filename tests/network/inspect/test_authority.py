"""The wall's own authority: made once, kept to itself, renewed before anybody notices."""

import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from torpor.network.errors import NetworkError
from torpor.network.inspect import authority as module
from torpor.network.inspect.authority import Authority


def roots(bundle: str) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(bundle.encode())


def greet(
    authority: Authority, host: str, bundle: str, name: str | None = None
) -> x509.Certificate:
    """Have a client that trusts ``bundle`` greet ``host``; return what it was shown."""
    client = ssl.create_default_context(cadata=bundle)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name or host)
    two = authority.context(host, ()).wrap_bio(to_server, to_client, server_side=True)
    for _ in range(6):
        for each in (one, two):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                pass
    shown = one.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


def test_it_is_made_once_for_nobody_else_to_read(tmp_path: Path) -> None:
    first = Authority.open(tmp_path / "a")
    again = Authority.open(tmp_path / "a")
    assert first.bundle == again.bundle
    assert len(roots(first.bundle)) == 1
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    (file,) = (tmp_path / "a").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "PRIVATE" not in first.bundle


def test_many_that_begin_at_once_have_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        bundles = set(pool.map(lambda _: Authority.open(tmp_path / "a").bundle, range(16)))
    assert len(bundles) == 1
    assert len(list((tmp_path / "a").iterdir())) == 1


def test_two_installations_do_not_trust_each_other(tmp_path: Path) -> None:
    one, two = Authority.open(tmp_path / "1"), Authority.open(tmp_path / "2")
    greet(one, "h.test", one.bundle)
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(one, "h.test", two.bundle)


def test_a_leaf_is_for_one_host_and_vouches_for_none(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path)
    shown = greet(authority, "api.example.test", authority.bundle)
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["api.example.test"]
    assert not shown.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(authority, "api.example.test", authority.bundle, name="other.test")
    long = "a" * 60 + "." + "b" * 60 + ".test"
    greet(authority, long, authority.bundle)


def test_leaves_are_kept_and_no_key_of_one_is_on_a_disk(tmp_path: Path) -> None:
    authority = Authority.open(tmp_path)
    context = authority.context("h.test", ("h2",))
    assert authority.context("h.test", ("h2",)) is context
    assert authority.context("h.test", ("http/1.1",)) is not context
    for number in range(module.LEAVES):
        authority.context(f"h{number}.test", ())
    assert authority.context("h.test", ("h2",)) is not context
    assert [each.name for each in tmp_path.iterdir()] == ["ca-1.pem"]
    opened = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert not [each for each in opened if "torpor-leaf" in each]


def aged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: timedelta) -> Authority:
    """Return the authority as it is ``by`` later."""
    later_on(monkeypatch, by)
    return Authority.open(tmp_path)


def later_on(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """Have the authority's clock be ``by`` ahead."""

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(UTC) + by

    monkeypatch.setattr(module, "datetime", Later)


def test_a_successor_is_known_long_before_it_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Authority.open(tmp_path).bundle
    day = timedelta(days=1)
    near = aged(tmp_path, monkeypatch, module.LIFE - module.SUCCESSOR + day)
    assert near.bundle.startswith(first)
    assert len(roots(near.bundle)) == 2
    # Machines that know the first alone still trust it now (their clock is not that of this test).
    assert near._leaf("h.test").issuer == roots(first)[0].subject
    later = aged(tmp_path, monkeypatch, module.LIFE - module.SIGNS_UNTIL + day)
    assert later.bundle == near.bundle
    assert later._leaf("h.test").issuer == roots(near.bundle)[1].subject
    after = aged(tmp_path, monkeypatch, module.LIFE + day)
    assert after.bundle == near.bundle.removeprefix(first)


def test_no_leaf_outlives_who_signed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.LEAF_LIFE < module.SIGNS_UNTIL < module.SUCCESSOR < module.LIFE
    assert module.LEAF_USED < module.LEAF_LIFE


def test_renewing_tells_whether_machines_have_to_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.open(tmp_path)
    assert not authority.renew()
    aged(tmp_path, monkeypatch, module.LIFE - module.SUCCESSOR + timedelta(days=1))
    assert authority.renew()
    assert len(roots(authority.bundle)) == 2


def test_a_server_that_runs_for_years_tells_of_the_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority.open(tmp_path)
    assert len(authority.told()) == 1
    later_on(monkeypatch, module.LIFE - module.SUCCESSOR + timedelta(days=1))
    assert [each["pem"] for each in authority.told()] == [
        each.public_bytes(Encoding.PEM).decode() for each in roots(authority.bundle)
    ]
    assert len(authority.told()) == 2


@pytest.mark.parametrize("damage", [b"", b"-----BEGIN PRIVATE KEY-----\nx\n"])
def test_a_damaged_one_is_told_and_not_replaced(tmp_path: Path, damage: bytes) -> None:
    Authority.open(tmp_path)
    (tmp_path / "ca-1.pem").write_bytes(damage)
    with pytest.raises(NetworkError, match="cannot be used"):
        Authority.open(tmp_path)
    assert (tmp_path / "ca-1.pem").read_bytes() == damage
