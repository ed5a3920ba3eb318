"""Golden snapshots: a freshly booted machine of one image at one size, made on first use."""

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from torpor.images.image import Image
from torpor.images.parts import GuestParts, guest_parts
from torpor.images.progress import Report, Step
from torpor.images.workspace import WORKSPACE, make_workspace
from torpor.network.link import AHEAD, Links
from torpor.network.link import probe as probe_links
from torpor.vm.accelerator import Accelerator, probe
from torpor.vm.agent import Identity
from torpor.vm.base import link_or_copy
from torpor.vm.disk import Layer
from torpor.vm.errors import GuestError
from torpor.vm.host import Host
from torpor.vm.jail import Jail, detect
from torpor.vm.launch import Boot
from torpor.vm.machine import Machine
from torpor.vm.manifest import Disks, GuestVersions
from torpor.vm.new_snapshot import Wanted
from torpor.vm.qemu import BOOT_ARGUMENTS, MACHINE, card_device
from torpor.vm.shape import Shape
from torpor.vm.store import Store
from torpor.vm.thaw import BootWanted

log = logging.getLogger("torpor.images")

FORMAT = 3
REHEARSAL = (("/bin/true",), ("/bin/true",))
"""Commands that a machine runs before it is frozen, so that what every later one does first, being
woken and asked for a command, has been done before: its pages are there, and its imports made."""


@dataclass(frozen=True)
class Maker:
    """What golden snapshots are made with: where they are kept, the guest's parts, and how to run.
    ``card`` says that machines have a network card, for this host can connect it to something."""

    cache: Path
    parts: GuestParts
    accelerator: Accelerator
    jail: Jail
    card: bool = False

    @property
    def home(self) -> Path:
        """The directory of golden snapshots."""
        return self.cache / "golden"

    @property
    def kernel(self) -> Boot:
        """What a cold boot starts."""
        return Boot(self.parts.kernel, self.parts.initramfs)

    @property
    def versions(self) -> GuestVersions:
        """What runs inside."""
        return GuestVersions(self.parts.kernel_version, self.parts.digest)

    def kernels(self, versions: GuestVersions) -> Boot | None:
        """What boots a machine with these versions again: its modules are on its own tools disk, so
        the kernel must be the same."""
        return self.kernel if versions.kernel == self.parts.kernel_version else None

    def store(self) -> Store:
        """The store of golden snapshots, to thaw from."""
        return Store(self.home)

    def links(self, ahead: int = AHEAD) -> Links | None:
        """Return what makes links for machines, ``ahead`` of them prepared; None if this host can
        make none."""
        return Links(ahead) if self.card else None

    async def open_host(
        self,
        home: Path,
        *,
        clock: Callable[[], int] = time.time_ns,
        lock: int | None = None,
        links: Links | None = None,
    ) -> Host:
        """Open the host of another directory, which thaws from the golden snapshots.

        ``links`` makes links for its machines, and is closed with it; it has some of its own
        without. ``lock`` and what is raised are as of :meth:`Host.open`.
        """
        return await Host.open(
            home,
            self.accelerator,
            self.jail,
            golden=self.store(),
            agent=self.parts.agent,
            kernels=self.kernels,
            clock=clock,
            lock=lock,
            links=links or self.links(),
        )


async def maker(cache: Path, report: Report) -> Maker:
    """Return what golden snapshots of this host are made with; build what is missing.

    Raises ImageError and :exc:`torpor.vm.HostError`.
    """
    parts = await guest_parts(cache, report)
    accelerator = await probe(parts.kernel, cache / "accelerator.json")
    linked = await probe_links()
    if not linked.works:
        log.warning("machines have no network: %s", linked.why)
    return Maker(cache, parts, accelerator, await detect(), linked.works)


def golden_id(maker: Maker, image: Image, shape: Shape) -> str:
    """Return the id of the golden snapshot of an image at a size: a digest of all that it depends
    on."""
    accelerator = maker.accelerator
    key = {
        "format": FORMAT,
        "image": image.digest,
        "parts": maker.parts.digest,
        "shape": asdict(shape),
        "accelerator": [accelerator.name, accelerator.cpu, *accelerator.qemu_version],
        "machine": [MACHINE, BOOT_ARGUMENTS],
        "card": card_device(accelerator.qemu_version) if maker.card else None,
        "rehearsal": REHEARSAL,
        "workspace": [WORKSPACE.decode(), _owner(image)],
    }
    return "golden-" + hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]


def boot_wanted(maker: Maker, image: Image, shape: Shape) -> BootWanted:
    """Return the cold boot of an image at a size; its disk's layers are put into the golden
    store."""
    store = maker.store()
    root = _place(store, image.root, image.digest, image.size_bytes)
    tools = _place(store, maker.parts.tools, f"tools-{maker.parts.digest}", 0)
    return BootWanted(shape, Disks((root,)), tools, maker.versions, maker.kernel)


def _place(store: Store, file: Path, digest: str, size: int) -> Layer:
    """Put a file into the store of golden snapshots as a raw layer: a hard link, or a copy if it is
    on another file system, as that of a named image may be."""
    layer = Layer(digest[:40], "raw", size or file.stat().st_size)
    place = store.root / "layers" / layer.file_name
    if not place.exists():
        new = place.with_name(f".{layer.file_name}.{os.getpid()}")
        new.unlink(missing_ok=True)
        link_or_copy(file, new)
        new.rename(place)
    return layer


async def golden(maker: Maker, image: Image, shape: Shape, report: Report) -> str:
    """Return the id of the golden snapshot of ``image`` at ``shape``; boot and freeze it if needed.

    Two programs that want the same at once make it once. Raises what :class:`Host` raises.
    """
    wanted = golden_id(maker, image, shape)
    store = maker.store()
    if wanted in store.ids() and store.durable(wanted):
        with contextlib.suppress(OSError):
            # When it was last used: what prune asks.
            os.utime(store.directory(wanted))
        return wanted
    host = await Host.open(
        maker.home,
        maker.accelerator,
        maker.jail,
        wait=True,
        keep_disks=False,
        links=maker.links(ahead=0),
    )
    try:
        if wanted not in host.store.ids():
            report(Step(f"boot {image.name} at {shape}", None, None, ""))
            wanted_boot = boot_wanted(maker, image, shape)
            machine = await host.boot(wanted_boot, Identity.of("golden"))
            labels = {"image": image.name}
            try:
                await _make_workspace(machine, image)
                await _rehearse(machine)
                await host.freeze(machine, Wanted("stop", "base", id=wanted, labels=labels))
            finally:
                if machine.running:
                    await host.end(machine)
        report(Step(f"keep {image.name} at {shape}", None, None, ""))
        await host.durable(wanted)
    finally:
        await host.close()
    return wanted


def _owner(image: Image) -> str:
    """Return whom the workspace belongs to. (Images with the same disk may differ in it.)"""
    return image.config.user or "0"


async def _make_workspace(machine: Machine, image: Image) -> None:
    try:
        await make_workspace(machine.agent, _owner(image))
    except GuestError as error:  # its user may not be there, or something else of this name
        log.warning("image %s has no %s: %s", image.name, WORKSPACE.decode(), error)


async def _rehearse(machine: Machine) -> None:
    for argv in REHEARSAL:
        with contextlib.suppress(GuestError):  # an image may not have the program
            await machine.agent.run(*argv)
