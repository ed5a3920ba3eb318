"""A policy, ready to decide: :class:`torpor.network.verdicts.Judge` for what was written.

All rules that are about a destination are evaluated, and one that permits is enough; a denial wins
over all of them. Nothing that is asked waits: what must be found out (the addresses of a name) is
the proxy's to find, and :meth:`PolicyJudge.dialled` decides on what it found.
"""

from collections.abc import Callable, Container, Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from torpor.network.errors import PolicyError
from torpor.network.hostnames import OWN_DOMAIN, OWN_SERVICES, is_normal, is_own
from torpor.network.policy import Policy
from torpor.network.presets import preset_rules
from torpor.network.rulebook import Rulebook
from torpor.network.rules import WEB_PORTS, Denial, Rule, read_rule
from torpor.network.special import plainly, special
from torpor.network.verdicts import Destination, Spoken, Transport, Verdict

Address = IPv4Address | IPv6Address
QUIC: Final = 443


def judge(
    policy: Policy, *, own: Callable[[], Container[Address]], packages: Iterable[str] = ()
) -> "PolicyJudge":
    """Make a policy ready to decide. ``own`` gives the host's addresses at any moment; ``packages``
    are the hosts that the preset of this name stands for in the session's image, as rules.

    Raises :exc:`PolicyError` if one of ``packages`` is no rule.
    """
    packages = tuple(packages)
    rules = list(policy.allow)
    for name in policy.presets:
        rules += preset_rules(name, packages)
    return PolicyJudge(policy, rules, own)


class PolicyJudge:
    """What :func:`judge` makes."""

    def __init__(
        self, policy: Policy, rules: Iterable[Rule], own: Callable[[], Container[Address]]
    ) -> None:
        rules = tuple(rules)
        self.policy = policy
        self.hidden_names = policy.hidden_names
        self._own = own
        self._allow = Rulebook(rules)
        self._deny = Rulebook(policy.deny)
        self._named_ports = {
            port
            for rule in rules
            if rule.network is None and rule.says != "anything"
            for port in rule.ports
        }

    def name(self, name: str) -> Verdict:
        """Say whether a name may be looked up. Nothing of a denied one reaches any resolver."""
        if is_own(name):
            return _own_service(name, name in OWN_SERVICES)
        if not is_normal(name):
            return self._denied("no host can have such a name")
        if self.policy.mode == "none":
            return self._denied("nothing may be reached")
        for denial in self._deny.of_name(name):
            if denial.port is None:
                return _by(denial)
        if self.policy.mode == "open":
            return _OPEN
        for rule in self._allow.of_name(name):
            return Verdict(True, str(rule))
        return self._denied(f"{name} is not in the list of what may be reached", name)

    def destination(self, to: Destination) -> Verdict:
        """Say whether a connection may be begun, before anything was said on it.

        For an address that no rule is about it may be if names are verified at its port: what is
        said there decides.
        """
        if to.name is not None:
            return self._to_name(to.name, to.port, to.transport)
        refused = self._to_address(to.address, to.port, to.transport)
        if refused is not None:
            return refused
        verdict = self._by_address(to)
        if not verdict.allowed and to.transport == "tcp" and to.port in self._named_ports:
            return Verdict(True, self.policy.mode, "the name that it says decides")
        return verdict

    def spoken(self, to: Destination, how: Spoken, said: str | None) -> Verdict:
        """Say whether it may go on, knowing what it speaks and which name it said (SNI or Host;
        None if none).

        If nothing was said yet, because the other side speaks first, ask with ``"raw"``, and again
        once something is said before the other side spoke.
        """
        begun = self.destination(to)
        if not begun.allowed or (to.name is not None and is_own(to.name)):
            return begun
        if said is not None and (denial := self._denial(said, to.port)):
            return _by(denial)
        if self.policy.mode == "open" or to.transport == "udp":
            return begun
        if to.name is not None:
            return self._said_to_name(to.name, to.port, how, said)
        if self._ranges(to.address, to.port, to.transport):
            return begun
        return self._said_to_address(to, how, said)

    def heeds(self, to: Destination) -> bool:
        """Say whether what is said on a connection to it can change what :meth:`spoken` says."""
        if any(denial.name for denial in self.policy.deny):
            return True
        if self.policy.mode == "open":
            return not self.hidden_names
        if to.name is None:
            return not self._ranges(to.address, to.port, to.transport)
        rules = self._hosts(to.name, to.port, to.transport)
        # What one rule lets pass whatever it is, another may want inspected if it is TLS.
        return all(rule.says != "anything" for rule in rules) or any(rule.inspect for rule in rules)

    def dialled(self, to: Destination, address: Address) -> Verdict:
        """Say whether the wall may connect to an address that it found for a destination."""
        if to.name is not None:
            verdict = self._to_name(to.name, to.port, to.transport)
            if is_own(to.name):
                return self._denied("it is served by the wall itself, and nowhere else")
        elif address != to.address:
            return self._denied(f"{address} is not the address that was asked for")
        else:
            verdict = self._by_address(to)
        if not verdict.allowed:
            return verdict
        return self._to_address(address, to.port, to.transport) or verdict

    # What the rules say of names

    def _to_name(self, name: str, port: int, transport: Transport) -> Verdict:
        if is_own(name):
            served = name in OWN_SERVICES and transport == "tcp" and port in WEB_PORTS
            return _own_service(name, served)
        if self.policy.mode == "none":
            return self._denied("nothing may be reached")
        if denial := self._denial(name, port):
            return _by(denial)
        if transport == "udp" and port == QUIC:
            return self._denied(_NO_QUIC)
        if self.policy.mode == "open":
            return _OPEN
        rules = self._hosts(name, port, transport)
        if not rules:
            add = _name_rule(name, port, transport)
            return self._denied(f"no rule is for {add}", add)
        return Verdict(True, str(rules[0]), inspect=any(rule.inspect for rule in rules))

    def _said_to_name(self, name: str, port: int, how: Spoken, said: str | None) -> Verdict:
        rules = [rule for rule in self._hosts(name, port, "tcp") if _permits(rule, name, how, said)]
        if rules:
            return Verdict(True, str(rules[0]), inspect=any(rule.inspect for rule in rules))
        if said is not None and said != name:
            return self._denied(f"it says {said} on a connection to {name}")
        why = {
            "tls": "its TLS says no name, so that it is for this host cannot be verified",
            "http": "its request is no TLS"
            if said is not None
            else "its request says no host, so that it is for this one cannot be verified",
            "raw": "it speaks neither TLS nor HTTP, so that it is for this host cannot be verified",
        }[how]
        return self._denied(why, f"tcp://{name}:{port}")

    def _said_to_address(self, to: Destination, how: Spoken, said: str | None) -> Verdict:
        if said is None:
            return self._denied(
                f"no rule is for {to.address} at this port, and no name was said",
                _address_rule(to),
            )
        rules = [
            rule
            for rule in self._hosts(said, to.port, "tcp")
            if rule.says != "anything" and _permits(rule, said, how, said)
        ]
        if rules:
            inspect = any(rule.inspect for rule in rules)
            return Verdict(True, str(rules[0]), inspect=inspect, name=said)
        add = _name_rule(said, to.port, "tcp")
        return self._denied(f"no rule is for {add}", add)

    # What the rules say of addresses

    def _to_address(self, address: Address, port: int, transport: Transport) -> Verdict | None:
        """Return why an address may not be reached by anyone, or None if it may by who has a
        rule."""
        if self.policy.mode == "none":
            return self._denied("nothing may be reached")
        address = plainly(address)
        if address in self._own():
            return self._denied(f"{address} is this host's own")
        if isinstance(address, IPv4Address):
            for denial in self._deny.of_address(address):
                if denial.port in (None, port):
                    return _by(denial)
        around = special(address)
        if around is None:
            return None
        if isinstance(address, IPv4Address):
            for rule in self._ranges(address, port, transport):
                # A rule that reaches further than the range was not written for what is in it.
                if rule.opens is around:
                    return None
        shown = f"{address} is not the public internet: {around.network} is {around.what}"
        opens = around.opens and self.policy.mode == "list"
        scheme = "udp://" if transport == "udp" else ""
        return self._denied(shown, f"{scheme}{address}:{port}" if opens else "")

    def _by_address(self, to: Destination) -> Verdict:
        """Say what the rules say of an address, if nothing closes it."""
        if to.transport == "udp" and to.port == QUIC:
            return self._denied(_NO_QUIC)
        if rules := self._ranges(to.address, to.port, to.transport):
            return Verdict(True, str(rules[0]))
        if self.policy.mode == "open":
            return _OPEN
        return self._denied(f"no rule is for {to.address} at this port", _address_rule(to))

    # Which rules there are

    def _hosts(self, name: str, port: int, transport: Transport) -> list[Rule]:
        return [
            rule
            for rule in self._allow.of_name(name)
            if port in rule.ports and rule.transport == transport
        ]

    def _ranges(self, address: IPv4Address, port: int, transport: Transport) -> list[Rule]:
        return [
            rule
            for rule in self._allow.of_address(address)
            if port in rule.ports and rule.transport == transport
        ]

    def _denial(self, name: str, port: int) -> Denial | None:
        for denial in self._deny.of_name(name):
            if denial.port in (None, port):
                return denial
        return None

    def _denied(self, why: str, add: str = "") -> Verdict:
        # In the other modes a rule would not add to what may be reached, but take the rest away.
        return Verdict(
            False, self.policy.mode, why, _writable(add) if self.policy.mode == "list" else ""
        )


_OPEN: Final = Verdict(True, "open")
_NO_QUIC: Final = "QUIC is refused, so that programs use TCP, where the wall sees names"


def _by(denial: Denial) -> Verdict:
    return Verdict(False, str(denial), "it is denied by a rule of its own")


def _own_service(name: str, served: bool) -> Verdict:
    if served:
        return Verdict(True, OWN_DOMAIN)
    return Verdict(
        False, OWN_DOMAIN, f"{name} is nothing that is served here: {', '.join(OWN_SERVICES)} are"
    )


def _permits(rule: Rule, name: str, how: Spoken, said: str | None) -> bool:
    if rule.says == "anything":
        return True
    if rule.says == "name if it can" and how == "raw":
        return True
    return said == name and how != "raw" and (how == "tls" or rule.says != "tls")


def _writable(add: str) -> str:
    """Return a rule, or nothing where it would be refused: a name without a dot, port 53."""
    try:
        return add and read_rule("", add).written
    except PolicyError:
        return ""


def _name_rule(name: str, port: int, transport: Transport) -> str:
    if transport == "udp":
        return f"udp://{name}:{port}"
    return name if port in WEB_PORTS else f"{name}:{port}"


def _address_rule(to: Destination) -> str:
    return f"{'udp://' if to.transport == 'udp' else ''}{to.address}:{to.port}"
