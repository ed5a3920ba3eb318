"""`torpor doctor --fix`: what is planned follows from the facts; what is done is done once."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.test_findings import BARE, GOOD, HOME
from torpor.cli import fixing
from torpor.cli.facts import TOOLS, Facts, Kvm, Program
from torpor.cli.findings import APPARMOR
from torpor.cli.fixes import PROFILE_FILE, PROGRAMS, SYSCTL_FILE, Fix, apply, plan
from torpor.network.link import Probed

ALL = frozenset(PROGRAMS)


def planned(facts: Facts, programs: frozenset[str] = ALL) -> tuple[Fix, ...]:
    return plan(facts, programs, "torpor").fixes


def test_a_good_host_is_left_as_it_is() -> None:
    found = plan(GOOD, ALL, "torpor")
    assert (found.fixes, found.left) == ((), ())


def test_missing_packages_are_installed_at_once_and_each_once() -> None:
    facts = replace(GOOD, root=True, programs=tuple(Program(tool, None) for tool in TOOLS))
    (fix,) = planned(facts)
    (command,) = fix.commands
    assert command[:2] == ("apt-get", "install")
    packages = [word for word in command[2:] if not word.startswith("-")]
    assert packages == sorted({tool.package for tool in TOOLS})


def test_a_package_that_only_links_need_is_installed_too() -> None:
    facts = replace(GOOD, root=True, link=Probed("no library", "Install nftables.", "nftables"))
    (fix,) = planned(facts)
    assert fix.commands[0][-1] == "nftables"


def test_a_user_does_it_with_sudo_and_root_without() -> None:
    facts = replace(GOOD, kvm=Kvm("closed", "kvm"))
    (fix,) = planned(facts)
    assert fix.commands == (("sudo", "usermod", "--append", "--groups", "kvm", "ann"),)
    assert "Log out" in fix.afterwards
    (fix,) = planned(replace(facts, root=True))
    assert fix.commands[0][0] == "usermod"


def test_what_needs_root_is_said_where_there_is_no_way_to_it() -> None:
    found = plan(replace(GOOD, kvm=Kvm("closed", "kvm")), ALL - {"sudo"}, "torpor")
    assert found.fixes == ()
    assert len(found.left) == 1
    assert "only root" in found.left[0]


def test_what_needs_a_program_that_is_not_there_is_said() -> None:
    facts = replace(GOOD, root=True, programs=(Program(TOOLS[0], None),))
    found = plan(facts, ALL - {"apt-get"}, "torpor")
    assert found.fixes == ()
    assert "apt-get is not installed" in found.left[0]


@pytest.mark.parametrize(
    ("sysctls", "file", "line"),
    [
        ({"user.max_user_namespaces": 0}, SYSCTL_FILE, "user.max_user_namespaces = 15000"),
        ({"kernel.unprivileged_userns_clone": 0}, SYSCTL_FILE, "userns_clone = 1"),
        ({APPARMOR: 1}, PROFILE_FILE, "  userns,"),
    ],
)
def test_what_refuses_user_namespaces_is_lifted_by_a_file_that_says_why(
    sysctls: dict[str, int | None], file: Path, line: str
) -> None:
    facts = replace(GOOD, root=True, jail=BARE, sysctls=sysctls)
    (fix,) = planned(facts)
    assert fix.file == file
    assert line in fix.content
    assert fix.content.startswith("# Written by `torpor doctor --fix`")
    assert str(file) in fix.commands[-1]


def test_a_setting_that_refuses_nothing_here_is_not_touched() -> None:
    assert planned(replace(GOOD, root=True, sysctls={APPARMOR: 1})) == ()


def test_places_are_made_and_leftovers_removed() -> None:
    lab = Path("/srv/t/lab-1")
    facts = replace(GOOD, home=replace(HOME, exists=False), leftovers=(lab,))
    made, removed = planned(facts)
    assert made.commands == (("mkdir", "--parents", "--mode=700", "/srv/t"),)
    assert removed.commands == (("torpor", "lab", "prepare"),)
    assert str(lab) in removed.what


def test_a_change_is_made_and_a_second_time_is_the_same(tmp_path: Path) -> None:
    file, directory = tmp_path / "etc/torpor.conf", tmp_path / "home"
    fix = Fix("x", file, "a = 1\n", (("mkdir", "--parents", "--mode=700", str(directory)),))
    assert apply(fix) == ""
    assert apply(fix) == ""
    assert file.read_text() == "a = 1\n"
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_change_that_fails_is_told() -> None:
    assert "non-zero exit status 1" in apply(Fix("x", commands=(("false",),)))
    assert "torpor-no-such" in apply(Fix("x", commands=(("torpor-no-such",),)))


def test_nothing_is_done_that_was_not_agreed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = replace(HOME, path=tmp_path / "home", exists=False)
    facts = replace(GOOD, home=place)
    monkeypatch.setattr(fixing.typer, "confirm", lambda *_, **__: False)
    assert not fixing.put_right(facts, ask=True)
    assert not place.path.exists()
    said = capsys.readouterr().err
    assert f"run: mkdir --parents --mode=700 {place.path}" in said
    assert "Left as it is." in said
    assert fixing.put_right(facts, ask=False)
    assert place.path.is_dir()
    assert "Done." in capsys.readouterr().err


def test_where_nothing_can_be_done_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert not fixing.put_right(GOOD, ask=True)
    assert "nothing that can be put right" in capsys.readouterr().err
