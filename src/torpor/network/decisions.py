"""What the wall decided about one connection or flow, as it is told to whoever keeps it."""

from dataclasses import dataclass
from datetime import datetime

from torpor.network.verdicts import Spoken, Transport


@dataclass(frozen=True)
class Decision:
    """One decision. What was let through is told when it begins and again when it has ``ended``,
    with ``seconds`` and bytes; what was not is told once.

    ``name`` is what the machine looked up, or None if it dialled an ``address`` of its own accord.
    ``rule``, ``why`` and ``add`` are the verdict's. ``connected_to`` is the address that the wall
    connected to. ``inspected`` says that TLS was ended at the wall, ``secrets`` which were put in.
    """

    at: datetime
    transport: Transport
    name: str | None
    address: str
    port: int
    spoken: Spoken | None
    allowed: bool
    rule: str
    why: str = ""
    add: str = ""
    connected_to: str | None = None
    ended: bool = False
    seconds: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    inspected: bool = False
    secrets: tuple[str, ...] = ()
