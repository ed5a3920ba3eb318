"""Images: what machines boot from, made from Debian packages and kept in a cache."""

from torpor.images.config import ImageConfig, command_in
from torpor.images.debian import Recipe, debian_image
from torpor.images.errors import ImageError
from torpor.images.golden import Maker, boot_wanted, golden, golden_id, maker
from torpor.images.image import Image
from torpor.images.parts import GuestParts, guest_parts
from torpor.images.progress import Report, Step, silent

__all__ = [
    "GuestParts",
    "Image",
    "ImageConfig",
    "ImageError",
    "Maker",
    "Recipe",
    "Report",
    "Step",
    "boot_wanted",
    "command_in",
    "debian_image",
    "golden",
    "golden_id",
    "guest_parts",
    "maker",
    "silent",
]
