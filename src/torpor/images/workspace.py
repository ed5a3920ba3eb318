"""The workspace: a directory that every machine has, where agents work and files are brought to."""

import secrets

from torpor.vm import GuestAgent, GuestError
from torpor.vm.disks import MOUNTED_AT

WORKSPACE = MOUNTED_AT.encode()


async def make_workspace(agent: GuestAgent, user: str, root: bytes = WORKSPACE) -> None:
    """Make the workspace of a machine, if it is not there, and give it to ``user``. Raises
    :exc:`torpor.vm.GuestError`."""
    files = agent.files
    if await files.status(root, follow=True) is not None:
        return
    # Under another name until it is given away: nobody finds one that is still root's.
    new = root + b"-" + secrets.token_hex(8).encode()
    await files.make_directory(new, mode=0o755)
    try:
        await files.change(new, owner=user)
        await files.move(new, root, replace=False)
    except GuestError as error:
        await files.remove(new)
        if error.code != "EEXIST":  # else somebody was faster
            raise
