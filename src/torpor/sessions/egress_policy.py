"""What was written of the egress of sessions: checked, in one form, and changed by rules."""

from collections.abc import Sequence
from typing import Any

from torpor.network.errors import PolicyError
from torpor.network.policy import Policy, parse
from torpor.sessions.errors import ConflictError, InvalidError
from torpor.sessions.hosts import MachineHost, Wall
from torpor.store.records import Session
from torpor.vm import HostError

Plain = str | dict[str, Any] | None
"""A policy as it is kept: in its normal form; None for the one of a session of which nothing was
said."""
OPEN, NOTHING = "unrestricted", "none"
"""How the policies are written that let everything public through, and nothing."""
PACKAGES = "packages"
"""What an image says of the hosts that its package tools use, among its defaults."""
MOST_CHANGED = 1000
"""Rules that may be added, and removed, at a time."""


def policy_of(egress: object) -> Policy:
    """Understand what was written, or kept, of a session's egress. Raises :exc:`InvalidError`."""
    if egress is None:
        return Policy()
    try:
        return parse(egress)
    except PolicyError as error:
        raise InvalidError(error.happened, state=error.state, todo=error.todo) from error


def normal(egress: object) -> Plain:
    """Return what is kept of what was written. Raises :exc:`InvalidError`."""
    if egress is None:
        return None
    plain = policy_of(egress).plain()
    return None if plain == OPEN else plain


def shown(egress: Plain) -> str | dict[str, Any]:
    """Return what is kept in the way in which it is written."""
    return OPEN if egress is None else egress


def with_rules(egress: Plain, add: Sequence[object], remove: Sequence[str]) -> Plain:
    """Return a policy with rules more, and fewer. Rules that are there already stay as they are;
    without the last one it lets nothing through. Raises :exc:`InvalidError`."""
    if len(add) > MOST_CHANGED or len(remove) > MOST_CHANGED:
        raise InvalidError(
            f"At most {MOST_CHANGED} rules are added or removed at a time.",
            state="Nothing was changed.",
            todo="Write the whole policy instead.",
        )
    said = dict(egress) if isinstance(egress, dict) else {}
    if _is_open(egress):  # a rule for what is public would close the rest, and so is refused
        said |= {"unrestricted": True}
    allow, presets = list(said.get("allow", ())), list(said.get("presets", ()))
    for rule in remove:
        if rule in presets:
            presets.remove(rule)
        else:
            allow.remove(_written_as(rule, allow, presets))
    said |= {"allow": [*allow, *add], "presets": presets}
    if not said["allow"] and not presets and "unrestricted" not in said:
        return NOTHING
    return normal({key: value for key, value in said.items() if value})


def _is_open(egress: Plain) -> bool:
    return policy_of(egress).mode == "open"


def _written_as(rule: str, allow: Sequence[dict[str, Any]], presets: Sequence[str]) -> Any:
    """Return the member of ``allow`` that a rule is, however it was written."""
    plain = policy_of([rule]).plain()
    assert isinstance(plain, dict)
    host = plain["allow"][0]["host"]
    for each in allow:
        if each["host"] == host:
            return each
    names = [*(each["host"] for each in allow), *presets]
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    raise InvalidError(
        f"The session has no rule {rule!r} that could be removed.",
        state="Nothing was changed.",
        todo=f"It has {', '.join(names[:10]) or 'none'}{more}.",
    )


def wall_of(session: Session) -> Wall:
    """Return what a machine of a session may reach."""
    packages: Any = session.defaults.get(PACKAGES, ())
    return Wall(session.egress, session.names, tuple(packages))


def check_wall(host: MachineHost, egress: Plain) -> str | None:
    """Return what is to be known of a machine that is to be kept to a policy, None if nothing.
    Raises :exc:`ConflictError` if it cannot be kept to it."""
    try:
        return host.check_wall(egress)
    except HostError as error:
        raise ConflictError(
            error.happened, state=error.state, todo=error.todo, code="no_wall"
        ) from error
