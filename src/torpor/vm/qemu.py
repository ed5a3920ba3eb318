"""QEMU's command line: all of it, in one place, because both sides of a snapshot must agree on
it."""

import os
from dataclasses import dataclass

from torpor.guest.card import MAC
from torpor.vm.accelerator import QEMU, Accelerator
from torpor.vm.disk import chain_nodes, node_name, raw_node
from torpor.vm.manifest import ROOT, Drive, Slot
from torpor.vm.shape import MIB, Shape

SLOTS: tuple[Slot, ...] = ("workspace", "spare")
"""Places for disks: virtio-mmio has no hotplug, so what a machine may get later has its place
now. Where there is no disk, there is one of 1 MiB without content."""
# No PIT: the kernel needs none once it knows the rate of the TSC, and QEMU's timers for it kept an
# idle machine awake (0.6 % of a core with it, 0.3 % without).
MACHINE = ",".join((
    "microvm", "x-option-roms=on", "acpi=on", "pit=off", "pic=on", "rtc=on", "isa-serial=on",
    "suppress-vmdesc=on", "memory-backend=ram",
))  # fmt: skip
BOOT_ARGUMENTS = "console=ttyS0 quiet loglevel=4 panic=-1 reboot=t nowatchdog init_on_free=1"

NOTHING = "driver=null-co,read-zeroes=on"
"""A disk without content."""

CARD = (
    f"virtio-net-device,id=card,netdev=wire,mac={MAC}"
    # Nobody on its wire has to be told that it has moved.
    ",guest_announce=off"
    # What the host's kernel can do of its own accord would else be part of the machine's shape.
    ",guest_ufo=off,host_ufo=off"
)
SINCE_8_2 = ",guest_uso4=off,guest_uso6=off,host_uso=off"
"""Of the card, for the same reason; before QEMU 8.2 there is no such thing."""

TRACED = ("qemu_system_shutdown_request", "vm_state_notify")
"""What QEMU writes to a file of its own: why it ends, for whoever comes later
(:mod:`torpor.vm.endings`)."""

TOP_MODES = (os.O_RDWR, os.O_RDONLY)
"""How the writable layer is opened, both for the same set of descriptors: when a new layer comes
over it, QEMU opens it again read-only. Without a descriptor for that it would go on with the
writable one, and say nothing (``block/file-posix.c``, ``raw_reconfigure_getfd``)."""


@dataclass(frozen=True)
class DriveFiles:
    """The open descriptors of one disk. ``top`` is opened in both of :data:`TOP_MODES`."""

    layers: tuple[int, ...]
    top: tuple[int, int]


@dataclass(frozen=True)
class Descriptors:
    """The open descriptors that QEMU inherits; it works on nothing else.

    ``monitor``, ``agent`` and ``console`` are listening sockets. ``drives`` has those of each disk,
    the root disk's first. ``memory`` is the base, or None for memory that comes from nowhere,
    ``card`` the tap of the network card, or None for a machine that has none.
    """

    memory: int | None
    monitor: int
    agent: int
    console: int
    drives: tuple[DriveFiles, ...]
    tools: int
    card: int | None = None

    def all(self) -> tuple[int, ...]:
        """Every descriptor once."""
        return (
            *(() if self.memory is None else (self.memory,)),
            self.monitor,
            self.agent,
            self.console,
            *(fd for drive in self.drives for fd in (*drive.layers, *drive.top)),
            self.tools,
            *(() if self.card is None else (self.card,)),
        )


@dataclass(frozen=True)
class Kernel:
    """Descriptors of what a cold boot starts."""

    image: int
    initramfs: int
    arguments: str = ""


def command_line(
    name: str,
    shape: Shape,
    accelerator: Accelerator,
    drives: tuple[Drive, ...],
    descriptors: Descriptors,
    kernel: Kernel | None,
) -> list[str]:
    """Return the command line of a machine that boots ``kernel``, or waits for a saved state if
    None.

    ``name`` is an argument of its own, by which the process can be found. The first of ``drives``
    is the root disk, the others are in slots.
    """
    fdsets: list[str] = []

    def fdset(fd: int, *more: int, owner: str = "image") -> int:
        for each in (fd, *more):
            fdsets.extend(("-add-fd", f"fd={each},set={fd},opaque={owner}"))
        return fd

    chains = {}
    for drive, files in zip(drives, descriptors.drives, strict=True):
        top = fdset(*files.top, owner=drive.top.id)
        below = [fdset(fd) for fd in files.layers]
        chains[drive.slot] = drive.top, chain_nodes(drive.layers, below, drive.top, top)
    root, chain = chains[ROOT]
    tools = fdset(descriptors.tools)
    # fmt: off
    line = [
        QEMU, "-name", name,
        "-M", MACHINE,
        *accelerator.arguments,
        "-m", f"{shape.memory_mib}M", "-smp", str(shape.vcpus),
        "-object", _memory(shape, accelerator, descriptors.memory),
        # Both sides: without RAM in the stream there is nothing of the configuration to compare.
        "-global", "migration.send-configuration=off",
        "-global", "virtio-mmio.force-legacy=false",
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        # Its driver tells of a panic, which else looks like a reboot. It has no state of its own.
        "-device", "pvpanic",
        *(word for event in TRACED for word in ("-trace", event)),
        "-chardev", f"socket,id=monitor,fd={descriptors.monitor},server=on,wait=off",
        "-mon", "chardev=monitor,mode=control",
        "-chardev", f"socket,id=console,fd={descriptors.console},server=on,wait=off",
        "-serial", "chardev:console",
        *fdsets,
        *chain,
        "-device", f"virtio-blk-device,id={ROOT},drive={node_name(root)},serial=torpor-root",
        "-blockdev", raw_node("tools", tools),
        "-device", "virtio-blk-device,id=tools,drive=tools,serial=torpor-tools",
    ]
    for slot in SLOTS:
        node: str = slot
        nodes = ["-blockdev", f"{NOTHING},node-name={slot},size={MIB}"]
        if slot in chains:
            disk, nodes = chains[slot]
            node = node_name(disk)
        device = f"virtio-blk-device,id={slot},drive={node},serial=torpor-{slot}"
        line += [*nodes, "-device", device]
    line += [
        "-device", "virtio-serial-device,max_ports=2",
        "-chardev", f"socket,id=agent,fd={descriptors.agent},server=on,wait=off",
        "-device", "virtserialport,chardev=agent,name=torpor.agent",
    ]
    if descriptors.card is not None:
        # Last, so that everything else is where it is in a machine without.
        line += ["-netdev", f"tap,id=wire,fd={descriptors.card},vhost=off"]
        line += ["-device", card_device(accelerator.qemu_version)]
    if kernel is None:
        line += ["-S", "-incoming", "defer"]
    else:
        arguments = f"{BOOT_ARGUMENTS} {accelerator.kernel_arguments} {kernel.arguments}"
        line += [
            "-kernel", f"/proc/self/fd/{kernel.image}",
            "-initrd", f"/proc/self/fd/{kernel.initramfs}",
            "-append", " ".join(arguments.split()),
        ]
    # fmt: on
    return line


def _memory(shape: Shape, accelerator: Accelerator, fd: int | None) -> str:
    if fd is None:
        return f"memory-backend-ram,id=ram,size={shape.memory_mib}M"
    # share=off maps privately, so the base is never written. QEMU before 8.2 still opens the file
    # for
    # writing, so there it is a sealed copy in memory (torpor.vm.base.seal_base).
    access = "readonly=on,rom=off," if maps_read_only(accelerator.qemu_version) else ""
    return (
        f"memory-backend-file,id=ram,size={shape.memory_mib}M,{access}share=off,"
        f"mem-path=/proc/self/fd/{fd}"
    )


def card_device(version: tuple[int, int, int]) -> str:
    """Return the network card's device, as this QEMU is told of it."""
    return CARD + (SINCE_8_2 if version >= (8, 2, 0) else "")


def maps_read_only(version: tuple[int, int, int]) -> bool:
    """Whether this QEMU can map guest memory privately from a file that it opens read-only."""
    return version >= (8, 2, 0)
