"""How secrets come into requests: in their place, alone there, and nowhere else."""

import base64
import json
from urllib.parse import parse_qsl, quote_plus

from hypothesis import given
from hypothesis import strategies as st

from torpor.network.bindings import Binding, parse
from torpor.network.injection import Held, inject, inject_body, looks_into_body

VALUE = "s3cr3t-value/+ &%"
TEXT = "placeholder-0123456789"


def held(value: str = VALUE, **use: object) -> Held:
    return Held(parse({"host": "h.test", **use}, "KEY"), value)


values = st.text(
    alphabet=st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=8, max_size=40
)


def test_the_machines_own_header_is_removed_in_any_case_and_number() -> None:
    said = [(b"Authorization", b"mine"), (b"accept", b"*/*"), (b"AUTHORIZATION", b"mine too")]
    got = inject(held(), said, b"/")
    assert got.headers == ((b"accept", b"*/*"), (b"authorization", f"Bearer {VALUE}".encode()))
    assert (got.target, got.used) == (b"/", True)


def test_a_template_is_not_read_twice() -> None:
    got = inject(held("{}{}{}{}{}", header="x-key", template="a{}b"), [], b"/")
    assert got.headers == ((b"x-key", b"a{}{}{}{}{}b"),)


def test_basic_credentials_replace_what_was_there() -> None:
    got = inject(held(basic="user"), [(b"authorization", b"Bearer mine")], b"/x")
    ((name, said),) = got.headers
    assert name == b"authorization"
    assert base64.b64decode(said.removeprefix(b"Basic ")) == f"user:{VALUE}".encode()


def test_a_parameter_is_there_once_however_the_machine_writes_it() -> None:
    for query in (
        b"",
        b"?key=mine",
        b"?a=1&key=mine&b=2",
        b"?k%65y=mine",
        b"?a=1;key=mine",
        b"?key",
    ):
        got = inject(held(query="key"), [], b"/p" + query)
        path, _, after = got.target.decode().partition("?")
        assert path == "/p"
        assert [value for name, value in parse_qsl(after) if name == "key"] == [VALUE]
        assert "mine" not in after


def test_other_parameters_stay_as_they_were_written() -> None:
    got = inject(held(query="key"), [], b"/p?a=%41;b&c=x%2fy&c")
    assert got.target.startswith(b"/p?a=%41;b&c=x%2fy&c&key=")


def test_a_placeholder_is_swapped_in_headers_and_in_basic_credentials() -> None:
    basic = base64.b64encode(f"user:{TEXT}".encode())
    said = [
        (b"x-a", f"k={TEXT}; {TEXT}".encode()),
        (b"authorization", b"Basic " + basic),
        (b"host", TEXT.encode()),
        (b"other", b"Basic !!!"),
    ]
    got = inject(held(placeholder=TEXT), said, f"/{TEXT}".encode())
    assert got.used
    assert got.headers[0] == (b"x-a", f"k={VALUE}; {VALUE}".encode())
    assert base64.b64decode(got.headers[1][1][6:]) == f"user:{VALUE}".encode()
    assert got.headers[2:] == tuple(said[2:])
    assert got.target == f"/{TEXT}".encode()


def test_without_its_placeholder_a_request_gets_nothing() -> None:
    said = ((b"authorization", b"Bearer mine"),)
    got = inject(held(placeholder=TEXT), said, b"/")
    assert (got.headers, got.used) == (said, False)


def test_bodies_are_looked_into_only_where_that_was_said_and_understood() -> None:
    json_body = [(b"content-type", b"application/json; charset=utf-8")]
    into = held(placeholder=TEXT, in_body=True)
    assert looks_into_body(into, json_body)
    assert looks_into_body(into, [(b"Content-Type", b"application/x-www-form-urlencoded")])
    assert not looks_into_body(held(placeholder=TEXT), json_body)
    assert not looks_into_body(held(), json_body)
    assert not looks_into_body(into, [(b"content-type", b"text/plain")])
    assert not looks_into_body(into, [*json_body, (b"content-type", b"text/plain")])
    assert not looks_into_body(into, [*json_body, (b"content-encoding", b"gzip")])


@given(values)
def test_a_body_is_as_its_type_wants_whatever_the_value(value: str) -> None:
    into = held(value, placeholder=TEXT, in_body=True)
    body = json.dumps({"token": TEXT, "list": [f"a {TEXT}"]}).encode()
    got = inject_body(into, [(b"content-type", b"application/json")], body)
    assert json.loads(got) == {"token": value, "list": [f"a {value}"]}
    form = inject_body(
        into, [(b"content-type", b"application/x-www-form-urlencoded")], f"a=1&t={TEXT}".encode()
    )
    assert form == f"a=1&t={quote_plus(value)}".encode()


@given(
    values,
    st.sampled_from([{"header": "x-k"}, {"basic": "u"}, {"query": "k"}, {"placeholder": TEXT}]),
)
def test_no_value_adds_a_line_or_a_header(value: str, use: dict[str, object]) -> None:
    said = [(b"host", b"h.test"), (b"x-k", b"m"), (b"authorization", TEXT.encode())]
    got = inject(held(value, **use), said, b"/p?k=m")
    assert len(got.headers) <= len(said) + 1
    for part in (*sum(got.headers, ()), got.target):
        assert b"\r" not in part
        assert b"\n" not in part
    assert b" " not in got.target


def test_the_value_is_in_no_text_about_it() -> None:
    assert VALUE not in repr(held())
    assert isinstance(held().binding, Binding)
