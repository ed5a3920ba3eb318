"""What can go wrong with a backup.

Each error says what happened, what state things are in now, and what to do, in this order.
"""


class BackupError(Exception):
    """A backup was not made, is not whole, or cannot be restored here."""

    def __init__(self, happened: str, *, state: str = "", todo: str = "") -> None:
        super().__init__(" ".join(part for part in (happened, state, todo) if part))
        self.happened = happened
        self.state = state
        self.todo = todo


def wrong(what: str) -> BackupError:
    """Return the error of a file that is not a whole backup."""
    return BackupError(
        f"The file is not a whole backup: {what}.",
        state="Nothing was restored from it.",
        todo="Use another one, or copy it again from where it is whole.",
    )
