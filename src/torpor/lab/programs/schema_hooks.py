"""Hooks for schemathesis: requests that it makes up are about things that there are, and no more
than the laboratory can do. Run by schemathesis, in a process of its own.

What there is stands in the file that ``TORPOR_LAB_STOCK`` names: a JSON object with ``things``,
each a set of path parameters that belong together (``"text log"`` is the ``text`` of paths that end
in ``log``), ``spared``, path parameters that nothing may remove, and ``source``, where templates
are built from.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.core.parameters import ParameterLocation

SECONDS = 2
"""How long a command may run."""
PART = b"part"
"""The content of the one part that the uploads of the stock have."""
ABOUT_KNOWN = 3
"""Of four requests so many are about things that there are."""


def stock() -> Any:
    """Return what there is by now."""
    return json.loads(Path(os.environ["TORPOR_LAB_STOCK"]).read_text())


def dice(case: Any) -> int:
    """Return a number that is the same each time that the same request is made up."""
    said = f"{case.path_parameters}{case.query}{case.body}"
    return zlib.crc32(said.encode("utf-8", "backslashreplace"))


def is_valid(case: Any, where: ParameterLocation) -> bool:
    """Return whether this part of a request is not meant to be refused."""
    return case.meta is None or not case.meta.is_negative_at(where)


schemathesis.serializer.alias("application/x-tar", "application/octet-stream")


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """Bend a request that is made up."""
    there = stock()
    if case.path_parameters and is_valid(case, ParameterLocation.PATH):
        _name_known(case, there["things"])
        for name, value in there["spared"].items():
            if case.method == "DELETE" and case.path_parameters.get(name) == value:
                case.path_parameters[name] = "none"
    path = case.operation.path
    if path.endswith(("/events", "/stream")) and is_valid(case, ParameterLocation.QUERY):
        # Else the answer has no end.
        case.query = {**(case.query or {}), "replay_only": "true"}
    if path.endswith("/part") and is_valid(case, ParameterLocation.BODY):
        case.body = PART
    if isinstance(case.body, dict) and is_valid(case, ParameterLocation.BODY):
        _bound(path, case.body, there["source"])


def _name_known(case: Any, things: list[dict[str, str]]) -> None:
    own = case.operation.path.rpartition("/")[2]
    named = []
    for thing in things:
        found = {name: thing.get(f"{name} {own}", thing.get(name)) for name in case.path_parameters}
        if None not in found.values():
            named.append(found)
    number = dice(case)
    if named and number % 4 < ABOUT_KNOWN:
        case.path_parameters.update(named[number // 4 % len(named)])


def _bound(path: str, body: dict[str, Any], source: str) -> None:
    if path.endswith("/fork") and body.get("count"):
        body["count"] = 1
    if path.endswith("/exec"):
        body["timeout_seconds"] = SECONDS
    if path.endswith("/execs"):
        body["timeout"] = SECONDS
    if "source_oci_ref" in body:
        body["source_oci_ref"] = source
