"""What is said of a snapshot before it is thawed after an upgrade."""

from dataclasses import replace
from pathlib import Path

import pytest

from torpor.vm.accelerator import Accelerator
from torpor.vm.compatibility import REFUSED, TESTED, check
from torpor.vm.errors import SnapshotError
from torpor.vm.manifest import Manifest
from torpor.vm.thaw import check_thaws_here

ROOT = Path(__file__).resolve().parent.parent.parent


def here(name: str = "tcg", version: tuple[int, int, int] = (7, 2, 9), cpu: str = "qemu-max"):  # type: ignore[no-untyped-def]
    return Accelerator(name, "", version, cpu)  # type: ignore[arg-type]


def test_a_stable_release_of_the_same_version_is_the_same(some_manifest: Manifest) -> None:
    assert check(some_manifest, here()).state == "same"
    check_thaws_here(some_manifest, here())


def test_a_tested_pair_thaws_in_its_direction_only(some_manifest: Manifest) -> None:
    newer = here(version=(10, 0, 8))
    assert check(some_manifest, newer).state == "tested"
    check_thaws_here(some_manifest, newer)
    made = replace(some_manifest, qemu_version=(10, 0, 8))
    verdict = check(made, here())
    assert verdict.state == "files only"
    assert "made by QEMU 10.0; here is 7.2" in verdict.why
    assert "SHA-NI" in verdict.why
    assert "files only" in verdict.todo
    with pytest.raises(SnapshotError, match=r"SHA-NI.*Boot its disk"):
        check_thaws_here(made, here())


@pytest.mark.parametrize("version", [(7, 3, 0), (8, 2, 0), (10, 1, 0), (11, 0, 0)])
def test_a_pair_that_nobody_has_tested_is_refused(
    some_manifest: Manifest, version: tuple[int, int, int]
) -> None:
    verdict = check(some_manifest, here(version=version))
    assert not verdict.thaws
    assert "have not been tested together" in verdict.why


def test_a_pair_was_tested_under_emulation_only(some_manifest: Manifest) -> None:
    made = replace(some_manifest, accelerator="kvm", cpu="A CPU")
    assert not check(made, here("kvm", (10, 0, 0), "A CPU")).thaws
    assert check(made, here("kvm", (7, 2, 0), "A CPU")).state == "same"


@pytest.mark.parametrize("other", [here("kvm", cpu="A CPU"), here(cpu="another")])
def test_another_processor_is_refused(some_manifest: Manifest, other: Accelerator) -> None:
    verdict = check(some_manifest, other)
    assert not verdict.thaws
    assert other.cpu in verdict.why


def test_a_snapshot_without_memory_is_booted(some_manifest: Manifest) -> None:
    verdict = check(replace(some_manifest, memory=None), here())
    assert (verdict.state, verdict.todo) == ("files only", "Boot its disk.")


def test_every_pair_names_its_test_and_the_page_lists_them() -> None:
    page = (ROOT / "docs/upgrades.md").read_text()
    assert TESTED
    for (made, thawed), test in TESTED.items():
        assert (ROOT / test).exists()
        assert f"| {made[0]}.{made[1]} | {thawed[0]}.{thawed[1]} | tested |" in page
    for made, thawed in REFUSED:
        assert f"| {made[0]}.{made[1]} | {thawed[0]}.{thawed[1]} | files only |" in page
