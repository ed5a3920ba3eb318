"""The promises about speed are checked as they are written down."""

import re
from pathlib import Path

import pytest

from tests.named_tests import missing_tests
from torpor.lab.bench import FIGURES, NETWORK_FIGURES, SERVICE_FIGURES
from torpor.lab.figures import Results, Row
from torpor.lab.proof import EXPERIMENTS
from torpor.lab.spec import (
    NEEDED,
    NETWORK_PROMISES,
    PROMISES,
    SERVICE_PROMISES,
    Bound,
    needed,
    spec,
)

ROOT = Path(__file__).resolve().parent.parent.parent
SPECIFICATION = (ROOT / "SPECIFICATION.md").read_text("utf-8")

KEPT = {
    "cold_boot": 5.0,
    "create_ready": 0.2,
    "copy_64mib": 0.05,
    "freeze_64mib": 0.10,
    "freeze_64mib_of_128": 0.09,
    "full_save": 0.6,
    "thaw_ready_64mib": 0.3,
    "fork_window": 0.2,
    "fork_10_ready": 1.9,
    "fork_10_first_exec": 3.4,
    "exec_roundtrip": 0.05,
    "echo_pipe": 0.01,
    "echo_terminal": 0.014,
    "idle_machine_mib": 45.0,
    "idle_machine_cpu": 0.4,
    "channel_out_32mib": 3.0,
    "channel_in_32mib": 4.0,
    "file_read_32mib": 4.9,
    "file_write_32mib": 6.6,
    "tar_out_32mib": 4.9,
    "tar_in_32mib": 6.6,
    "image_unpack": 5.0,
    "image_import": 7.0,
}


def results(accelerator: str = "tcg", **changed: float | None) -> Results:
    """A run in which all promises are kept, but for what is changed; None: not measured."""
    values = KEPT | changed
    rows = tuple(
        Row(figure, (value,))
        for figure in FIGURES
        if (value := values.get(figure.name)) is not None
    )
    return Results({"accelerator": accelerator}, rows)


def broken(found: Results) -> list[str]:
    return [check.name.split()[0] for check in spec(found) if not check.ok]


def test_all_promises_can_be_kept() -> None:
    assert broken(results()) == []
    assert len(spec(results())) == len(PROMISES)


@pytest.mark.parametrize(
    ("changed", "numbers"),
    [
        ({"create_ready": 0.251}, ["S1"]),
        ({"cold_boot": 3.9}, ["S1"]),
        ({"copy_64mib": 0.046}, ["S2"]),
        ({"freeze_64mib_of_128": 0.07}, ["S3"]),
        ({"full_save": 0.29}, ["S4"]),
        ({"freeze_64mib": 0.25}, ["S2", "S3", "S4"]),
        ({"thaw_ready_64mib": 0.42}, ["S5"]),
        ({"fork_window": 0.32}, ["S6"]),
        ({"fork_10_ready": 2.6}, ["S7"]),
        ({"fork_10_first_exec": 4.4}, ["S8"]),
        ({"exec_roundtrip": 0.079}, ["S9"]),
        ({"idle_machine_mib": 48.1}, ["S10"]),
        ({"idle_machine_cpu": 0.51}, ["S11"]),
        ({"echo_terminal": 0.016}, ["S12"]),
        ({"file_read_32mib": 5.1}, ["S13"]),
        ({"file_write_32mib": 6.7}, ["S14"]),
        ({"tar_out_32mib": 5.1}, ["S15"]),
        ({"tar_in_32mib": 6.7}, ["S16"]),
        ({"channel_out_32mib": 2.9}, ["S13", "S15"]),
        ({"image_import": 7.6}, ["S17"]),
    ],
)
def test_a_promise_that_is_not_kept_is_told(changed: dict[str, float], numbers: list[str]) -> None:
    assert broken(results(**changed)) == numbers


def test_promises_about_the_service_are_held_against_its_own_run() -> None:
    kept = {"api_create": 0.3, "api_create_20_p99": 3.5, "api_create_adds": -0.001}
    rows = tuple(Row(figure, (kept.get(figure.name, 0.001),)) for figure in SERVICE_FIGURES)
    assert all(check.ok for check in spec(Results({}, rows), SERVICE_PROMISES))
    late = tuple(
        Row(row.figure, (3.7,)) if row.figure.name == "api_create_20_p99" else row for row in rows
    )
    found = spec(Results({}, late), SERVICE_PROMISES)
    assert [check.name for check in found if not check.ok] == ["S26 api_create_20_p99"]


def test_the_median_counts() -> None:
    figure = next(each for each in FIGURES if each.name == "exec_roundtrip")
    measured = (*results(exec_roundtrip=None).rows, Row(figure, (0.01, 0.02, 9.0)))
    found = spec(Results({}, measured))
    check = next(each for each in found if each.name == "S9 exec_roundtrip")
    assert check.ok


def test_what_was_not_measured_is_not_kept() -> None:
    check = next(each for each in spec(results(copy_64mib=None)) if each.name.startswith("S2 "))
    assert not check.ok
    assert check.seen == "copy_64mib was not measured"


def test_bounds_for_kvm_stand_beside_and_count_under_kvm() -> None:
    under_emulation = spec(results())
    assert all("KVM, not yet run" in check.expected for check in under_emulation)
    assert "S5" in broken(results("kvm", thaw_ready_64mib=0.3))


def test_all_that_is_needed_is_measured() -> None:
    assert NEEDED - {figure.name for figure in FIGURES} == set()
    of_service = {figure.name for figure in SERVICE_FIGURES}
    assert needed(SERVICE_PROMISES) - of_service == set()
    of_network = {figure.name for figure in NETWORK_FIGURES}
    assert needed(NETWORK_PROMISES) - of_network == set()


def test_bounds_are_shown_as_they_count() -> None:
    assert Bound(0.03, 1.5, "copy").text("s") == "1.5 x copy + 30.0 ms"
    assert Bound(48).text("MiB") == "48.0 MiB"
    assert Bound(factor=0.05, of="cold_boot").text("s") == "0.05 x cold_boot"


# The page


def speed_lines() -> dict[str, list[str]]:
    """The table of promises about speed: the cells of each line by its number."""
    lines = re.findall(r"^\| (S\d+) \| (.*) \|$", SPECIFICATION, re.MULTILINE)
    return {number: [cell.strip() for cell in rest.split("|")] for number, rest in lines}


def test_the_page_has_the_bounds_that_are_checked() -> None:
    units = {figure.name: figure.unit for figure in FIGURES + SERVICE_FIGURES + NETWORK_FIGURES}
    assert speed_lines() == {
        promise.number: [
            f"`{promise.name}`",
            promise.emulation.text(units[promise.name]),
            promise.kvm.text(units[promise.name]),
        ]
        for promise in PROMISES + SERVICE_PROMISES + NETWORK_PROMISES
    }


def test_promises_are_numbered_once() -> None:
    numbers = re.findall(r"^\| ([A-Z]\d+) \|", SPECIFICATION, re.MULTILINE)
    assert numbers
    assert len(numbers) == len(set(numbers))


def test_every_test_and_experiment_that_the_page_names_is_there() -> None:
    missing = missing_tests(SPECIFICATION)
    experiments = set(re.findall(r"`proof ([\w-]+)`", SPECIFICATION))
    assert experiments
    assert missing + sorted(experiments - {each.name for each in EXPERIMENTS}) == []


def test_every_promise_names_what_enforces_it() -> None:
    lines = re.findall(r"^\| [CHIJ]\d+ \| .* \|$", SPECIFICATION, re.MULTILINE)
    assert lines
    bare = [
        line
        for line in lines
        if not re.search(r"`(tests/|proof |torpor |\./dev )", line.split("|")[-2])
        and "not enforced yet" not in line
    ]
    assert bare == []
