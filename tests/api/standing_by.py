"""``torpor serve`` on a host of files, as a program: ``python -m tests.api.standing_by SETTINGS``
where settings are JSON, and ``standby`` among them says whether it stands by.

Each of its requests to the host takes a moment, so that it can be killed in one.
"""

import json
import sys
from pathlib import Path
from typing import Any

import typer

from tests.sessions.world import WorldHost
from torpor.cli import serving
from torpor.sessions.local import LocalHost

STEP = 0.3


class Host(WorldHost):
    """A world that is opened and closed as this computer is."""

    store: Any = None  # what backups are made of

    async def close(self) -> None:
        pass


async def opened(home: Path, *_: object) -> Host:
    return Host(home / "world", STEP)


LocalHost.open = opened  # type: ignore[assignment, method-assign]
given = json.loads(sys.argv[1])
standby = given.pop("standby")
try:
    serving.serve({"authentication": "none", **given}, None, standby=standby)
except typer.Exit as ended:
    sys.exit(ended.exit_code)
