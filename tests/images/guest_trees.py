"""The images that machines are booted from in tests: layers of small systems, made of local files.

They are the same each time, so their disks and golden snapshots stay in the cache.
"""

import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.images.oci_builder import TIME, Member, directory, hard_link, symlink

CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")
APPLETS = (b"sh", b"ls", b"cat", b"true", b"sleep", b"echo", b"id", b"stat", b"sync")
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
SMALL_FILES = 10_000
HELLO = '#include <stdio.h>\nint main(void) { puts("hello from musl"); return 0; }\n'


def busybox(runtime: Path) -> bytes:
    """A static busybox: that of the guest's own tools."""
    return (runtime / "tree/bin/busybox").read_bytes()


def alpine_like(runtime: Path, scratch: Path) -> Sequence[Member]:
    """A system as Alpine makes it: busybox, and musl where there is a compiler for it."""
    members = [
        *(directory(name) for name in (b"bin", b"etc", b"lib", b"root", b"home", b"var", b"usr")),
        directory(b"tmp", 0o1777),
        Member(b"bin/busybox", content=busybox(runtime), mode=0o755),
        *(symlink(b"bin/" + name, b"/bin/busybox") for name in APPLETS),
        Member(b"etc/passwd", content=PASSWD),
        Member(b"etc/group", content=b"root:x:0:\nnobody:x:65534:\n"),
        Member(b"etc/shadow", content=b"root:*::0:::::\n", mode=0o640, gid=42),
        Member(b"etc/alpine-release", content=b"3.20.0\n"),
        Member(b"etc/os-release", content=b'ID=alpine\nNAME="Alpine Linux"\n'),
        Member(b"bin/bbsuid", content=b"#!/bin/sh\n", mode=0o4111),
    ]
    if compiler := shutil.which("musl-gcc"):
        (scratch / "hello.c").write_text(HELLO)
        subprocess.run([compiler, "-O1", "-o", scratch / "hello", scratch / "hello.c"], check=True)
        library = Path("/usr/lib/x86_64-linux-musl/libc.so").read_bytes()
        members += [
            Member(b"lib/ld-musl-x86_64.so.1", content=library, mode=0o755),
            symlink(b"lib/libc.musl-x86_64.so.1", b"ld-musl-x86_64.so.1"),
            Member(b"bin/hello", content=(scratch / "hello").read_bytes(), mode=0o755),
        ]
    return members


def distroless(runtime: Path) -> Sequence[Member]:
    """One static program, /etc/passwd, and not even a shell."""
    return [
        Member(b"app/cat", content=busybox(runtime), mode=0o555),
        Member(b"etc/passwd", content=b"nonroot:x:65532:65532:nonroot:/home/nonroot:/nologin\n"),
        directory(b"home/nonroot", 0o700, uid=65532, gid=65532),
    ]


def bare(runtime: Path) -> Sequence[Member]:
    """A program and nothing that a system has: no /proc, /sys, /dev, /etc."""
    return [Member(b"cat", content=busybox(runtime), mode=0o755)]


def small_files(runtime: Path) -> Sequence[Member]:
    """Ten thousand files of a few bytes each."""
    numbers = range(SMALL_FILES)
    return [
        *bare(runtime),
        *(directory(b"many/%02d" % n) for n in range(100)),
        *(Member(b"many/%02d/%d" % (n % 100, n), content=b"file %d\n" % n) for n in numbers),
    ]


def odd_names(runtime: Path) -> Sequence[Member]:
    """What programs trip over: names, links, modes, owners, attributes, device nodes."""
    content = random.Random(1).randbytes(100_000)
    return [
        *bare(runtime),
        directory(b"odd", 0o1751, uid=7, gid=8),
        Member(b"odd/new\nline", content=b"a"),
        Member(b"odd/\xff\xfe not utf-8", content=b"b"),
        Member(b"odd/-rf", content=b"c"),
        Member(b"odd/ spaces ", content=b"d"),
        Member(b"odd/" + b"n" * 255, content=b"e"),
        Member("odd/größe 大きさ".encode(), content=content),
        symlink(b"odd/dangling", b"/no/where"),
        symlink(b"odd/to \xff", b"\xff\xfe not utf-8"),
        Member(b"odd/setuid", content=b"x", mode=0o4755),
        Member(b"odd/setgid", content=b"x", mode=0o2711, gid=42),
        Member(b"odd/secret", content=b"x", mode=0, uid=4_000_000_000),
        hard_link(b"odd/again", b"odd/setuid"),
        Member(b"odd/fifo", tarfile.FIFOTYPE, mode=0o600),
        Member(b"odd/null", tarfile.CHRTYPE, mode=0o666, device=(1, 3)),
        Member(b"odd/disk", tarfile.BLKTYPE, mode=0o660, gid=6, device=(259, 300)),
        Member(
            b"odd/ping",
            content=b"ping",
            mode=0o755,
            xattrs={"security.capability": CAPABILITY, "user.binary": b"\0\xff=\n"},
        ),
    ]


LARGE_SIZE = 5 << 30
LARGE_PARTS = {
    0: b"first",
    1 << 30: b"middle" * 1000,
    (4 << 30) + 12345: b"x",
    LARGE_SIZE - 4: b"last",
}


def large_tree(runtime: Path, root: Path) -> Path:
    """A directory with a sparse file of 5 GiB, with data in some places. (A full one is in
    ``torpor lab soak``.)"""
    root.mkdir(parents=True)
    (root / "cat").write_bytes(busybox(runtime))
    (root / "cat").chmod(0o755)
    with (root / "large").open("wb") as file:
        file.truncate(LARGE_SIZE)
        for at, content in LARGE_PARTS.items():
            file.seek(at)
            file.write(content)
    for path in (root / "cat", root / "large", root):
        os.utime(path, (TIME, TIME))
    return root
