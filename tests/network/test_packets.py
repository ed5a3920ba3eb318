"""Packets that the wall makes itself: a kernel takes them for those of the address that was asked.
That it does is seen in test_datagrams.py; here is what a kernel might have put right."""

import struct
from ipaddress import IPv4Address

from hypothesis import given
from hypothesis import strategies as st

from torpor.network.packets import LARGEST, MTU, datagram, nobody_listens

SOURCE, TO = (IPv4Address("203.0.113.9"), 53), (IPv4Address("198.19.255.2"), 40000)


def summed(data: bytes) -> int:
    """Return the sum that is all ones where a checksum is right."""
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@given(st.one_of(st.binary(max_size=3100), st.just(bytes(LARGEST)), st.just(b"\xff" * 65001)))
def test_pieces_make_the_datagram(data: bytes) -> None:
    whole = b""
    packets = datagram(SOURCE, TO, data, 7)
    for number, packet in enumerate(packets):
        assert len(packet) <= MTU
        length, name, fragment = struct.unpack("!HHH", packet[2:8])
        assert (length, name) == (len(packet), 7)
        assert (fragment & 0x1FFF) * 8 == len(whole)
        assert bool(fragment & 0x2000) is (number < len(packets) - 1)
        assert summed(packet[:20]) == 0xFFFF
        whole += packet[20:]
    source, to, length, _ = struct.unpack("!HHHH", whole[:8])
    assert (source, to, length) == (53, 40000, len(data) + 8)
    assert whole[8:] == data
    pseudo = SOURCE[0].packed + TO[0].packed + struct.pack("!HH", 17, length)
    assert summed(pseudo + whole) == 0xFFFF


def test_the_refusal_quotes_what_was_sent() -> None:
    packet = nobody_listens(SOURCE, TO)
    assert summed(packet[20:]) == 0xFFFF
    assert packet[20:22] == b"\x03\x03"
    quoted = packet[28:]
    assert (quoted[12:16], quoted[16:20]) == (TO[0].packed, SOURCE[0].packed)
    assert struct.unpack("!HH", quoted[20:24]) == (40000, 53)
