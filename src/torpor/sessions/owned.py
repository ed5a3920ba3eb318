"""Which snapshots in a home are a session's, asked while no server has the home open."""

import contextlib

from torpor.sessions.hosts import SESSION
from torpor.store import sessions
from torpor.store.database import Database
from torpor.store.offline import file_of
from torpor.store.records import Session
from torpor.vm import SnapshotError, Store


async def owned_snapshots(store: Store, database: str) -> dict[str, str]:
    """Return the snapshots of a store that sessions have, by id, with the session's name, as the
    database of this URL knows them.

    A session that is destroyed has none. Where there is no database nobody knows which are there:
    each snapshot with the label of a session is that one's, called by its id, then. Raises
    :exc:`torpor.store.errors.StoreError`.
    """
    file = file_of(database)
    live = None if file is not None and not file.exists() else await _live(database)
    names = {session.id: session.name for session in live or ()}
    found = {}
    for session in live or ():
        if session.snapshot is not None and store.has(session.snapshot):
            found[session.snapshot] = session.name
    for snapshot in store.ids():
        with contextlib.suppress(SnapshotError, OSError):
            owner = store.manifest(snapshot).labels.get(SESSION)
            if owner is not None and (live is None or owner in names):
                found.setdefault(snapshot, names.get(owner, owner))
    return found


async def _live(url: str) -> list[Session]:
    database = await Database.open(url)
    try:
        async with database.read() as conn:
            return await sessions.live(conn)
    finally:
        await database.close()
