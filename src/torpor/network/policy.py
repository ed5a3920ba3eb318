"""The policy of a session: what was written of its egress, understood.

A policy is plain data before (YAML or JSON, under ``egress``) and after (:meth:`Policy.plain`,
which :func:`parse` reads back as the same). Said nothing at all is ``Policy()``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeVar

from torpor.network.cautions import cautions
from torpor.network.errors import PolicyError
from torpor.network.presets import PACKAGES, preset_names
from torpor.network.rules import Denial, Rule, read_denial, read_rule

Mode = Literal["open", "list", "none"]
"""Everything on the public internet; what is listed; nothing."""

WHERE: Final = "egress"
MOST_RULES: Final = 10_000
HOLD: Final = 600.0
LONGEST_HOLD: Final = 7 * 86_400
_MOST: Final = 1 << 50
_T = TypeVar("_T")


@dataclass(frozen=True)
class Limits:
    """What a machine may use of the wall. ``bytes_per_second`` and ``bytes`` count both directions;
    None is no limit."""

    connections: int = 1024
    connections_per_second: int = 200
    lookups_per_second: int = 200
    bytes_per_second: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Policy:
    """What a session may talk to. Made by :func:`parse`.

    ``ech`` says whether TLS may hide the name that it says (Encrypted Client Hello); None leaves it
    to :attr:`hidden_names`. ``hold`` is for how many seconds connections to the outside are held
    while the session is paused.
    """

    mode: Mode = "open"
    allow: tuple[Rule, ...] = ()
    presets: tuple[str, ...] = ()
    deny: tuple[Denial, ...] = ()
    ech: bool | None = None
    hold: float = HOLD
    limits: Limits = field(default_factory=Limits)

    @property
    def hidden_names(self) -> bool:
        """Whether a ClientHello that hides its name may pass: if nothing says so, where no name
        decides anything."""
        if self.ech is not None:
            return self.ech
        return self.mode == "open" and not any(denial.name for denial in self.deny)

    def plain(self) -> str | dict[str, Any]:
        """Return it as plain data, in its one normal form, without what is a default."""
        said: dict[str, Any] = {}
        if self.allow:
            said["allow"] = [
                {"host": rule.written, "inspect": True} if rule.inspect else {"host": rule.written}
                for rule in self.allow
            ]
        if self.presets:
            said["presets"] = list(self.presets)
        if self.deny:
            said["deny"] = [denial.written for denial in self.deny]
        if self.ech is not None:
            said["ech"] = "allow" if self.ech else "deny"
        if self.hold != HOLD:
            said["hold"] = int(self.hold)
        if limits := _changed(self.limits):
            said["limits"] = limits
        if self.mode == "none":
            return "none"
        if self.mode == "open":
            return {"unrestricted": True, **said} if said else "unrestricted"
        return said

    def cautions(self) -> tuple[str, ...]:
        """Return what a person should know of it before it is used, a sentence each."""
        return cautions(self.mode, self.allow, self.deny)


def parse(document: object) -> Policy:
    """Understand what was written of a session's egress. Raises :exc:`PolicyError` for whatever
    would not be honoured."""
    if document == "none":
        return Policy(mode="none")
    if document == "unrestricted":
        return Policy()
    if isinstance(document, list):
        document = {"allow": document}
    if not isinstance(document, Mapping):
        raise PolicyError(WHERE, _unreadable(document), todo=_WORDS)
    if not document:
        raise PolicyError(WHERE, "it says nothing", todo=_WORDS)
    return _mapping(document)


_WORDS = (
    "Leave egress out for the public internet, or write unrestricted, which is the same; none for"
    " nothing; or a list of hosts."
)
_REFUSED = {
    "vpcUuid": "there are no VPCs here: write the addresses, as 10.1.2.0/24:443, in allow",
    "subnetUuid": "there are no VPCs here: write the addresses, as 10.1.2.0/24:443, in allow",
    "hosts": "hosts that may be reached are listed in allow",
    "rules": "rules are listed in allow and deny",
    "inspect": "inspect is said for each host: allow: [{host: api.example.com, inspect: true}]",
    "preset": "presets are a list: presets: [packages]",
    "mode": "write unrestricted or none in place of the mapping, or a list in allow",
}


def _unreadable(document: object) -> str:
    if document is None:
        return "it is empty"
    if isinstance(document, str):
        return f"{document[:80]!r} is neither none nor unrestricted, nor a list"
    return f"{type(document).__name__} is not what a policy is written as"


def _mapping(document: Mapping[Any, Any]) -> Policy:
    for key in document:
        if key not in _READERS and key not in ("unrestricted", "allowIps"):
            why = _REFUSED.get(key) if isinstance(key, str) else None
            raise PolicyError(
                f"{WHERE}.{key}",
                why or "there is no such key",
                todo="" if why else f"There are {', '.join(sorted(_READERS))}.",
            )
    said = {key: reader(f"{WHERE}.{key}", document[key]) for key, reader in _READERS.items()
            if key in document}  # fmt: skip
    if "allowIps" in document:
        said["allow"] = _once(
            (*said.get("allow", ()), *_addresses(f"{WHERE}.allowIps", document["allowIps"]))
        )
    policy = Policy(mode="list" if said.get("allow") or said.get("presets") else "open", **said)
    if "unrestricted" not in document:
        return policy
    _check_unrestricted(document["unrestricted"], policy)
    return replace(policy, mode="open")


def _check_unrestricted(said: object, policy: Policy) -> None:
    where = f"{WHERE}.unrestricted"
    if said is not True:
        raise PolicyError(
            where,
            f"{said!r} is not true",
            todo="Leave it out where hosts are listed, or write none in place of the mapping.",
        )
    public = next((rule.written for rule in policy.allow if rule.opens is None), None)
    if public or policy.presets:
        raise PolicyError(
            where,
            f"with everything on the public internet allowed, {public or policy.presets[0]} adds"
            " nothing, so both cannot be meant",
            todo="Leave out one of them. Beside unrestricted, allow opens parts of networks that"
            " are not public, such as 10.1.2.0/24:5432; what is not to be reached is listed in"
            " deny.",
        )


# What the keys hold


def _allow(where: str, said: object) -> tuple[Rule, ...]:
    return _once(tuple(_rule(place, each) for place, each in _items(where, said)))


def _rule(where: str, said: object) -> Rule:
    if not isinstance(said, Mapping):
        return read_rule(where, said)
    for key in said:
        if key not in ("host", "inspect"):
            raise PolicyError(f"{where}.{key}", "there is no such key beside host and inspect")
    if "host" not in said:
        raise PolicyError(where, "it names no host", todo="Write {host: example.com}.")
    inspect = said.get("inspect", False)
    if not isinstance(inspect, bool):
        raise PolicyError(f"{where}.inspect", f"{inspect!r} is neither true nor false")
    return read_rule(f"{where}.host", said["host"], inspect=inspect)


def _addresses(where: str, said: object) -> tuple[Rule, ...]:
    """Read addresses without ports, as DigitalOcean's manifests have them: each is reached at the
    ports that a host is."""
    rules = []
    for place, each in _items(where, said):
        if not isinstance(each, str) or not re.fullmatch(r"[0-9.]+", each):
            raise PolicyError(
                place,
                f"{each!r} is no single address of IPv4",
                todo="Networks, names and ports are written in allow.",
            )
        rules += [read_rule(place, f"{each}:{port}") for port in (80, 443)]
    return tuple(rules)


def _deny(where: str, said: object) -> tuple[Denial, ...]:
    return _once(tuple(read_denial(place, each) for place, each in _items(where, said)))


def _presets(where: str, said: object) -> tuple[str, ...]:
    known = (PACKAGES, *preset_names())
    for place, each in _items(where, said):
        if each not in known:
            raise PolicyError(
                place, f"there is no preset {each!r}", todo=f"There are {', '.join(known)}."
            )
    return _once(tuple(each for _, each in _items(where, said)))


def _ech(where: str, said: object) -> bool:
    if said not in ("allow", "deny"):
        raise PolicyError(where, f"{said!r} is neither allow nor deny")
    return said == "allow"


_DURATION = re.compile(r"(?:([0-9]{1,4})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,7})s)?")


def _hold(where: str, said: object) -> float:
    if isinstance(said, str) and said and (found := _DURATION.fullmatch(said)):
        hours, minutes, seconds = (int(part or 0) for part in found.groups())
        said = hours * 3600 + minutes * 60 + seconds
    if not isinstance(said, int) or isinstance(said, bool) or not 0 <= said <= LONGEST_HOLD:
        raise PolicyError(
            where,
            f"{said!r} is no time from 0 to {LONGEST_HOLD} seconds",
            todo="Write seconds, or 10m; 0 closes connections when the session pauses.",
        )
    return float(said)


def _limits(where: str, said: object) -> Limits:
    names = [each.name for each in fields(Limits)]
    if not isinstance(said, Mapping) or not said:
        raise PolicyError(where, "it holds no limit", todo=f"There are {', '.join(names)}.")
    for key, value in said.items():
        if key not in names:
            raise PolicyError(
                f"{where}.{key}", "there is no such limit", todo=f"There are {', '.join(names)}."
            )
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST:
            raise PolicyError(
                f"{where}.{key}",
                f"{value!r} is no whole number from 1 on",
                todo="Leave it out for the usual limit.",
            )
    return Limits(**said)


_READERS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "allow": _allow,
    "presets": _presets,
    "deny": _deny,
    "ech": _ech,
    "hold": _hold,
    "limits": _limits,
}


def _items(where: str, said: object) -> list[tuple[str, Any]]:
    """Return the members of a list and their places."""
    if not isinstance(said, list | tuple):
        raise PolicyError(where, f"{said!r} is no list", todo="Write it as [example.com].")
    if not said:
        raise PolicyError(where, "the list is empty", todo=_WORDS)
    if len(said) > MOST_RULES:
        raise PolicyError(where, f"{len(said)} are more than {MOST_RULES:,}, the most there can be")
    return [(f"{where}[{number}]", each) for number, each in enumerate(said)]


def _once(items: tuple[_T, ...]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))


def _changed(limits: Limits) -> dict[str, int]:
    usual = Limits()
    return {
        each.name: getattr(limits, each.name)
        for each in fields(Limits)
        if getattr(limits, each.name) != getattr(usual, each.name)
    }
