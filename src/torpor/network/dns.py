"""Answers a machine's DNS queries: bytes in, bytes out.

Addresses are those that stand for names in this session (:mod:`torpor.network.names`); the host
resolves an allowed name first, so that a machine is told the truth of names that do not exist.
Nothing of a denied query reaches any resolver, and of the others nothing but the name.

What is denied is answered in the way that programs take best: NXDOMAIN (glibc then says at once
that the name is not known; after SERVFAIL or REFUSED programs try again, and musl waits for its
time limit), with the reason as an Extended DNS Error (RFC 8914) for those that ask with EDNS.
"""

import struct
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Final

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rrset

from torpor.network.hostnames import is_below, is_own
from torpor.network.names import Names, TooManyNamesError
from torpor.network.resolver import Resolver
from torpor.network.verdicts import Judge, Verdict

LONGEST_QUERY: Final = 4096
"""Bytes: a name, and options that pad it (RFC 8467). There is no query that needs more."""
LONGEST_ANSWER: Final = 1232
"""Bytes over UDP, whatever the asker could take: more would come in fragments."""
PLAIN_UDP: Final = 512
LONGEST_REASON: Final = 400
"""Bytes: with the rest of it, what tells a reason fits into 512."""
LIFE: Final = 30
"""Seconds for which a machine may remember an answer."""
_HEADER: Final = struct.Struct("!HHHHHH")
_RESPONSE: Final = 0x8000
_OPCODE: Final = 0x7800
_RECURSION: Final = 0x0100
_REVERSE: Final = ("in-addr.arpa", "ip6.arpa")


class Answering:
    """Answers the queries of one machine.

    ``judge`` gives the policy of the moment; ``told`` is called with each name that was denied, and
    why. ``asker`` is who it is to the resolver.
    """

    def __init__(
        self,
        judge: Callable[[], Judge],
        names: Names,
        resolver: Resolver,
        asker: str,
        told: Callable[[str, Verdict], None],
    ) -> None:
        self._judge = judge
        self._names = names
        self._resolver = resolver
        self._asker = asker
        self._told = told

    async def answer(self, query: bytes, udp: bool) -> bytes | None:
        """Return the answer to a query, None for what is to be answered by nothing.

        Over UDP it is as long as the query says that it may be, and says so if it was cut off.
        """
        if len(query) < _HEADER.size:
            return None
        number, flags, questions, *_ = _HEADER.unpack_from(query)
        if flags & _RESPONSE:
            # An answer to an answer could go on for ever.
            return None
        if flags & _OPCODE:
            return _bare(number, flags, dns.rcode.NOTIMP)
        if questions != 1 or len(query) > LONGEST_QUERY:
            return _bare(number, flags, dns.rcode.FORMERR)
        try:
            asked = dns.message.from_wire(query)
        except Exception:
            # Whatever a library makes of hostile bytes, the machine is told that they were wrong.
            return _bare(number, flags, dns.rcode.FORMERR)
        try:
            answer = await self._answered(asked)
            most = max(PLAIN_UDP, min(asked.payload, LONGEST_ANSWER)) if udp else 65_535
            return _wire(answer, most)
        except dns.exception.DNSException:
            return _bare(number, flags, dns.rcode.SERVFAIL)

    async def _answered(self, asked: dns.message.Message) -> dns.message.Message:
        if len(asked.question) != 1 or asked.edns > 0:
            return _response(asked, dns.rcode.BADVERS if asked.edns > 0 else dns.rcode.FORMERR)
        question = asked.question[0]
        if question.rdclass != dns.rdataclass.IN:
            return _response(asked, dns.rcode.REFUSED)
        name = question.name.to_text(omit_final_dot=True).lower()
        if any(is_below(name, each) for each in _REVERSE):
            return self._reverse(asked, question.name)
        if name == "localhost" or is_below(name, "localhost"):
            # RFC 6761, 6.3: it is the machine itself, and nobody else's to answer.
            return _addressed(asked, IPv4Address("127.0.0.1"))
        verdict = self._judge().name(name)
        if not verdict.allowed:
            self._told(name, verdict)
            hint = f"; the rule to add is {verdict.add}" if verdict.add else ""
            return _response(
                asked, dns.rcode.NXDOMAIN, dns.edns.EDECode.BLOCKED, f"{verdict.why}{hint}"
            )
        if is_own(name):
            return _addressed(asked, self._names.address(name))
        return await self._resolved(asked, name)

    async def _resolved(self, asked: dns.message.Message, name: str) -> dns.message.Message:
        resolved = await self._resolver.resolve(name, self._asker)
        if resolved.outcome == "missing":
            return _response(asked, dns.rcode.NXDOMAIN)
        if resolved.outcome == "failed":
            return _response(
                asked,
                dns.rcode.SERVFAIL,
                dns.edns.EDECode.NETWORK_ERROR,
                f"the host could not resolve it: {resolved.why}",
            )
        if resolved.outcome == "empty":
            return _response(asked, dns.rcode.NOERROR)
        if asked.question[0].rdtype != dns.rdatatype.A:
            # What only looks for AAAA, HTTPS or TXT of a name needs no address that stands for it.
            return _response(asked, dns.rcode.NOERROR)
        try:
            return _addressed(asked, self._names.address(name))
        except TooManyNamesError as error:
            return _response(
                asked, dns.rcode.SERVFAIL, dns.edns.EDECode.OTHER, f"{error.happened} {error.todo}"
            )

    def _reverse(self, asked: dns.message.Message, name: dns.name.Name) -> dns.message.Message:
        """Answer which name an address stands for. Who has an address of the internet is not asked:
        the question would tell it which addresses the machine has to do with."""
        found = None
        # The first four labels of d.c.b.a.in-addr.arpa.
        with suppress(ValueError):
            labels = [label.decode("ascii") for label in name.labels[:4]]
            if len(name.labels) == 7:
                found = self._names.name(IPv4Address(".".join(reversed(labels))))
        if found is None:
            return _response(asked, dns.rcode.NXDOMAIN)
        answer = _response(asked, dns.rcode.NOERROR)
        if asked.question[0].rdtype == dns.rdatatype.PTR:
            answer.answer.append(_records(asked, "PTR", f"{found}."))
        return answer


def _addressed(asked: dns.message.Message, address: IPv4Address) -> dns.message.Message:
    answer = _response(asked, dns.rcode.NOERROR)
    if asked.question[0].rdtype == dns.rdatatype.A:
        answer.answer.append(_records(asked, "A", str(address)))
    return answer


def _records(asked: dns.message.Message, kind: str, value: str) -> dns.rrset.RRset:
    # The name is given back with the letters in which it was asked for: some check that.
    return dns.rrset.from_text(asked.question[0].name, LIFE, "IN", kind, value)


def _response(
    asked: dns.message.Message,
    code: dns.rcode.Rcode,
    error: dns.edns.EDECode | None = None,
    why: str = "",
) -> dns.message.Message:
    answer = dns.message.make_response(asked, recursion_available=True)
    answer.set_rcode(code)
    if asked.edns >= 0 and error is not None:
        # In bytes: what the host says of itself may be in another script.
        why = why.encode()[:LONGEST_REASON].decode("utf-8", "ignore")
        option = dns.edns.EDEOption(error, why)
        answer.use_edns(0, payload=LONGEST_QUERY, options=[option])
    return answer


def _wire(answer: dns.message.Message, most: int) -> bytes:
    """Return the bytes of an answer; if they are more than the asker can take, without its records
    and reasons, and marked as cut off."""
    try:
        return answer.to_wire(max_size=most)
    except dns.exception.TooBig:
        answer.answer.clear()
        answer.flags |= dns.flags.TC
        if answer.edns >= 0:
            answer.use_edns(0, payload=LONGEST_QUERY)
        return answer.to_wire(max_size=most)


def _bare(number: int, flags: int, code: dns.rcode.Rcode) -> bytes:
    """Return an answer that is nothing but a header: the question could not be read."""
    kept = flags & (_OPCODE | _RECURSION)
    return _HEADER.pack(number, _RESPONSE | kept | int(code), 0, 0, 0, 0)
