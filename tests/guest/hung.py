"""A file system that does not answer: FUSE, with a server that takes requests and is silent."""

import ctypes
import os
import select
import struct
import subprocess
import sys
import threading
from pathlib import Path

INIT = 26
"""The first request (linux/fuse.h), the only one that is answered."""
_IN, _OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")

MOUNT = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
namespace, fuse, place = int(sys.argv[1]), int(sys.argv[2]), os.fsencode(sys.argv[3])
options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
if libc.setns(namespace, 0x20000) or libc.mount(b"silent", place, b"fuse", 0, options):
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""


class Silent:
    """Such a file system, mounted at ``place`` in the mount namespace of a process.

    Who asks it cannot be killed, for its requests have been taken.
    """

    def __init__(self, process: int, place: Path) -> None:
        place.mkdir(exist_ok=True)
        self.asked = 0
        self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        namespace = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            subprocess.run(
                [sys.executable, "-c", MOUNT, str(namespace), str(self._fuse), str(place)],
                pass_fds=[namespace, self._fuse],
                check=True,
            )
        finally:
            os.close(namespace)
        self._end, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        poll = _Poll(self._fuse, self._end)
        while poll.wait() != self._end:
            request = os.read(self._fuse, 1 << 20)
            _, kind, unique, *_ = _IN.unpack_from(request)
            if kind == INIT:
                major, minor = struct.unpack_from("<II", request, _IN.size)
                said = _INIT_OUT.pack(major, minor, 0, 0, 16, 12, 4096, 1, 1, 0, 0)
                os.write(self._fuse, _OUT.pack(_OUT.size + len(said), 0, unique) + said)
            else:
                self.asked += 1

    def end(self) -> None:
        """End it: who waits for it gets an error at last."""
        os.write(self._stop, b"x")
        self._thread.join()
        for fd in (self._fuse, self._end, self._stop):
            os.close(fd)


class _Poll:
    def __init__(self, *fds: int) -> None:
        self._poll = select.poll()
        for fd in fds:
            self._poll.register(fd, select.POLLIN)

    def wait(self) -> int:
        return max(fd for fd, _ in self._poll.poll())


def available() -> bool:
    """Whether this host has FUSE, and we may mount."""
    return os.geteuid() == 0 and os.access("/dev/fuse", os.W_OK) and hasattr(_libc(), "setns")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
