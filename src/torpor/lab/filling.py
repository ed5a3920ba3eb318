"""A database with many sessions in it, for measurements that would take days to get there."""

import os
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from torpor.store import Database
from torpor.store import sessions as sessions_table
from torpor.store import snapshots as snapshots_table
from torpor.store.records import Session, Snapshot, Status
from torpor.vm.base import digest_base
from torpor.vm.manifest import MANIFEST, SUMS, Manifest, Sums, read, write


async def fill(home: Path, url: str, count: int, live: int) -> None:
    """Bring the sessions of a server that does not run, with this home and this database, up to
    ``count``. One of them must be there, paused, in a durable snapshot.

    ``live`` of the new ones are paused too, each in a copy of that snapshot of its own; the files
    of the copies are hard links, so they take no room. All others are destroyed.
    """
    database = await Database.open(url)
    try:
        async with database.write() as conn:
            (model,) = await sessions_table.live(conn)
            assert model.snapshot is not None
            row = await snapshots_table.get(conn, model.snapshot)
            assert row is not None
            made = [_session(model, number, number <= live) for number in range(1, count)]
            copies = [_snapshot(row, session) for session in made[:live]]
            await sessions_table.insert_all(conn, made)
            if copies:
                await snapshots_table.insert_all(conn, copies)
            for copy in copies:
                _copy_snapshot(home / "snapshots", row.id, copy.id)
    finally:
        await database.close()


def _session(model: Session, number: int, paused: bool) -> Session:
    at = model.created_at - timedelta(seconds=number)
    return replace(
        model,
        id=str(uuid.uuid4()),
        name=f"filling-{number}",
        status=Status.PAUSED if paused else Status.DESTROYED,
        created_at=at,
        updated_at=at,
        used_at=at,
        snapshot=f"{model.snapshot}-{number}" if paused else None,
    )


def _snapshot(row: Snapshot, session: Session) -> Snapshot:
    return replace(row, id=session.snapshot or "", session=session.id)


def _copy_snapshot(directory: Path, model: str, copy: str) -> None:
    """Give a durable snapshot a second name; its manifest has its own name in it, and its sums that
    of the manifest."""
    (directory / copy).mkdir()
    for file in (directory / model).iterdir():
        if file.name not in (MANIFEST, SUMS):
            os.link(file, directory / copy / file.name)
    manifest = replace(read(Manifest, directory / model / MANIFEST), id=copy)
    (directory / copy / MANIFEST).write_bytes(write(manifest))
    with (directory / copy / MANIFEST).open("rb", buffering=0) as opened:
        sum_of_it = digest_base(opened.fileno())
    sums = read(Sums, directory / model / SUMS)
    sums = replace(sums, files={**sums.files, MANIFEST: sum_of_it})
    (directory / copy / SUMS).write_bytes(write(sums))
