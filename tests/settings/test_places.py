import os
from collections.abc import Callable
from pathlib import Path

import pytest

from torpor.settings import Places, default_places


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes the test look like one run by this user id, whose home directory is ``/hearth``."""

    def become(uid: int) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        monkeypatch.setenv("HOME", "/hearth")

    return become


def places(home: str, cache: str) -> Places:
    return Places(home=Path(home), cache=Path(cache))


def test_root_has_the_places_of_the_system(become: Callable[[int], None]) -> None:
    become(0)
    expected = places("/var/lib/torpor", "/var/cache/torpor")
    assert default_places({}) == expected
    assert default_places({"XDG_DATA_HOME": "/d", "XDG_CACHE_HOME": "/c"}) == expected


def test_a_user_has_places_at_home(become: Callable[[int], None]) -> None:
    become(1000)
    assert default_places({}) == places("/hearth/.local/share/torpor", "/hearth/.cache/torpor")


def test_a_user_may_have_xdg_directories(become: Callable[[int], None]) -> None:
    become(1000)
    environ = {"XDG_DATA_HOME": "/d", "XDG_CACHE_HOME": "/c"}
    assert default_places(environ) == places("/d/torpor", "/c/torpor")


@pytest.mark.parametrize("value", ["", "relative/path"])
def test_xdg_directories_must_be_absolute(become: Callable[[int], None], value: str) -> None:
    become(1000)
    assert default_places({"XDG_DATA_HOME": value, "XDG_CACHE_HOME": value}) == default_places({})


@pytest.mark.parametrize("uid", [0, 1000])
def test_torpors_own_variables_come_first(become: Callable[[int], None], uid: int) -> None:
    become(uid)
    environ = {"TORPOR_HOME": "/h", "TORPOR_CACHE": "/k", "XDG_DATA_HOME": "/d"}
    assert default_places(environ) == places("/h", "/k")


def test_places_are_absolute(
    become: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    become(1000)
    monkeypatch.chdir("/usr")
    environ = {"TORPOR_HOME": "h", "TORPOR_CACHE": "~/k"}
    assert default_places(environ) == places("/usr/h", "/hearth/k")


def test_an_empty_variable_is_not_set(become: Callable[[int], None]) -> None:
    become(0)
    assert default_places({"TORPOR_HOME": "", "TORPOR_CACHE": ""}) == default_places({})
