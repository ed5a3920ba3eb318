"""What the commands of ``torpor snapshot`` do, in Torpor's home.

Imports are inside: a command that only reads usage needs none of this.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from torpor.cli.harmless import harmless

if TYPE_CHECKING:
    from torpor.settings import Places
    from torpor.vm import Accelerator, Manifest, SnapshotError, Store


async def rows(places: "Places") -> list[dict[str, Any]]:
    """Return a row for each snapshot, the oldest first."""
    store = _to_read(places)
    if store is None:
        return []
    return await asyncio.to_thread(_listed, store, await _accelerator(places))


def _listed(store: "Store", accelerator: "Accelerator | None") -> list[dict[str, Any]]:
    from torpor.vm import SnapshotError
    from torpor.vm.compatibility import check
    from torpor.vm.retention import frees, is_kept

    freed = frees(store)
    rows = []
    for snapshot in store.ids():
        row: dict[str, Any] = {"id": snapshot}
        try:
            found = store.manifest(snapshot)
            row |= {
                "created_at": found.created_at,
                "parent": found.parent,
                "memory": found.memory is not None,
                "durable": store.durable(snapshot),
                "kept": is_kept(store, snapshot),
                "frees": freed.get(snapshot, 0),
                "stored_bytes": found.stored_bytes,
                "labels": found.labels,
                "thaws_here": check(found, accelerator).state if accelerator else None,
            }
        except (SnapshotError, OSError) as error:
            row["damaged"] = str(error)
        rows.append(row)
    return rows


async def shown_one(places: "Places", snapshot: str) -> dict[str, Any]:
    """Return what is known of one snapshot. Raises :exc:`SnapshotError`."""
    from torpor.vm.compatibility import check
    from torpor.vm.retention import is_kept
    from torpor.vm.sizes import stored_bytes

    store = _known(places, snapshot)
    found = store.manifest(snapshot)
    accelerator = await _accelerator(places)
    verdict = check(found, accelerator) if accelerator is not None else None
    files = [
        {"name": name, "size": file.stat().st_size, "stored_bytes": stored_bytes([file])}
        for name, file in store.files(found, store.disks(found))
    ]
    return {
        "manifest": found,
        "durable": store.durable(snapshot),
        "kept": is_kept(store, snapshot),
        "files": files,
        "here": verdict,
    }


async def verified(places: "Places", wanted: list[str] | None) -> list[dict[str, str]]:
    """Verify snapshots, all if none is named; return what is wrong with each, or nothing."""
    from torpor.cli.progress import Shown
    from torpor.images import Step
    from torpor.vm import SnapshotError

    store = _to_read(places)
    known = store.ids() if store is not None else []
    checked = []
    with Shown() as shown:
        for number, snapshot in enumerate(wanted or known):
            shown.report(Step("verifying", number, len(wanted or known), "snapshots"))
            damaged = ""
            try:
                await asyncio.to_thread(_known(places, snapshot).verify, snapshot)
            except SnapshotError as error:
                damaged = str(error)
            checked.append({"id": snapshot, "damaged": damaged})
    return checked


async def mark(places: "Places", snapshot: str, *, kept: bool) -> None:
    """Say that a snapshot is to be kept, or no more."""
    from torpor.vm.retention import mark_kept

    async with _to_change(places) as store:
        mark_kept(store, snapshot, kept=kept)


async def removed(
    places: "Places", snapshots: list[str], *, erasing: bool, overwrite: bool, force: bool
) -> tuple[list[Any], int]:
    """Remove snapshots; return the reports of an erasure, and the bytes that were freed."""
    from torpor.vm import SnapshotError
    from torpor.vm.erasure import erase
    from torpor.vm.home import used_in
    from torpor.vm.retention import is_kept
    from torpor.vm.sizes import store_files, unshared_bytes

    async with _to_change(places) as store:
        for snapshot in snapshots:
            store.directory(snapshot)
            with suppress(SnapshotError):  # damaged ones can be removed as well
                if not force and is_kept(store, snapshot):
                    raise typer.BadParameter(f"{snapshot} is to be kept; --force removes it")
        owned = await _owned(places, store)
        for snapshot in snapshots:
            if snapshot in owned:
                raise _of_session(snapshot, owned[snapshot])
        used = used_in(store)
        before = unshared_bytes(store_files(store.root))
        reports = []
        for snapshot in snapshots:
            if erasing:
                reports.append(
                    await asyncio.to_thread(erase, store, snapshot, used, overwrite=overwrite)
                )
            else:
                await asyncio.to_thread(store.remove, snapshot)
        await asyncio.to_thread(store.collect, used)
        return reports, before - unshared_bytes(store_files(store.root))


async def exported(
    places: "Places", snapshot: str, file: str, *, shared: bool, replace: bool
) -> Any:
    """Export a snapshot to a file, or to standard output if that is ``-``."""
    from torpor.cli.progress import Shown
    from torpor.vm.export import export_file, export_stream
    from torpor.vm.stoppable import stoppable

    store = _known(places, snapshot)
    with Shown() as shown:
        report = _report(shown)
        if file == "-":
            return await stoppable(
                lambda check: export_stream(
                    store, snapshot, sys.stdout.buffer, shared=shared, report=report, check=check
                )
            )
        return await stoppable(
            lambda check: export_file(
                store, snapshot, Path(file), shared=shared, replace=replace, report=report,
                check=check,
            )
        )  # fmt: skip


async def imported(places: "Places", file: str, name: str | None) -> tuple[Any, Any]:
    """Import a file; return what came, and whether it can be thawed here."""
    from torpor.cli.progress import Shown
    from torpor.vm.compatibility import check as judge
    from torpor.vm.importing import import_snapshot
    from torpor.vm.stoppable import stoppable

    accelerator = await _accelerator(places)

    def announce(found: "Manifest") -> None:
        verdict = judge(found, accelerator) if accelerator is not None else None
        if verdict is not None and not verdict.thaws:
            typer.secho(harmless(f"{verdict.why} {verdict.todo}"), fg=typer.colors.YELLOW, err=True)

    async with _to_change(places) as store:
        with Shown() as shown, _opened(file) as source:
            made = await stoppable(
                lambda check: import_snapshot(
                    store,
                    source,
                    name=name,
                    announce=announce,
                    report=_report(shown),
                    check=check,
                )
            )
    return made, judge(made.manifest, accelerator) if accelerator is not None else None


async def pruned(places: "Places", policy: Any, *, dry_run: bool) -> Any:
    """Return what a policy removes, and remove it unless this is a ``dry_run``."""
    from torpor.vm.home import used_in
    from torpor.vm.importing import remove_abandoned
    from torpor.vm.retention import held_elsewhere, plan, standing

    async with _to_change(places) as store:
        used = used_in(store)
        held = await asyncio.to_thread(held_elsewhere, store, used)
        owned = await _owned(places, store)
        made = plan(list(standing(store)), policy, datetime.now(UTC), held, owned)
        if not dry_run:
            for removal in made.removals:
                await asyncio.to_thread(store.remove, removal.id)
            remove_abandoned(store)
            await asyncio.to_thread(store.collect, used)
        return made


def _golden(places: "Places") -> "Store | None":
    from torpor.vm import Store

    # A store makes its directories; a cache without golden snapshots stays as it is.
    home = places.cache / "golden"
    return Store(home) if (home / "snapshots").is_dir() else None


def _to_read(places: "Places") -> "Store | None":
    """Return the store of the home, or None if there is none yet."""
    from torpor.vm import Store

    if not (places.home / "snapshots").is_dir():
        return None
    return Store(places.home, _golden(places))


def _known(places: "Places", snapshot: str) -> "Store":
    """Return the store in which a snapshot is. Raises :exc:`torpor.vm.SnapshotError`."""
    from torpor.vm.integrity import unknown

    store = _to_read(places)
    if store is None:
        raise unknown(snapshot)
    store.directory(snapshot)
    return store


@asynccontextmanager
async def _to_change(places: "Places") -> AsyncIterator["Store"]:
    from torpor.settings.presence import presence
    from torpor.vm import HostError
    from torpor.vm.home import opened_store

    serving = presence(places.home)
    if serving is not None:
        raise HostError(
            f"A Torpor server (process {serving.pid}, at {serving.url}) has {places.home} open, and"
            " looks after the snapshots in it.",
            state="Nothing was changed.",
            todo="`torpor rm` removes a session, or one of its checkpoints, and what nothing needs"
            " then. For anything else stop the server first: its machines run on.",
        )
    async with opened_store(places.home, _golden(places)) as store:
        yield store


async def _owned(places: "Places", store: "Store") -> dict[str, str]:
    """Return the snapshots that sessions have, each with its session's name."""
    from torpor.sessions.owned import owned_snapshots
    from torpor.settings import load_settings

    return await owned_snapshots(store, load_settings({}).database_url(places))


def _of_session(snapshot: str, session: str) -> "SnapshotError":
    from torpor.vm import SnapshotError

    return SnapshotError(
        f"Snapshot {snapshot} is one of session {session}.",
        state="Nothing was removed.",
        todo=f"With `torpor serve` running, `torpor rm {session}` removes the session with all that"
        f" it has, and with --checkpoint ID one checkpoint; `torpor tree {session}` shows them, and"
        " `torpor checkpoint` makes one, so that an older one can go.",
    )


async def _accelerator(places: "Places") -> "Accelerator | None":
    from torpor.cli.facts import accelerator_of

    return (await accelerator_of(places.cache))[0]


def _report(shown: Any) -> Callable[[str, int, int], None]:
    from torpor.images import Step

    return lambda what, done, total: shown.report(Step(what, done, total, "bytes"))


def _opened(file: str) -> Any:
    if file == "-":
        return open(0, "rb", closefd=False)
    return open(file, "rb")
