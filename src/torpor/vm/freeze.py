"""Freeze: a running machine -> an immutable snapshot.

The steps, in the order of :func:`freeze`: everything that can be done while the guest runs is done
before, everything slow after; in between, the machine stands still for little more than the copy of
the pages that it has written since its base.
"""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torpor.vm.agent import GuestAgent
from torpor.vm.errors import (
    ChannelLostError,
    FreezeError,
    GuestError,
    HeldError,
    MachineDiedError,
    RebootedError,
    VmError,
    disk_is_full,
    told,
)
from torpor.vm.hooks import HookCall, HookResult, failed
from torpor.vm.machine import Machine
from torpor.vm.manifest import Manifest
from torpor.vm.new_snapshot import NewSnapshot, Wanted
from torpor.vm.qmp import QmpError
from torpor.vm.sizes import free_bytes
from torpor.vm.store import Store
from torpor.vm.syncing import fsync

QUIESCE_LIMIT_MS = 10_000
_HOOKS_POLL = 0.25
_LEAST_SPACE = 1 << 20
"""Bytes; where fewer are free, what could not be written failed for want of them."""


@dataclass(frozen=True)
class Times:
    """How long a freeze took, in seconds.

    ``quiesce``: the guest syncs and freezes its processes, the host its disk. ``window``: the vCPUs
    stand still, up to the last copied page.
    ``still``: the user's processes stand still, up to the guest's word that they run again (0 if
    the machine stopped). ``commit``: until the snapshot is visible.
    """

    quiesce: float
    window: float
    still: float
    commit: float


@dataclass(frozen=True)
class Frozen:
    """A finished freeze. ``hooks`` is what became of those that ran before it."""

    manifest: Manifest
    times: Times
    hooks: tuple[HookResult, ...] = ()


async def freeze(machine: Machine, store: Store, wanted: Wanted) -> Frozen:
    """Make a snapshot of ``machine``.

    Raises :exc:`FreezeError` (the machine runs on as before, or is held because the disk is full),
    :exc:`RebootedError` (no snapshot was made), or the machine's end.
    """
    async with machine.exclusive(), _put_together(machine, store, wanted) as new:
        agent, qmp = await machine.attached(), machine.qmp
        clock = _Stopwatch()
        made: Manifest | None = None
        # Before anything is frozen, and with the channel open: hooks may ask the user's processes.
        hooks = await _run_hooks(machine, agent, wanted)
        await new.prepare()
        async with agent.channel.quiet(QUIESCE_LIMIT_MS / 1000):
            clock.mark("quiesce")
            async with _undone(machine, partial(_resume, machine, agent)):
                # 1. The guest syncs its disks and freezes the user's processes.
                synced = await agent.quiesce(QUIESCE_LIMIT_MS)
                # 2. What QEMU has written and the host not: the stop flushes, and is to be short.
                for file in new.top_files.values():
                    await asyncio.to_thread(fsync, file)
                clock.mark("window")
                # 3. The vCPUs stop.
                await qmp.stop()
                async with _undone(machine, qmp.cont):
                    # 4. The state of devices and CPUs.
                    await new.save_devices()
                    # 5. The pages that the guest has written.
                    await new.save_memory()
                    # 6. The top layers become part of the snapshot, unless nothing is in them.
                    if wanted.then == "stop":
                        clock.mark("commit")
                        made = await new.commit_and_end()
                    else:
                        await new.change_layers()
                # 7. The machine runs on: the blocks undo 3 and 1. Or it is gone.
                clock.mark("rest")
        if made is None:
            clock.mark("commit")
            await new.detach()
            made = new.commit()
        return Frozen(made, clock.times(synced), hooks)


async def _run_hooks(machine: Machine, agent: GuestAgent, wanted: Wanted) -> tuple[HookResult, ...]:
    event = wanted.event or ("pause" if wanted.then == "stop" else "checkpoint")
    told = {"event": event, "machine": machine.id, "snapshot": wanted.id}
    results = await _when_free(agent, HookCall(told, wanted.hooks))
    bad = failed(results) if wanted.hooks.refuse else None
    if bad is not None:
        said = bad.output.strip()[-500:]
        raise VmError(f"{bad}." + (f" It said: {said}" if said else ""))
    return results


async def _when_free(agent: GuestAgent, call: HookCall) -> tuple[HookResult, ...]:
    """Run the hooks; those of a freeze that was called off may run still, and are waited for."""
    deadline = time.monotonic() + call.limits.total
    while True:
        try:
            return await agent.run_hooks("before-freeze", call)
        except GuestError as error:
            if error.code != "EBUSY" or time.monotonic() > deadline:
                raise
        await asyncio.sleep(_HOOKS_POLL)


@asynccontextmanager
async def _put_together(
    machine: Machine, store: Store, wanted: Wanted
) -> AsyncIterator[NewSnapshot]:
    """Begin a snapshot, and clean up if it comes to nothing."""
    try:
        machine.holding.check()  # it can be brought to rest only when it goes on
        place = store.begin(wanted.id)
    except (HeldError, OSError) as error:
        raise _failed(machine, error, store.root) from error
    new = NewSnapshot(machine, store, wanted, place)
    try:
        yield new
    except (OSError, VmError, TimeoutError) as error:
        if isinstance(error, QmpError | ChannelLostError):
            error = await machine.explain(error)
        if isinstance(error, MachineDiedError | RebootedError):
            raise error from None
        error = machine.holding.error() or error
        raise _failed(machine, error, store.root) from error
    finally:
        store.abandon(place)  # after a commit nothing has this name any more
        if machine.running:
            with contextlib.suppress(VmError):  # the snapshot stands; a dead machine tells itself
                await asyncio.shield(new.settle())


def _failed(machine: Machine, error: Exception, directory: Path) -> FreezeError:
    if isinstance(error, HeldError):
        return FreezeError(
            f"Machine {machine.id} could not be frozen: the host's disk is full.",
            state="No snapshot was made. It is held until there is space, and then goes on.",
            todo="Make space.",
        )
    said = told(error)
    # QEMU does not say that there is no space.
    if isinstance(error, QmpError) and free_bytes(directory) < _LEAST_SPACE:
        error.__cause__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        said = f"the host's disk is full. ({said})"
    return FreezeError(
        f"Machine {machine.id} could not be frozen: {said}",
        state="It runs on as before, and no snapshot was made.",
        todo="Make space." if disk_is_full(error) else "",
    )


async def _resume(machine: Machine, agent: GuestAgent) -> None:
    """Let the user's processes run on; those of a machine that is held do when it is released."""
    try:
        await agent.resume()
    except VmError as error:
        machine.release.resume_later()
        if not isinstance(error, HeldError):
            raise


@asynccontextmanager
async def _undone(machine: Machine, undo: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Undo a step at the end of the block, also when cancelled, unless the machine has ended."""
    try:
        yield
    finally:
        if machine.running:
            await asyncio.shield(undo())


class _Stopwatch:
    """The seconds between named moments."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._spent: dict[str, float] = {}
        self._last: tuple[str, float] | None = None

    def mark(self, name: str) -> None:
        """Begin to count for ``name``, and no longer for what was before."""
        now = time.monotonic()
        self._began.setdefault(name, now)
        if self._last is not None:
            before, since = self._last
            self._spent[before] = self._spent.get(before, 0.0) + now - since
        self._last = (name, now)

    def times(self, synced: float) -> Times:
        """Return the times of a freeze whose guest took ``synced`` seconds to sync at first."""
        self.mark("end")
        still = 0.0
        if self._began["commit"] > self._began["rest"]:  # it ran on
            still = self._began["commit"] - self._began["quiesce"] - synced
        return Times(self._spent["quiesce"], self._spent["window"], still, self._spent["commit"])
