"""Root images from Debian packages."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor.images import finish
from torpor.images.authorities import Authorities, plan_of, wanted_authorities
from torpor.images.digests import disk_digest, key_of
from torpor.images.ext4 import make_ext4
from torpor.images.image import Image
from torpor.images.mmdebstrap import make_tar
from torpor.images.progress import Report, Step
from torpor.images.stages import Building, finished_stage

TAR_FORMAT = 1
IMAGE_FORMAT = 1
SIZE_BYTES = 8 * 1024**3
HOSTNAME = "torpor"

DPKG_OPTIONS = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
)

# Run by mmdebstrap with the root directory as $1, after all packages are installed.
FINISHING = (
    # A host's proxy, and our exclusions, are not the guest's business.
    'rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"',
    # The keyring is where the host has it; the guest's apt trusts its own without being told.
    r"""sed -i -E 's/(\[[^]]*)\bsigned-by=[^] ]*/\1/; s/\[ *\] *//' "$1/etc/apt/sources.list" """,
    # mmdebstrap copies the host's; who gives the machine its network gives it its resolver.
    'rm -f "$1/etc/resolv.conf"; : > "$1/etc/resolv.conf"',
    # Empty means: made at the first boot.
    ': > "$1/etc/machine-id"; rm -f "$1/var/lib/dbus/machine-id"',
    f'echo {HOSTNAME} > "$1/etc/hostname"',
    'printf "%s localhost\\n" 127.0.0.1 ::1 > "$1/etc/hosts"',
    f'echo 127.0.1.1 {HOSTNAME} >> "$1/etc/hosts"',
    'rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/* "$1"/var/cache/debconf/*-old',
    'rm -rf "$1"/var/lib/dpkg/*-old "$1"/var/log/*.log "$1"/var/log/apt/*',
    'rm -rf "$1"/var/cache/ldconfig/*',
)


@dataclass(frozen=True)
class Recipe:
    """What a Debian image is made from."""

    name: str = "default"
    suite: str = "bookworm"
    packages: tuple[str, ...] = (
        "python3",
        "git",
        "curl",
        "ca-certificates",
        "procps",
        "sqlite3",
        "e2fsprogs",
        "iproute2",
        "netbase",
        "less",
        "kmod",
        "xz-utils",
    )


def tar_key(recipe: Recipe) -> str:
    """The key of a recipe's packages. Its name does not matter, nor their order."""
    return key_of(
        "root-tar",
        {
            "format": TAR_FORMAT,
            "suite": recipe.suite,
            "packages": sorted(set(recipe.packages)),
            "dpkg_options": DPKG_OPTIONS,
            "finishing": FINISHING,
        },
    )


def root_key(packages_key: str, size_bytes: int, authorities: Authorities) -> str:
    """The key of a root disk with these packages."""
    made_from: dict[str, object] = {
        "format": IMAGE_FORMAT,
        "tar": packages_key,
        "size_bytes": size_bytes,
    }
    if authorities.certificates:
        made_from["authorities"] = authorities.digests
    return key_of("root", made_from)


async def debian_image(
    cache: Path,
    recipe: Recipe,
    report: Report,
    *,
    size_bytes: int = SIZE_BYTES,
    authorities: Authorities | None = None,
) -> Image:
    """The image of a recipe, from the cache or made now. Raises ImageError.

    ``authorities`` are those that the settings ask for, unless others are given.
    """
    if authorities is None:
        authorities = wanted_authorities()

    async def fetch(building: Building) -> Mapping[str, str]:
        await make_tar(
            building,
            building.path / "root.tar",
            variant="minbase",
            suite=recipe.suite,
            packages=sorted(set(recipe.packages)),
            report=report,
            options=[
                *(f"--dpkgopt={option}" for option in DPKG_OPTIONS),
                *(f"--customize-hook={command}" for command in FINISHING),
            ],
        )
        return {}

    packages_key = tar_key(recipe)
    image_key = root_key(packages_key, size_bytes, authorities)

    async def make_disk(building: Building) -> Mapping[str, str]:
        packages = await finished_stage(cache, "root-tar", packages_key, fetch, report)
        report(Step("making the root disk"))
        tree = building.path / "tree"
        tree.mkdir()
        image = building.path / "root.raw"
        await make_ext4(
            building,
            image,
            label="torpor-root",
            key=image_key,
            size_bytes=size_bytes,
            tree=tree,
            journal=True,
            tar=packages.path / "root.tar",
            finishing=await _finishing(building, tree, authorities),
        )
        await asyncio.to_thread(shutil.rmtree, tree)
        image.chmod(0o444)
        return {"digest": await asyncio.to_thread(disk_digest, image)}

    stage = await finished_stage(cache, "root", image_key, make_disk, report)
    return Image(recipe.name, stage.facts["digest"], stage.path / "root.raw", size_bytes)


async def _finishing(building: Building, tree: Path, authorities: Authorities) -> list[str]:
    """The command that adds certificates to a tree; nothing if there are none to add."""
    added = await plan_of(authorities, building.lock)
    if added is None:
        return []
    plan = building.path / "plan"
    plan.write_text(json.dumps({"files": False, "authorities": added}) + "\n")
    return [sys.executable, "-I", "-S", "-B", finish.__file__, str(tree), str(plan)]
