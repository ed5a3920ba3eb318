"""What the doctor finds of a server: a real one answers, or none does."""

from pathlib import Path

from tests.client.double import Double
from torpor.backup import staging
from torpor.cli.server_facts import RESTORING, server_of
from torpor.settings.presence import announce


def test_a_home_without_a_server(tmp_path: Path) -> None:
    found = server_of(tmp_path / "not-there")
    assert (found.presence, found.answers, found.bearer) == (None, False, "absent")
    assert not found.restoring


def test_a_server_that_answers_and_one_that_does_not(tmp_path: Path, double: Double) -> None:
    announce(tmp_path, double.url, "1.0")
    (tmp_path / "admin-token").write_text("secret")
    found = server_of(tmp_path)
    assert found.presence is not None
    assert found.presence.url == double.url
    assert found.bearer == "readable"
    assert not found.answers, "whoever listens there is no Torpor"
    announce(tmp_path, "http://127.0.0.1:1", "1.0")
    assert not server_of(tmp_path).answers


def test_a_restore_that_was_cut_off_is_seen(tmp_path: Path) -> None:
    assert RESTORING == staging.DIRECTORY
    (tmp_path / RESTORING).mkdir()
    assert server_of(tmp_path).restoring
