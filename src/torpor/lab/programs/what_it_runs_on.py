"""Print as JSON what can be seen of the machine from inside."""

import ctypes
import json
import mmap
import os
from pathlib import Path

# push rbx; mov eax, 0x40000000; xor ecx, ecx; cpuid; mov [rdi], ebx; mov [rdi+4], ecx;
# mov [rdi+8], edx; pop rbx; ret
CPUID = bytes.fromhex("53 b800000040 31c9 0fa2 891f 894f04 895708 5b c3")


def hypervisor() -> str:
    """Return the vendor in CPUID leaf 0x40000000, which hypervisors use to say who they are."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(CPUID)
    place = ctypes.addressof(ctypes.c_char.from_buffer(code))
    vendor = ctypes.create_string_buffer(12)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(place)(ctypes.addressof(vendor))
    return vendor.raw.rstrip(b"\0").decode("ascii", "replace")


def one_of(path: str, name: str) -> str:
    """Return what follows ``name`` and a colon in a file."""
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
seen = {
    "hypervisor": hypervisor() if "hypervisor" in one_of("/proc/cpuinfo", "flags") else None,
    "processor": one_of("/proc/cpuinfo", "model name"),
    "vcpus": len(os.sched_getaffinity(0)),
    "memory_kib": int(one_of("/proc/meminfo", "MemTotal").split()[0]),
    "root": next(words[0] for words in mounts if words[1] == "/"),
    "vda_bytes": 512 * int(Path("/sys/block/vda/size").read_text()),
    "vda_driver": Path("/sys/block/vda/device/driver").resolve().name,
    "kernel": os.uname().release,
    "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
    "hostname": os.uname().nodename,
    "init": Path("/proc/1/cmdline").read_bytes().replace(b"\0", b" ").decode().strip(),
}
print(json.dumps(seen))
