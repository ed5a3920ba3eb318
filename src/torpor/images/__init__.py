"""Images: what machines boot from, made of Debian packages, OCI images and directory trees."""

from torpor.images.config import ImageConfig, command_in
from torpor.images.debian import Recipe, debian_image
from torpor.images.errors import HostileImageError, ImageError
from torpor.images.golden import Maker, boot_wanted, golden, golden_id, maker
from torpor.images.image import Image
from torpor.images.importing import Asked, Imported, import_image
from torpor.images.names import Names, open_image
from torpor.images.parts import GuestParts, guest_parts
from torpor.images.progress import Report, Step, silent

__all__ = [
    "Asked",
    "GuestParts",
    "HostileImageError",
    "Image",
    "ImageConfig",
    "ImageError",
    "Imported",
    "Maker",
    "Names",
    "Recipe",
    "Report",
    "Step",
    "boot_wanted",
    "command_in",
    "debian_image",
    "golden",
    "golden_id",
    "guest_parts",
    "import_image",
    "maker",
    "open_image",
    "silent",
]
