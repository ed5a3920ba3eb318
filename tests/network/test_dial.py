"""Connecting: only to what was checked, to the first that answers, never to this host itself."""

import asyncio
from ipaddress import IPv4Address, ip_address

import pytest

from tests.network.walled import echo, serving
from tests.network.world import ANYWHERE, DEAD, GOOD, HOST, OTHER, Internet, needs_root
from torpor.network.dial import DeniedError, UnreachableError, dial
from torpor.network.resolver import Resolved
from torpor.network.verdicts import Destination, Spoken, Verdict

pytestmark = needs_root


class Lenient:
    """Lets everything through but what it is made for: no list of own addresses, for one."""

    hidden_names = True

    def __init__(self, *denied: str) -> None:
        self._denied = [ip_address(each) for each in denied]

    def name(self, name: str) -> Verdict:
        return Verdict(True, "all")

    def destination(self, to: Destination) -> Verdict:
        return Verdict(True, "all")

    def spoken(self, to: Destination, how: Spoken, said: str | None) -> Verdict:
        return Verdict(True, "all")

    def heeds(self, to: Destination) -> bool:
        return False

    def dialled(self, to: Destination, address: object) -> Verdict:
        return Verdict(address not in self._denied, "all", "it is not to be")


async def connected(*addresses: str, judge: Lenient | None = None, limit: float = 10) -> str:
    """Return the address that was connected to, of a name that has ``addresses``."""
    to = Destination("x.test", IPv4Address("198.18.1.1"), 7)

    async def resolve(name: str) -> Resolved:
        found = tuple(ip_address(each) for each in addresses)
        return Resolved("found" if found else "missing", found, "" if found else "no such name")

    made = await dial(to, judge or Lenient(), resolve, limit)
    made.sock.close()
    return str(made.address)


async def test_this_host_itself_is_not_connected_to(internet: Internet) -> None:
    with internet.from_host():
        async with serving(internet.host, ANYWHERE, 7, echo):
            for address in (HOST, "127.0.0.1"):
                with pytest.raises(DeniedError, match="this host itself"):
                    await connected(address)


async def test_what_is_denied_is_left_out(internet: Internet) -> None:
    with internet.from_host():
        async with serving(internet.far, ANYWHERE, 7, echo):
            assert await connected(GOOD, OTHER, judge=Lenient(GOOD)) == OTHER
            with pytest.raises(DeniedError, match="not to be"):
                await connected(GOOD, OTHER, judge=Lenient(GOOD, OTHER))


async def test_the_first_that_answers_is_used(internet: Internet) -> None:
    with internet.from_host():
        async with serving(internet.far, GOOD, 7, echo):
            assert await connected(DEAD, OTHER, GOOD) == GOOD  # silent, refusing, there


async def test_why_there_is_no_way_is_told(internet: Internet) -> None:
    with internet.from_host():
        with pytest.raises(UnreachableError, match="refused"):
            await connected(OTHER, GOOD)
        with pytest.raises(UnreachableError, match="no such name"):
            await connected()
        with pytest.raises(UnreachableError, match=r"within 0\.3 s"):
            await connected(DEAD, limit=0.3)


async def test_who_gives_up_leaves_no_socket(internet: Internet) -> None:
    with internet.from_host():
        trying = asyncio.create_task(connected(DEAD, DEAD.replace("99", "98")))
        await asyncio.sleep(0.4)
        trying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trying
