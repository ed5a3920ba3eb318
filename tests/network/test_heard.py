"""What a connection speaks: certain before anything of it goes on, whatever comes how late."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.network.test_hello import WHOLE
from torpor.network.heard import LINE, heard

HTTP = (
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"get / http/1.1\r\n\r\n",
    b"\r\n\r\n GET / HTTP/1.1\r\n\r\n",
    b"BREW /pot HTTP/1.0\n\n",
    b"GET /old\r\n",
    b"GET  /old\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET \x01/ HTTP/1.1\r\n\r\n",
    b"GET\t/ HTTP/1.1\r\n\r\n",
)
RAW = (
    b"SSH-2.0-OpenSSH_9.2\r\n",
    b"EHLO machine.test\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
    b"get key\r\n",
    b"\x80\x2e\x01\x00\x02",
    b"\x16\x02\x01",
    b"AMQP\x00\x00\x09\x01",
    b"0\x0c\x02\x01\x01",
    b"(GET / \x00HTTP/1.1\r\n",
    b"SIP/2.0 200 OK\r\n",
)


@pytest.mark.parametrize("data", HTTP)
def test_requests_are_known_however_they_are_written(data: bytes) -> None:
    found = heard(data)
    assert found is not None
    assert found.how == "http"


@pytest.mark.parametrize("data", RAW)
def test_what_is_no_request_is_none(data: bytes) -> None:
    found = heard(data)
    assert found is not None
    assert found.how == "raw"


@pytest.mark.parametrize("data", [*HTTP, WHOLE])
def test_the_beginning_of_a_request_or_a_hello_is_not_taken_for_something_else(data: bytes) -> None:
    whole = heard(data)
    assert whole is not None
    for end in range(len(data)):
        found = heard(data[:end])
        assert found is None or found.how == whole.how, data[:end]


def test_a_hello_is_told_with_its_name() -> None:
    found = heard(WHOLE)
    assert found is not None
    assert (found.how, found.said, found.problem) == ("tls", "good.test", "")
    cut = heard(WHOLE[:30], ended=True)
    assert cut is not None
    assert (cut.how, cut.said) == ("tls", None)
    assert cut.problem


def test_text_without_end_is_certain_at_some_point() -> None:
    found = heard(b"GET " + b"x" * LINE)
    assert found is not None
    assert found.how == "raw"


@example(b"0\x00", b"HTTP/")
@example(b"HTTP/0", b"")
@example(b"\x14\x00", b"")
@given(
    st.binary(max_size=200), st.sampled_from([b"", b"GET ", b"\r\n", b"\x16\x03", b"HTTP/", b"P /"])
)
def test_more_bytes_never_change_what_was_certain(data: bytes, prefix: bytes) -> None:
    said = None
    for end in range(len(prefix + data) + 1):
        found = heard((prefix + data)[:end])
        if said is not None:
            assert found is not None
            assert found.how == said
        said = found.how if found is not None else None
