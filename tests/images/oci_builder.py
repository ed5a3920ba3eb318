"""OCI layouts for tests, built from nothing: the same call gives the same bytes."""

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OCI = "application/vnd.oci.image."
TIME = 1_600_000_000


@dataclass(frozen=True)
class Member:
    """One entry of a layer; names are bytes, as file systems have them."""

    name: bytes
    kind: bytes = tarfile.REGTYPE
    content: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    link: bytes = b""
    device: tuple[int, int] = (0, 0)
    mtime: int = TIME
    xattrs: Mapping[str, bytes] = field(default_factory=dict)


def directory(name: bytes, mode: int = 0o755, **rest: Any) -> Member:
    return Member(name, tarfile.DIRTYPE, mode=mode, **rest)


def symlink(name: bytes, target: bytes, **rest: Any) -> Member:
    return Member(name, tarfile.SYMTYPE, link=target, mode=0o777, **rest)


def hard_link(name: bytes, target: bytes) -> Member:
    return Member(name, tarfile.LNKTYPE, link=target)


def layer(*members: Member) -> bytes:
    """An uncompressed layer."""
    out = io.BytesIO()
    for each in members:
        info = tarfile.TarInfo(each.name.decode("utf-8", "surrogateescape"))
        info.type, info.mode, info.mtime = each.kind, each.mode, each.mtime
        info.uid, info.gid, info.size = each.uid, each.gid, len(each.content)
        info.linkname = each.link.decode("utf-8", "surrogateescape")
        info.devmajor, info.devminor = each.device
        info.pax_headers = {
            f"SCHILY.xattr.{name}": value.decode("utf-8", "surrogateescape")
            for name, value in each.xattrs.items()
        }
        out.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        out.write(each.content + bytes(-len(each.content) % 512))
    return out.getvalue() + bytes(1024)


def packed(content: bytes, form: str) -> bytes:
    if form == "gzip":
        return gzip.compress(content, 6, mtime=0)
    if form == "zstd":
        return subprocess.run(
            ["zstd", "-qc"], input=content, capture_output=True, check=True
        ).stdout
    return content


class Builder:
    """A layout that is put together blob by blob, so that a test can put a lie anywhere."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs/sha256").mkdir(parents=True)
        (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def blob(self, content: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (self.root / "blobs/sha256" / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def document(self, content: object, media_type: str) -> dict[str, Any]:
        return self.blob(json.dumps(content).encode(), media_type)

    def index(self, *manifests: Mapping[str, Any]) -> None:
        text = json.dumps({"schemaVersion": 2, "manifests": list(manifests)})
        (self.root / "index.json").write_text(text)

    def image(
        self,
        layers: Iterable[bytes],
        *,
        config: Mapping[str, Any] | None = None,
        form: str = "gzip",
        name: str | None = "latest",
        platform: tuple[str, str] = ("linux", "amd64"),
        change: Callable[[dict[str, Any], dict[str, Any]], None] | None = None,
    ) -> dict[str, Any]:
        """Add an image and return its manifest's descriptor. ``change`` may alter the manifest and
        the config before they are written."""
        layers = list(layers)
        suffix = "" if form == "none" else f"+{form}"
        described = [self.blob(packed(each, form), f"{OCI}layer.v1.tar{suffix}") for each in layers]
        document: dict[str, Any] = {
            "architecture": platform[1],
            "os": platform[0],
            "config": dict(config or {}),
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers],
            },
        }
        manifest: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}manifest.v1+json",
            "layers": described,
        }
        if change is not None:
            change(manifest, document)
        manifest.setdefault("config", self.document(document, f"{OCI}config.v1+json"))
        descriptor = self.document(manifest, f"{OCI}manifest.v1+json")
        if name is not None:
            descriptor["annotations"] = {"org.opencontainers.image.ref.name": name}
        return descriptor


def layout(root: Path, *layers: bytes, **options: Any) -> Path:
    """A layout of one image."""
    builder = Builder(root)
    builder.index(builder.image(layers, **options))
    return root


def archive_of(root: Path, out: Path) -> Path:
    """The layout as an OCI archive."""
    with tarfile.open(out, "w") as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                archive.add(path, str(path.relative_to(root)))
    return out
