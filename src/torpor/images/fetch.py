"""Getting images from registries and Docker's archives, by skopeo, as a layout of our own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from torpor.images.confine import USER, WORK, Room, give, run_confined
from torpor.images.errors import HostileImageError, ImageError
from torpor.images.layers import Limits
from torpor.images.layout import Layout, bounded
from torpor.images.oci_image import INDEXES, MANIFESTS, document
from torpor.images.progress import Report, Step
from torpor.images.stages import Building

PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
POLICY = Path("/etc/containers/policy.json")
LOOK_S = 0.5
ADVICE = (
    "See that the name is right. A registry that wants to know who asks: `skopeo login`. One with "
    "a certificate of one's own: put that where the host's programs look for it, or say "
    "--no-tls-verify."
)
BLOB = re.compile(r"[0-9a-f]{64}")


async def fetch_registry(
    building: Building, reference: str, *, tls_verify: bool, limits: Limits, report: Report
) -> Layout:
    """Get an image from a registry, with the host's proxies, certificates and log-ins.

    Raises ImageError and OSError.
    """
    work = building.path / "fetched"
    give(work)
    options = [f"--src-tls-verify={str(tls_verify).lower()}"]
    login = _login(os.environ)
    if login is not None:
        hand_over(login, work / "auth.json")
        options += ["--src-authfile", f"{WORK}/auth.json"]
    own = {name: os.environ[name] for name in PROXIES if name in os.environ}
    configured = os.environ.get("CONTAINERS_REGISTRIES_CONF")
    inputs = {}
    if configured:
        own["CONTAINERS_REGISTRIES_CONF"] = "/registries.conf"
        inputs["/registries.conf"] = Path(configured).absolute()
    room = Room(work, limits.unpacked_bytes, inputs, network=True, environment=own)
    try:
        return await _copy(room, work, f"docker://{reference}", options, limits, report)
    finally:
        with contextlib.suppress(FileNotFoundError):
            (work / "auth.json").unlink()


async def fetch_docker_archive(
    building: Building, archive: Path, tag: str | None, limits: Limits, report: Report
) -> Layout:
    """Get an image out of what ``docker save`` wrote. Raises ImageError and OSError."""
    work = building.path / "fetched"
    give(work)
    report(Step("reading the archive"))
    await asyncio.to_thread(hand_over, archive, work / "input.tar")
    source = f"docker-archive:{WORK}/input.tar" + (f":{tag}" if tag else "")
    room = Room(work, max(limits.unpacked_bytes, 1 << 30))
    return await _copy(room, work, source, [], limits, report)


def hand_over(source: Path, place: Path) -> None:
    """Copy a file to where a confined program can read it, which may not read it elsewhere."""
    shutil.copyfile(source, place)
    place.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(place, USER, USER)


async def _copy(
    room: Room, work: Path, source: str, options: list[str], limits: Limits, report: Report
) -> Layout:
    # Signatures are asked for by the host's policy, if it has one, and where there can be some.
    policy = [] if room.network and POLICY.exists() else ["--insecure-policy"]
    running = asyncio.ensure_future(
        run_confined(
            room, "skopeo", "--override-os=linux", "--override-arch=amd64", *policy, "copy",
            "--quiet", "--retry-times=2", *options, source, f"dir:{WORK}/image", advice=ADVICE,
        )
    )  # fmt: skip
    try:
        while not running.done():
            await asyncio.wait([running], timeout=LOOK_S)
            size = await asyncio.to_thread(_bytes_in, work / "image")
            report(Step("fetching", size, None, "bytes"))
            if size > limits.unpacked_bytes:
                raise HostileImageError(
                    f"The image has more than {limits.unpacked_bytes} bytes.",
                    "If it is meant to be so large: import it with a higher --max-unpacked.",
                )
        await running
    finally:
        running.cancel()
        await asyncio.wait([running])
    # Not in a directory that a confined program has written in: it may have left links there.
    return await asyncio.to_thread(_as_layout, work / "image", work.with_name("layout"))


def _bytes_in(directory: Path) -> int:
    total = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in directory.iterdir():
            with contextlib.suppress(FileNotFoundError):
                total += path.lstat().st_size
    return total


def _as_layout(image: Path, out: Path) -> Layout:
    """Put what skopeo wrote (as a "dir:", each blob called by its digest) in the order of a
    layout. The manifest stays the registry's own, byte by byte."""
    if image.is_symlink():
        raise HostileImageError("What was fetched is not a directory.")
    blobs = out / "blobs/sha256"
    blobs.mkdir(parents=True)
    manifest = b"".join(bounded(Layout(image).read("manifest.json")))
    said = document(manifest, "the manifest")
    media_type = said.get("mediaType", MANIFESTS[0])
    if media_type not in MANIFESTS + INDEXES:
        raise HostileImageError(
            f"The image's manifest has the media type {str(media_type)[:100]!r}.",
            "Images in the first format of Docker's registries cannot be imported.",
        )
    digest = hashlib.sha256(manifest).hexdigest()
    (blobs / digest).write_bytes(manifest)
    for path in image.iterdir():
        if BLOB.fullmatch(path.name) and stat.S_ISREG(path.lstat().st_mode):
            path.rename(blobs / path.name)
    entry: Mapping[str, object] = {
        "mediaType": media_type,
        "digest": f"sha256:{digest}",
        "size": len(manifest),
    }
    (out / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (out / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    return Layout(out)


def _login(environ: Mapping[str, str]) -> Path | None:
    """Where this user's log-ins to registries are kept, as skopeo looks for them."""
    home = Path.home()
    runtime = environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
    places = [
        Path(runtime) / "containers/auth.json",
        Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers/auth.json",
        home / ".docker/config.json",
    ]
    if environ.get("REGISTRY_AUTH_FILE"):
        chosen = Path(environ["REGISTRY_AUTH_FILE"]).absolute()
        if not chosen.is_file():
            raise ImageError(
                f"There is no file {chosen}, which REGISTRY_AUTH_FILE names.",
                "Nothing was changed.",
                "Log in with `skopeo login`, or unset the variable.",
            )
        return chosen
    return next((place for place in places if place.is_file()), None)
