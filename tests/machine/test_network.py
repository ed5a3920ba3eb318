"""The network card of a real machine: what it dials arrives at the wall, through freeze, thaw, fork,
reboot and the end of the program."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.machine.conftest import Start
from torpor.guest.card import ADDRESS
from torpor.network.link import Link, Links
from torpor.vm import Host, Identity, Machine

pytestmark = pytest.mark.machine

ANYWHERE = ("93.184.216.34", 8080)


@pytest.fixture
async def machine(start: Start, host: Host) -> AsyncIterator[Machine]:
    yield await host.thaw(start.golden, Identity.of("test"))


def link_of(machine: Machine) -> Link:
    link = machine.wired.link
    assert isinstance(link, Link)
    return link


async def test_debug(machine: Machine) -> None:
    print(machine.no_card)
    for line in ("ip addr; ip route; ip neigh; cat /etc/resolv.conf; cat /proc/net/dev",):
        print((await machine.agent.shell(line)).stdout.decode())
        print((await machine.agent.shell("/run/torpor/tools/bin/busybox ip addr; /run/torpor/tools/bin/busybox ip route; ls -la /etc/resolv.conf; lsmod")).stdout.decode())
    print(open(f"/proc/{machine.pid}/status").read())
    print(os.readlink(f"/proc/{machine.pid}/ns/net"), os.fstat(link_of(machine).wire.network).st_ino)
    print(os.listdir(f"/proc/{machine.pid}/fd"))
    raise AssertionError
