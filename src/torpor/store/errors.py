"""What can go wrong with the database.

Each error says what happened, what state things are in now, and what to do, in this order.
"""

from datetime import datetime

UNCHANGED = "Nothing was changed: the database is as it was before."


class StoreError(Exception):
    """The root of this package's errors."""

    def __init__(self, happened: str, *, state: str = "", todo: str = "") -> None:
        super().__init__(" ".join(part for part in (happened, state, todo) if part))
        self.happened = happened
        self.state = state
        self.todo = todo


class UrlError(StoreError):
    """The address of the database is not one that can be opened."""


class NewerSchemaError(StoreError):
    """The database was written by a newer Torpor."""


class DamagedError(StoreError):
    """The file is not a database, or not a whole one, or not Torpor's."""


class DiskFullError(StoreError):
    """There is no space for a change; it was not made, and the database is whole."""


class DiskError(StoreError):
    """The disk or the file system refused to read or write for a reason other than space."""


class BusyError(StoreError):
    """Another program was writing to the database for too long."""


class UnreachableError(StoreError):
    """The server of the database cannot be reached, or refuses to let us in."""


class FencedError(StoreError):
    """Another server has taken the host of this one, whose changes are not taken any more."""


class HostHeldError(StoreError):
    """A server holds the host: its name, where it is reached, and until when at least."""

    def __init__(self, name: str, url: str | None, until: datetime | None) -> None:
        self.until = until
        where = f", reached at {url}," if url else ""
        at_least = f" until {until:%Y-%m-%d %H:%M:%S} UTC at least" if until else ""
        super().__init__(
            f"The host {name} is held by another server{where}{at_least}.",
            state="Nothing was changed.",
            todo="Stop that one, or wait until its time is over.",
        )


class MissingError(StoreError):
    """There is no such database."""


class NotEmptyError(StoreError):
    """A database that was to be filled has something in it."""


class NameTakenError(StoreError):
    """A session that lives, or a template, has the name. ``holder`` is its id."""

    def __init__(self, name: str, holder: str, what: str = "session") -> None:
        end = "destroy" if what == "session" else "delete"
        super().__init__(
            f"The name {name!r} is that of {what} {holder}.",
            state="Nothing was changed.",
            todo=f"Take another name, or {end} that {what} first.",
        )
        self.name = name
        self.holder = holder


class ConfigNameTakenError(StoreError):
    """A configuration that was not deleted has the name. ``holder`` is its id."""

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(
            f"The name {name!r} is that of configuration {holder}.",
            state="Nothing was changed.",
            todo="Take another name, or delete that configuration first.",
        )
        self.name = name
        self.holder = holder


class KeyUsedError(StoreError):
    """An operation with this idempotency key of this actor is noted already. ``operation`` is its
    id."""

    def __init__(self, key: str, operation: str) -> None:
        super().__init__(
            f"The idempotency key {key!r} was used before, by operation {operation}.",
            state="Nothing was changed.",
            todo="Take a new key for each thing that is asked for.",
        )
        self.key = key
        self.operation = operation


class CursorError(StoreError):
    """A page was asked for after a place that no page ends at."""

    def __init__(self, cursor: str) -> None:
        super().__init__(
            f"{cursor!r} is no place in this list.",
            todo="Take the value that came with the page before, unchanged, or none.",
        )
        self.cursor = cursor
