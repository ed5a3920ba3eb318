"""Links: what a machine sends arrives at the wall as it was meant, or nowhere."""

import os
import socket
import struct
import subprocess
from ipaddress import IPv4Address

import pytest

from tests.network.link.conftest import OtherEnd
from torpor.guest.card import ADDRESS, MAC, WALL, WALL_MAC
from torpor.network.link import Ends, Link
from torpor.network.link.rules import TCP_PORT, UDP_PORT

ANYWHERE = "93.184.216.34"
IP_RECVORIGDSTADDR, IP_PKTINFO = 20, 8


def test_a_connection_knows_what_was_dialled(machine: OtherEnd, ends: Ends) -> None:
    for to in ((ANYWHERE, 80), (ANYWHERE, 5432), ("198.18.0.7", 443), ("10.1.2.3", 22), (WALL, 9)):
        dialling = machine.new_socket(socket.SOCK_STREAM)
        dialling.connect(to)
        accepted, by = ends.tcp.accept()
        with accepted:
            assert accepted.getsockname() == to
            assert by[0] == ADDRESS
            dialling.sendall(b"question")
            assert accepted.recv(100) == b"question"
            accepted.sendall(b"answer")
            assert dialling.recv(100) == b"answer"


def test_the_walls_own_ports_are_ports_like_any_other(machine: OtherEnd, ends: Ends) -> None:
    for to in ((WALL, TCP_PORT), (WALL, UDP_PORT), (ANYWHERE, TCP_PORT), ("198.19.255.77", 80)):
        machine.new_socket(socket.SOCK_STREAM).connect(to)
        accepted, _ = ends.tcp.accept()
        with accepted:
            assert accepted.getsockname() == to
        machine.new_socket(socket.SOCK_DGRAM).sendto(b"x", to)
        assert datagram(ends)[2] == to


def datagram(ends: Ends) -> tuple[bytes, tuple[str, int], tuple[str, int]]:
    """Return the next datagram, who sent it, and where to."""
    data, more, _, by = ends.udp.recvmsg(1 << 16, 256)
    (where,) = (each[2] for each in more if each[1] == IP_RECVORIGDSTADDR)
    port, address = struct.unpack_from("!H4s", where, 2)
    return data, by, (str(IPv4Address(address)), port)


def test_a_datagram_knows_where_it_was_sent_and_is_answered_from_there(
    machine: OtherEnd, ends: Ends
) -> None:
    for to in ((ANYWHERE, 123), ("10.1.2.3", 9999), ("198.18.0.9", 444)):
        sending = machine.new_socket(socket.SOCK_DGRAM)
        sending.connect(to)  # so it takes an answer from there alone
        sending.send(b"question")
        data, by, where = datagram(ends)
        assert (data, where) == (b"question", to)
        ends.raw.sendto(udp(where, by, b"answer"), (ADDRESS, 0))
        assert sending.recv(100) == b"answer"


def udp(source: tuple[str, int], to: tuple[str, int], data: bytes) -> bytes:
    """Return an IPv4 packet; the kernel fills in what is 0."""
    return ip(source[0], to[0], 17, struct.pack("!HHHH", source[1], to[1], 8 + len(data), 0) + data)


def ip(source: str, to: str, protocol: int, content: bytes) -> bytes:
    length = 20 + len(content)
    addresses = socket.inet_aton(source) + socket.inet_aton(to)
    head = struct.pack("!BBHHHBBH", 0x45, 0, length, 7, 0, 64, protocol, 0) + addresses
    words = sum(struct.unpack("!10H", head))
    words = (words & 0xFFFF) + (words >> 16)
    return head[:10] + struct.pack("!H", ~words & 0xFFFF) + head[12:] + content


def test_a_datagram_in_pieces_arrives_whole(machine: OtherEnd, ends: Ends) -> None:
    sent = os.urandom(20_000)
    machine.new_socket(socket.SOCK_DGRAM).sendto(sent, (ANYWHERE, 4000))
    data, _, where = datagram(ends)
    assert (data, where) == (sent, (ANYWHERE, 4000))


def test_whichever_resolver_is_asked_the_wall_hears_it_and_answers_from_there(
    machine: OtherEnd, ends: Ends
) -> None:
    for resolver in (WALL, "8.8.8.8", "1.1.1.1"):
        asking = machine.new_socket(socket.SOCK_DGRAM)
        asking.connect((resolver, 53))
        asking.send(b"question")
        data, more, _, by = ends.dns_udp.recvmsg(512, 256)
        (told,) = (each[2] for each in more if each[1] == IP_PKTINFO)
        asked = told[8:12]
        assert (data, socket.inet_ntoa(asked)) == (b"question", resolver)
        answer_from = struct.pack("I4s4s", 0, asked, bytes(4))
        ends.dns_udp.sendmsg([b"answer"], [(socket.IPPROTO_IP, IP_PKTINFO, answer_from)], 0, by)
        assert asking.recv(100) == b"answer"
        machine.new_socket(socket.SOCK_STREAM).connect((resolver, 53))
        accepted, _ = ends.dns_tcp.accept()
        with accepted:
            assert accepted.getsockname() == (resolver, 53)


def test_quic_is_refused_at_once_and_however_many_try(machine: OtherEnd, ends: Ends) -> None:
    for number in range(1, 40):
        trying = machine.new_socket(socket.SOCK_DGRAM)
        trying.connect((f"93.184.216.{number}", 443))
        trying.send(b"hello")
        with pytest.raises(ConnectionRefusedError):
            trying.recv(100)
    ends.udp.setblocking(False)
    with pytest.raises(BlockingIOError):
        ends.udp.recv(100)


def fence(machine: OtherEnd, ends: Ends) -> list[bytes]:
    """Return the datagrams that arrived before one that is sent now."""
    machine.new_socket(socket.SOCK_DGRAM).sendto(b"fence", (ANYWHERE, 4000))
    found: list[bytes] = []
    while (data := datagram(ends)[0]) != b"fence":
        found.append(data)
    return found


def ethernet(kind: int, content: bytes, source: str = MAC, to: str = WALL_MAC) -> bytes:
    macs = bytes.fromhex((to + source).replace(":", ""))
    return macs + struct.pack("!H", kind) + content


IPV4, IPV6 = 0x0800, 0x86DD


@pytest.mark.parametrize("source", ["198.19.255.3", WALL, "10.0.0.1", "127.0.0.1", "0.0.0.0"])  # noqa: S104
def test_a_source_that_is_not_the_machines_is_dropped(
    machine: OtherEnd, ends: Ends, source: str
) -> None:
    machine.frame(ethernet(IPV4, udp((source, 5), (ANYWHERE, 4000), b"spoofed")))
    machine.frame(ethernet(IPV4, udp((ADDRESS, 5), (ANYWHERE, 4000), b"honest")))
    assert fence(machine, ends) == [b"honest"]


@pytest.mark.parametrize("to", ["255.255.255.255", "224.0.0.251", "127.0.0.1", "0.0.0.1"])
def test_what_is_for_nobody_or_everybody_is_dropped(machine: OtherEnd, ends: Ends, to: str) -> None:
    for port in (4000, UDP_PORT, 53):
        machine.frame(ethernet(IPV4, udp((ADDRESS, 5), (to, port), b"lost")))
    assert fence(machine, ends) == []
    ends.dns_udp.setblocking(False)
    with pytest.raises(BlockingIOError):
        ends.dns_udp.recv(100)


def seen_in(link: Link, *command: str) -> str:
    """Return what a command says in the link's network namespace."""
    ours = f"/proc/{os.getpid()}/fd"
    where = [f"--user={ours}/{link.wire.users}", f"--net={ours}/{link.wire.network}"]
    ran = subprocess.run(
        ["nsenter", *where, "--preserve-credentials", *command],
        check=True,
        capture_output=True,
        text=True,
    )
    return ran.stdout


def test_ipv6_is_not_heard(machine: OtherEnd, ends: Ends, link: Link) -> None:
    head = struct.pack("!IHBB", 6 << 28, 8, 17, 64)
    for to in ("ff02::1", "2001:db8::1", f"::ffff:{WALL}"):
        addresses = socket.inet_pton(socket.AF_INET6, "fe80::2") + socket.inet_pton(
            socket.AF_INET6, to
        )
        content = head + addresses + struct.pack("!HHHH", 5, 4000, 8, 0)
        machine.frame(ethernet(IPV6, content))
    assert fence(machine, ends) == []
    counted = dict(line.split() for line in seen_in(link, "cat", "/proc/net/snmp6").splitlines())
    assert counted["Ip6InReceives"] == "0"
    assert counted["Ip6OutRequests"] == "0"


def test_a_ping_is_not_answered(machine: OtherEnd, ends: Ends) -> None:
    ping = machine.new_socket(socket.SOCK_DGRAM, protocol=socket.IPPROTO_ICMP)
    for to in (WALL, ANYWHERE):
        ping.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1) + b"hello", (to, 0))
    fence(machine, ends)
    ping.setblocking(False)
    with pytest.raises(BlockingIOError):
        ping.recv(100)


def test_other_protocols_are_dropped(machine: OtherEnd, ends: Ends, link: Link) -> None:
    before = int(received(link))
    for protocol in (2, 4, 41, 47, 132):  # IGMP, IP in IP, IPv6 in IPv4, GRE, SCTP
        machine.frame(ethernet(IPV4, ip(ADDRESS, WALL, protocol, bytes(40))))
    fence(machine, ends)
    assert int(received(link)) == before + 1  # the fence


def received(link: Link) -> str:
    """Return how many packets were delivered to anybody in the link's namespace."""
    names, numbers = (
        line.split() for line in seen_in(link, "cat", "/proc/net/snmp").splitlines()[:2]
    )
    return dict(zip(names, numbers, strict=True))["InDelivers"]


def test_there_is_no_way_out(link: Link) -> None:
    lines = seen_in(link, "cat", "/proc/net/dev").splitlines()[2:]
    assert sorted(line.split(":")[0].strip() for line in lines) == ["lo", "machine"]
    assert seen_in(link, "cat", "/proc/sys/net/ipv4/ip_forward").strip() == "0"
    routes = [line.split() for line in seen_in(link, "cat", "/proc/net/route").splitlines()[1:]]
    there = struct.unpack("=I", socket.inet_aton(ADDRESS))[0]
    # Card and destination: everything is the namespace's own, but for the machine.
    assert sorted((each[0], int(each[1], 16)) for each in routes) == [("lo", 0), ("machine", there)]


def test_without_the_wall_what_is_dialled_is_refused(machine: OtherEnd, ends: Ends) -> None:
    ends.close()
    for to in ((ANYWHERE, 80), (WALL, TCP_PORT), ("8.8.8.8", 53)):
        with pytest.raises(ConnectionRefusedError):
            machine.new_socket(socket.SOCK_STREAM).connect(to)
        sending = machine.new_socket(socket.SOCK_DGRAM)
        sending.connect(to)
        sending.send(b"x")
        with pytest.raises(ConnectionRefusedError):
            sending.recv(100)


def test_whoever_enters_has_no_rights_there(link: Link) -> None:
    said = seen_in(link, "cat", "/proc/self/status")
    rights = {line.split()[1] for line in said.splitlines() if line.startswith("Cap")}
    rights -= {line.split()[1] for line in said.splitlines() if line.startswith("CapBnd")}
    assert rights == {"0000000000000000"}
