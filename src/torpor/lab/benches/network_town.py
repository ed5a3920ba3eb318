"""A machine, its wall and an internet as network namespaces of one process, with traffic that is
measured: through the wall, and from the same machine by a wire without one.

Run as ``python -m torpor.lab.benches.network_town RUNS``, it needs no rights: all of it is in a
user namespace of its own. Prints a JSON document: samples in seconds by names.

    machine --- wall ... proxy --- internet        through the wall
    machine ----------------------- internet       directly
    flooding --- its wall ... the same proxy       beside it, at the end
"""

import asyncio
import ctypes
import importlib.util
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from torpor.guest.card import ADDRESS, MAC, MTU, WALL, WALL_MAC
from torpor.network.guard import Guard
from torpor.network.host_addresses import OwnAddresses
from torpor.network.judge import judge
from torpor.network.limits import Limits
from torpor.network.link import Ends
from torpor.network.link.link import BUILD
from torpor.network.link.rules import DNS_PORT, RULES, TAP, TCP_PORT, UDP_PORT
from torpor.network.names import Names
from torpor.network.policy import parse
from torpor.network.resolver import Resolved, Resolver
from torpor.network.turns import Turns

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
NAME = "bench.test"
DIRECT, FAR = "192.0.2.1", "203.0.113.10"
WEB, TLS, PLAIN = 80, 443, 7000
POLICY = [NAME, f"{NAME}:{PLAIN}"]
CONNECTIONS = 100
"""Connections for the samples of one run that are about a first byte."""
STREAM = 256 << 20
STREAMS, EACH = 200, 1 << 20
PIECE = 1 << 20
BLOCK = bytes(PIECE)
FLOODED = 2.5
"""Seconds after which a flood has used up what it may do at once."""

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> None:
    """Raise OSError if a function of the C library has failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def ip(*lines: str) -> None:
    """Have the network of this namespace be as ``lines`` say."""
    words = "".join(f"{each}\n" for each in lines)
    subprocess.run(["ip", "-batch", "-"], input=words, check=True, text=True)


class Other:
    """A process in a network namespace of its own, that does ``work`` when it is told to."""

    def __init__(self, work: Callable[[], None]) -> None:
        ready, is_ready = os.pipe()
        wait, go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(ready)
            os.close(go)
            checked(libc.unshare(CLONE_NEWNET))
            os.write(is_ready, b"x")
            if os.read(wait, 1):
                work()
            os._exit(0)
        os.close(is_ready)
        os.close(wait)
        os.read(ready, 1)
        os.close(ready)
        self._go = go

    def go(self) -> None:
        """Let it begin."""
        os.write(self._go, b"x")


# The internet


def serve(certificate: Path) -> None:
    """Answer on all ports, until this process is ended: eight bytes ask for so many others."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    ip(
        "link set lo up", "link set eth0 up", f"addr add {FAR}/24 dev eth0",
        "link set direct up", f"addr add {DIRECT}/24 dev direct",
    )  # fmt: skip
    for port, serving in ((PLAIN, _amount), (WEB, _page), (TLS, lambda s: _secret(context, s))):
        listening = socket.create_server(("", port), backlog=1024)
        threading.Thread(target=_accept, args=(listening, serving), daemon=True).start()
    os.write(READY[1], b"x")
    threading.Event().wait()


def _accept(listening: socket.socket, serving: Callable[[socket.socket], None]) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        while True:
            sock, _ = listening.accept()
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pool.submit(_served, serving, sock)


def _served(serving: Callable[[socket.socket], None], sock: socket.socket) -> None:
    with sock:
        serving(sock)


def _amount(sock: socket.socket) -> None:
    left = int.from_bytes(sock.recv(8))
    while left > 0:
        left -= sock.send(memoryview(BLOCK)[:left])


def _page(sock: socket.socket) -> None:
    while sock.recv(4096):
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")


def _secret(context: ssl.SSLContext, sock: socket.socket) -> None:
    with context.wrap_socket(sock, server_side=True) as secret:
        if secret.recv(8):
            secret.sendall(b"x")


# The machine


def measure(runs: int, walled: str, certificate: Path, flooding: Other) -> dict[str, list[float]]:
    """Measure everything in turns, directly and through the wall; then what passes the wall while
    another machine is ``flooding``."""
    _connect_machine()
    ip("link set direct up", "addr add 192.0.2.2/24 dev direct")
    trust = ssl.create_default_context(cafile=str(certificate))
    ways = (("direct", DIRECT), ("wall", walled))
    kinds: dict[str, Callable[[str], None]] = {
        "plain": _first_plain,
        "http": _first_http,
        "tls": lambda where: _first_tls(where, trust),
    }
    samples: dict[str, list[float]] = {}
    for _, where in ways:
        for first in kinds.values():  # what is done once is not measured
            first(where)
    for _ in range(runs):
        for kind, first in kinds.items():
            for _ in range(CONNECTIONS):
                for way, where in ways:
                    samples.setdefault(f"{kind}_{way}", []).append(_seconds(first, where))
        for way, where in ways:
            samples.setdefault(f"stream_{way}", []).append(_seconds(_stream, where))
        for way, where in ways:
            samples.setdefault(f"streams_{way}", []).append(_seconds(_streams, where))
    samples["alone"] = [_seconds(_first_plain, walled) for _ in range(5 * CONNECTIONS)]
    flooding.go()
    time.sleep(FLOODED)
    samples["flooded"] = [_seconds(_first_plain, walled) for _ in range(5 * CONNECTIONS)]
    return samples


def flood() -> None:
    """Begin connections through the wall as fast as one can, until this process is ended. On a host
    of two cores it must not have the time that others need, as a machine has none of them."""
    os.nice(19)
    _connect_machine()
    while True:
        with socket.socket() as sock:
            sock.setblocking(False)
            sock.connect_ex((FAR, PLAIN))


def _connect_machine() -> None:
    ip(
        "link set lo up", "link set eth0 up", f"addr add {ADDRESS}/24 dev eth0",
        f"route add default via {WALL}",
    )  # fmt: skip


def _seconds(work: Callable[[str], None], where: str) -> float:
    began = time.perf_counter()
    work(where)
    return time.perf_counter() - began


def _first_plain(where: str) -> None:
    _take(where, 1)


def _first_http(where: str) -> None:
    with socket.create_connection((where, WEB)) as sock:
        sock.sendall(f"GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n".encode())
        if not sock.recv(4096).startswith(b"HTTP/1.1 200 "):
            raise ValueError("the page was not there")


def _first_tls(where: str, trust: ssl.SSLContext) -> None:
    with (
        socket.create_connection((where, TLS)) as sock,
        trust.wrap_socket(sock, server_hostname=NAME) as secret,
    ):
        secret.sendall(b"x")
        secret.recv(1)


def _take(where: str, count: int) -> None:
    with socket.create_connection((where, PLAIN)) as sock:
        sock.sendall(count.to_bytes(8))
        buffer = bytearray(min(count, PIECE))
        left = count
        while left > 0:
            got = sock.recv_into(buffer)
            if not got:
                raise ValueError("a transfer was cut off")
            left -= got


def _stream(where: str) -> None:
    _take(where, STREAM)


def _streams(where: str) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        for each in [pool.submit(_take, where, EACH) for _ in range(STREAMS)]:
            each.result()


# The wall


def program() -> Any:
    """Return the program that builds a link, as a module: under a name of its own, since that of
    its place is a function's."""
    spec = importlib.util.spec_from_file_location("program_that_builds_links", BUILD)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def build_wall(machine: Other) -> Ends:
    """Build the wall's end of the machine's wire, in a namespace that its sockets keep alive."""
    building = program()
    host = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    checked(libc.unshare(CLONE_NEWNET))
    ip(f"link add {TAP} type veth peer name eth0 address {MAC} netns {machine.pid}")
    building.load_rules(RULES)
    building.set_up(TAP, WALL, WALL_MAC, ADDRESS, MAC, MTU)
    made = building.make_sockets(TCP_PORT, UDP_PORT, DNS_PORT)
    checked(libc.setns(host, CLONE_NEWNET))
    os.close(host)
    return Ends(*(socket.socket(fileno=each.detach()) for each in made))


async def guard(ends: Ends, others: Ends, names: Names, until: int) -> None:
    """Be the walls of two machines until there is an end at a descriptor. The first may begin as
    many connections as it likes, the other what machines may."""
    resolver = Resolver(lambda name: Resolved("found", (IPv4Address(FAR),)))
    turns = Turns()
    decides = judge(parse(POLICY), own=OwnAddresses())
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(until, ended.set)
    async with asyncio.TaskGroup() as tasks:
        walls = [
            tasks.create_task(
                Guard(
                    session, wires, decides, names, resolver,
                    tell=lambda decision: None, turns=turns, limits=limits,
                ).run()
            )
            for session, wires, limits in (
                ("bench", ends, Limits(new_connections=100_000)), ("flood", others, Limits()),
            )
        ]  # fmt: skip
        await ended.wait()
        for each in walls:
            each.cancel()
    resolver.close()


def certify(place: Path) -> Path:
    """Return a file with a certificate for the bench's name, which vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    moment = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - timedelta(hours=1))
        .not_valid_after(moment + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = place / "bench.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


READY = os.pipe()
"""Through which the internet says that it is there."""


def main(runs: int) -> dict[str, list[float]]:
    """Measure ``runs`` times, and return the samples."""
    user, group = os.geteuid(), os.getegid()
    checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET))
    for file, text in (
        ("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1"),
    ):  # fmt: skip
        Path("/proc/self", file).write_text(text)
    names = Names()
    walled = str(names.address(NAME))
    with tempfile.TemporaryDirectory() as place:
        certificate = certify(Path(place))
        internet = Other(lambda: serve(certificate))
        flooding = Other(flood)
        result, told = os.pipe()
        machine = Other(lambda: _tell(told, measure(runs, walled, certificate, flooding)))
        os.close(told)
        ends, others = build_wall(machine), build_wall(flooding)
        ip(
            "link set lo up",
            f"link add wan type veth peer name eth0 netns {internet.pid}",
            "link set wan up", "addr add 203.0.113.1/24 dev wan",
            f"link add direct type veth peer name direct netns {internet.pid}",
            f"link set direct netns {machine.pid}",
        )  # fmt: skip
        internet.go()
        os.read(READY[0], 1)
        machine.go()
        try:
            asyncio.run(guard(ends, others, names, result))
            with os.fdopen(result, "rb") as words:
                return dict(json.loads(words.read() or b"{}"))
        finally:
            for each in (internet.pid, flooding.pid, machine.pid):
                os.kill(each, 9)
                os.waitpid(each, 0)
            ends.close()
            others.close()


def _tell(told: int, samples: dict[str, list[float]]) -> None:
    with os.fdopen(told, "wb") as words:
        words.write(json.dumps(samples).encode())


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
