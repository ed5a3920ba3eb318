"""ClientHellos: what a server would take another name from is refused, and nothing crashes."""

import ssl
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torpor.network.hello import LARGEST, HelloError, parse


def vector(size: int, data: bytes) -> bytes:
    return len(data).to_bytes(size) + data


def extension(kind: int, data: bytes) -> bytes:
    return struct.pack("!H", kind) + vector(2, data)


def server_name(*names: bytes, kind: int = 0) -> bytes:
    listed = b"".join(bytes([kind]) + vector(2, name) for name in names)
    return extension(0, vector(2, listed))


def body(*extensions: bytes, version: int = 0x0303) -> bytes:
    return (
        struct.pack("!H", version) + bytes(32) + vector(1, b"session")
        + vector(2, b"\x13\x01\x13\x02") + vector(1, b"\0") + vector(2, b"".join(extensions))
    )  # fmt: skip


def records(message: bytes, size: int = 1 << 14) -> bytes:
    pieces = [message[place : place + size] for place in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + vector(2, piece) for piece in pieces)


def hello(*extensions: bytes, size: int = 1 << 14) -> bytes:
    return records(b"\x01" + vector(3, body(*extensions)), size)


def said_by_openssl(name: str | None, alpn: list[str]) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(alpn)
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(into, out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def test_what_openssl_says_is_read() -> None:
    found = parse(said_by_openssl("Good.Test", ["h2", "http/1.1"]))
    assert found is not None
    assert (found.name, found.protocols, found.encrypted) == (
        "good.test", (b"h2", b"http/1.1"), False,
    )  # fmt: skip
    nameless = parse(said_by_openssl(None, []))
    assert nameless is not None
    assert nameless.name is None


@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_a_hello_in_pieces_is_read_when_it_is_whole(size: int) -> None:
    keys = extension(51, bytes(200 if size == 5 else 20))
    data = hello(server_name(b"good.test"), keys, size=max(size, 5))
    for end in range(len(data)):
        assert parse(data[:end]) is None
    found = parse(data)
    assert found is not None
    assert found.name == "good.test"


def test_keys_against_quantum_computers_fit() -> None:
    found = parse(hello(extension(51, bytes(1184 + 700)), server_name(b"good.test")))
    assert found is not None
    assert found.name == "good.test"


@pytest.mark.parametrize("kind", [0xFE0D, 0xFFCE])
def test_what_hides_a_name_is_seen(kind: int) -> None:
    found = parse(hello(server_name(b"good.test"), extension(kind, b"\0" * 60)))
    assert found is not None
    assert found.encrypted


def test_tls_1_2_without_extensions_has_no_name() -> None:
    bare = body()[:-2]
    found = parse(records(b"\x01" + vector(3, bare)))
    assert found is not None
    assert found.name is None


REFUSED = {
    "an extension twice": hello(server_name(b"good.test"), server_name(b"evil.test")),
    "an unknown extension twice": hello(extension(77, b""), extension(77, b"")),
    "two names": hello(server_name(b"good.test", b"evil.test")),
    "a name of another kind": hello(server_name(b"good.test", kind=1)),
    "no name in the list": hello(extension(0, vector(2, b""))),
    "an empty name": hello(server_name(b"")),
    "a name with a zero": hello(server_name(b"good.test\0.evil.test")),
    "a name that is not ASCII": hello(server_name("göod.test".encode())),
    "a name with a last dot": hello(server_name(b"good.test.")),
    "a name with a blank": hello(server_name(b"good.test evil.test")),
    "something behind the name": hello(extension(0, vector(2, b"\0" + vector(2, b"a")) + b"x")),
    "a name beyond its extension": hello(extension(0, b"\0\x20\0\0\x10abc")),
    "extensions beyond the hello": records(b"\x01" + vector(3, body()[:-2] + b"\0\x10abc")),
    "something behind the extensions": records(b"\x01" + vector(3, body() + b"x")),
    "a second message in the record": records(b"\x01" + vector(3, body()) + b"\x01\0\0\0"),
    "half a cipher suite": records(
        b"\x01" + vector(3, b"\x03\x03" + bytes(32) + b"\0" + vector(2, b"abc") + b"\x01\0\0\0")
    ),
    "another message": records(b"\x02" + vector(3, body())),
    "another record first": b"\x14\x03\x03\0\x01\x01" + hello(server_name(b"good.test")),
    "an empty record first": b"\x16\x03\x01\0\0" + hello(server_name(b"good.test")),
    "another record between": (
        hello(server_name(b"good.test"), size=40)[:45] + b"\x15\x03\x03\0\x02\x01\0"
    ),
    "a record that is too long": b"\x16\x03\x01" + vector(2, bytes(17000)),
    "a hello that is too long": b"\x16\x03\x01\x40\0\x01" + (LARGEST + 1).to_bytes(3),
    "another version": hello(server_name(b"good.test")).replace(b"\x16\x03\x01", b"\x16\x02\x01"),
    "another version inside": records(b"\x01" + vector(3, body(version=0x0200))),
    "ALPN without protocols": hello(extension(16, vector(2, b""))),
    "ALPN with an empty protocol": hello(extension(16, vector(2, b"\0\x02h2"))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_one_reading_is_refused(name: str) -> None:
    with pytest.raises(HelloError):
        parse(REFUSED[name])


WHOLE = hello(
    extension(10, b"\0\x02\0\x1d"), server_name(b"good.test"), extension(16, vector(2, b"\x02h2"))
)


@given(st.binary(max_size=400))
def test_noise_neither_crashes_nor_says_a_name(data: bytes) -> None:
    for prefix in (b"", b"\x16\x03\x01", WHOLE[:60]):
        try:
            found = parse(prefix + data)
        except HelloError:
            continue
        assert found is None or found.name is None or found.name.encode() in (prefix + data).lower()


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4))
def test_a_changed_hello_is_read_as_openssl_reads_it_or_not_at_all(
    changes: list[tuple[int, int]],
) -> None:
    data = bytearray(WHOLE)
    for place, value in changes:
        data[place] = value
    try:
        found = parse(bytes(data))
    except HelloError:
        return
    if found is not None and found.name is not None:
        read = read_by_openssl(bytes(data))
        assert read in (None, found.name), (read, found.name)


def read_by_openssl(data: bytes) -> str | None:
    """Return the name that OpenSSL, as a server, takes from a hello."""
    read: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _, name, __: read.append(name)
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    into.write(data)
    with pytest.raises(ssl.SSLError):
        context.wrap_bio(into, out, server_side=True).do_handshake()
    return (read[0] or "").lower() or None if read else None
