"""Requests made up from the OpenAPI document, by schemathesis, and what is wrong with the answers.

Schemathesis runs as a program of its own: it takes memory and processor time as it likes, and what
it is asked for is what anybody could ask it for.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torpor.vm import HostError

HOOKS = Path(__file__).with_name("programs") / "schema_hooks.py"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "allow_header_conformance",
    "use_after_free",
    "ignored_auth",
)
"""All that schemathesis knows, but for ``positive_data_acceptance`` (a name may be taken, a session
paused: the document cannot say so), ``ensure_resource_availability`` (what was made may have been
destroyed by another request) and ``object_level_authorization`` (tokens own nothing here)."""
REQUEST_SECONDS = 60.0
"""How long one answer may take."""
LEAVING_SECONDS = 60.0
"""How long schemathesis may take beyond its time, with requests that are under way."""


@dataclass(frozen=True)
class Bounds:
    """How much is asked. ``examples`` are requests for each operation, besides those at the bounds
    of what the document allows (``coverage``); ``seconds`` is how long requests are made up for at
    most. ``without`` are operations, as ``POST /path``, that are not asked for."""

    examples: int
    seed: int
    seconds: int | None = None
    coverage: bool = True
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """What came of it. ``faults`` are for people, one each; ``said`` has them with the requests to
    repeat them. ``accepted`` says how many requests of each operation succeeded."""

    requests: int
    operations: int
    faults: tuple[str, ...]
    accepted: Mapping[str, int]
    said: str


def check_installed() -> None:
    """Raises :exc:`torpor.vm.HostError` if schemathesis is not installed."""
    if importlib.util.find_spec("schemathesis") is None:
        raise HostError(
            "Schemathesis, which makes up requests from the OpenAPI document, is not installed.",
            state="Nothing was started.",
            todo="Install it: pip install 'torpor[lab]'.",
        )


async def ask(url: str, token: str, stock: Path, bounds: Bounds) -> Asked:
    """Ask the server at ``url`` whatever its document says that one can ask, with an admin's token.

    ``stock`` is the file that says what there is to ask about (see ``programs/schema_hooks.py``).
    Raises :exc:`torpor.vm.HostError` if schemathesis is not there, or fails itself.
    """
    check_installed()
    with tempfile.TemporaryDirectory(prefix="schema-") as place:
        directory = Path(place)
        config = directory / "schemathesis.toml"
        config.touch(mode=0o600)  # it has the token
        config.write_text(_config(url, token, bounds))
        status, said = await _run(
            [
                "--config-file", str(config), "--no-color", "run", f"{url}/openapi.json",
                "--phases", "examples,coverage,fuzzing,stateful" if bounds.coverage
                else "fuzzing,stateful",
                "--report", "json", "--report-json-path", str(directory / "report.json"),
            ],
            directory,
            stock,
            bounds.seconds,
        )  # fmt: skip
        try:
            report = json.loads((directory / "report.json").read_text())
        except (OSError, ValueError):
            raise HostError(
                f"Schemathesis ended with status {status} and no report: {said[-3000:]}"
            ) from None
    return _read(report, said)


def _config(url: str, token: str, bounds: Bounds) -> str:
    """Return schemathesis's configuration (TOML; strings as JSON has them)."""
    lines: list[tuple[str, Any]] = [
        ("base-url", url),
        ("hooks", str(HOOKS)),
        ("seed", bounds.seed),
        ("workers", 1),
        ("continue-on-failure", True),
        ("request-timeout", REQUEST_SECONDS),
        ("suppress-health-check", ["all"]),
        ("warnings", False),
        ("headers.Authorization", f"Bearer {token}"),
        ("generation.max-examples", bounds.examples),
        ("generation.no-shrink", True),
        ("generation.database", "none"),
        ("output.truncation.enabled", False),
        ("output.sanitization.enabled", True),
        ("checks.enabled", False),
        *((f"checks.{name}.enabled", True) for name in CHECKS),
        # 413, 415 and 416 refuse, too.
        (
            "checks.negative_data_rejection.expected-statuses",
            [400, 401, 403, 404, 405, 409, 411, 413, 415, 416, 503],
        ),
        # What is meant by `not_a_server_error` is 500: the others say what is wrong, and who can
        # mend it.
        ("checks.not_a_server_error.expected-statuses", ["2xx", "4xx", 501, 502, 503, 504, 507]),
    ]
    if bounds.seconds is not None:
        lines.append(("max-time", bounds.seconds))
    said = [f"{name} = {json.dumps(value)}" for name, value in lines]
    # Without a good signature nothing is said of such a path, its methods neither.
    said += ["[[operations]]", 'include-path-regex = "/signed/"']
    said += ["checks.unsupported_method.enabled = false"]
    for name in bounds.without:
        said += ["[[operations]]", f"include-name = {json.dumps(name)}", "enabled = false"]
    return "\n".join(said) + "\n"


async def _run(
    words: Sequence[str], directory: Path, stock: Path, seconds: int | None
) -> tuple[int, str]:
    """Run schemathesis; return its status and what it said."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "schemathesis.cli", *words,
        cwd=directory,
        env={**os.environ, "TORPOR_LAB_STOCK": str(stock), "COLUMNS": "120"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    limit = None if seconds is None else seconds + LEAVING_SECONDS + REQUEST_SECONDS
    try:
        async with asyncio.timeout(limit):
            said, _ = await running.communicate()
    except TimeoutError:
        raise HostError(f"Schemathesis did not end after {limit:.0f} s.") from None
    finally:
        if running.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                running.kill()
            await running.wait()
    assert running.returncode is not None
    return running.returncode, said.decode("utf-8", "replace")


def _read(report: Mapping[str, Any], said: str) -> Asked:
    faults = [
        f"{each['title']}, {each['count']} times: {', '.join(each['operations'])}"
        for each in report["failures"]
    ]
    faults += [f"{each['title']}, {each['count']} times" for each in report["errors"]]
    if not report["complete"]:
        faults.append(f"it stopped early: {report['stop_reason']}")
    accepted = {
        label: sum(rate["accepted"] for rate in phases.values())
        for label, phases in report["valid_rates"].items()
    }
    return Asked(
        report["test_cases"]["generated"],
        (report["operations"] or {}).get("tested", 0),
        tuple(faults),
        accepted,
        said,
    )
