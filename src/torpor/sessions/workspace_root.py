"""The workspace of a session: a directory in its machine, there for whoever uses it first."""

import secrets

from torpor.sessions import workspace_paths
from torpor.sessions.use import InUse
from torpor.vm import GuestError


def user_of(used: InUse) -> str:
    """Return as whom things are done in the workspace of a session: as its image's user."""
    return used.session.defaults.get("user") or "0"


async def make_root(used: InUse) -> None:
    """Make the workspace, if it is not there, and give it to the image's user. Raises
    :exc:`GuestError`."""
    files, root = used.agent.files, workspace_paths.ROOT
    if await files.status(root, follow=True) is not None:
        return
    # Under another name until it is given away: nobody finds one that is still root's.
    new = root + b"-" + secrets.token_hex(8).encode()
    await files.make_directory(new, mode=0o755)
    try:
        await files.change(new, owner=user_of(used))
        await files.move(new, root, replace=False)
    except GuestError as error:
        await files.remove(new)
        if error.code != "EEXIST":  # else somebody was faster
            raise
