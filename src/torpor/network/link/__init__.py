"""The link: a machine's wire, and the wall's end of it.

Each machine is alone with the wall in a network namespace of its own, so the wall knows who speaks
by where it hears it.
"""

from torpor.network.link.link import BuildError, Ends, Link, build
from torpor.network.link.links import AHEAD, Links
from torpor.network.link.probe import Probed, probe

__all__ = ["AHEAD", "BuildError", "Ends", "Link", "Links", "Probed", "build", "probe"]
