"""The workspace of a session: it is there from the first start, and made anew if it was removed."""

from torpor.images.workspace import make_workspace
from torpor.sessions import workspace_paths
from torpor.sessions.use import InUse


def user_of(used: InUse) -> str:
    """Return as whom things are done in the workspace of a session: as its image's user."""
    return used.session.defaults.get("user") or "0"


async def make_root(used: InUse) -> None:
    """Make the workspace, if it is not there, and give it to the image's user. Raises
    :exc:`torpor.vm.GuestError`."""
    await make_workspace(used.agent, user_of(used), workspace_paths.ROOT)
