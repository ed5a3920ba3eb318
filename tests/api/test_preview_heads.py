"""Requests that two programs could read in two ways: refused, however they come, and nothing of
them reaches the session."""

import asyncio
import json
import re

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.apps import App, Asked, running
from tests.api.conftest import Api, previewed
from torpor.network import heads
from torpor.network.heads import HeadError, judge, whole

# {h}: the host of the preview. {t}: a header with a good token. Lines end as they say.
LINE = "GET / HTTP/1.1\r\n"
USUAL = LINE + "Host: {h}\r\n{t}"
POST = "POST / HTTP/1.1\r\nHost: {h}\r\n{t}"
CORPUS: dict[str, tuple[int, str]] = {
    "length and chunks": (
        400,
        (
            POST + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
            "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"
        ),
    ),
    "chunks and length": (
        400,
        (POST + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nX"),
    ),
    "length twice": (400, USUAL + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    "lengths that differ": (400, USUAL + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"),
    "length as a list": (400, USUAL + "Content-Length: 5, 5\r\n\r\nhello"),
    "length with a sign": (400, USUAL + "Content-Length: +5\r\n\r\nhello"),
    "negative length": (400, USUAL + "Content-Length: -1\r\n\r\n"),
    "hexadecimal length": (400, USUAL + "Content-Length: 0x5\r\n\r\nhello"),
    "length with a blank in it": (400, USUAL + "Content-Length: 1 0\r\n\r\nhellohello"),
    "length with an underscore": (400, USUAL + "Content-Length: 1_0\r\n\r\nhellohello"),
    "empty length": (400, USUAL + "Content-Length: \r\n\r\n"),
    "length beyond all": (400, USUAL + "Content-Length: 99999999999999999999\r\n\r\n"),
    "unknown coding": (400, USUAL + "Transfer-Encoding: gzip\r\n\r\n"),
    "two codings": (400, USUAL + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "chunked twice": (400, USUAL + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    "coding header twice": (
        400,
        USUAL + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    ),
    "almost chunked": (400, USUAL + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "quoted chunked": (400, USUAL + 'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n'),
    "chunked with a tab behind a comma": (400, USUAL + "Transfer-Encoding: ,\tchunked\r\n\r\n0"),
    "blank before the colon": (400, USUAL + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    "tab before the colon": (400, USUAL + "Content-Length\t: 5\r\n\r\nhello"),
    "vertical tab in a value": (400, USUAL + "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    "folded header": (400, USUAL + "X-A: b\r\n Transfer-Encoding: chunked\r\n\r\n"),
    "folded with a tab": (400, USUAL + "X-A: b\r\n\tc\r\n\r\n"),
    "first header folded": (400, LINE + " Host: {h}\r\nHost: {h}\r\n{t}\r\n"),
    "bare LF after the first line": (400, "GET / HTTP/1.1\nHost: {h}\r\n{t}\r\n"),
    "bare LF between headers": (400, USUAL + "X-A: b\nX-B: c\r\n\r\n"),
    "bare LF as the end": (400, USUAL + "X-A: b\n\n"),
    "bare CR in a header": (400, USUAL + "X-A: b\rX-B: c\r\n\r\n"),
    "CR CR LF": (400, USUAL + "X-A: b\r\r\n\r\n"),
    "NUL in a header": (400, USUAL + "X-A: b\0c\r\n\r\n"),
    "NUL in a name": (400, USUAL + "X-A\0: b\r\n\r\n"),
    "DEL in a header": (400, USUAL + "X-A: \x7f\r\n\r\n"),
    "no colon": (400, USUAL + "X-A\r\n\r\n"),
    "empty name": (400, USUAL + ": b\r\n\r\n"),
    "name in brackets": (400, USUAL + "X[A]: b\r\n\r\n"),
    "name with a letter beyond ASCII": (400, USUAL + "X-\xe4: b\r\n\r\n"),
    "no Host": (400, LINE + "{t}\r\n"),
    "no Host in HTTP/1.0": (400, "GET / HTTP/1.0\r\n{t}\r\n"),
    "two Hosts": (400, USUAL + "Host: {h}\r\n\r\n"),
    "two Hosts that differ": (400, USUAL + "Host: other.localhost\r\n\r\n"),
    "Host with a user": (400, LINE + "Host: a@{h}\r\n{t}\r\n"),
    "Host with a backslash": (400, LINE + "Host: {h}\\@evil\r\n{t}\r\n"),
    "Host with a path": (400, LINE + "Host: {h}/x\r\n{t}\r\n"),
    "Host with a blank": (400, LINE + "Host: {h} evil\r\n{t}\r\n"),
    "Host as a list": (400, LINE + "Host: {h}, evil\r\n{t}\r\n"),
    "empty Host": (400, LINE + "Host: \r\n{t}\r\n"),
    "target for another host": (400, "GET http://evil/ HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "target with a user": (400, "GET http://a@{h}/ HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "target with another scheme": (400, "GET ftp://{h}/ HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "target without a slash": (400, "GET x HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "target that is a star": (400, "OPTIONS * HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "target with a fragment": (400, "GET /a#b HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "target beyond ASCII": (400, "GET /\xe4 HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "blank in the target": (400, "GET /a b HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "two blanks": (400, "GET  / HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "tab for a blank": (400, "GET\t/ HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "empty line first": (400, "\r\nGET / HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "no version": (400, "GET /\r\nHost: {h}\r\n{t}\r\n"),
    "small letters in the version": (400, "GET / http/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "version 1.2": (505, "GET / HTTP/1.2\r\nHost: {h}\r\n{t}\r\n"),
    "version 2.0": (505, "GET / HTTP/2.0\r\nHost: {h}\r\n{t}\r\n"),
    "bracket in the method": (400, "G(T / HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "a tunnel": (405, "CONNECT evil:443 HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "a trace": (405, "TRACE / HTTP/1.1\r\nHost: {h}\r\n{t}\r\n"),
    "an expectation": (417, USUAL + "Expect: the-unexpected\r\n\r\n"),
    "chunks in HTTP/1.0": (
        400,
        "POST / HTTP/1.0\r\nHost: {h}\r\n{t}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "too many headers": (431, USUAL + "X-A: b\r\n" * 101 + "\r\n"),
    "a name for another port of nobody": (
        404,
        LINE + "Host: 0-x.localhost\r\nConnection: close\r\n{t}\r\n",
    ),
}
BODIES: dict[str, str] = {
    "chunk size with a sign": "+5\r\nhello\r\n0\r\n\r\n",
    "chunk size with 0x": "0x5\r\nhello\r\n0\r\n\r\n",
    "chunk size with an underscore": "0_5\r\nhello\r\n0\r\n\r\n",
    "no chunk size": "\r\nhello\r\n0\r\n\r\n",
    "chunk that is longer than it says": "3\r\nhello\r\n0\r\n\r\n",
    "chunk size with a bare LF": "5\nhello\r\n0\r\n\r\n",
    "chunk that ends with something else": "5\r\nhelloXX0\r\n\r\n",
    "chunk size beyond all": "fffffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
}
CHUNKED = POST + "Transfer-Encoding: chunked\r\n\r\n"


async def said(api: Api, raw: bytes, *, slowly: bool) -> bytes:
    """Send bytes to the preview, all at once or one by one, and return all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.addresses.port)
    try:
        for piece in [raw[at : at + 1] for at in range(len(raw))] if slowly else [raw]:
            writer.write(piece)
            await writer.drain()
            if slowly:
                await asyncio.sleep(0.0001)  # long enough to arrive by itself
        return await asyncio.wait_for(reader.read(), 20)
    except OSError:
        return await reader.read()
    finally:
        writer.close()


def made(api: Api, text: str, session: str, port: int) -> bytes:
    """Fill in a request of the corpus."""
    host = f"{port}-{session}.localhost"
    token = f"Torpor-Authorization: Bearer {api.tokens['operator']}\r\n"
    return text.replace("{h}", host).replace("{t}", token).encode("latin-1")


@pytest.mark.parametrize("slowly", [False, True], ids=["at once", "byte by byte"])
async def test_what_can_be_read_in_two_ways_is_refused_and_reaches_nobody(
    api: Api, slowly: bool
) -> None:
    session = await api.ready(name="one")
    async with running() as app, previewed(api):
        assert len(CORPUS) + len(BODIES) >= 40
        for name, (status, text) in CORPUS.items():
            answer = await said(api, made(api, text, session, app.port), slowly=slowly)
            assert answer.startswith(b"HTTP/1.1 %d " % status), (name, answer[:200])
            assert answer.count(b"HTTP/1.1 ") == 1, (name, answer)
            assert b"evil" not in answer, name
        assert [each.target for each in app.asked] == []


@pytest.mark.parametrize("slowly", [False, True], ids=["at once", "byte by byte"])
async def test_a_body_that_is_none_never_ends_as_one(api: Api, slowly: bool) -> None:
    session = await api.ready(name="one")
    ended = []

    async def note(asked: Asked, _: App) -> None:
        while isinstance(event := await asked.connection.event(), h11.Data):
            pass
        if isinstance(event, h11.EndOfMessage):
            ended.append(asked)

    async with running() as app, previewed(api):
        app.answers["/"] = note
        for name, body in BODIES.items():
            raw = made(api, CHUNKED + body, session, app.port)
            answer = await said(api, raw, slowly=slowly)
            assert not answer or answer.startswith(b"HTTP/1.1 400 "), (name, answer)
        assert {each.target for each in app.asked} == {"/"}
        assert ended == []


@pytest.mark.parametrize("slowly", [False, True], ids=["at once", "byte by byte"])
async def test_what_is_in_order_is_passed_on_however_it_comes(api: Api, slowly: bool) -> None:
    session = await api.ready(name="one")
    requests = {
        "usual": USUAL + "Connection: close\r\n\r\n",
        "HTTP/1.0": "GET / HTTP/1.0\r\nHost: {h}\r\n{t}\r\n",
        "absolute": "GET http://{h}/x?y HTTP/1.1\r\nHost: {h}\r\n{t}Connection: close\r\n\r\n",
        "length": USUAL + "Content-Length: 5\r\nConnection: close\r\n\r\nhello",
        "chunks": CHUNKED.replace("{t}", "{t}Connection: close\r\n") + "5\r\nhello\r\n0\r\n\r\n",
        "values beyond ASCII": USUAL + "X-A: \xe4\r\nConnection: close\r\n\r\n",
    }
    async with running() as app, previewed(api):
        for name, text in requests.items():
            answer = await said(api, made(api, text, session, app.port), slowly=slowly)
            assert answer.startswith(b"HTTP/1.1 200 "), (name, answer)
        assert [each.body for each in app.asked] == [b"", b"", b"", b"hello", b"hello", b""]
        assert [each.target for each in app.asked][2] == "/x?y"


async def test_requests_one_after_the_other_are_judged_each(api: Api) -> None:
    session = await api.ready(name="one")
    async with running() as app, previewed(api):
        good = made(api, USUAL + "Content-Length: 2\r\n\r\nhi", session, app.port)
        bad = made(api, CORPUS["length and chunks"][1], session, app.port)
        answer = await said(api, good + good + bad, slowly=False)
        assert re.findall(rb"HTTP/1.1 (\d+) ", answer) == [b"200", b"200", b"400"]
        assert [each.body for each in app.asked] == [b"hi", b"hi"]


def test_a_head_is_refused_as_soon_as_it_can_be_none() -> None:
    with pytest.raises(HeadError, match="line ends otherwise"):
        whole(b"GET / HTTP/1.1\n")
    with pytest.raises(HeadError, match="too large") as error:
        whole(b"GET /" + b"x" * heads.LARGEST)
    assert error.value.status == 431
    assert whole(b"GET / HTTP/1.1\r") is None
    assert whole(b"GET / HTTP/1.1\r\n\r\nrest\n") == 18


NAMES = st.sampled_from(["host", "content-length", "transfer-encoding", "x-a", "x_a", "Host "])
VALUES = st.sampled_from(["a", "5", "chunked", "", " 5", "5 ", "a:1", "a@b", "\tchunked", "5,5"])


@given(
    line=st.sampled_from(["GET / HTTP/1.1", "POST /x HTTP/1.0", "GET http://a/ HTTP/1.1"]),
    headers=st.lists(st.tuples(NAMES, VALUES), max_size=5),
)
def test_whatever_is_taken_has_one_host_and_one_length(
    line: str, headers: list[tuple[str, str]]
) -> None:
    raw = "".join(f"{each}\r\n" for each in (line, *(f"{n}:{v}" for n, v in headers), ""))
    try:
        head = judge(raw.encode())
    except HeadError:
        return
    names = [name for name, _ in head.headers]
    assert names.count(b"host") == 1
    assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
    assert (head.length is None) is (b"transfer-encoding" in names)
    assert head.target.startswith("/")
    assert json.dumps(head.authority) == f'"{head.authority}"'
