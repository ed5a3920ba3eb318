"""A host of its own, for test_dns_server: run in new namespaces for users, networks and mounts.

Every address is this host's (as on a machine's link), its resolv.conf names a name server here,
which knows one name and writes down what it is asked, and the wall's DNS answers on port 53 of all
other addresses. Prints what a client was told.
"""

import asyncio
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import cast

import dns.asyncquery
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from torpor.network.dns import Answering
from torpor.network.dns_server import IP_PKTINFO, DnsServer, Pace
from torpor.network.judge import judge
from torpor.network.names import Names
from torpor.network.policy import parse
from torpor.network.resolver import Resolver

NAME_SERVER = "127.0.0.53"
ANY = "0.0.0.0"  # noqa: S104 - this host has all addresses, and nobody else is in its network


def run(*command: str) -> None:
    subprocess.run(command, check=True)


def make_host(place: Path) -> None:
    run("ip", "link", "set", "lo", "up")
    run("ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "main")
    for name, text in (
        ("resolv.conf", f"nameserver {NAME_SERVER}\nsearch leak.test\noptions timeout:1\n"),
        ("hosts", "127.0.0.1 localhost\n"),
        ("nsswitch.conf", "hosts: files dns\n"),
    ):
        (place / name).write_text(text)
        target = Path("/etc", name).resolve()
        if not target.exists():
            raise SystemExit(f"there is no {target} to mount another one over")
        run("mount", "--bind", str(place / name), str(target))


class NameServer(asyncio.DatagramProtocol):
    """Knows good.test, and nothing else."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True)
        self.asked.add(name)
        answer = dns.message.make_response(query, recursion_available=True)
        if name != "good.test":
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif question.rdtype == dns.rdatatype.A:
            answer.answer.append(dns.rrset.from_text(question.name, 60, "IN", "A", "198.51.100.1"))
        self._transport.sendto(answer.to_wire(), addr)


def bound(address: str) -> socket.socket:
    """Return a socket at port 53, beside others there."""
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    udp.bind((address, 53))
    return udp


async def main() -> None:
    loop = asyncio.get_running_loop()
    name_server = NameServer()
    transport, _ = await loop.create_datagram_endpoint(lambda: name_server, sock=bound(NAME_SERVER))
    denied: list[str] = []
    resolver = Resolver()
    policy = judge(parse(["good.test", "*.good.test"]), own=frozenset)
    answering = Answering(
        lambda: policy, Names(), resolver, "machine", lambda name, _: denied.append(name)
    )
    udp = bound(ANY)
    udp.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    tcp = socket.create_server((ANY, 53))
    server = asyncio.ensure_future(DnsServer(udp, tcp, answering.answer, Pace(100)).run())
    for name, address, over in (
        ("good.test", "8.8.8.8", "UDP"),
        ("good.test", "8.8.8.8", "TCP"),
        ("missing.good.test", "1.1.1.1", "UDP"),
        ("c2vjcmv0.evil.test", "8.8.8.8", "UDP"),
        ("c2vjcmv0.evil.test", "9.9.9.9", "TCP"),
    ):
        query = dns.message.make_query(name, "A", use_edns=0)
        # An answer from another address than the one that was asked is an error to both.
        ask = dns.asyncquery.udp if over == "UDP" else dns.asyncquery.tcp
        answer = await ask(query, address, timeout=10, source="127.0.0.2")
        shown = f"{name} at {address} over {over}: {dns.rcode.to_text(answer.rcode())}"
        print(shown + (f", from {address}" if over == "UDP" else ""))
    print("denied:", *denied)
    print("the name server was asked for:", *sorted(name_server.asked))
    server.cancel()
    await asyncio.gather(server, return_exceptions=True)
    resolver.close()
    transport.close()
    udp.close()
    tcp.close()


with tempfile.TemporaryDirectory() as place:
    make_host(Path(place))
    asyncio.run(main())
