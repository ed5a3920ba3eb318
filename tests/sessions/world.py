"""A host of machines that are files: for tests of what sessions do, without a machine.

Everything that the host does is on disk at once and step by step, as a real host's is, so that a
program that uses it can be killed at any moment and the next one finds what was left. A machine is
its number: a count that only :meth:`WorldHost.count` changes, and that a snapshot brings back.

A disk is a list of lines. What a machine writes to it is the machine's until it is saved: by a
snapshot, by the machine's end if its files are kept, or when the disk is
taken from it, which ends it.

A wall is what was asked of it: who watches a test has a machine reach out with
:meth:`WorldHost.reach`.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torpor.images import ImageError
from torpor.images.references import Reference
from torpor.network.decisions import Decision
from torpor.sessions.hosts import (
    PUBLIC,
    SESSION,
    Built,
    Counted,
    DiskState,
    End,
    Facts,
    Inventory,
    Kept,
    Running,
    Start,
    StartEvent,
    Wall,
)
from torpor.vm import MIB, FreezeError, HostError, MachineDiedError, SnapshotError
from torpor.vm.new_snapshot import new_id
from torpor.vm.usage import Usage


class WorldHost:
    """A :class:`torpor.sessions.hosts.MachineHost` in a directory.

    ``step`` is how long each of its steps takes, in seconds. ``refuse`` maps the name of a method
    to an error that it raises the next time, ``refuse_always`` to one that it raises each time.
    """

    def __init__(self, root: Path, step: float = 0.0) -> None:
        self.root = root
        self.step = step
        self.refuse: dict[str, Exception] = {}
        self.refuse_always: dict[str, Exception] = {}
        self.calls: list[str] = []
        self.sources: list[str] = []
        """What was asked of registries."""
        self.memory = 100_000 * MIB
        self.holding: str | None = None
        self.not_mounted: str | None = None
        """Why no disk can be mounted."""
        self.left: dict[str, End] = {}
        self.walls: dict[str, Wall] = {}
        """The walls that this program has built, by machine."""
        self.no_wall: str | None = None
        """Why no wall can be built here."""
        self._counted: dict[tuple[str, str], Counted] = {}
        self._decided: list[Callable[[str, Decision], None]] = []
        self._ends: list[Callable[[End], None]] = []
        self._reboots: list[Callable[[Running], None]] = []
        for kind in ("machines", "snapshots", "images", "disks"):
            (root / kind).mkdir(parents=True, exist_ok=True)

    # What there is

    def _read(self, kind: str, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.root / kind / name).read_text())
        except FileNotFoundError:
            if kind == "machines":
                raise MachineDiedError(f"There is no machine {name}.") from None
            if kind == "images":
                raise ImageError(f"There is no image {name}.", "Nothing was done.", "") from None
            if kind == "disks":
                raise HostError(f"There is no disk {name}.") from None
            raise SnapshotError(f"There is no snapshot {name}.") from None
        except ValueError:
            raise SnapshotError(f"Snapshot {name} is damaged.") from None
        return found

    def _write(self, kind: str, name: str, content: dict[str, Any]) -> None:
        new = self.root / kind / f".{name}"
        new.write_text(json.dumps(content))
        new.rename(self.root / kind / name)

    def _all(self, kind: str) -> list[str]:
        names = (each.name for each in (self.root / kind).iterdir())
        return sorted(name for name in names if not name.startswith("."))

    async def _step(self, name: str = "") -> None:
        if name:
            self.calls.append(name)
        await asyncio.sleep(self.step)
        error = self.refuse.pop(name, None) or self.refuse_always.get(name)
        if error is not None:
            raise error

    # For tests

    def count(self, machine: str) -> int:
        """Let a machine count on, and return how far it is."""
        content = self._read("machines", machine)
        content["count"] += 1
        self._write("machines", machine, content)
        return int(content["count"])

    def counted(self, machine: str) -> int:
        """Return how far a machine has counted."""
        return int(self._read("machines", machine)["count"])

    def write_disk(self, machine: str, line: str) -> None:
        """Have a machine write a line to its disk."""
        content = self._read("machines", machine)
        content["disk"]["lines"].append(line)
        self._write("machines", machine, content)

    def read_disk(self, machine: str) -> list[str] | None:
        """Return the lines of the disk that a machine has, None if it has none."""
        disk = self._read("machines", machine).get("disk")
        return None if disk is None else list(disk["lines"])

    def saved_on(self, disk: str) -> list[str]:
        """Return the lines that were saved of a disk."""
        return list(self._read("disks", disk)["lines"])

    def decide(self, machine: str, decision: Decision) -> None:
        """Have the wall of a machine decide something."""
        session = self._read("machines", machine)["labels"][SESSION]
        for call in self._decided:
            call(session, decision)

    def reach(
        self, machine: str, host: str, sent: int = 0, received: int = 0, *, connections: int = 1
    ) -> None:
        """Have a machine send so many bytes to a host, and receive so many from it; the wall gives
        the name an address."""
        session = self._read("machines", machine)["labels"][SESSION]
        before = self._counted.get(
            (machine, host), Counted(session, machine, machine, host, 0, 0, 0)
        )
        self._counted[machine, host] = Counted(
            session,
            machine,
            machine,
            host,
            before.connections + connections,
            before.sent_bytes + sent,
            before.received_bytes + received,
        )
        names = json.loads(self.walls[machine].names or "[]")
        if host not in names:
            written = json.dumps([*names, host])
            self.walls[machine] = replace(self.walls[machine], names=written)

    def machines(self) -> list[str]:
        """Return the machines that run."""
        return self._all("machines")

    def snapshots(self) -> list[str]:
        """Return the snapshots that there are."""
        return self._all("snapshots")

    def images(self) -> list[str]:
        """Return the images that were built."""
        return self._all("images")

    def die(self, machine: str, cause: str = "crash", *, files: bool = False) -> None:
        """End a machine, as if by itself."""
        content = self._read("machines", machine)
        (self.root / "machines" / machine).unlink()
        kept = None
        if files:
            kept = new_id()
            self._write("snapshots", kept, {**content, "memory": False, "durable": True})
            self._save_disk(content, durable=True)
        for call in self._ends:
            call(End(machine, cause, f"Machine {machine} ended: {cause}.", kept))

    def power_cut(self) -> None:
        """End all machines, and lose what was not durable, as a host that goes down does."""
        for machine in self.machines():
            (self.root / "machines" / machine).unlink()
        for snapshot in self.snapshots():
            if not self._read("snapshots", snapshot)["durable"]:
                self._write("snapshots", snapshot, {"torn": True, "durable": False})
        for disk in self._all("disks"):
            content = self._read("disks", disk)
            self._write("disks", disk, {**content, "lines": content["kept"], "durable": True})

    def reboot(self, machine: str) -> None:
        """Reboot a machine from inside."""
        content = self._read("machines", machine)
        self._write("machines", machine, {**content, "boot_id": new_id(), "count": 0})
        for call in self._reboots:
            call(self.running()[machine])

    # The host

    async def image_start(
        self, image: str, size: str, report: Callable[[str], Awaitable[None]]
    ) -> Start:
        await self._step("image_start")
        await report(f"boot {image}")
        self.check_image(image)
        golden = f"golden-{image}-{size}"
        if golden not in self.snapshots():
            content = {"labels": {}, "parent": None, "durable": True, "memory": True, "count": 0}
            self._write("snapshots", golden, content)
        return Start(golden, {"env": {"IMAGE": image}, "user": "0", "working_dir": "/"})

    def check_image(self, image: str) -> None:
        if image == "missing" or image.startswith("t-"):
            self._read("images", image)

    async def build_image(
        self, source: Reference, name: str, size: str, report: Callable[[str], Awaitable[None]]
    ) -> Built:
        self.sources.append(source.wanted)
        await report("fetching")
        await self._step("build_image")
        self._write("images", name, {"source": source.wanted})
        await report(f"boot {name} at {size}")
        await self._step("boot_image")
        manifest = hashlib.sha256(source.wanted.encode()).hexdigest()
        return Built(f"sha256:{manifest}", 8 << 30, 2 << 20, 12, ("it has no shell",))

    async def image_names(self) -> list[str]:
        return self.images()

    async def forget_image(self, name: str) -> None:
        await self._step("forget_image")
        (self.root / "images" / name).unlink(missing_ok=True)

    async def start(
        self,
        snapshot: str,
        labels: Mapping[str, str],
        event: StartEvent,
        hostname: str | None = None,
        disk: str | None = None,
        wall: Wall = PUBLIC,
    ) -> Running:
        self.check_wall(wall.egress)
        await self._step(f"start {event}")
        await self._step("start")
        content = self._read("snapshots", snapshot)
        if content.get("torn"):
            raise SnapshotError(f"Snapshot {snapshot} is not whole.")
        if disk is not None and disk in map(self._disk_of, self.machines()):
            raise HostError(f"A machine has disk {disk}.", state="Nothing was started.")
        cut = content.get("disk")
        content["disk"] = self._disk_for(cut, disk)
        machine = new_id()
        boot_id = content.get("boot_id") if hostname is None else None
        running = {**content, "labels": dict(labels), "boot_id": boot_id or new_id()}
        self._write("machines", machine, {**running, "snapshot": snapshot})
        self.walls[machine] = wall
        if cut is not None:  # the disk is what it was then
            self._save_disk(running, durable=content["durable"])
        await self._step()
        self._read("machines", machine)  # another server may have ended it meanwhile
        return self.running()[machine]

    async def freeze(
        self,
        machine: str,
        snapshot: str,
        labels: Mapping[str, str],
        *,
        stop: bool,
        children: int = 1,
    ) -> Kept:
        await self._step("freeze")
        content = self._read("machines", machine)
        if content.get("stuck"):
            raise FreezeError("Its disk cannot be written.", state="It runs on.")
        new = {**content, "labels": dict(labels), "parent": content["snapshot"]}
        self._write("snapshots", snapshot, {**new, "durable": False, "memory": True})
        self._save_disk(content, durable=False)
        if stop:
            (self.root / "machines" / machine).unlink()
        await self._step()
        self._read("snapshots", snapshot)  # another server may have removed it meanwhile
        kept = self.found(snapshot)
        assert kept is not None
        return replace(kept, names=self.walls[machine].names if machine in self.walls else None)

    async def end(self, machine: str) -> None:
        await self._step("end")
        (self.root / "machines" / machine).unlink(missing_ok=True)
        await self._step()

    def _disk_of(self, machine: str) -> str | None:
        disk = self._read("machines", machine).get("disk")
        return None if disk is None else disk["id"]

    def _disk_for(self, cut: dict[str, Any] | None, disk: str | None) -> dict[str, Any] | None:
        """Return the disk of a machine: as it was ``cut`` with its snapshot, else as it was saved;
        of a machine that is not to have it, a copy that is nobody's."""
        if disk is None:
            return None if cut is None else {**cut, "id": None}
        saved = self._read("disks", disk)
        if cut is not None:
            if cut["id"] != disk:
                raise SnapshotError(f"It was not taken with disk {disk}.")
            return cut
        return {"id": disk, "lines": saved["lines"]}

    def _save_disk(self, content: dict[str, Any], *, durable: bool) -> None:
        """Have what a machine has on its disk be what the disk holds."""
        disk = content.get("disk")
        if disk is not None and disk["id"] is not None:
            saved = self._read("disks", disk["id"])
            now = datetime.now(UTC).isoformat()
            new = {**saved, "lines": disk["lines"], "saved_at": now, "durable": durable}
            if durable:
                new["kept"] = disk["lines"]
            self._write("disks", disk["id"], new)

    def check_wall(self, egress: str | dict[str, Any] | None) -> str | None:
        if self.no_wall is None:
            return None
        if egress is not None:
            raise HostError(f"No wall can be built: {self.no_wall}.", state="Nothing was started.")
        return f"Its machine has no network: {self.no_wall}."

    async def set_wall(self, machine: str, wall: Wall) -> int:
        await self._step("set_wall")
        self._read("machines", machine)
        before = self.walls.get(machine)
        self.walls[machine] = wall if before is None else replace(wall, names=before.names)
        return 0 if before is None else 1

    def names(self, machine: str) -> str | None:
        wall = self.walls.get(machine)
        return None if wall is None or machine not in self.machines() else wall.names

    def traffic(self) -> list[Counted]:
        found, there = list(self._counted.values()), set(self.machines())
        self._counted = {key: each for key, each in self._counted.items() if key[0] in there}
        return found

    def on_decision(self, call: Callable[[str, Decision], None]) -> None:
        self._decided.append(call)

    async def make_disk(self, disk: str, size_bytes: int) -> DiskState:
        await self._step("make_disk")
        found = self.disk(disk)
        if found is not None:
            return found
        new = {"size": size_bytes, "lines": [], "kept": [], "saved_at": None, "durable": True}
        self._write("disks", disk, new)
        await self._step()
        return self._state_of(disk)

    async def remove_disk(self, disk: str) -> None:
        await self._step("remove_disk")
        if disk in map(self._disk_of, self.machines()):
            raise HostError(f"A machine has disk {disk}.", state="Nothing was changed.")
        (self.root / "disks" / disk).unlink(missing_ok=True)
        await self._step()

    def disk(self, disk: str) -> DiskState | None:
        return self._state_of(disk) if disk in self._all("disks") else None

    def disks(self) -> dict[str, DiskState]:
        """The disks that there are."""
        return {disk: self._state_of(disk) for disk in self._all("disks")}

    def _state_of(self, disk: str) -> DiskState:
        content = self._read("disks", disk)
        saved_at = content["saved_at"]
        return DiskState(
            disk,
            content["size"],
            MIB + sum(map(len, content["lines"])),
            None if saved_at is None else datetime.fromisoformat(saved_at),
            content["durable"],
        )

    async def release_disk(self, machine: str, disk: str) -> DiskState:
        await self._step("release_disk")
        if machine in self.machines() and self._disk_of(machine) == disk:
            self._save_disk(self._read("machines", machine), durable=True)
            await self._step()
            (self.root / "machines" / machine).unlink()
        saved = self._read("disks", disk)
        self._write("disks", disk, {**saved, "kept": saved["lines"], "durable": True})
        await self._step()
        return self._state_of(disk)

    def running(self) -> dict[str, Running]:
        found = {}
        for machine in self.machines():
            content = self._read("machines", machine)
            labels = content["labels"]
            mounted = None if content.get("disk") is None else self.not_mounted
            found[machine] = Running(
                machine, content["boot_id"], content["snapshot"], labels, mounted, self.no_wall
            )
        return found

    async def agent(self, machine: str) -> Any:
        await self._step("agent")
        self._read("machines", machine)
        return machine

    def held(self, machine: str) -> str | None:
        return self.holding

    async def usage(self, machine: str) -> Usage:
        count = self.counted(machine)
        return Usage(float(count), 0.0, 0.5, 80 * MIB, 40 * MIB)

    async def statistics(self, machine: str) -> Any:
        return self.counted(machine)

    def disk_bytes(self, machine: str) -> int:
        return 1 * MIB

    def on_end(self, call: Callable[[End], None]) -> None:
        self._ends.append(call)

    def on_reboot(self, call: Callable[[Running], None]) -> None:
        self._reboots.append(call)

    def inventory(self) -> Inventory:
        found = {snapshot: self.found(snapshot) for snapshot in self.snapshots()}
        return Inventory(
            {name: kept for name, kept in found.items() if kept and kept.labels},
            [name for name, kept in found.items() if kept is None],
            self.left,
        )

    def found(self, snapshot: str) -> Kept | None:
        try:
            content = self._read("snapshots", snapshot)
        except SnapshotError:
            return None
        return Kept(
            snapshot,
            content.get("labels", {}),
            content.get("parent"),
            10 * MIB,
            content["durable"],
            content.get("memory", True),
            (content.get("disk") or {}).get("id"),
        )

    async def durable(self, snapshot: str, *, hurry: bool = True) -> None:
        await self._step("durable")
        content = self._read("snapshots", snapshot)
        self._write("snapshots", snapshot, {**content, "durable": True})
        disk = content.get("disk")
        if disk is not None and disk["id"] in self.disks():
            saved = self._read("disks", disk["id"])
            if saved["lines"] == disk["lines"]:
                new = {**saved, "kept": saved["lines"], "durable": True}
                self._write("disks", disk["id"], new)

    async def verify(self, snapshot: str) -> None:
        if self._read("snapshots", snapshot).get("torn"):
            raise SnapshotError(f"Snapshot {snapshot} was not durable when the host went down.")

    async def remove(self, snapshot: str) -> None:
        await self._step("remove")
        (self.root / "snapshots" / snapshot).unlink(missing_ok=True)

    def memory_needed(self, snapshot: str) -> int:
        return 10 * MIB

    def free_memory(self) -> int:
        return self.memory - len(self.machines()) * 60 * MIB

    async def facts(self) -> Facts:
        return Facts("world", "none", "", "0", (), self.memory, self.free_memory(), 1 << 40, 0)
