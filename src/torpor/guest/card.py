"""The machine's network card: who is who on its wire.

It is the same in every machine, because each is alone with the wall on a wire of its own. So
nothing about it has to change when a machine is thawed on another wire, and a fork needs no new
address.
"""

MAC = "02:74:6f:72:70:72"
"""The card's; locally administered."""
ADDRESS, PREFIX = "198.19.255.2", 24
WALL_MAC = "02:74:6f:72:70:71"
"""The other end's. A machine remembers it, so it is the same on every wire."""
WALL = "198.19.255.1"
"""The wall: gateway and resolver."""
MTU = 1500
