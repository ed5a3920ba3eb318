"""A QEMU that was taken over: it runs in the jail in QEMU's place, and tries to get out.

It runs without QEMU's own filter of system calls, so that what holds is the rest of the jail. Its
arguments are what it is told, as JSON, and then QEMU's: in those it finds its descriptors. Each
attempt gives one line on standard error, ``name: what happened``; one that succeeds says ``DONE``.
Then it does what it was told to, and stays.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import re
import resource
import signal
import socket
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = 4096
LINES = []


def attempt(name, do):
    try:
        result = do()
    except OSError as error:
        said = errno.errorcode.get(error.errno, str(error.errno))
    except (ValueError, TypeError) as error:
        said = f"refused: {error}"
    else:
        said = "refused" if result is None else f"DONE {result!r}"
    LINES.append(f"{name}: {said}")


def call(number, *arguments):
    """A bare system call."""
    result = LIBC.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def descriptors(line):
    """What QEMU was given, by what it is: the numbers in the arguments."""
    text = " ".join(line)
    sets = {}
    for fd, number, _ in re.findall(r"fd=(\d+),set=(\d+),opaque=(\S+)", text):
        sets.setdefault(int(number), []).append(int(fd))
    found = {"layers": [], "top": []}
    for node in [json.loads(word) for word in line[2:] if word.startswith("{")]:
        fds = sets[int(node["file"]["filename"].rpartition("/")[2])]
        found["layers" if node.get("read-only") else "top"] += fds
    base = re.search(r"mem-path=/proc/self/fd/(\d+)", text)
    found["base"] = [int(base[1])] if base else []
    return found


def attack_file(name, fd):
    """Everything by which a file could be written that was given to be read."""
    attempt(f"{name} pwrite", lambda: os.pwrite(fd, b"evil", 0))
    attempt(f"{name} ftruncate", lambda: os.ftruncate(fd, PAGE))
    attempt(f"{name} punch", lambda: call(285, fd, 3, ctypes.c_long(0), ctypes.c_long(PAGE)))
    attempt(f"{name} zero", lambda: call(285, fd, 0x10, ctypes.c_long(0), ctypes.c_long(PAGE)))
    attempt(f"{name} chmod", lambda: os.fchmod(fd, 0o777) or "mode")
    attempt(f"{name} chown", lambda: os.fchown(fd, os.getuid(), os.getgid()) or "owner")
    attempt(f"{name} setxattr", lambda: os.setxattr(fd, "user.evil", b"1") or "attribute")

    def mapped():
        with mmap.mmap(fd, PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as memory:
            memory[0:4] = b"evil"
        return "mapped"

    attempt(f"{name} map", mapped)

    def again(mode):
        opened = os.open(f"/proc/self/fd/{fd}", mode)
        return os.pwrite(opened, b"evil", 0)

    attempt(f"{name} reopen", lambda: again(os.O_RDWR))
    attempt(f"{name} reopen to write", lambda: again(os.O_WRONLY))
    attempt(
        f"{name} reopen and cut", lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_TRUNC)
    )

    def flags():
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
        return os.write(fd, b"evil")

    attempt(f"{name} flags", flags)

    def unseal():
        fcntl.fcntl(fd, 1033, 0)
        return os.pwrite(fd, b"evil", 0)

    attempt(f"{name} seals", unseal)

    attempt(
        f"{name} link",
        lambda: (
            None
            if LIBC.linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, b"/evil", 0x400)
            else "linked"
        ),
    )


def connect(family, kind, address):
    with socket.socket(family, kind) as sock:
        sock.settimeout(2)
        sock.connect(address)
        return "connected"


def attack_network(told):
    port = int(told["port"])
    attempt(
        "tcp to the host", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", port))
    )
    attempt("tcp outside", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)))
    attempt("udp", lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)))
    attempt("tcp over ipv6", lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ("::1", port)))
    attempt("packets", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW) and "raw")
    attempt("raw ip", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1) and "raw")
    attempt("vsock", lambda: connect(socket.AF_VSOCK, socket.SOCK_STREAM, (2, port)))
    attempt(
        "abstract socket",
        lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + told["abstract"]),
    )
    attempt("socket by path", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, told["socket"]))

    def interface_up():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(
                sock, 0x8914, b"lo".ljust(16, b"\0") + (0x1043).to_bytes(2, "little") + bytes(22)
            )
            fcntl.ioctl(sock, 0x8924, b"lo".ljust(16, b"\0") + bytes(24))
        return "changed"

    attempt("change an interface", interface_up)

    def netlink():
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
            # RTM_NEWLINK of a dummy interface
            sock.send(
                (32).to_bytes(4, "little")
                + (16).to_bytes(2, "little")
                + (0x605).to_bytes(2, "little")
                + bytes(24)
            )
            reply = sock.recv(4096)
        code = int.from_bytes(reply[16:20], "little", signed=True)
        if code:
            raise OSError(-code, "")
        return "made"

    attempt("new interface", netlink)


def attack_others(told):
    for name, path in sorted(told["paths"].items()):
        attempt(f"list {name}", lambda path=path: os.listdir(path))
        attempt(f"open {name}", lambda path=path: os.open(path, os.O_RDONLY))
    for name, pid in sorted(told["pids"].items()):
        attempt(f"kill {name}", lambda pid=pid: os.kill(pid, 0) or "reached")
        attempt(f"look at {name}", lambda pid=pid: os.listdir(f"/proc/{pid}"))
        attempt(f"trace {name}", lambda pid=pid: call(101, 16, pid, 0, 0))
        attempt(f"memory of {name}", lambda pid=pid: os.open(f"/proc/{pid}/mem", os.O_RDWR))
        attempt(f"pidfd of {name}", lambda pid=pid: call(434, pid, 0))
    attempt("kill all", lambda: os.kill(-1, 0) or "others")
    seen = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    attempt("other processes", lambda: seen if seen != [os.getpid()] else None)
    attempt("shared memory of sysv", lambda: call(29, 0x7070, PAGE, 0) and None)


def attack_host():
    attempt("write at the top", lambda: os.open("/evil", os.O_CREAT | os.O_WRONLY))
    attempt("make a directory", lambda: os.mkdir("/usr/evil") or "made")
    attempt(
        "write beside libraries",
        lambda: os.open("/usr/lib/x86_64-linux-gnu/evil", os.O_CREAT | os.O_WRONLY),
    )
    attempt("write a device", lambda: os.open("/dev/evil", os.O_CREAT | os.O_WRONLY))
    attempt("memory file system", lambda: os.open("/dev/shm/evil", os.O_CREAT | os.O_WRONLY))
    attempt("passwords", lambda: os.open("/etc/shadow", os.O_RDONLY))
    attempt("settings", lambda: os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
    attempt("its own score", lambda: os.open("/proc/self/oom_score_adj", os.O_WRONLY))
    attempt("sysrq", lambda: os.open("/proc/sysrq-trigger", os.O_WRONLY))
    attempt("control groups", lambda: os.listdir("/sys/fs/cgroup"))
    for program in (
        "/bin/sh",
        "/usr/bin/env",
        "/usr/bin/python3",
        "/bin/busybox",
        "/usr/bin/perl",
        "/usr/bin/bwrap",
        "/usr/bin/setpriv",
        "/usr/bin/sudo",
        "/bin/su",
    ):
        attempt(f"run {program}", lambda program=program: os.execv(program, [program]))


def attack_rights(told):
    with open("/proc/self/status") as status:
        caps = [
            line.split()[1]
            for line in status
            if line.startswith(("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"))
        ]
    attempt("capabilities", lambda: caps if any(int(cap, 16) for cap in caps) else None)
    attempt("become root", lambda: os.setuid(0) or "root")
    attempt("groups of root", lambda: os.setgroups([0]) or "groups")
    attempt("mount", lambda: None if LIBC.mount(b"none", b"/proc", b"tmpfs", 0, 0) else "mounted")
    attempt(
        "mount read-write",
        lambda: None if LIBC.mount(b"none", b"/", None, 32 | 4096, 0) else "remounted",
    )
    attempt("user namespace", lambda: None if LIBC.unshare(0x10000000) else "made")
    attempt("mount namespace", lambda: None if LIBC.unshare(0x00020000) else "made")
    attempt("pivot", lambda: call(155, b"/", b"/"))
    attempt("chroot", lambda: os.chroot("/usr") or "changed")
    attempt("module", lambda: call(175, 0, 0, b""))
    attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, 0) or "set")
    attempt("reboot", lambda: call(169, 0xFEE1DEAD, 672274793, 0, 0))
    attempt("host name", lambda: socket.sethostname("evil") or "set")
    attempt(
        "keys of the host",
        lambda: call(250, 10, ctypes.c_long(-3), b"user", told["key"].encode(), 0),
    )
    attempt("device node", lambda: os.mknod("/dev/evil", 0o60660, os.makedev(254, 0)) or "made")
    attempt("more descriptors", lambda: _raise_limit(7, 1 << 20))
    attempt("larger files", lambda: _raise_limit(1, 1 << 60))
    attempt("a core", lambda: _raise_limit(4, 1 << 30))


def _raise_limit(which, value):
    resource.setrlimit(which, (value, value))
    return "raised"


def then(what):
    if what == "memory":
        kept = []
        while True:
            kept.append(b"x" * (1 << 20))
    if what == "log":
        os.set_blocking(2, True)
        os.set_blocking(2, False)
        written = 0
        for _ in range(100_000):
            try:
                written += os.write(2, b"x" * 4096)
            except BlockingIOError:
                pass
        report([f"said {written}"])
    if what == "file":
        top = descriptors(sys.argv)["top"][0]
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        attempt("a file beyond its limit", lambda: os.pwrite(top, b"x", 1 << 40))
        report(LINES[-1:])
    if what == "processes":
        count = 0
        try:
            while count < 5000:
                if os.fork() == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    time.sleep(600)
                    os._exit(0)
                count += 1
        except OSError:
            pass
        report([f"forked {count}"])
    if what == "hide":
        # Another name, other arguments: whoever looks for it by name does not find it.
        with open("/proc/self/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        ctypes.memset(start, 0, end - start)
        LIBC.prctl(15, b"nobody", 0, 0, 0)
        report(["hidden"])
    while True:
        time.sleep(60)


def report(lines):
    os.write(2, ("\n".join(lines) + "\n").encode())


def main():
    told = json.loads(sys.argv[1])
    given = descriptors(sys.argv)
    if told["attack"]:
        for kind in ("base", "layers"):
            for number, fd in enumerate(given[kind]):
                attack_file(f"{kind} {number}", fd)
        attack_network(told)
        attack_others(told)
        attack_host()
        attack_rights(told)
        LINES.append(f"given: {len(given['base'])} {len(given['layers'])} {len(given['top'])}")
        report([*LINES, "end"])
    then(told.get("then"))


main()
