"""The users of the image, as whom things are done."""

import grp
import pwd
from dataclasses import dataclass


@dataclass(frozen=True)
class User:
    """Whom a command runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


def find_user(wanted: str) -> User:
    """Return the user called ``wanted``: ``user`` or ``user:group``, each a name or a number.

    Raises ValueError for a name that the image does not have.
    """
    user, colon, group = wanted.partition(":")
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        if not user.isdecimal():
            raise ValueError(f"this image has no user {user!r}") from None
        uid = int(user)
        gid = find_group(group) if colon else uid
        return User(uid, gid, (), user, "/root" if uid == 0 else "/")
    gid = find_group(group) if colon else entry.pw_gid
    groups = tuple(each.gr_gid for each in grp.getgrall() if entry.pw_name in each.gr_mem)
    return User(entry.pw_uid, gid, groups, entry.pw_name, entry.pw_dir)


def find_group(wanted: str) -> int:
    """Return the gid of a group, a name or a number. Raises ValueError if there is none."""
    if wanted.isdecimal():
        return int(wanted)
    try:
        return grp.getgrnam(wanted).gr_gid
    except KeyError:
        raise ValueError(f"this image has no group {wanted!r}") from None
