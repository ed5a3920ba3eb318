"""This computer as a host, where no machine is needed to see it."""

from types import SimpleNamespace
from typing import Any

from torpor.sessions import LocalHost
from torpor.sessions.hosts import SESSION, End
from torpor.vm.manifest import Entry
from torpor.vm.recovery import Recovered
from torpor.vm.rescue import ENDED, MACHINE


def local(snapshots: dict[str, dict[str, str]], recovered: list[Recovered]) -> LocalHost:
    """A host with these snapshots, by id, with their labels, and no machine."""

    def entry(snapshot: str) -> Entry:
        return Entry(snapshot, None, snapshots[snapshot], 1, memory=False)

    store = SimpleNamespace(ids=lambda: list(snapshots), entry=entry, durable=lambda _: True)
    host: Any = SimpleNamespace(machines={}, recovered=recovered, store=store, links=None)
    return LocalHost(SimpleNamespace(), host)  # type: ignore[arg-type]


def test_a_disk_that_an_earlier_program_kept_and_did_not_tell_of_is_told_of() -> None:
    labels = {SESSION: "s", MACHINE: "m-1", ENDED: "power-off"}
    host = local({"kept": labels, "other": {SESSION: "s"}}, [])
    (end,) = host.inventory().ended.values()
    assert (end.machine, end.cause, end.files) == ("m-1", "power-off", "kept")


def test_what_was_found_now_is_told_as_it_was_found() -> None:
    labels = {SESSION: "s", MACHINE: "m-1", ENDED: "power-off"}
    host = local(
        {"kept": labels},
        [
            Recovered("m-1", "kept", "its process is gone: it was switched off", "kept"),
            Recovered("m-2", "adopted", "its process runs"),
        ],
    )
    why = "its process is gone: it was switched off"
    assert host.inventory().ended == {"m-1": End("m-1", "power-off", why, "kept")}
