"""What a machine boots from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from torpor.images.config import ImageConfig


@dataclass(frozen=True)
class Image:
    """A root disk: `root` is a raw ext4 image (sparse, never to be written).

    `size_bytes` is what the guest sees. `digest` belongs to what the guest reads (see
    `disk_digest`): layers over it fit any image of the same digest. `config` is what the image says
    of itself; nothing of it is started at boot.
    """

    name: str
    digest: str
    root: Path
    size_bytes: int
    config: ImageConfig = field(default_factory=ImageConfig)
