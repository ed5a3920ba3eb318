"""Images for others: a tar archive of the files, an OCI archive, or the disk itself."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from torpor.images.config import ImageConfig, oci_document
from torpor.images.ext4_read import Disk, File
from torpor.images.image import Image
from torpor.images.oci_image import CONFIGS, MANIFESTS, REF_NAME
from torpor.images.progress import Report, Step
from torpor.vm.base import copy_base

Form = Literal["oci", "tar", "raw"]
FORMS: tuple[Form, ...] = ("oci", "tar", "raw")
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
LEVEL = 6
RECORD = 10240
TYPES = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
}


async def export_image(image: Image, out: Path, form: Form, report: Report) -> int:
    """Write an image to a new file ``out``; return the bytes that it takes.

    "tar" has the files alone, "oci" the image's config too, "raw" is the disk, holes kept. The
    file is complete or not there. Raises OSError (also if it is there already) and ImageError.
    """
    fd, name = tempfile.mkstemp(prefix=f".{out.name[:100]}.", dir=out.parent)
    os.close(fd)
    new = Path(name)
    loop = asyncio.get_running_loop()
    stopped = False

    def told(step: Step) -> None:
        if stopped:
            raise InterruptedError
        loop.call_soon_threadsafe(report, step)

    work = asyncio.ensure_future(asyncio.to_thread(_write, image, new, form, told))
    try:
        await asyncio.shield(work)
        os.link(new, out)
    finally:
        stopped = True
        await asyncio.wait([work])
        work.exception()
        new.unlink(missing_ok=True)
    return out.stat().st_blocks * 512


def _write(image: Image, new: Path, form: Form, report: Report) -> None:
    if form == "raw":
        report(Step("copying the disk"))
        new.unlink()
        copy_base(image.root, new)
    elif form == "tar":
        with new.open("wb") as file:
            for piece in tar_pieces(image.root, report):
                file.write(piece)
    else:
        _write_oci(image, new, report)
    umask = os.umask(0)
    os.umask(umask)
    new.chmod(0o666 & ~umask)
    with new.open("rb") as file:
        os.fsync(file.fileno())


def _write_oci(image: Image, new: Path, report: Report) -> None:
    with tempfile.TemporaryFile(dir=new.parent) as layer:
        plain, packed = hashlib.sha256(), hashlib.sha256()
        packer = zlib.compressobj(LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)

        def put(piece: bytes) -> None:
            packed.update(piece)
            layer.write(piece)

        for piece in tar_pieces(image.root, report):
            plain.update(piece)
            put(packer.compress(piece))
        put(packer.flush())
        size = layer.tell()
        layer.seek(0)
        blobs: dict[str, bytes] = {}
        config = _document(blobs, CONFIGS[0], _config(image.config, plain.hexdigest()))
        described = {
            "mediaType": LAYER, "digest": f"sha256:{packed.hexdigest()}", "size": size,
        }  # fmt: skip
        manifest = _document(
            blobs,
            MANIFESTS[0],
            {
                "schemaVersion": 2,
                "mediaType": MANIFESTS[0],
                "config": config,
                "layers": [described],
            },
        )
        manifest["annotations"] = {REF_NAME: image.name}
        index = {"schemaVersion": 2, "manifests": [manifest]}
        with tarfile.open(new, "w") as archive:
            _add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
            _add(archive, "index.json", json.dumps(index).encode())
            # A reader that makes them itself may want to give them to somebody (skopeo does).
            for name in ("blobs", "blobs/sha256"):
                directory = tarfile.TarInfo(name)
                directory.type, directory.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(directory)
            for digest, content in blobs.items():
                _add(archive, f"blobs/sha256/{digest}", content)
            member = tarfile.TarInfo(f"blobs/sha256/{packed.hexdigest()}")
            member.size = size
            archive.addfile(member, layer)


def _config(config: ImageConfig, digest: str) -> dict[str, object]:
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": oci_document(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }


def _document(blobs: dict[str, bytes], media_type: str, content: object) -> dict[str, object]:
    text = json.dumps(content).encode()
    digest = hashlib.sha256(text).hexdigest()
    blobs[digest] = text
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(text)}


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def tar_pieces(root: Path, report: Report) -> Iterator[bytes]:
    """Yield a tar archive of the files of a root disk. Raises ImageError and OSError."""
    total = 0
    seen: dict[int, bytes] = {}
    with Disk(root) as disk:
        for path, file in disk.walk():
            first = seen.setdefault(file.number, path)
            linked = first if first != path and not stat.S_ISDIR(file.mode) else None
            member = _member(path, file, linked, lambda: disk.target(file))  # noqa: B023
            header = member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            total += len(header)
            yield header
            if member.type != tarfile.REGTYPE:
                continue
            for piece in disk.read(file):
                yield piece
                total += len(piece)
                report(Step("packing", total, None, "bytes"))
            padding = bytes(-file.size % 512)
            total += len(padding)
            yield padding
    yield bytes(1024 + -(total + 1024) % RECORD)


def _member(
    path: bytes, file: File, linked: bytes | None, target: Callable[[], bytes]
) -> tarfile.TarInfo:
    member = tarfile.TarInfo(os.fsdecode(path) if path else ".")
    member.mode, member.mtime = stat.S_IMODE(file.mode), file.mtime
    member.uid, member.gid = file.uid, file.gid
    member.type = TYPES[stat.S_IFMT(file.mode)]
    member.devmajor, member.devminor = file.device
    if linked is not None:
        member.type, member.linkname = tarfile.LNKTYPE, os.fsdecode(linked)
        return member
    if member.type == tarfile.REGTYPE:
        member.size = file.size
    elif member.type == tarfile.SYMTYPE:
        member.linkname = os.fsdecode(target())
    member.pax_headers = {
        f"SCHILY.xattr.{name}": value.decode("utf-8", "surrogateescape")
        for name, value in file.xattrs.items()
    }
    return member
