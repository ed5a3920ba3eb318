"""What the shell completes: names of sessions, from the server, and quietly if there is none."""

import os

LIMIT = 200


def sessions(incomplete: str) -> list[tuple[str, str]]:
    """Return the names of sessions that begin so, with their states. Ids are completed, too, once
    there is a beginning of one."""
    found = []
    for name, session_id, status in _known():
        if name.startswith(incomplete):
            found.append((name, status))
        elif len(incomplete) >= 4 and session_id.startswith(incomplete):
            found.append((session_id, f"{name}, {status}"))
    return found


def places(incomplete: str) -> list[tuple[str, str]]:
    """Return the same for ``SESSION:PATH``. What is after the colon nobody completes."""
    if ":" in incomplete or "/" in incomplete:
        return []
    return [(f"{name}:", status) for name, status in sessions(incomplete)]


def _known() -> list[tuple[str, str, str]]:
    from torpor.cli.server import connected
    from torpor.client import Patience

    try:
        # A shell waits for this: one try, and the options of its line are not known here.
        with connected(os.environ.get("TORPOR_URL"), Patience(tries=1)) as client:
            page = client.list_sessions(limit=LIMIT)
    except Exception:  # whatever it is, a shell's prompt is no place to tell of it
        return []
    return [(each.name, each.id, each.status.lower()) for each in page.items]
