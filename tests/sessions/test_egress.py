"""What sessions may reach: kept with them whatever becomes of them, and changed at any time."""

import asyncio
import json
from typing import Any

import pytest

from tests.sessions.conftest import ANN, Service
from torpor.sessions import ConflictError, FailedError, InvalidError, NewSession
from torpor.sessions.egress_policy import normal, shown, with_rules
from torpor.sessions.hosts import Running, Wall
from torpor.sessions.model import Changes
from torpor.store.records import Session
from torpor.vm import HostError, VmError

ONE = {"allow": [{"host": "a.test"}]}


def wall(service: Service, session: Session) -> Wall:
    """Return what the machine of a session is kept to."""
    return service.host.walls[service.machine(session)]


@pytest.mark.parametrize("egress", [ONE, "none", ["a.test", "b.test:22"], {"deny": ["x.test"]}])
async def test_a_policy_is_kept_over_pause_resume_rollback_and_restart(
    service: Service, egress: Any
) -> None:
    session = await service.ready(egress=egress)
    kept = session.egress
    assert kept == normal(egress)
    assert wall(service, session).egress == kept
    checkpoint = await service.sessions.checkpoint(session.id, ANN)
    await service.sessions.pause(session.id, ANN)
    assert (await service.get(session)).egress == kept
    resumed = await service.sessions.resume(session.id, ANN)
    assert wall(service, resumed).egress == kept
    rolled = await service.sessions.rollback(session.id, ANN, checkpoint.checkpoint or "")
    assert wall(service, rolled.session).egress == kept
    await service.again()
    again = await service.get(session)
    assert wall(service, again).egress == kept
    assert again.egress == kept


async def test_nothing_said_is_what_unrestricted_says(service: Service) -> None:
    for number, egress in enumerate((None, "unrestricted", {"unrestricted": True})):
        session = await service.ready(f"s{number}", egress=egress)
        assert session.egress is None
        assert wall(service, session).egress is None
        assert shown(session.egress) == "unrestricted"


async def test_forks_have_the_policy_and_the_names_of_now_also_from_an_older_checkpoint(
    service: Service,
) -> None:
    parent = await service.ready(egress=ONE)
    checkpoint = await service.sessions.checkpoint(parent.id, ANN)
    await service.sessions.egress.change(parent.id, ANN, "none")
    service.host.reach(service.machine(parent), "a.test")
    for source in (None, checkpoint.checkpoint):
        forked = await service.sessions.fork(parent.id, ANN, checkpoint=source)
        (child,) = forked.children
        assert isinstance(child, Session)
        ready = await service.sessions.ready(child.id, 10)
        assert wall(service, ready) == Wall("none", '["a.test"]')


async def test_names_that_the_wall_has_given_outlive_a_pause_and_a_killed_server(
    service: Service,
) -> None:
    session = await service.ready()
    service.host.reach(service.machine(session), "a.test", 1, 1)
    await service.sessions.pause(session.id, ANN)
    resumed = await service.sessions.resume(session.id, ANN)
    assert json.loads(wall(service, resumed).names or "") == ["a.test"]
    service.host.reach(service.machine(resumed), "b.test", 1, 1)
    await service.sessions.egress_log.flush()
    assert (await service.get(session)).names == '["a.test", "b.test"]'
    await service.again()
    assert json.loads(wall(service, resumed).names or "") == ["a.test", "b.test"]


async def test_a_change_holds_at_once_and_is_told(service: Service) -> None:
    session = await service.ready()
    changed = await service.sessions.egress.change(session.id, ANN, ["a.test"])
    assert (changed.session.egress, changed.cut) == (ONE, 1)
    assert wall(service, session).egress == ONE
    updated = await service.sessions.update(session.id, ANN, Changes(egress="none", name="x"))
    assert (updated.egress, updated.name) == ("none", "x")
    assert wall(service, session).egress == "none"
    opened = await service.sessions.update(session.id, ANN, Changes(egress="unrestricted"))
    assert opened.egress is None
    events = await service.sessions.events.after(None, session.id)
    told = [event.data["changes"] for event in events if event.type == "session.updated"]
    assert told == [{"egress": ONE}, {"name": "x", "egress": "none"}, {"egress": None}]


async def test_a_session_that_sleeps_is_changed_without_being_woken(service: Service) -> None:
    session = await service.ready()
    await service.sessions.pause(session.id, ANN)
    changed = await service.sessions.egress.change(session.id, ANN, "none")
    assert (changed.cut, changed.session.machine) == (0, None)
    resumed = await service.sessions.resume(session.id, ANN)
    assert wall(service, resumed).egress == "none"


async def test_a_change_waits_for_no_machine_and_holds_for_one_that_is_being_started(
    service: Service,
) -> None:
    session = await service.ready()
    await service.sessions.pause(session.id, ANN)
    start = service.host.start

    async def start_meanwhile(*args: Any) -> Running:
        running = await start(*args)  # with what was said before
        changed = await service.sessions.egress.change(session.id, ANN, "none")
        assert changed.session.machine is None
        assert service.host.walls[running.id].egress is None
        return running

    service.host.start = start_meanwhile  # type: ignore[method-assign]
    assert wall(service, await service.sessions.resume(session.id, ANN)).egress == "none"


async def test_changes_at_the_same_time_leave_the_machine_with_the_last_that_was_written(
    service: Service,
) -> None:
    session = await service.ready()
    set_wall, waits = service.host.set_wall, [0.2, 0.1, 0.0]

    async def set_wall_after_a_while(machine: str, wall: Wall) -> int:
        await asyncio.sleep(waits.pop(0))  # who comes first is told last
        return await set_wall(machine, wall)

    service.host.set_wall = set_wall_after_a_while  # type: ignore[method-assign]
    hosts = [f"h{number}.test" for number in range(3)]
    await asyncio.gather(
        *(service.sessions.egress.change(session.id, ANN, [host]) for host in hosts)
    )
    assert wall(service, session).egress == (await service.get(session)).egress


async def test_rules_are_added_and_removed_however_they_are_written(service: Service) -> None:
    session = await service.ready(egress={"allow": ["a.test"], "presets": ["github"]})

    async def change(**rules: list[Any]) -> Any:
        add, remove = rules.get("add", []), rules.get("remove", [])
        return (await service.sessions.egress.change_rules(session.id, ANN, add, remove)).session

    added = await change(add=["B.test.", {"host": "c.test", "inspect": True}, "a.test"])
    assert added.egress["allow"] == [
        {"host": "a.test"}, {"host": "b.test"}, {"host": "c.test", "inspect": True},
    ]  # fmt: skip
    fewer = await change(remove=["A.TEST", "github", "c.test"])
    assert fewer.egress == {"allow": [{"host": "b.test"}]}
    assert wall(service, session).egress == fewer.egress
    with pytest.raises(InvalidError, match=r"no rule 'x\.test'"):
        await change(remove=["x.test"])
    with pytest.raises(InvalidError, match="path"):
        await change(add=["a.test/x"])
    assert (await service.get(session)).egress == fewer.egress
    assert (await change(remove=["b.test"])).egress == "none"  # and not everything
    assert (await change(add=["d.test"])).egress == {"allow": [{"host": "d.test"}]}


@pytest.mark.parametrize("egress", [None, {"deny": ["x.test"]}])
def test_one_rule_more_does_not_close_what_is_open(egress: Any) -> None:
    with pytest.raises(InvalidError, match="adds nothing"):
        with_rules(egress, ["a.test"], [])
    with pytest.raises(InvalidError, match=r"no rule 'a\.test'"):
        with_rules(egress, [], ["a.test"])


def test_what_is_not_public_is_opened_and_closed_again_beside_all_that_is() -> None:
    opened = with_rules(None, ["10.1.2.3:5432"], [])
    assert opened == normal({"unrestricted": True, "allow": ["10.1.2.3:5432"]})
    assert with_rules(opened, [], ["10.1.2.3:5432"]) is None


def test_the_rest_of_a_policy_stays_when_its_rules_change() -> None:
    before = normal({"allow": ["a.test"], "deny": ["x.test"], "hold": 5, "ech": "allow"})
    assert isinstance(before, dict)
    after = with_rules(before, ["b.test"], ["a.test"])
    assert after == {**before, "allow": [{"host": "b.test"}]}


@pytest.mark.parametrize(
    "egress", ["open", [], {}, ["a.test/x"], {"allow": ["*"]}, {"hosts": ["a.test"]}, 7]
)
async def test_what_would_not_be_honoured_is_refused_and_nothing_is_made(
    service: Service, egress: Any
) -> None:
    with pytest.raises(InvalidError):
        await service.sessions.create(NewSession(egress=egress), ANN)
    session = await service.ready(egress="none")
    for refused in (
        service.sessions.egress.change(session.id, ANN, egress),
        service.sessions.update(session.id, ANN, Changes(egress=egress)),
    ):
        with pytest.raises(InvalidError):
            await refused
    assert (await service.get(session)).egress == wall(service, session).egress == "none"


async def test_a_host_without_a_wall_runs_what_is_open_and_says_so_and_nothing_else(
    service: Service,
) -> None:
    service.host.no_wall = "nftables is missing"
    for egress in (ONE, "none"):
        with pytest.raises(ConflictError, match="nftables is missing") as refused:
            await service.sessions.create(NewSession(egress=egress), ANN)
        assert refused.value.code == "no_wall"
    session = await service.ready()
    notes = service.sessions.egress.notes(session)
    assert notes == ("Its machine has no network: nftables is missing.",)
    with pytest.raises(ConflictError, match="nftables is missing"):
        await service.sessions.egress.change(session.id, ANN, "none")
    with pytest.raises(ConflictError, match="nftables is missing"):
        await service.sessions.update(session.id, ANN, Changes(egress=ONE))
    assert (await service.get(session)).egress is None


async def test_a_session_is_not_resumed_where_no_machine_can_be_kept_to_its_policy(
    service: Service,
) -> None:
    session = await service.ready(egress=ONE)
    await service.sessions.pause(session.id, ANN)
    service.host.no_wall = "the kernel has changed"
    with pytest.raises(FailedError, match="the kernel has changed"):
        await service.sessions.resume(session.id, ANN)
    assert (await service.get(session)).egress == ONE
    assert service.host.machines() == []
    (note,) = service.sessions.egress.notes(session)
    assert "cannot keep to it" in note


async def test_a_machine_that_cannot_be_told_is_not_passed_over(service: Service) -> None:
    session = await service.ready()
    service.host.refuse["set_wall"] = VmError("It does not answer.")
    with pytest.raises(FailedError, match="could not be told its policy") as failed:
        await service.sessions.egress.change(session.id, ANN, "none")
    assert "holds when the session is started" in failed.value.state
    assert (await service.get(session)).egress == "none"


async def test_a_machine_that_has_just_ended_needs_no_policy(service: Service) -> None:
    session = await service.ready()
    (service.root / "world/machines" / service.machine(session)).unlink()
    changed = await service.sessions.egress.change(session.id, ANN, "none")
    assert (changed.session.egress, changed.cut) == ("none", 0)


async def test_one_wall_that_cannot_be_built_after_a_restart_keeps_no_server_from_starting(
    service: Service,
) -> None:
    broken, well = await service.ready("broken", egress=ONE), await service.ready("well")
    service.host.refuse["set_wall"] = HostError("No link.")
    host = service.host
    await service.close()
    host.walls.clear()
    await service.open()
    assert len(host.walls) == 1  # of the other, nothing comes out
    assert {service.machine(each) for each in (broken, well)} > host.walls.keys()
    assert await service.types(broken)


async def test_what_is_destroyed_has_no_policy_to_change(service: Service) -> None:
    session = await service.ready()
    await service.sessions.destroy(session.id, ANN)
    with pytest.raises(ConflictError, match="destroyed"):
        await service.sessions.egress.change(session.id, ANN, "none")


async def test_a_session_has_the_policy_of_its_configuration(service: Service) -> None:
    for name, egress in (
        ("known", ONE),
        ("own", "none"),
        ("inspected", [{"host": "a.test", "inspect": True}]),
    ):
        config = await service.sessions.configs.create(name, NewSession(egress=egress), ANN)
        spec = config.manifest["spec"]
        place = spec["sandbox"] if name == "known" else spec["x-torpor"]
        assert place["egress"] == normal(egress)
        new = await service.sessions.configs.new_session(config.id, f"of-{name}")
        made = await service.sessions.create(new, ANN)
        ready = await service.sessions.ready(made.id, 10)
        assert wall(service, ready).egress == normal(egress)
    plain = await service.sessions.configs.create("plain", NewSession(), ANN)
    same = await service.sessions.configs.create("open", NewSession(egress="unrestricted"), ANN)
    assert plain.content_hash == same.content_hash


async def test_the_hosts_of_an_images_package_tools_are_known_to_its_walls(
    service: Service,
) -> None:
    start = service.host.image_start

    async def with_packages(*args: Any) -> Any:
        found = await start(*args)
        found.defaults["packages"] = ["index.test"]
        return found

    service.host.image_start = with_packages  # type: ignore[method-assign]
    session = await service.ready(egress={"presets": ["packages"]})
    assert wall(service, session).packages == ("index.test",)
    await service.sessions.pause(session.id, ANN)
    assert wall(service, await service.sessions.resume(session.id, ANN)).packages == ("index.test",)
