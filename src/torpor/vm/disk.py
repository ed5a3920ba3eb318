"""Disk layers: a raw image at the bottom, qcow2 files over it, each written by one machine only.

A qcow2 header can name a backing file, and a header that a jailed QEMU has written is not to be
trusted with that. So no layer names one: the chain stands in the manifest and is given to QEMU as
explicit nodes.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from torpor.vm.errors import HostError, VmError
from torpor.vm.pages import write_all


@dataclass(frozen=True)
class Layer:
    """One immutable layer: the file ``<id>.<format>`` of a store, ``size`` bytes of virtual
    disk."""

    id: str
    format: Literal["raw", "qcow2"]
    size: int

    @property
    def file_name(self) -> str:
        """The layer's name in a directory of layers."""
        return f"{self.id}.{self.format}"


async def create_layer(file: Path, size: int) -> None:
    """Make an empty qcow2 layer of ``size`` virtual bytes. Raises OSError or :exc:`HostError`."""
    content = await _empty_layer(size)
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, content.rstrip(b"\0"), 0)
        os.ftruncate(fd, len(content))
    finally:
        os.close(fd)


async def is_empty_layer(file: Path, size: int) -> bool:
    """Whether nothing was ever written to a layer: it grows with the first cluster that is."""
    return file.stat().st_size <= len(await _empty_layer(size))


async def _empty_layer(size: int) -> bytes:
    # An empty image depends on its size only, so qemu-img (30 ms) runs once for each.
    kept = _empty_layers().get(size)
    if kept is None:
        fd = os.memfd_create("torpor-layer", os.MFD_CLOEXEC)
        try:
            target = f"/proc/{os.getpid()}/fd/{fd}"
            await run_qemu_img("create", "-q", "-f", "qcow2", target, str(size))
            kept = os.pread(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)
        _empty_layers()[size] = kept
    return kept


@cache
def _empty_layers() -> dict[int, bytes]:
    return {}


async def run_qemu_img(*arguments: str) -> str:
    """Run qemu-img and return its output. Raises :exc:`HostError` with what it said."""
    try:
        process = await asyncio.create_subprocess_exec(
            "qemu-img",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError:
        raise HostError(
            "qemu-img is not installed.", todo="Install the package qemu-utils (`./dev setup`)."
        ) from None
    try:
        output, error = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())
        raise
    if process.returncode != 0:
        raise VmError(f"qemu-img {arguments[0]} failed: {error.decode('utf-8', 'replace').strip()}")
    return output.decode()


def node_name(layer: Layer) -> str:
    """Return what QEMU calls a layer; at most 31 characters."""
    return f"layer-{layer.id[:24]}"


def chain_nodes(
    layers: Sequence[Layer], fdsets: Sequence[int], top: Layer, top_fdset: int
) -> list[str]:
    """Return QEMU's ``-blockdev`` arguments for a chain with the writable layer ``top`` over it.

    ``fdsets`` are the descriptor sets of ``layers``, the bottom first.
    """
    arguments: list[str] = []
    below: str | None = None
    for layer, fdset in zip(layers, fdsets, strict=True):
        node: dict[str, Any] = {
            "driver": layer.format,
            "node-name": node_name(layer),
            "read-only": True,
            "file": _file(fdset) | {"read-only": True},
        }
        if layer.format == "qcow2":
            node["backing"] = below
        arguments += ["-blockdev", json.dumps(node)]
        below = node_name(layer)
    node = layer_node(top, top_fdset) | {"backing": below}
    return [*arguments, "-blockdev", json.dumps(node)]


def layer_node(layer: Layer, fdset: int) -> dict[str, Any]:
    """Return the node of a writable layer with nothing under it."""
    return {
        "driver": "qcow2",
        "node-name": node_name(layer),
        "discard": "unmap",
        "file": _file(fdset) | {"discard": "unmap"},
        "backing": None,
    }


def raw_node(name: str, fdset: int) -> str:
    """Return the node of a read-only raw image."""
    file = _file(fdset) | {"read-only": True}
    return json.dumps({"driver": "raw", "node-name": name, "read-only": True, "file": file})


def _file(fdset: int) -> dict[str, Any]:
    # No locks: who writes which layer is settled by the host. QEMU's locks would belong to the open
    # file, which the descriptor set keeps open, so a machine that was forked would keep its lock
    # for writing on a layer that its children read, and they could not start.
    return {"driver": "file", "filename": f"/dev/fdset/{fdset}", "locking": "off"}
