"""A snapshot under names that follow from its content alone, as it travels.

In a store, bases and layers have names that chance has given. A stranger's file must not choose
under which name it comes to lie in a store: it could take one that another snapshot will use. So
an exported snapshot calls each of its objects by its digest, and the same snapshot is the same file
wherever it is exported.
"""

from collections import Counter
from dataclasses import replace

from torpor.vm.disk import Layer
from torpor.vm.manifest import Manifest, Memory, Sums


def canonical(found: Manifest, sums: Sums) -> tuple[Manifest, dict[str, str]]:
    """Return a snapshot's manifest with canonical names, its disks the chains to use now, and the
    store path of each object by its canonical one."""
    paths: dict[str, str] = {}
    sizes = {name: size for name, size in found.sizes.items() if "/" not in name}

    def renamed(old: str, new: str) -> None:
        paths[new] = old
        if old in found.sizes:
            sizes[new] = found.sizes[old]

    memory = found.memory
    if memory is not None:
        digest = sums.files[f"bases/{memory.base}.mem"]
        renamed(f"bases/{memory.base}.mem", f"bases/{digest}.mem")
        memory = Memory(digest, memory.delta)
    seen: Counter[str] = Counter()

    def named(layer: Layer) -> Layer:
        digest = sums.files[f"layers/{layer.file_name}"]
        seen[digest] += 1
        # QEMU takes no two layers of one name, and a chain may have two of one content.
        name = digest if seen[digest] == 1 else f"{seen[digest]}-{digest}"
        new = Layer(name, layer.format, layer.size)
        renamed(f"layers/{layer.file_name}", f"layers/{new.file_name}")
        return new

    chain = tuple(map(named, sums.disk))
    more = tuple(replace(each, layers=tuple(map(named, each.layers))) for each in sums.disks)
    tools = named(found.tools)
    new = replace(
        found,
        host_boot_id="",  # says only how far a copy of it can be trusted to be on the disk
        memory=memory,
        disk=chain,
        disks=more,
        tools=tools,
        sizes=dict(sorted(sizes.items())),
        labels=dict(sorted(found.labels.items())),
    )
    return new, paths
