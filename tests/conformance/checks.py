"""What is checked of calls, in more than one place, and the words of what differs."""

from contextlib import AbstractAsyncContextManager
from typing import Any

from tests.conformance.judging import Outcome
from tests.conformance.world import World

FAST = {"poll_interval": 0.02}
"""How often a transfer, or a session, is looked at."""

AGENT = "agent: codex\n"
RULES = "permissions:\n  rules:\n    - {tool: bash, action: deny}\n"

NO_AGENT = "a manifest with an agent is refused (400): this server runs no agents"
NO_BALANCE = "`resume_on_topoff=True` is refused (400): nothing is paused for want of a balance"
NO_RULES = "a rule is `unsupported`, and not `ok` if it is strict: no agent runs that it could bind"
NO_INSIGHTS = "`insights` that are on are refused (400): nothing collects them"
NO_BASES = "`base_template` is `sandbox` or `coding-base`, others are refused (400): no agents"
TRIPS = (
    "with coroutines it is done, and then the client raises `StreamConsumedError`: over aiohttp it"
    " reads the answer, which has no body, twice"
)
FEWER = "not all or none: of children, those that there is room for, and `errors` for the others"


def cramped(world: World) -> AbstractAsyncContextManager[None]:
    """Meanwhile there is room for a machine, and not for three."""
    return world.server.cramped()


def some_of_three(answer: Any) -> bool:
    made, failed = len(answer["sessions"]), len(answer["errors"])
    return made + failed == 3 and made > 0 and failed > 0


def status(wanted: str) -> Any:
    """Hold when the session of a call has a status."""

    async def then(world: World, outcome: Outcome) -> bool:
        path = f"/sessions/{outcome.arguments[0]}"
        found: str = (await world.ask("GET", path))["session"]["status"]
        return found == f"SESSION_STATUS_{wanted}"

    return then


async def destroyed(world: World, outcome: Outcome) -> bool:
    return outcome.arguments[0] not in await _listed(world, "sessions", "session_id")


async def deleted(world: World, outcome: Outcome) -> bool:
    return outcome.arguments[0] not in await _listed(world, "configs", "id")


async def removed(world: World, outcome: Outcome) -> bool:
    return outcome.arguments[0] not in await _listed(world, "templates", "template_id")


async def _listed(world: World, kind: str, key: str) -> list[str]:
    found = await world.ask("GET", f"/{kind}", params={"page_size": 200})
    return [each[key] for each in found[kind]]


def ran(answer: Any) -> bool:
    return (answer["exit_code"], answer["stdout"], answer["stderr"]) == (0, "a b\n", "")


def in_order(answer: Any) -> bool:
    types = [each["type"] for each in answer]
    return types[:1] == ["session.created"] and "session.ready" in types


def one_before(answer: Any) -> bool:
    return len(answer.events) == 1 and answer.has_more is True


def tunnel(answer: Any) -> bool:
    return str(answer).startswith("wss://") and str(answer).endswith("/port-forward/8000")
