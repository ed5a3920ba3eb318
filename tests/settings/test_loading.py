import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from torpor.settings import Places, Settings, SettingsError, load_settings
from torpor.settings.loading import OTHER_VARIABLES


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Settings]:
    """Loads settings from a file with this text, these variables and these flags."""

    def load(text: str = "", environ: Mapping[str, str] | None = None, **flags: Any) -> Settings:
        file = tmp_path / "torpor.toml"
        file.write_text(text)
        return load_settings(flags, environ or {}, file)

    return load


def refused(load: Callable[..., Settings], *given: Any, **flags: Any) -> SettingsError:
    with pytest.raises(SettingsError) as error:
        load(*given, **flags)
    return error.value


def test_what_is_not_given_is_the_default(load: Callable[..., Settings]) -> None:
    assert load() == Settings()


def test_flags_are_stronger_than_variables_and_these_than_the_file(
    load: Callable[..., Settings],
) -> None:
    text = "max_sessions = 1\nsample_seconds = 1\nevents_keep_days = 1\n"
    environ = {"TORPOR_MAX_SESSIONS": "2", "TORPOR_SAMPLE_SECONDS": "2"}
    found = load(text, environ, max_sessions=3)
    assert (found.max_sessions, found.sample_seconds, found.events_keep_days) == (3, 2, 1)


def test_each_setting_can_be_given_in_each_place(load: Callable[..., Settings]) -> None:
    other: dict[str, Any] = {
        "listen": "[::1]:0",
        "database": "sqlite:////x.db",
        "authentication": "none",
        "default_image": "python",
        "default_size": "mars-1vcpu-1gb",
        "on_stop": "freeze",
        "template_insecure_registries": "r.test:5000, [::1]",
        "public_url": "https://torpor.example.com:8443/below",
        "preview_listen": "off",
        "preview_url": "https://previews.example.com",
    }
    together = {"tls_certificate": "/a.pem", "tls_key": "/b.pem"}
    for name in Settings.model_fields:
        given = together if name in together else {name: other.get(name, 7)}
        expected = Settings(**given)
        assert expected != Settings()
        assert load(**given) == expected
        environ = {f"TORPOR_{each.upper()}": str(value) for each, value in given.items()}
        assert load("", environ) == expected
        assert load("\n".join(f"{each} = {value!r}" for each, value in given.items())) == expected


def test_a_list_is_one_of_the_file_and_has_commas_elsewhere(load: Callable[..., Settings]) -> None:
    name = "template_insecure_registries"
    found = load(f'{name} = ["a.test", "b.test:1"]')
    assert found.template_insecure_registries == ("a.test", "b.test:1")
    found = load("", {"TORPOR_TEMPLATE_INSECURE_REGISTRIES": "a.test,b.test:1,"})
    assert found.template_insecure_registries == ("a.test", "b.test:1")
    for wrong in ("[1]", '["http://a.test"]', '["a.test/x"]', '["a b"]', "7", '[""]'):
        with pytest.raises(SettingsError, match=f"{name} in .* allowed is a list of hosts"):
            load(f"{name} = {wrong}")


def test_what_is_empty_or_none_is_not_given(load: Callable[..., Settings]) -> None:
    found = load("max_sessions = 5", {"TORPOR_MAX_SESSIONS": ""}, max_sessions=None)
    assert found.max_sessions == 5


def test_only_the_environment_that_is_given_counts(
    load: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORPOR_MAX_SESSIONS", "5")
    monkeypatch.setenv("TORPOR_BOGUS", "5")
    assert load() == Settings() == Settings.model_construct()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# first\nidle_timeout = 5", "idle_timeout in {file}, line 2, is no setting"),
        ("idle_timeout = 5", "idle_timeout_seconds is one"),
        ("Listen = '127.0.0.1:1'", "Listen in {file}, line 1, is no setting; listen is one"),
        ("\n\n[server]\nlisten = 'x'", "server in {file}, line 3, is no setting"),
        ("server.listen = 'x'", "server in {file}, line 1, is no setting"),
        ("'two words' = 1", "two words in {file} is no setting"),
        ("home = '/x'", "home in {file}, line 1, is no setting"),
    ],
)
def test_a_name_in_the_file_that_is_no_setting_is_refused(
    load: Callable[..., Settings], tmp_path: Path, text: str, words: str
) -> None:
    error = refused(load, text)
    assert words.format(file=tmp_path / "torpor.toml") in error.happened
    assert error.state == "Nothing was started."


@pytest.mark.parametrize("name", ["TORPOR_LISTN", "torpor_listen", "TORPOR_", "Torpor_X"])
def test_a_variable_that_is_no_setting_is_refused(load: Callable[..., Settings], name: str) -> None:
    error = refused(load, "", {name: "x", "TORPOR_MAX_SESSIONS": "5"})
    assert f"no setting for the variable {name}." in error.happened
    assert "TORPOR_LISTEN" in error.todo


def test_variables_that_are_for_others_are_passed_over(load: Callable[..., Settings]) -> None:
    environ = dict.fromkeys(OTHER_VARIABLES, "x") | {"PATH": "x", "TORPOR": "x"}
    assert load("", environ) == Settings()


def test_a_flag_that_is_no_setting_is_refused(load: Callable[..., Settings]) -> None:
    assert "The flag --max-session is no setting; max_sessions" in str(refused(load, max_session=5))


WHOLE = "a whole number"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("listen", "'8470'", "an address and a port, as 127.0.0.1:8470 or [::1]:8470"),
        ("listen", "':8470'", "an address and a port"),
        ("listen", "'127.0.0.1:'", "an address and a port"),
        ("listen", "'127.0.0.1:65536'", "an address and a port"),
        ("listen", "'127.0.0.1:-1'", "an address and a port"),
        ("listen", "'::1:8470'", "an address and a port"),
        ("listen", "'[localhost]:8470'", "an address and a port"),
        ("listen", "8470", "an address and a port"),
        ("authentication", "'password'", '"tokens" or "none"'),
        ("on_stop", "'kill'", '"leave" or "freeze"'),
        ("memory_reserve_mib", "-1", f"{WHOLE}, at least 0"),
        ("memory_limit_mib", "0", f"{WHOLE}, at least 1"),
        ("max_sessions", "true", f"{WHOLE}, at least 1"),
        ("max_sessions", "1.5", f"{WHOLE}, at least 1"),
        ("max_sessions", "'many'", f"{WHOLE}, at least 1"),
        ("exec_output_limit_mib", "65", f"{WHOLE} from 1 to 64"),
        ("default_image", "''", "the name of an image"),
        ("public_url", "'torpor.example.com'", "a URL, as https://torpor.example.com"),
        ("public_url", "'ftp://torpor.example.com'", "a URL"),
        ("public_url", "'https://'", "a URL"),
        ("public_url", "'https://x/?a=b'", "a URL"),
        ("public_url", "'https://me@x'", "a URL"),
        ("transfer_limit_gib", "51", f"{WHOLE} from 1 to 50"),
        ("workspace_limit_gib", "101", f"{WHOLE} from 1 to 100"),
        ("workspace_default_gib", "0", f"{WHOLE} from 1 to 100"),
        ("max_workspaces", "0", f"{WHOLE}, at least 1"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_what_is(
    load: Callable[..., Settings], tmp_path: Path, name: str, value: str, allowed: str
) -> None:
    error = refused(load, f"\n{name} = {value}")
    file = tmp_path / "torpor.toml"
    assert f"{name} in {file}, line 2, is {value}" in error.happened.replace("True", "true")
    assert f"allowed is {allowed}" in error.happened


def test_a_wrong_value_is_said_to_come_from_the_strongest_place(
    load: Callable[..., Settings],
) -> None:
    environ = {"TORPOR_ON_STOP": "stop", "TORPOR_MAX_SESSIONS": "0"}
    error = refused(load, "on_stop = 'freeze'", environ, max_sessions=-1)
    assert "The variable TORPOR_ON_STOP is 'stop';" in error.happened
    assert "The flag --max-sessions is -1;" in error.happened
    assert len(error.problems) == 2


@pytest.mark.parametrize(
    ("listen", "open_to_others"),
    [
        ("127.0.0.1:8470", False),
        ("127.8.9.1:8470", False),
        ("[::1]:8470", False),
        ("localhost:8470", False),
        ("0.0.0.0:8470", True),
        ("[::]:8470", True),
        ("192.168.1.5:8470", True),
        ("Localhost.example:8470", True),
    ],
)
def test_without_authentication_only_this_computer_is_listened_to(
    load: Callable[..., Settings], listen: str, open_to_others: bool
) -> None:
    assert load(listen=listen).listen == listen
    if open_to_others:
        error = refused(load, 'authentication = "none"', listen=listen)
        assert listen in error.happened
        assert "127.0.0.1" in error.happened
    else:
        assert load('authentication = "none"', listen=listen).authentication == "none"


def test_an_address_has_a_host_and_a_port() -> None:
    assert Settings(listen="[0::1]:80").address == ("::1", 80)
    assert Settings(listen="some.host:0").address == ("some.host", 0)


def test_the_database_is_at_home_unless_another_is_named() -> None:
    places = Places(home=Path("/h"), cache=Path("/c"))
    assert Settings().database_url(places) == "sqlite:////h/database/torpor.db"
    assert Settings(database="sqlite:////x").database_url(places) == "sqlite:////x"
    odd = Places(home=Path("/50%20?#x"), cache=Path("/c"))
    assert Settings().database_url(odd) == "sqlite:////50%2520%3F%23x/database/torpor.db"


def test_a_setting_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().max_sessions = 5  # type: ignore[misc]


def test_the_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    missing = tmp_path / "torpor.toml"
    for given in (({}, {}, missing), ({}, {"TORPOR_CONFIG": str(missing)})):
        with pytest.raises(SettingsError, match=f"There is no file of settings {missing}"):
            load_settings(*given)
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings({}, {}, tmp_path)


def test_the_flag_names_the_file_before_the_variable_does(tmp_path: Path) -> None:
    for name, number in (("flag", 1), ("variable", 2)):
        (tmp_path / name).write_text(f"max_sessions = {number}")
    environ = {"TORPOR_CONFIG": str(tmp_path / "variable")}
    assert load_settings({}, environ, tmp_path / "flag").max_sessions == 1
    assert load_settings({}, environ).max_sessions == 2


def test_a_file_where_such_files_are_is_read_if_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert load_settings({}, environ) == Settings()
    (tmp_path / "torpor").mkdir()
    (tmp_path / "torpor/torpor.toml").write_text("max_sessions = 5")
    assert load_settings({}, environ).max_sessions == 5


@pytest.mark.parametrize(("content", "words"), [(b"a = ", "not TOML"), (b"\xff", "cannot be read")])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "torpor.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=words) as error:
        load_settings({}, {}, file)
    assert str(file) in error.value.happened


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://me:se:cr@et@here:5433/torpor", "postgresql://me@here:5433/torpor"),
        ("postgresql://me@here/torpor?host=/run", "postgresql://me@here/torpor?host=/run"),
        ("postgresql://here/torpor", "postgresql://here/torpor"),
        ("sqlite:////a:b@c/x.db", "sqlite:////a:b@c/x.db"),
    ],
)
def test_what_is_told_elsewhere_has_no_password(url: str, told: str) -> None:
    assert Settings(database=url, sample_seconds=7).told() == {
        "database": told,
        "sample_seconds": 7,
    }
