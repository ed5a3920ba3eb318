"""The initramfs: a static busybox, the drivers of the machine, and `/init`."""

from __future__ import annotations

from pathlib import Path

from torpor.images.cpio import archive, character_device, directory, regular
from torpor.images.errors import ImageError

# The order matters: each finds its symbols in those before it. ext4 is built into the kernel.
MODULES = (
    "virtio_ring",
    "virtio",
    "virtio_mmio",
    "virtio_blk",
    "virtio_console",
    "failover",
    "net_failover",
    "virtio_net",
    # With these a fork finds and ends the connections that are still its parent's.
    "inet_diag",
    "tcp_diag",
    "udp_diag",
    # Tells QEMU of a panic, so that it can be told from a reboot.
    "pvpanic",
    "pvpanic_mmio",
)


def make_initramfs(modules: Path, busybox: Path, init: Path) -> bytes:
    """The archive, as the kernel takes it (uncompressed: unpacking costs more than it saves).

    `modules` is a /lib/modules/<version> on which depmod has run. Raises ImageError if it lacks
    one of MODULES.
    """
    wanted = load_order(
        MODULES, (modules / "modules.dep").read_text(), (modules / "modules.builtin").read_text()
    )
    entries = [
        *map(directory, ("bin", "dev", "modules", "proc", "root", "sys")),
        # The kernel opens it for /init before anything is mounted.
        character_device("dev/console", 5, 1),
        regular("bin/busybox", busybox.read_bytes(), 0o755),
        regular("init", init.read_bytes(), 0o755),
    ]
    names: list[str] = []
    for path in wanted:
        name = f"modules/{Path(path).name}"
        names.append(f"/{name}")
        entries.append(regular(name, (modules / path).read_bytes()))
    entries.append(regular("modules/order", "".join(f"{n}\n" for n in names).encode()))
    return archive(entries)


def load_order(names: tuple[str, ...], dependencies: str, builtin: str) -> list[str]:
    """Paths of modules in an order in which insmod takes them, what they depend on first.

    `dependencies` is the text of modules.dep ("path: paths it needs, nearest first"), `builtin`
    of modules.builtin.
    """
    needs: dict[str, list[str]] = {}
    for line in dependencies.splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    path_of = {_module_name(path): path for path in needs}
    built_in = {_module_name(path) for path in builtin.split()}
    order: list[str] = []
    for name in names:
        if name in built_in:
            continue
        if name not in path_of:
            raise ImageError(
                f"The guest's kernel has no module {name}.",
                "Nothing was made of it.",
                "Report this: the kernel package has changed.",
            )
        path = path_of[name]
        order += [need for need in [*reversed(needs[path]), path] if need not in order]
    return order


def _module_name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".ko").replace("-", "_")
