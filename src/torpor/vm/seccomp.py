"""A filter of system calls around QEMU, beside its own: what no namespace keeps it from.

QEMU's sandbox denies what its authors thought of: to start programs, to change its rights. A socket
it may make. Most kinds are as empty as the network namespace, but not all are bound to one: over
AF_VSOCK, for example, a host that is itself a virtual machine talks to its hypervisor. QEMU
inherits every socket that it needs, so it may make none but AF_UNIX, which has no path to go to.
And the kernel's parts that have been a way out of containers again and again, and that QEMU does
without, are closed: io_uring (which would also go round this filter), bpf, perf events, keys.

It is classic BPF (seccomp(2)), loaded by bubblewrap (``--seccomp``) right before QEMU.
"""

import errno
import os
import struct

_X86_64 = 0xC000003E  # AUDIT_ARCH_X86_64, linux/audit.h
_X32 = 0x40000000
_AF_UNIX = 1
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # linux/bpf_common.h
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

_SOCKET = 41
DENIED = {
    "ptrace": 101,
    "pivot_root": 155,
    "chroot": 161,
    "acct": 163,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "reboot": 169,
    "init_module": 175,
    "quotactl": 179,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsmount": 432,
    "mount_setattr": 442,
}
"""Calls and their numbers on x86-64; each fails with ENOSYS, as on a kernel without it."""


def program() -> bytes:
    """Return the filter, as an array of ``struct sock_filter``."""
    allow, refuse_call, refuse_socket, kill = (
        _step(_RETURN, value=value)
        for value in (_ALLOW, _ERRNO | errno.ENOSYS, _ERRNO | errno.EAFNOSUPPORT, _KILL)
    )
    numbers = sorted(DENIED.values())
    steps = [
        _step(_LOAD, value=_ARCH),
        _step(_EQUAL, 1, 0, _X86_64),
        kill,
        _step(_LOAD, value=_NUMBER),
        _step(_AT_LEAST, 0, 1, _X32),
        kill,
        _step(_EQUAL, 0, 4, _SOCKET),
        _step(_LOAD, value=_FIRST_ARGUMENT),
        _step(_EQUAL, 0, 1, _AF_UNIX),
        allow,
        refuse_socket,
    ]
    for index, number in enumerate(numbers):
        steps.append(_step(_EQUAL, len(numbers) - index, 0, number))
    steps += [allow, refuse_call]
    return b"".join(steps)


def _step(code: int, if_so: int = 0, if_not: int = 0, value: int = 0) -> bytes:
    """One instruction; the jumps are counts of instructions to leave out."""
    return struct.pack("<HBBI", code, if_so, if_not, value)


def filter_file() -> int:
    """Return a descriptor from which the filter can be read, the caller's own."""
    fd = os.memfd_create("torpor-filter", os.MFD_CLOEXEC)
    os.write(fd, program())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
