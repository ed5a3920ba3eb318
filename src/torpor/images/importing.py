"""Making images of what comes from elsewhere: OCI images, directory trees, archives of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torpor.images.authorities import Authorities, wanted_authorities
from torpor.images.config import ImageConfig, oci_config
from torpor.images.debian import SIZE_BYTES
from torpor.images.digests import key_of
from torpor.images.errors import ImageError, is_disk_full
from torpor.images.fetch import fetch_docker_archive, fetch_registry
from torpor.images.image import Image
from torpor.images.layers import Kept, Limits, keep_layers, layer_sources
from torpor.images.layout import Layout
from torpor.images.oci_image import OciImage, find_image
from torpor.images.progress import Report
from torpor.images.sources import Named, layout_of, read_source, tree_source
from torpor.images.stages import Building, Stage, finished_stage, found_stage, workplace
from torpor.images.unpack import make_disk

LAYERS_FORMAT = 2


@dataclass(frozen=True)
class Asked:
    """How to import: the least size of the disk, limits, and whether a registry must have a
    certificate that is trusted. ``authorities`` None: those that the settings ask for."""

    size_bytes: int = SIZE_BYTES
    limits: Limits = field(default_factory=Limits)
    tls_verify: bool = True
    authorities: Authorities | None = None


@dataclass(frozen=True)
class Imported:
    """An image that was imported, where from, and what the user should know of it.

    ``manifest`` is the digest of its OCI manifest, None if there is none.
    """

    image: Image
    source: Named
    manifest: str | None
    content_bytes: int
    files: int
    notes: tuple[str, ...]
    authorities: Authorities


async def import_image(
    cache: Path, source: str, report: Report, asked: Asked | None = None, name: str = "imported"
) -> Imported:
    """Make an image of what ``source`` names (:data:`torpor.images.sources.FORMS`).

    Raises ImageError; what is hostile is refused as a HostileImageError, and leaves nothing.
    """
    asked = asked or Asked()
    named = await asyncio.to_thread(read_source, source)
    authorities = asked.authorities
    if authorities is None:
        authorities = wanted_authorities()
    async with workplace(cache, "import") as place:
        try:
            if named.kind in ("tree", "tar"):
                stage = await _of_tree(cache, place, named, asked, authorities, report)
                config, manifest = ImageConfig(), None
            else:
                layout = await _layout(place, named, asked, report)
                found = await asyncio.to_thread(find_image, layout, _reference(named))
                config, manifest = oci_config(found.config), found.manifest
                stage = await _of_layers(cache, place, layout, found, asked, authorities, report)
        except OSError as error:
            if is_disk_full(error):
                raise
            raise ImageError(
                f"The import of {named} failed: {error}.",
                "Nothing of it was kept.",
                "See that it can be read, and run the same command again.",
            ) from error
    facts = stage.facts
    image = Image(name, facts["digest"], stage.path / "root.raw", int(facts["size_bytes"]), config)
    return Imported(
        image, named, manifest, int(facts["content_bytes"]), int(facts["files"]),
        tuple(json.loads(facts["notes"])), authorities,
    )  # fmt: skip


def _reference(named: Named) -> str | None:
    # What skopeo has fetched is one image, whatever it was called.
    return named.name if named.kind in ("oci", "oci-archive") else None


async def _layout(place: Building, named: Named, asked: Asked, report: Report) -> Layout:
    if named.kind == "docker":
        return await fetch_registry(
            place, named.reference, tls_verify=asked.tls_verify, limits=asked.limits, report=report
        )
    if named.kind == "docker-archive":
        return await fetch_docker_archive(place, named.path, named.name, asked.limits, report)
    return await asyncio.to_thread(layout_of, named)


async def _of_tree(
    cache: Path,
    place: Building,
    named: Named,
    asked: Asked,
    authorities: Authorities,
    report: Report,
) -> Stage:
    out = place.path / "kept"
    source = tree_source(named)
    kept = await keep_layers([source], out, asked.limits, report, whiteouts=False)
    key = _key(kept.digests, asked.size_bytes, authorities)
    return await _stage(cache, key, out, kept, asked, authorities, report)


async def _of_layers(
    cache: Path,
    place: Building,
    layout: Layout,
    image: OciImage,
    asked: Asked,
    authorities: Authorities,
    report: Report,
) -> Stage:
    key = _key([diff for _, _, diff in image.layers], asked.size_bytes, authorities)
    known = found_stage(cache, "root", key)
    if known is not None:
        return known
    out = place.path / "kept"
    kept = await keep_layers(layer_sources(layout, image), out, asked.limits, report)
    return await _stage(cache, key, out, kept, asked, authorities, report)


async def _stage(
    cache: Path,
    key: str,
    out: Path,
    kept: Kept,
    asked: Asked,
    authorities: Authorities,
    report: Report,
) -> Stage:
    async def build(building: Building) -> Mapping[str, str]:
        root = building.path / "root.raw"
        disk = await make_disk(
            building, out, kept.tree, root, key=key, size_bytes=asked.size_bytes,
            authorities=authorities, limits=asked.limits, report=report,
        )  # fmt: skip
        return {
            "digest": disk.digest,
            "size_bytes": str(disk.size_bytes),
            "content_bytes": str(disk.content_bytes),
            "files": str(disk.files),
            "notes": json.dumps(disk.notes),
        }

    return await finished_stage(cache, "root", key, build, report)


def _key(diffs: Sequence[str], size_bytes: int, authorities: Authorities) -> str:
    """The key of a root disk of these layers, the lowest first."""
    return key_of(
        "root",
        {
            "format": LAYERS_FORMAT,
            "layers": list(diffs),
            "size_bytes": size_bytes,
            "authorities": authorities.digests,
        },
    )
