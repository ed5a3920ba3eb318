"""The run of all cases, of which the page is made."""

from collections.abc import Mapping

from tests.conformance.cases import CASES, NOT_YET
from tests.conformance.judging import Verdict, judge
from tests.conformance.page import Verdicts
from tests.conformance.surface import Method, surface
from tests.conformance.ways import Awaiting, Waiting
from tests.conformance.world import World

NEVER_REFUSED = {
    "agents.attach", "events.close", "download.read", "download.save", "download.close",
}  # fmt: skip
"""What asks the server for nothing, or for what it has said is there."""


async def run(world: World) -> tuple[Mapping[str, Method], Verdicts]:
    """Make the calls of all cases in both ways; return the methods and what came of it. A call that
    is otherwise than said, a method without a case and a case without a method fail here."""
    methods = surface(*world.clients["operator"])
    assert methods.keys() - CASES.keys() == set(), "the client has methods without a case"
    assert CASES.keys() - methods.keys() == set(), "there are cases of methods that are not there"
    good_alone = {name for name, case in CASES.items() if case.bad is None and case.no is None}
    assert good_alone == NEVER_REFUSED
    assert NOT_YET.keys() & methods.keys() == set(), "the client has these by now"
    ways = Waiting(world), Awaiting(world)
    verdicts: dict[str, list[Verdict | None]] = {}
    for name, case in {**CASES, **NOT_YET}.items():
        method = methods.get(name, Method(name, waits=True, awaits=True))
        verdicts[name] = [
            await judge(world, way, case) if way.has(method) else None for way in ways
        ]
        await world.tidy()
    faults = [
        f"{name}, {way}: {fault}"
        for name, found in verdicts.items()
        for way, verdict in zip(("sync", "async"), found, strict=True)
        if verdict is not None
        for fault in verdict.faults
    ]
    assert faults == [], "\n".join(faults)
    return methods, verdicts
