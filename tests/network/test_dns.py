"""What a machine is told of names: the truth of those that it may know, and nothing of others."""

import asyncio
import struct
from collections.abc import AsyncIterator
from ipaddress import IPv4Address, ip_address

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torpor.network.dns import LIFE, LONGEST_QUERY, Answering
from torpor.network.judge import judge
from torpor.network.names import MOST, Names
from torpor.network.policy import parse
from torpor.network.resolver import Resolved, Resolver
from torpor.network.verdicts import Verdict

HOST = {
    "good.test": Resolved("found", (ip_address("198.51.100.1"),)),
    "six.test": Resolved("found", (ip_address("2001:db8::1"),)),
    "empty.good.test": Resolved("empty"),
    "down.good.test": Resolved("failed", why="nobody answers"),
    "far.good.test": Resolved("failed", why="д" * 1000),
}
MANY = [dns.edns.GenericOption(12, bytes(200))]


class World:
    """One machine's answers under a policy, and what the host's resolver was asked."""

    def __init__(self, said: object) -> None:
        self.asked: list[str] = []
        self.told: list[tuple[str, Verdict]] = []
        self.names = Names()
        self.judge = judge(parse(said), own=frozenset)
        self.resolver = Resolver(self._lookup)
        self.answering = Answering(
            lambda: self.judge,
            self.names,
            self.resolver,
            "machine",
            lambda name, verdict: self.told.append((name, verdict)),
        )

    def _lookup(self, name: str) -> Resolved:
        self.asked.append(name)
        if name.startswith("h"):
            return HOST["good.test"]
        return HOST.get(name, Resolved("missing"))

    async def ask(
        self, name: str, kind: str = "A", *, edns: bool = True, udp: bool = True
    ) -> dns.message.Message:
        query = dns.message.make_query(name, kind, use_edns=0 if edns else False)
        wire = await self.answering.answer(query.to_wire(), udp)
        assert wire is not None
        answer = dns.message.from_wire(wire)
        assert query.is_response(answer)
        return answer

    async def address(self, name: str) -> IPv4Address:
        answer = await self.ask(name)
        assert answer.rcode() == dns.rcode.NOERROR
        (records,) = answer.answer
        (record,) = records
        assert records.ttl == LIFE
        return IPv4Address(record.to_text())


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World(["good.test", "*.good.test", "six.test", "*.many.test"])
    yield world
    world.resolver.close()


def error(answer: dns.message.Message) -> tuple[int, str] | None:
    """Return the Extended DNS Error of an answer."""
    for option in answer.options:
        if isinstance(option, dns.edns.EDEOption):
            return int(option.code), option.text or ""
    return None


async def test_an_allowed_name_has_an_address_that_stands_for_it(world: World) -> None:
    address = await world.address("good.test")
    assert world.names.name(address) == "good.test"
    assert await world.address("GOOD.test.") == address
    assert world.asked == ["good.test"]
    assert world.told == []


async def test_the_letters_of_the_question_come_back_as_they_were(world: World) -> None:
    answer = await world.ask("GoOd.tEsT")
    assert answer.question[0].name.to_text() == "GoOd.tEsT."
    assert answer.answer[0].name.to_text() == "GoOd.tEsT."


async def test_a_name_that_the_host_reaches_over_ipv6_alone_has_one_too(world: World) -> None:
    assert world.names.name(await world.address("six.test")) == "six.test"


async def test_a_denied_name_is_not_there_and_why_is_told(world: World) -> None:
    """E1: nothing of it reaches a resolver, with or without EDNS, over UDP or TCP."""
    answer = await world.ask("c2VjcmV0.evil.test")
    assert answer.rcode() == dns.rcode.NXDOMAIN
    assert error(answer) == (
        15,
        (
            "c2vjcmv0.evil.test is not in the list of what may be reached; the rule to add is"
            " c2vjcmv0.evil.test"
        ),
    )
    for kind in ("AAAA", "TXT", "HTTPS", "MX", "ANY", "NULL"):
        assert (await world.ask("evil.test", kind)).rcode() == dns.rcode.NXDOMAIN
    plain = await world.ask("evil.test", edns=False, udp=False)
    assert plain.rcode() == dns.rcode.NXDOMAIN
    assert plain.edns == -1
    assert world.asked == []
    assert [name for name, _ in world.told] == ["c2vjcmv0.evil.test", *["evil.test"] * 7]
    assert all(not verdict.allowed for _, verdict in world.told)
    assert len(world.names) == 0


@pytest.mark.parametrize("kind", ["AAAA", "HTTPS", "SVCB", "TXT", "MX", "SRV", "ANY", "TYPE65280"])
async def test_of_other_types_an_allowed_name_has_none(kind: str, world: World) -> None:
    """E7: there are no addresses of IPv6 to go round by; E5: no keys to hide a name with."""
    answer = await world.ask("good.test", kind)
    assert answer.rcode() == dns.rcode.NOERROR
    assert answer.answer == []
    assert len(world.names) == 0, "an address is given to who asks for one"


@pytest.mark.parametrize("kind", ["A", "AAAA"])
async def test_a_name_that_does_not_exist_does_not_exist(kind: str, world: World) -> None:
    answer = await world.ask("nothing.good.test", kind)
    assert answer.rcode() == dns.rcode.NXDOMAIN
    assert error(answer) is None, "nobody blocked it"
    assert world.told == []
    assert len(world.names) == 0


async def test_a_name_without_addresses_has_none(world: World) -> None:
    answer = await world.ask("empty.good.test")
    assert (answer.rcode(), answer.answer) == (dns.rcode.NOERROR, [])


async def test_that_the_host_cannot_find_out_is_no_answer_for_good(world: World) -> None:
    answer = await world.ask("down.good.test")
    assert answer.rcode() == dns.rcode.SERVFAIL
    assert error(answer) == (23, "the host could not resolve it: nobody answers")
    assert world.told == []


async def test_a_reason_in_another_script_does_not_break_the_answer(world: World) -> None:
    asked = query("far.good.test")
    asked.use_edns(0, payload=512)
    wire = await world.answering.answer(asked.to_wire(), True)
    assert wire is not None
    answer = dns.message.from_wire(wire)
    assert answer.rcode() == dns.rcode.SERVFAIL
    _, why = error(answer) or (0, "")
    assert why.endswith("д")


async def test_what_the_policy_says_now_counts(world: World) -> None:
    assert (await world.ask("h.late.test")).rcode() == dns.rcode.NXDOMAIN
    world.judge = judge(parse(["h.late.test"]), own=frozenset)
    assert (await world.ask("h.late.test")).rcode() == dns.rcode.NOERROR
    assert (await world.ask("good.test")).rcode() == dns.rcode.NXDOMAIN


@pytest.mark.parametrize("said", ["none", "unrestricted", ["good.test"]])
async def test_own_services_are_always_there_and_leave_the_host_never(said: object) -> None:
    world = World(said)
    assert await world.address("gateway.torpor.internal") == IPv4Address("198.18.0.1")
    assert await world.address("models.torpor.internal") == IPv4Address("198.18.0.2")
    for name in ("torpor.internal", "other.torpor.internal", "x.models.torpor.internal"):
        assert (await world.ask(name)).rcode() == dns.rcode.NXDOMAIN
    answer = await world.ask("gateway.torpor.internal", "AAAA")
    assert (answer.rcode(), answer.answer) == (dns.rcode.NOERROR, [])
    assert world.asked == []
    world.resolver.close()


async def test_localhost_is_the_machine_itself(world: World) -> None:
    for name in ("localhost", "x.localhost"):
        answer = await world.ask(name)
        assert [record.to_text() for record in answer.answer[0]] == ["127.0.0.1"]
    assert world.asked == []


async def test_which_name_an_address_stands_for_is_answered_here(world: World) -> None:
    address = await world.address("good.test")
    reverse = ".".join(reversed(str(address).split("."))) + ".in-addr.arpa"
    answer = await world.ask(reverse, "PTR")
    assert [record.to_text() for record in answer.answer[0]] == ["good.test."]
    assert (await world.ask(reverse)).answer == []
    for name in (
        "1.100.51.198.in-addr.arpa", "x.in-addr.arpa", "1.0.18.198.x.in-addr.arpa",
        "300.0.18.198.in-addr.arpa", "1.0.ip6.arpa",
    ):  # fmt: skip
        assert (await world.ask(name, "PTR")).rcode() == dns.rcode.NXDOMAIN
    assert world.asked == ["good.test"]
    assert world.told == []


async def test_one_name_too_many_is_told_and_the_others_stay(world: World) -> None:
    first = await world.address("h0.many.test")
    for number in range(1, MOST):
        world.names.address(f"h{number}.many.test")
    answer = await world.ask("hlate.many.test")
    assert answer.rcode() == dns.rcode.SERVFAIL
    _, why = error(answer) or (0, "")
    assert "4096 names" in why
    assert await world.address("h0.many.test") == first


@pytest.mark.parametrize("name", ["127.1", "2130706433", "0x7f000001", "1.2.3.4"])
async def test_in_open_mode_no_address_is_asked_for_as_a_name(name: str) -> None:
    world = World("unrestricted")
    assert (await world.ask(name)).rcode() == dns.rcode.NXDOMAIN
    assert world.asked == []
    world.resolver.close()


# Messages that nobody sends in good faith


def query(name: str = "good.test", kind: str = "A") -> dns.message.QueryMessage:
    return dns.message.make_query(name, kind)


async def code(world: World, wire: bytes) -> dns.rcode.Rcode | None:
    answer = await world.answering.answer(wire, True)
    if answer is None:
        return None
    assert answer[:2] == wire[:2]
    assert answer[2] & 0x80
    return dns.message.from_wire(answer).rcode()


async def test_several_questions_are_refused(world: World) -> None:
    several = query()
    several.find_rrset(
        several.question,
        dns.name.from_text("evil.test"),
        dns.rdataclass.IN,
        dns.rdatatype.A,
        create=True,
        force_unique=True,
    )
    assert await code(world, several.to_wire()) == dns.rcode.FORMERR
    none = query().to_wire()[:4] + bytes(8)
    assert await code(world, none) == dns.rcode.FORMERR
    assert world.asked == []


async def test_answers_are_not_answered(world: World) -> None:
    response = dns.message.make_response(query())
    assert await code(world, response.to_wire()) is None
    assert await code(world, b"\0" * 11) is None
    assert await code(world, b"") is None


async def test_other_operations_and_classes_are_refused(world: World) -> None:
    update = query()
    update.set_opcode(dns.opcode.UPDATE)
    assert await code(world, update.to_wire()) == dns.rcode.NOTIMP
    chaos = dns.message.make_query("version.bind", "TXT", "CH")
    assert await code(world, chaos.to_wire()) == dns.rcode.REFUSED
    newer = query()
    newer.use_edns(1)
    assert await code(world, newer.to_wire()) == dns.rcode.BADVERS
    assert world.asked == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x3fshort",
        b"\xc0\x0c\x00\x01\x00\x01",
        b"\xc0\xff\x00\x01\x00\x01",
        b"\x80good\x00\x00\x01\x00\x01",
        b"\x04good\x04test\x00\x00\x01",
        b"\x04good" * 60 + b"\x00\x00\x01\x00\x01",
        b"\x04good\x04test\x00\x00\x01\x00\x01trailing",
    ],
)
async def test_what_cannot_be_read_is_told_so(body: bytes, world: World) -> None:
    header = struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0)
    assert await code(world, header + body) == dns.rcode.FORMERR
    assert world.asked == []


async def test_a_query_that_is_too_long_is_not_read(world: World) -> None:
    long = query()
    long.use_edns(0, options=[dns.edns.GenericOption(12, bytes(LONGEST_QUERY))])
    assert await code(world, long.to_wire(max_size=65_535)) == dns.rcode.FORMERR
    padded = query()
    padded.use_edns(0, options=[dns.edns.GenericOption(12, bytes(1000))])
    assert await code(world, padded.to_wire()) == dns.rcode.NOERROR


@pytest.mark.parametrize(
    "name",
    [r"a\.b.good.test", r"a\000.good.test", r"\255.good.test", "-a.good.test", r"a\032b.good.test"],
)
async def test_a_name_that_no_host_has_is_asked_of_nobody(name: str, world: World) -> None:
    assert (await world.ask(name)).rcode() == dns.rcode.NXDOMAIN
    assert world.asked == []


async def test_what_does_not_fit_into_a_datagram_is_cut_off_and_comes_over_tcp(
    world: World,
) -> None:
    label = "a" * 57
    name = ".".join([label] * 4) + ".evil.test"
    wire = query(name)
    wire.use_edns(0, payload=512)
    short = await world.answering.answer(wire.to_wire(), True)
    whole = await world.answering.answer(wire.to_wire(), False)
    assert short is not None
    assert whole is not None
    assert len(short) <= 512 < len(whole)
    assert dns.message.from_wire(short).flags & dns.flags.TC
    assert not dns.message.from_wire(whole).flags & dns.flags.TC
    wire.use_edns(0, payload=4096)
    again = await world.answering.answer(wire.to_wire(), True)
    assert again is not None
    assert len(again) == len(whole)
    wire.use_edns(0, payload=0)
    least = await world.answering.answer(wire.to_wire(), True)
    assert least is not None
    assert len(least) == len(short), "less than 512 is 512"
    fits = query(".".join([label] * 2) + ".evil.test")
    fits.use_edns(0, payload=0)
    small = await world.answering.answer(fits.to_wire(), True)
    assert small is not None
    assert 400 < len(small) <= 512
    assert not dns.message.from_wire(small).flags & dns.flags.TC


good = query("good.test").to_wire()
with_options = dns.message.make_query("x.good.test", "A", options=MANY, want_dnssec=True).to_wire()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return a query in which some bytes were changed, inserted or cut off."""
    wire = bytearray(draw(st.sampled_from([good, with_options])))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(0, len(wire) - 1)))
        match draw(st.integers(0, 2)):
            case 0 if wire:
                wire[at] = draw(st.integers(0, 255))
            case 1:
                wire[at:at] = draw(st.binary(max_size=4))
            case _:
                del wire[at : at + draw(st.integers(0, 8))]
    return bytes(wire)


@settings(deadline=None, max_examples=400)
@given(st.binary(max_size=80) | mutated(), st.booleans())
def test_no_bytes_break_it_and_no_denied_name_gets_through(wire: bytes, udp: bool) -> None:
    async def answered() -> None:
        world = World(["good.test", "*.good.test"])
        try:
            answer = await world.answering.answer(wire, udp)
        finally:
            world.resolver.close()
        for name in world.asked:
            assert name == "good.test" or name.endswith(".good.test")
        if answer is not None:
            assert answer[:2] == wire[:2]
            assert answer[2] & 0x80
            dns.message.from_wire(answer)

    asyncio.run(answered())
