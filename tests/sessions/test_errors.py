"""Errors as plain data and back."""

from collections.abc import Iterator

import pytest

from torpor.sessions.errors import SessionError, error_of


def kinds(kind: type[SessionError]) -> Iterator[type[SessionError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from kinds(each)


@pytest.mark.parametrize("kind", list(kinds(SessionError)))
def test_an_error_that_is_told_again_is_the_same(kind: type[SessionError]) -> None:
    first = kind("It is so.", state="Nothing was changed.", todo="Wait.", code="word", free=1)
    again = error_of(first.plain())
    assert type(again) is kind
    assert again.plain() == first.plain()
    assert str(again) == str(first)
