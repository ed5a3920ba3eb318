"""Taking what a snapshot consists of out of reach of the QEMU that wrote it and runs on.

A QEMU that was taken over can keep a duplicate of a descriptor that it was given for writing, and
nobody can take that from it. So what others are to read is a new file with the same content, which
it has never had open (``docs/decisions/0027-what-children-read-is-a-copy.md``).
"""

import secrets
from pathlib import Path

from torpor.vm.base import copy_base
from torpor.vm.disk import Layer
from torpor.vm.store import Store


def detach_layer(store: Store, layer: Layer) -> None:
    """Put a copy in the place of a layer of ``store``. Blocks; raises OSError."""
    place = store.root / "layers" / layer.file_name
    new = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    with store.pin(f"layers/{new.name}"):
        _replace(place, new)


def detach_file(file: Path) -> None:
    """Put a copy in the place of ``file``, of which there is no other name. Raises OSError."""
    _replace(file, file.with_name(f".{file.name}.{secrets.token_hex(4)}"))


def _replace(place: Path, new: Path) -> None:
    try:
        copy_base(place, new)
        new.rename(place)
    finally:
        new.unlink(missing_ok=True)
