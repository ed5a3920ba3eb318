"""What a machine may reach over TCP, and what it may not: the matrix of a policy's modes and rules
against what is dialled, said and found."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.certificates import Authority
from tests.network.test_hello import extension, server_name
from tests.network.test_hello import hello as made_hello
from tests.network.walled import Web, echo, request, serving, walled
from tests.network.world import (
    ANYWHERE,
    CDN,
    EVIL,
    GOOD,
    HOST,
    HOST_TOO,
    METADATA,
    OTHER,
    PRIVATE,
    WALL,
    Internet,
    Wire,
    needs_root,
)
from torpor.network.terminating import Watch
from torpor.network.verdicts import Destination

pytestmark = needs_root

LIST = ["good.test", "*.cdn.test", "other.test:22", "tls://good.test:8443", "tcp://good.test:9000"]


class Town:
    """Servers on the internet, and what they were asked."""

    def __init__(self, authority: Authority) -> None:
        self.web = {each: Web(each) for each in (GOOD, EVIL, CDN, PRIVATE, METADATA)}
        self.tls = Web("tls")
        self.trust = ssl.create_default_context(cafile=str(authority.file))

    def asked(self) -> int:
        """How many requests arrived anywhere."""
        return sum(len(web.heads) for web in (*self.web.values(), self.tls))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
async def town(internet: Internet, authority: Authority) -> AsyncIterator[Town]:
    made = Town(authority)
    files = authority.vouch("good.test", "evil.test", "www.cdn.test", "api.cdn.test", "cdn.test")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    async with (
        serving(internet.far, GOOD, 80, made.web[GOOD]),
        serving(internet.far, EVIL, 80, made.web[EVIL]),
        serving(internet.far, CDN, 80, made.web[CDN]),
        serving(internet.far, PRIVATE, 80, made.web[PRIVATE]),
        serving(internet.far, METADATA, 80, made.web[METADATA]),
        serving(internet.far, GOOD, 443, made.tls, context),
        serving(internet.far, EVIL, 443, made.tls, context),
        serving(internet.far, CDN, 443, made.tls, context),
        serving(internet.far, GOOD, 8443, made.tls, context),
        serving(internet.far, GOOD, 9000, echo),
        serving(internet.far, OTHER, 22, banner),
    ):
        yield made


async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speak first, and then send back what comes."""
    writer.write(b"SSH-2.0-test\r\n")
    await echo(reader, writer)


async def test_allowed_http_is_passed_on(wire: Wire, internet: Internet, town: Town) -> None:
    async with walled(wire, internet, LIST) as wall:
        answer = await wall.say("good.test", 80, request("good.test"))
    assert answer.endswith(f"{GOOD} got 0 bytes\n".encode())
    assert town.web[GOOD].hosts == ["good.test"]
    begun, ended = wall.decisions
    assert (begun.allowed, begun.ended, begun.name, begun.spoken) == (
        True, False, "good.test", "http",
    )  # fmt: skip
    assert begun.connected_to == GOOD
    assert ended.ended
    assert ended.received_bytes == len(answer)
    assert ended.sent_bytes > 40
    (traffic,) = wall.guard.traffic()
    assert (traffic.host, traffic.received) == ("good.test", len(answer))


async def test_denied_http_is_told_with_the_rule_to_add(
    wire: Wire, internet: Internet, town: Town
) -> None:
    async with walled(wire, internet, LIST) as wall:
        answer = await wall.say("evil.test", 80, request("evil.test"))
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"torpor-add: evil.test\r\n" in answer
    assert answer.endswith(b"A rule that would: evil.test\n")
    assert town.asked() == 0
    assert (wall.denied().name, wall.denied().add) == ("evil.test", "evil.test")
    assert wall.lookups == []


async def test_allowed_tls_is_passed_on_untouched(
    wire: Wire, internet: Internet, town: Town
) -> None:
    async with (
        walled(wire, internet, LIST) as wall,
        wall.dialled("good.test", 443, town.trust) as (reader, writer),
    ):
        writer.write(request("good.test"))
        assert (await reader.read()).endswith(b"tls got 0 bytes\n")
        assert wall.decisions[0].spoken == "tls"


async def test_denied_tls_is_told_by_an_alert(wire: Wire, internet: Internet, town: Town) -> None:
    async with walled(wire, internet, LIST) as wall:
        with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
            async with wall.dialled("evil.test", 443, town.trust):
                pass
    assert wall.denied().spoken == "tls"


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("good.test", "evil.test"),  # to an allowed name's address with another name
        ("www.cdn.test", "good.test"),  # also with one that is allowed elsewhere
        (EVIL, "good.test"),  # an allowed name, and somebody else's address
    ],
)
async def test_tls_that_says_another_name_reaches_nobody(
    where: str, said: str, wire: Wire, internet: Internet, town: Town
) -> None:
    async with walled(wire, internet, LIST) as wall:
        with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
            async with wall.dialled(where, 443, town.trust, said):
                pass
    assert not wall.denied().allowed
    assert town.asked() == 0


async def test_an_address_is_as_good_as_the_name_that_it_is_of(
    wire: Wire, internet: Internet, town: Town
) -> None:
    async with (
        walled(wire, internet, LIST) as wall,
        wall.dialled(GOOD, 443, town.trust, "good.test") as (reader, writer),
    ):
        writer.write(request("good.test"))
        assert (await reader.read()).endswith(b"tls got 0 bytes\n")
        assert wall.decisions[0].connected_to == GOOD


async def test_tls_without_a_name_is_denied(wire: Wire, internet: Internet, town: Town) -> None:
    nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nameless.check_hostname = False
    nameless.verify_mode = ssl.CERT_NONE
    async with walled(wire, internet, LIST) as wall:
        with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
            async with wall.dialled("good.test", 443, nameless, ""):
                pass
    assert "no name" in wall.denied().why


HIDING = made_hello(server_name(b"good.test"), extension(0xFE0D, bytes(60)))


async def test_a_hello_that_hides_its_name_is_denied_unless_the_policy_allows_it(
    wire: Wire, internet: Internet, town: Town
) -> None:
    async with walled(wire, internet, LIST) as wall:
        assert (await wall.say("good.test", 443, HIDING)).endswith(b"\x02\x31")
        assert "ECH" in wall.denied().why
        # Where names decide nothing it may: what is behind tcp:// is nobody's business.
        async with wall.dialled("good.test", 9000) as (reader, writer):
            writer.write(HIDING)
            assert await reader.readexactly(len(HIDING)) == HIDING
    async with walled(wire, internet, {"allow": LIST, "ech": "allow"}) as wall:
        async with wall.dialled("good.test", 443) as (reader, writer):
            writer.write(HIDING)
            await reader.read()
        assert wall.decisions[0].connected_to == GOOD


async def test_a_hello_that_can_be_read_in_two_ways_is_denied(
    wire: Wire, internet: Internet, town: Town
) -> None:
    twice = made_hello(server_name(b"good.test"), server_name(b"evil.test"))
    async with walled(wire, internet, LIST) as wall:
        assert (await wall.say("good.test", 443, twice)).endswith(b"\x02\x31")
        assert "an extension is there twice" in wall.denied().why


@pytest.mark.parametrize(
    ("where", "status"),
    [
        ("sub.good.test", 403),
        ("cdn.test", 403),  # *.cdn.test is not the apex
        ("evilcdn.test", 403),
        ("www.cdn.test", 200),
    ],
)
async def test_wildcards_are_for_what_is_below(
    where: str, status: int, wire: Wire, internet: Internet, town: Town
) -> None:
    async with walled(wire, internet, LIST) as wall:
        answer = await wall.say(where, 80, request(where))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize("said", ["evil.test", "api.cdn.test", "good.test:81", "203.0.113.11"])
async def test_a_host_that_is_another_is_misdirected(
    said: str, wire: Wire, internet: Internet, town: Town
) -> None:
    async with walled(wire, internet, LIST) as wall:
        answer = await wall.say("good.test", 80, request(said))
    assert answer.startswith(b"HTTP/1.1 421 ")
    assert town.asked() == 0
    assert not wall.denied().allowed


async def test_each_request_on_a_connection_is_judged(
    wire: Wire, internet: Internet, town: Town
) -> None:
    both = request("good.test", "/1", "Connection: keep-alive") + request("evil.test", "/2")
    async with walled(wire, internet, LIST) as wall:
        answer = await wall.say("good.test", 80, both)
        first, second = answer.split(b"HTTP/1.1 ")[1:]
        assert first.startswith(b"200 ")
        assert second.startswith(b"421 ")
    assert town.web[GOOD].hosts == ["good.test"]
    assert "evil.test" in wall.denied().why
    assert town.asked() == 1


async def test_many_requests_go_over_one_connection(
    wire: Wire, internet: Internet, town: Town
) -> None:
    async with (
        walled(wire, internet, LIST) as wall,
        wall.dialled("good.test", 80) as (reader, writer),
    ):
        for number in range(20):
            writer.write(
                request("Good.Test.", f"/{number}", "Connection: keep-alive", body=b"x" * number)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert f"got {number} bytes".encode() in await reader.readline()
    assert [len(body) for body in town.web[GOOD].bodies] == list(range(20))


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n", b"\x00\x01binary"])
async def test_a_closed_port_is_told_apart_from_a_denial(
    data: bytes, wire: Wire, internet: Internet
) -> None:
    async with walled(wire, internet, ["good.test:8081"]) as wall:
        if data.startswith(b"GET"):
            answer = await wall.say("good.test", 8081, data)
            assert answer.startswith(b"HTTP/1.1 502 ")
        else:
            assert await wall.refused("good.test", 8081, data)
    assert wall.decisions[-1].allowed
    assert "could not be connected" in wall.decisions[-1].why


async def test_ports_are_what_rules_say(wire: Wire, internet: Internet, town: Town) -> None:
    async with walled(wire, internet, LIST) as wall:
        assert await wall.refused("good.test", 22, b"\x00")
        assert await wall.refused("good.test", 9001, b"\x00")
        assert (await wall.say("good.test", 8080, request("good.test"))).startswith(b"HTTP/1.1 403")
    assert wall.denied().add == "good.test:8080"


async def test_a_server_that_speaks_first_is_heard_at_once(
    wire: Wire, internet: Internet, town: Town
) -> None:
    async with (
        walled(wire, internet, LIST) as wall,
        wall.dialled("other.test", 22) as (reader, writer),
    ):
        assert await reader.readline() == b"SSH-2.0-test\r\n"
        writer.write(b"SSH-2.0-client\r\n")
        assert await reader.readline() == b"SSH-2.0-client\r\n"


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("how", ["tls", "http", "http behind empty lines", "http in two parts"])
async def test_whoever_waits_can_still_say_no_other_name(
    late: bool, how: str, wire: Wire, internet: Internet, town: Town
) -> None:
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            heard.append(data)

    async with (
        serving(internet.far, OTHER, 2222, listen),
        walled(wire, internet, ["other.test:2222"]) as wall,
        wall.dialled("other.test", 2222) as (reader, writer),
    ):
        await asyncio.sleep(0.6 if late else 0)
        if how == "tls":
            writer.write(hello("evil.test"))
        elif how == "http in two parts":
            writer.write(b"GET / HT")
            await asyncio.sleep(0.4)
            writer.write(b"TP/1.1\r\nHost: evil.test\r\n\r\n")
        else:
            behind = b"\r\n\r\n" if "behind" in how else b""
            writer.write(behind + request("evil.test"))
        answer = await reader.read()
    assert answer.startswith(b"\x15" if how == "tls" else b"HTTP/1.1 4")
    assert heard == []
    assert not wall.denied().allowed


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("policy", [LIST, {"unrestricted": True, "deny": ["evil.test"]}])
async def test_behind_a_banner_another_name_is_not_said_either(
    policy: object, tls: bool, wire: Wire, internet: Internet, town: Town
) -> None:
    data = hello("evil.test") if tls else request("evil.test")
    async with (
        walled(wire, internet, policy) as wall,
        wall.dialled("other.test", 22) as (reader, writer),
    ):
        assert await reader.readline() == b"SSH-2.0-test\r\n"
        writer.write(data)
        with pytest.raises(ConnectionResetError):
            await reader.read()
    assert not wall.denied().allowed


async def test_rules_that_say_tls_are_for_nothing_else(
    wire: Wire, internet: Internet, town: Town
) -> None:
    async with walled(wire, internet, LIST) as wall:
        async with wall.dialled("good.test", 8443, town.trust) as (reader, writer):
            writer.write(request("good.test"))
            assert (await reader.read()).endswith(b"tls got 0 bytes\n")
        assert await wall.refused("good.test", 8443, b"\x00\x01")
        assert (await wall.say("good.test", 8443, request("good.test"))).startswith(b"HTTP/1.1 403")
        with pytest.raises(ssl.SSLError, match="ACCESS_DENIED"):
            async with wall.dialled("good.test", 8443, town.trust, "evil.test"):
                pass


@pytest.mark.parametrize(
    "data", [b"\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\nHost: e\n\n"]
)
async def test_rules_that_say_tcp_are_for_anything(
    data: bytes, wire: Wire, internet: Internet, town: Town
) -> None:
    async with (
        walled(wire, internet, LIST) as wall,
        wall.dialled("good.test", 9000) as (reader, writer),
    ):
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        writer.write(hello("evil.test"))
        assert (await reader.readexactly(5))[:3] == b"\x16\x03\x01"


@pytest.mark.parametrize(
    "where", [METADATA, PRIVATE, WALL, HOST, HOST_TOO, "rebound.test", "metadata.test",
              "private.test", "host.test"]
)  # fmt: skip
async def test_what_is_not_the_internet_is_never_reached(
    where: str, wire: Wire, internet: Internet, town: Town
) -> None:
    host = Web("host")
    async with (
        serving(internet.host, ANYWHERE, 80, host),
        walled(wire, internet, "unrestricted") as wall,
    ):
        answer = await wall.say(where, 80, request(where))
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert not wall.denied().allowed
    assert town.asked() == 0
    assert host.heads == []


async def test_of_a_mixed_answer_what_is_public_is_used(
    wire: Wire, internet: Internet, town: Town
) -> None:
    async with walled(wire, internet, ["mixed.test", "two.test"]) as wall:
        assert b" 200 " in await wall.say("mixed.test", 80, request("mixed.test"))
        assert wall.decisions[0].connected_to == GOOD
        # Nobody is at the first of these: the second is tried beside it.
        assert b" 200 " in await wall.say("two.test", 80, request("two.test"))
    assert town.web[PRIVATE].heads == []


async def test_a_private_address_is_reached_by_a_rule_for_it_alone(
    wire: Wire, internet: Internet, town: Town
) -> None:
    async with (
        serving(internet.far, PRIVATE, 5432, echo),
        walled(wire, internet, [f"{PRIVATE}:5432"]) as wall,
    ):
        async with wall.dialled(PRIVATE, 5432) as (reader, writer):
            writer.write(b"\x00\x00\x00\x08sql")
            assert await reader.readexactly(7) == b"\x00\x00\x00\x08sql"
        assert (await wall.say(PRIVATE, 80, request(PRIVATE))).startswith(b"HTTP/1.1 403")
        assert await wall.refused("10.9.8.6", 5432, b"\x00")
    async with walled(wire, internet, ["0.0.0.0/0:80"]) as wall:
        assert (await wall.say(PRIVATE, 80, request(PRIVATE))).startswith(b"HTTP/1.1 403")


async def test_in_the_open_names_and_addresses_work(
    wire: Wire, internet: Internet, town: Town
) -> None:
    nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nameless.check_hostname = False
    nameless.verify_mode = ssl.CERT_NONE
    async with walled(wire, internet) as wall:
        assert b" 200 " in await wall.say("evil.test", 80, request("evil.test"))
        assert b" 200 " in await wall.say(EVIL, 80, request(EVIL))
        async with wall.dialled(EVIL, 443, nameless, "") as (reader, writer):
            writer.write(request("x"))
            assert (await reader.read()).endswith(b"tls got 0 bytes\n")


async def _awake() -> None:
    """It does not sleep."""


class Ending:
    """Ends TLS in the least way that serves: it looks at the hello, and says one word."""

    def __init__(self, *wanted: str) -> None:
        self.names = wanted
        self.served: list[str | None] = []
        self.awake: Callable[[], Awaitable[None]] = _awake

    async def wanted(self, to: Destination) -> bool:
        return to.name in self.names

    async def serve(
        self,
        machine: socket.socket,
        to: Destination,
        dial: Callable[[], Awaitable[socket.socket]],
        watch: Watch,
    ) -> None:
        self.served.append(to.name)
        loop = asyncio.get_running_loop()
        with machine, await dial() as upstream:
            said = await loop.sock_recv(machine, 1 << 16)
            assert said[:1] == b"\x16"  # untouched
            watch.sent(len(said))
            watch.used("KEY")
            watch.told("a request was refused")
            await loop.sock_sendall(machine, upstream.getpeername()[0].encode())
            watch.received(10)
            machine.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("policy", [LIST, "unrestricted", [{"host": "good.test", "inspect": True}]])
async def test_tls_goes_to_whoever_ends_it_where_that_is_wanted(
    policy: object, wire: Wire, internet: Internet, town: Town
) -> None:
    ending = Ending("good.test") if policy in (LIST, "unrestricted") else Ending()
    async with walled(wire, internet, policy, terminator=ending) as wall:
        assert await wall.say("good.test", 443, hello("good.test")) == GOOD.encode()
        if policy in (LIST, "unrestricted"):
            where = "www.cdn.test"
            async with wall.dialled(where, 443, town.trust) as (reader, writer):
                writer.write(request(where))
                assert (await reader.read()).endswith(b"tls got 0 bytes\n")
        if policy != "unrestricted":  # where names count, another one does not get there
            answer = await wall.say("good.test", 443, hello("evil.test"))
            assert answer == b"\x15\x03\x03\x00\x02\x02\x31"
    assert ending.served[0] == "good.test"
    ended = next(each for each in wall.decisions if each.ended)
    assert (ended.inspected, ended.secrets, ended.why) == (
        True, ("KEY",), "a request was refused",
    )  # fmt: skip


async def test_nothing_is_nothing(wire: Wire, internet: Internet, town: Town) -> None:
    async with walled(wire, internet, "none") as wall:
        assert (await wall.say("good.test", 80, request("good.test"))).startswith(b"HTTP/1.1 403")
        assert await wall.refused(GOOD, 22, b"\x00")
    assert town.asked() == 0


def hello(name: str) -> bytes:
    """Return a ClientHello as OpenSSL says it."""
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = context.wrap_bio(into, out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()
