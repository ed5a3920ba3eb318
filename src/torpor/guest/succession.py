"""Putting a newer agent in the place of the one that runs, in the same process.

A machine that is thawed has the agent of its snapshot. The host may send the code of a newer one: a
zip archive of compiled modules. It is loaded beside the running code; if that goes well, the older
agent hands over what it has (the port, the flows, the commands and their parents) as plain data,
and the newer one goes on with it. Whatever fails before leaves the older one as it was.
"""

import hashlib
import importlib
import os
import sys
from types import ModuleType
from typing import Any

HANDOVER = 1
"""The form of what is handed over. An agent says which form it hands over, and is only replaced by
one that knows this form."""
KNOWN = (1,)
"""The forms that this agent can take over."""
PLACE = "/run/torpor/agents"


class SuccessionError(Exception):
    """The newer agent cannot take over; the older one goes on."""


def load(wanted: dict[str, Any], code: bytes) -> ModuleType:
    """Load the newer agent's code and return its module ``torpor.guest.agent``.

    From now on imports are its own. Raises :exc:`SuccessionError`, imports being as before.
    """
    if HANDOVER not in wanted["handovers"]:
        raise SuccessionError(f"it does not know form {HANDOVER} of what is handed over")
    if hashlib.sha256(code).hexdigest() != wanted["sha256"]:
        raise SuccessionError("its code does not have the digest that was sent with it")
    os.makedirs(PLACE, mode=0o755, exist_ok=True)
    archive = f"{PLACE}/{wanted['sha256'][:32]}.zip"
    with open(archive, "wb") as file:
        file.write(code)
    older = {name: sys.modules.pop(name) for name in list(sys.modules) if _ours(name)}
    path = list(sys.path)
    sys.path[:] = [archive, *(each for each in path if not each.startswith(PLACE))]
    importlib.invalidate_caches()
    try:
        return importlib.import_module("torpor.guest.agent")
    except Exception as error:
        for name in [name for name in sys.modules if _ours(name)]:
            del sys.modules[name]
        sys.modules.update(older)
        sys.path[:] = path
        raise SuccessionError(f"its code cannot be loaded: {error!r}") from error


def remove_older() -> None:
    """Remove the code of agents before this one. Their spawners may need it for as long as they
    live."""
    for archive in os.listdir(PLACE):
        path = f"{PLACE}/{archive}"
        if path not in sys.path:
            sys.path_importer_cache.pop(path, None)
            os.unlink(path)


def _ours(name: str) -> bool:
    return name == "torpor" or name.startswith("torpor.")
