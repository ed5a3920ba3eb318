"""Whom a machine asks for names: the wall, unless its image has somebody who can be asked."""

from pathlib import Path

import pytest

from torpor.guest import network
from torpor.guest.card import WALL


@pytest.mark.parametrize(
    "said",
    [
        "",
        "# nothing\nsearch example\n",
        "nameserver 127.0.0.53\noptions edns0 trust-ad\n",
        "nameserver ::1\nnameserver 2001:db8::53\n",
        "nameserver\n",
    ],
)
def test_where_nobody_can_be_asked_it_is_the_wall(tmp_path: Path, said: str) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(said)
    network.name_resolver(str(file))
    assert f"nameserver {WALL}\n" in file.read_text()


@pytest.mark.parametrize(
    "said",
    [
        "nameserver 9.9.9.9\n",
        "nameserver 127.0.0.1\n",  # a resolver of the image's own
        "search x\nnameserver ::1\nnameserver\t10.0.0.1\n",
    ],
)
def test_what_an_image_says_stays(tmp_path: Path, said: str) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text(said)
    network.name_resolver(str(file))
    assert file.read_text() == said


def test_a_link_to_what_is_made_elsewhere_stays_a_link(tmp_path: Path) -> None:
    file = tmp_path / "etc/resolv.conf"
    file.parent.mkdir()
    file.symlink_to("../run/systemd/resolve/stub-resolv.conf")
    network.name_resolver(str(file))
    assert str(file.readlink()) == "../run/systemd/resolve/stub-resolv.conf"
    assert f"nameserver {WALL}\n" in file.read_text()


def test_without_a_file_there_is_one(tmp_path: Path) -> None:
    file = tmp_path / "etc/resolv.conf"
    network.name_resolver(str(file))
    assert f"nameserver {WALL}\n" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o644


def test_where_there_is_no_card_nothing_is_set_up() -> None:
    assert network.find() is None
    assert not network.set_up()
