"""Finding an image in an OCI layout, and trusting nothing of what is said there.

See the OCI image specification 1.1 (image-layout.md, image-index.md, manifest.md, config.md).
Every document and layer is read by its digest, in the size that was promised.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torpor.images.errors import HostileImageError, ImageError
from torpor.images.layer_tree import shown
from torpor.images.layout import MAX_DOCUMENT, Layout, bounded

MAX_LAYERS = 256
"""Docker's own limit is 127."""
MAX_INDEXES = 4
"""Indexes one below the other."""
MAX_DESCRIPTORS = 1000
MAX_INDEX_BYTES = 4 * MAX_DOCUMENT
"""Of all indexes together."""
MAX_WORD = 1000
"""Characters of an image's name, or a platform's."""
DIGEST = re.compile(r"(sha256):([0-9a-f]{64})|(sha512):([0-9a-f]{128})")
REF_NAME = "org.opencontainers.image.ref.name"
PLATFORM = ("linux", "amd64")

OCI, DOCKER = "application/vnd.oci.image.", "application/vnd.docker."
INDEXES = (f"{OCI}index.v1+json", f"{DOCKER}distribution.manifest.list.v2+json")
MANIFESTS = (f"{OCI}manifest.v1+json", f"{DOCKER}distribution.manifest.v2+json")
CONFIGS = (f"{OCI}config.v1+json", f"{DOCKER}container.image.v1+json")
Compression = Literal["none", "gzip", "zstd"]
LAYERS: Mapping[str, Compression] = {
    f"{OCI}layer.v1.tar": "none",
    f"{OCI}layer.v1.tar+gzip": "gzip",
    f"{OCI}layer.v1.tar+zstd": "zstd",
    f"{DOCKER}image.rootfs.diff.tar": "none",
    f"{DOCKER}image.rootfs.diff.tar.gzip": "gzip",
}
FOREIGN = ("nondistributable", "foreign")


@dataclass(frozen=True)
class Descriptor:
    """What a document says of another file: its media type, digest and size."""

    media_type: str
    digest: str
    size: int

    @property
    def file_name(self) -> str:
        """The file's name in a layout."""
        return f"blobs/{self.digest.replace(':', '/', 1)}"


@dataclass(frozen=True)
class OciImage:
    """One image of a layout: its manifest's digest, its config as it was read, its layers (the
    lowest first) with what each is compressed with and the digest that its content must have."""

    manifest: str
    config: Mapping[str, Any]
    layers: tuple[tuple[Descriptor, Compression, str], ...]


def find_image(layout: Layout, reference: str | None) -> OciImage:
    """Find the image of a reference (or the only one) for this platform.

    Raises HostileImageError for what is not sound, ImageError if there is no such image.
    """
    version = document(b"".join(bounded(layout.read("oci-layout"))), "oci-layout")
    if version.get("imageLayoutVersion") != "1.0.0":
        said = version.get("imageLayoutVersion")
        raise HostileImageError(f"The layout has version {said!r}; only 1.0.0 is known.")
    index = document(b"".join(bounded(layout.read("index.json"))), "index.json")
    found = _choose(_manifests(layout, index, reference, 0, _Read()), reference)
    manifest = read_document(layout, found)
    if manifest.get("mediaType", found.media_type) != found.media_type:
        raise HostileImageError(
            f"A manifest says that it is {str(manifest['mediaType'])[:100]!r}, and what leads to "
            f"it that it is {found.media_type!r}."
        )
    config_descriptor = _descriptor(manifest.get("config"), "a manifest's config")
    if config_descriptor.media_type not in CONFIGS:
        raise HostileImageError(
            f"The config has the unknown media type {config_descriptor.media_type[:100]!r}.",
            "Import an image; other artifacts cannot be booted.",
        )
    config = read_document(layout, config_descriptor)
    _check_platform(config)
    return OciImage(found.digest, config, _layers(manifest, config))


def read_document(layout: Layout, descriptor: Descriptor) -> dict[str, Any]:
    """A JSON document, of the size and digest that was promised. Raises HostileImageError."""
    if descriptor.size > MAX_DOCUMENT:
        raise HostileImageError(
            f"{descriptor.digest} is to be a document of {descriptor.size} bytes; "
            f"{MAX_DOCUMENT} are the most."
        )
    content = b"".join(layout.read(descriptor.file_name, descriptor.size))
    algorithm, _, wanted = descriptor.digest.partition(":")
    if hashlib.new(algorithm, content).hexdigest() != wanted:
        raise lying(descriptor.digest)
    return document(content, descriptor.digest)


def document(content: bytes, name: str) -> dict[str, Any]:
    """What a JSON document says. Raises HostileImageError if it is no object."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise HostileImageError(f"{name} is not sound JSON: {str(error)[:200]}.") from None
    if not isinstance(found, dict):
        raise HostileImageError(f"{name} is not a JSON object.")
    return found


def lying(digest: str) -> HostileImageError:
    """The error for content that is not what its digest says."""
    return HostileImageError(f"The content of {digest} is another: its digest is wrong.")


@dataclass
class _Read:
    """How much of indexes has been read."""

    descriptors: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class _Found:
    """A manifest that an index lists: its name there, and its platform if that is said."""

    descriptor: Descriptor
    name: str | None
    platform: tuple[str, str] | None


def _manifests(
    layout: Layout, index: Mapping[str, Any], reference: str | None, depth: int, read: _Read
) -> list[_Found]:
    """The manifests of an index and of those below it. Of what an index says besides nothing is
    kept: the same one may be listed a thousand times."""
    if depth == MAX_INDEXES:
        raise HostileImageError(f"Indexes lead to indexes more than {MAX_INDEXES} deep.")
    entries_ = index.get("manifests")
    if not isinstance(entries_, list):
        raise HostileImageError("An index has no list of manifests.")
    found: list[_Found] = []
    for entry in entries_:
        read.descriptors += 1
        if read.descriptors > MAX_DESCRIPTORS:
            raise HostileImageError(f"The indexes list more than {MAX_DESCRIPTORS} manifests.")
        descriptor = _descriptor(entry, "an index's entry")
        said = _object(entry.get("annotations"), "annotations").get(REF_NAME)
        name = said if isinstance(said, str) and len(said) <= MAX_WORD else None
        if depth == 0 and reference is not None and name != reference:
            continue
        if descriptor.media_type in INDEXES:
            read.bytes += descriptor.size
            if read.bytes > MAX_INDEX_BYTES:
                raise HostileImageError(
                    f"The indexes have more than {MAX_INDEX_BYTES} bytes together."
                )
            inner = read_document(layout, descriptor)
            below = _manifests(layout, inner, reference, depth + 1, read)
            found += [replace(each, name=name) for each in below]
        elif descriptor.media_type in MANIFESTS:
            platform = entry.get("platform")
            found.append(
                _Found(descriptor, name, None if platform is None else _platform(platform))
            )
        elif reference is not None or len(entries_) == 1:
            raise HostileImageError(
                f"{descriptor.digest} has the unknown media type {descriptor.media_type[:100]!r}."
            )
    return found


def _choose(found: list[_Found], reference: str | None) -> Descriptor:
    fitting = {
        each.descriptor.digest: each.descriptor
        for each in found
        if each.platform is None or each.platform == PLATFORM
    }
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    if not found:
        raise ImageError(
            "There is no image here" + (f" of the name {reference}." if reference else "."),
            "Nothing was changed.",
            "See what is there with `skopeo list-tags` or in index.json.",
        )
    if not fitting:
        platforms = sorted({"/".join(each.platform) for each in found if each.platform})
        raise ImageError(
            f"The image is for {', '.join(platforms)[:500]}; machines are {'/'.join(PLATFORM)}.",
            "Nothing was changed.",
            "Get the image for that platform.",
        )
    names = sorted({each.name for each in found if each.name})
    raise ImageError(
        "There is more than one image here"
        + (f": {', '.join(names)[:500]}." if names else ", and they have no names."),
        "Nothing was changed.",
        "Say which one, as in SOURCE:NAME.",
    )


def _platform(said: object) -> tuple[str, str]:
    platform = _object(said, "platform")
    system, architecture = (str(platform.get(name))[:100] for name in ("os", "architecture"))
    return system, architecture


def _check_platform(config: Mapping[str, Any]) -> None:
    platform = _platform(config)
    if platform != PLATFORM:
        raise ImageError(
            f"The image is for {'/'.join(platform)}; machines are {'/'.join(PLATFORM)}.",
            "Nothing was changed.",
            "Get the image for that platform.",
        )


def _layers(
    manifest: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[tuple[Descriptor, Compression, str], ...]:
    layers = manifest.get("layers")
    diffs = _object(config.get("rootfs"), "rootfs").get("diff_ids")
    if not isinstance(layers, list) or not isinstance(diffs, list):
        raise HostileImageError("The manifest or the config has no list of layers.")
    if len(layers) > MAX_LAYERS:
        raise HostileImageError(
            f"The image has {len(layers)} layers; {MAX_LAYERS} are the most.",
            "Squash it with the program that built it.",
        )
    if len(layers) != len(diffs):
        raise HostileImageError(
            f"The manifest has {len(layers)} layers, and the config {len(diffs)}."
        )
    found = []
    for layer, diff in zip(layers, diffs, strict=True):
        descriptor = _descriptor(layer, "a layer")
        if layer.get("urls") or any(word in descriptor.media_type for word in FOREIGN):
            raise HostileImageError(
                f"The layer {descriptor.digest} is not in the image, but elsewhere (a foreign "
                "layer).",
                "Have it pulled into the image by the program that built it.",
            )
        compression = LAYERS.get(descriptor.media_type)
        if compression is None:
            raise HostileImageError(
                f"A layer has the unknown media type {descriptor.media_type[:100]!r}."
            )
        # All programs use SHA-256 here, and what is kept of the layer is called by it.
        if not isinstance(diff, str) or not DIGEST.fullmatch(diff) or diff[:6] != "sha256":
            raise HostileImageError(f"The config has the digest {str(diff)[:100]!r}.")
        found.append((descriptor, compression, diff))
    return tuple(found)


def _descriptor(value: object, what: str) -> Descriptor:
    said = _object(value, what)
    media_type, digest, size = said.get("mediaType"), said.get("digest"), said.get("size")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise HostileImageError(f"The digest of {what} is {shown(str(digest).encode()[:100])}.")
    if not isinstance(media_type, str):
        raise HostileImageError(f"{what} has no media type.")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 50:
        raise HostileImageError(f"The size of {what} is {str(size)[:100]}.")
    return Descriptor(media_type, digest, size)


def _object(value: object, what: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise HostileImageError(f"{what} is not a JSON object.")
    return value
