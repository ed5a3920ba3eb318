"""The whole state of a server in one file, and out of it again: backup and restore."""

from torpor.backup.alone import back_up_alone, remove_left_copies
from torpor.backup.contents import About, SavedSession, Summary
from torpor.backup.errors import BackupError
from torpor.backup.restoring import Restored, restore
from torpor.backup.serving import Backups
from torpor.backup.staging import check_no_restore
from torpor.backup.verifying import verify

__all__ = [
    "About",
    "BackupError",
    "Backups",
    "Restored",
    "SavedSession",
    "Summary",
    "back_up_alone",
    "check_no_restore",
    "remove_left_copies",
    "restore",
    "verify",
]
