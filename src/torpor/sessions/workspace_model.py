"""What is asked of workspaces, as plain data, and what cannot be."""

from dataclasses import dataclass

from torpor.sessions.errors import ConflictError, InvalidError, NotFoundError
from torpor.sessions.model import is_session_id
from torpor.store.records import Workspace

LONGEST_NAME = 64
LARGEST_GIB = 100
"""What one may have at most, whatever the server allows, in GiB."""


@dataclass(frozen=True)
class WorkspaceLimits:
    """In GiB, ``largest`` is what one workspace may have, ``default`` what one has that is made for
    a session; ``most`` may be there at the same time."""

    largest: int = LARGEST_GIB
    default: int = 10
    most: int = 100


@dataclass(frozen=True)
class NewWorkspace:
    """A workspace that is to be: its size in GiB, and a name for people, if it is to have one."""

    size_gib: int
    name: str | None = None


@dataclass(frozen=True)
class MadeWorkspace:
    """A workspace that was asked for. ``before``: it had been made, when it was asked for with the
    same key before."""

    workspace: Workspace
    before: bool


def check_workspace(new: NewWorkspace, limits: WorkspaceLimits) -> None:
    """Raise :exc:`InvalidError` for what no workspace can be."""
    if not 1 <= new.size_gib <= limits.largest:
        raise InvalidError(
            f"size_gibibytes: a workspace cannot have {new.size_gib} GiB.",
            state="Nothing was created.",
            todo=f"Use 1 to {limits.largest}.",
        )
    name = new.name
    if name is not None and (
        not 1 <= len(name) <= LONGEST_NAME or not name.isprintable() or is_session_id(name)
    ):
        raise InvalidError(
            f"A workspace cannot be called {name[:LONGEST_NAME]!r}.",
            state="Nothing was created.",
            todo=f"Use 1 to {LONGEST_NAME} characters that can be printed, and nothing that looks"
            " like an id.",
        )


def size_of(gib: int) -> int:
    """Return the bytes of so many GiB."""
    return gib << 30


def no_workspace(called: str) -> NotFoundError:
    """Return the error of a workspace that is not known."""
    return NotFoundError(
        f"There is no workspace {called!r}.", todo="`torpor workspace list` shows them."
    )


def many_workspaces(called: str) -> ConflictError:
    """Return the error of a name that more than one workspace has."""
    return ConflictError(
        f"More than one workspace is called {called!r}.",
        state="Nothing was changed.",
        todo="Give its id.",
        code="ambiguous",
    )


def too_many(there: int, most: int) -> ConflictError:
    """Return the error of one workspace more than there may be."""
    return ConflictError(
        f"There are {there} workspaces, and at most {most} may be.",
        state="Nothing was created.",
        todo="Delete some, or raise max_workspaces in the settings.",
        code="limit_reached",
    )


def in_use(found: Workspace) -> ConflictError:
    """Return the error of a workspace that cannot be had, or deleted, as it stands."""
    facts = {"workspace_id": found.id, "workspace_state": found.state}
    if found.session is not None:
        facts["session_id"] = found.session
    why = {
        "PENDING": "is still being made",
        "DELETING": "is being deleted",
        "FAILED": f"cannot be used: {found.error}",
    }.get(found.state, f"is that of session {found.session}")
    todo = {
        "PENDING": "Ask again in a moment.",
        "DELETING": "",
        "FAILED": "Delete it.",
        "RELEASING": "Ask again when its content is saved.",
    }.get(found.state, "Destroy that session first; what the workspace holds stays.")
    return ConflictError(
        f"Workspace {called(found)} {why}{'' if why.endswith('.') else '.'}",
        state="Nothing was changed.",
        todo=todo,
        code="workspace_in_use",
        **facts,
    )


def called(found: Workspace) -> str:
    """Return what a workspace is called in words: its name, else its id."""
    return found.name or found.id
