"""Which snapshots a policy removes, and that what it says of their size is true."""

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.vm.real_snapshots import make_snapshot
from torpor.vm.manifest import Manifest
from torpor.vm.retention import Plan, Policy, Standing, held_elsewhere, plan, standing
from torpor.vm.sizes import unshared_bytes
from torpor.vm.store import Store

NOW = datetime(2026, 3, 31, tzinfo=UTC)


def one(name: str, day: int, parent: str | None = None, *, kept: bool = False, **parts: int):  # type: ignore[no-untyped-def]
    inodes = {(1, int(part[1:])): size for part, size in parts.items()}
    created = NOW - timedelta(days=day)
    return Standing(name, created, parent, kept, inodes or {(2, hash(name)): 10})


def gone(made: Plan) -> list[str]:
    return [removal.id for removal in made.removals]


LINE = [one("a", 9), one("b", 8, "a"), one("c", 7, "b"), one("d", 6, "c"), one("e", 5, "d")]
FORKED = [*LINE, one("x", 4, "b"), one("y", 3, "x")]


def test_a_policy_that_says_nothing_removes_nothing() -> None:
    assert plan(FORKED, Policy(), NOW).removals == ()


def test_the_newest_of_a_line_are_kept_by_count() -> None:
    assert gone(plan(LINE, Policy(keep=2), NOW)) == ["a", "b", "c"]
    assert gone(plan(LINE, Policy(keep=9), NOW)) == []
    assert "newest 2 of its line" in plan(LINE, Policy(keep=2), NOW).removals[0].why


def test_each_fork_is_a_line_of_its_own() -> None:
    assert gone(plan(FORKED, Policy(keep=2), NOW)) == ["a", "b", "c"]
    assert gone(plan(FORKED, Policy(keep=3), NOW)) == ["a"]


def test_the_newest_of_a_line_goes_only_when_asked() -> None:
    young = Policy(age=timedelta(days=1))
    assert gone(plan(FORKED, young, NOW)) == ["a", "b", "c", "d", "x"]
    asked = replace(young, newest_too=True)
    assert gone(plan(FORKED, asked, NOW)) == ["a", "b", "c", "d", "e", "x", "y"]
    assert gone(plan(FORKED, Policy(keep=0), NOW)) == ["a", "b", "c", "d", "x"]


def test_what_is_to_be_kept_stays_whatever_the_policy() -> None:
    marked = [replace(each, kept=each.id in "ac") for each in LINE]
    policy = Policy(0, timedelta(0), 0, newest_too=True)
    assert gone(plan(marked, policy, NOW)) == ["b", "d", "e"]


def test_age_is_of_the_snapshot() -> None:
    made = plan(LINE, Policy(age=timedelta(days=7)), NOW)
    assert gone(made) == ["a", "b"], "seven days old is not older than seven days"
    assert "9 days ago" in made.removals[0].why


def test_shared_parts_are_counted_once_and_freed_with_the_last() -> None:
    shared = [
        one("a", 3, p1=100, p2=5),
        one("b", 2, "a", p1=100, p3=5),
        one("c", 1, "b", p4=5),
    ]
    made = plan(shared, Policy(keep=1), NOW)
    assert (made.before, made.after) == (115, 5)
    assert [removal.frees for removal in made.removals] == [5, 105]


def test_the_oldest_make_room_and_no_more_than_needed() -> None:
    sized = [one("a", 5, p1=50), one("b", 4, "a", p2=1), one("c", 3, "b", p3=60), one("d", 2, "c")]
    assert gone(plan(sized, Policy(most_bytes=1000), NOW)) == []
    assert gone(plan(sized, Policy(most_bytes=75), NOW)) == ["a"]
    made = plan(sized, Policy(most_bytes=12), NOW)
    assert gone(made) == ["a", "c"], "b would go in vain"
    assert (made.after, made.exceeds) == (11, 0)


def test_what_frees_nothing_does_not_go_for_size() -> None:
    sized = [one("a", 5, p1=50), one("b", 4, "a", p1=50, p2=60), one("c", 3, "b", p1=50)]
    made = plan(sized, Policy(most_bytes=60), NOW)
    assert gone(made) == ["b"], "what a has, c needs as well"
    assert made.after == 50


def test_what_must_stay_may_be_more_than_allowed() -> None:
    made = plan([one("a", 2, p1=50), one("b", 1, "a", p1=50, p2=7)], Policy(most_bytes=10), NOW)
    assert (gone(made), made.exceeds) == ([], 47)


def test_what_others_hold_is_not_freed() -> None:
    lone = [one("a", 2, p1=50, p2=3), one("b", 1, "a", p3=1)]
    made = plan(lone, Policy(keep=1), NOW, held=[(1, 1)])
    assert [(removal.id, removal.frees) for removal in made.removals] == [("a", 3)]
    assert made.after == 51


@pytest.mark.parametrize("seed", range(30))
def test_the_figures_add_up_whatever_is_shared(seed: int) -> None:
    chance = random.Random(seed)
    many = []
    for number in range(25):
        parent = chance.choice([None, *[each.id for each in many]])
        parts = {f"p{chance.randrange(30)}": 1 for _ in range(chance.randrange(1, 5))}
        sized = {part: int(part[1:]) * 7 + 1 for part in parts}
        many.append(one(f"s{number}", 100 - number, parent, kept=chance.random() < 0.1, **sized))
    held = [(1, chance.randrange(30)) for _ in range(3)]
    policy = Policy(
        keep=chance.choice([None, 1, 3]),
        age=chance.choice([None, timedelta(days=80)]),
        most_bytes=chance.choice([None, 0, 900, 2000]),
        newest_too=chance.random() < 0.5,
    )
    made = plan(many, policy, NOW, held)
    removed = set(gone(made))
    assert len(removed) == len(made.removals)
    left = {p: s for each in many if each.id not in removed for p, s in each.parts.items()}
    everything = {p: s for each in many for p, s in each.parts.items()}
    left |= {part: everything[part] for part in held if part in everything}
    assert made.before == sum(everything.values())
    assert made.after == sum(left.values())
    assert made.before - made.after == sum(removal.frees for removal in made.removals)
    assert not removed & {each.id for each in many if each.kept}
    if policy.most_bytes is not None:
        assert made.exceeds == max(0, made.after - policy.most_bytes)


def test_what_a_plan_says_is_what_becomes_free(tmp_path: Path, some_manifest: Manifest) -> None:
    golden = Store(tmp_path / "golden")
    make_snapshot(golden, some_manifest, "golden-x", layers=(), delta=False, base="shared")
    store = Store(tmp_path / "home", golden)
    store.keep(["bases/shared.mem", "layers/root.raw", "layers/tools.raw"])
    parent = None
    for number in range(4):
        template = replace(some_manifest, created_at=f"2026-03-0{number + 1}T00:00:00.000+00:00")
        layers = tuple(f"l{each}" for each in range(number + 1))
        base = "shared" if number < 3 else "own"
        make_snapshot(
            store, template, f"s{number}", layers=layers, base=base, parent=parent,
            delta=number < 3,
        )  # fmt: skip
        parent = f"s{number}"
    used = ["layers/l0.qcow2"]
    held = held_elsewhere(store, used)
    made = plan(list(standing(store)), Policy(keep=0, newest_too=True), NOW, held)
    assert gone(made) == ["s0", "s1", "s2", "s3"]
    kept = [file for file in store.root.rglob("*") if file.is_file()]
    before = unshared_bytes(kept)
    for removal in made.removals:
        store.remove(removal.id)
        store.collect([*used, *golden_names(store)])
        after = unshared_bytes(store.root.rglob("*"))
        assert before - after == removal.frees
        before = after


def golden_names(store: Store) -> list[str]:
    """What the store took over of the cache, which frees nothing when it goes."""
    return [name for name in ("bases/shared.mem", "layers/root.raw", "layers/tools.raw")
            if (store.root / name).exists()]  # fmt: skip
