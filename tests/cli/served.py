"""``torpor serve`` on a host of files, as a program: in the end it prints the modules that it has
imported."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.sessions.world import WorldHost
from torpor.cli import serving
from torpor.sessions.local import LocalHost


class Host(WorldHost):
    """A world that is opened and closed as this computer is."""

    store: Any = None  # what backups are made of

    async def close(self) -> None:
        pass


async def opened(home: Path, *_: object) -> Host:
    return Host(home / "world")


LocalHost.open = opened  # type: ignore[assignment, method-assign]
serving.serve({"listen": "127.0.0.1:0", "authentication": "none"}, None)
print(json.dumps(sorted(sys.modules)))
