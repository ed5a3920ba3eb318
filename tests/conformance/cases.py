"""All cases, by the names of their methods."""

from collections.abc import Iterator
from dataclasses import replace

from tests.conformance import cases_by_hand as by_hand
from tests.conformance import cases_of_handles as of_handles
from tests.conformance.cases_generated import GENERATED
from tests.conformance.cases_newer import WORKSPACES
from tests.conformance.cases_without import NEWER, WITHOUT
from tests.conformance.judging import Case


def _in(group: str, cases: tuple[Case, ...]) -> Iterator[Case]:
    return (replace(case, method=f"{group}.{case.method}") for case in cases)


CASES = {
    case.method: case
    for case in (
        *_in("agents", by_hand.AGENTS),
        *_in("agents.sessions", by_hand.SESSIONS),
        *_in("agents.configs", by_hand.CONFIGS),
        *_in("agents.templates", by_hand.TEMPLATES),
        *_in("session", of_handles.HANDLE),
        *of_handles.STREAMS,
        *_in("harness", GENERATED),
        *WITHOUT,
    )
}

NOT_YET = {case.method: case for case in (*WORKSPACES, *NEWER)}
"""Of methods that the client does not have, but newer ones do."""
