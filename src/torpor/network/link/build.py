"""Builds a machine's link from within, in a process of its own that ends when it has handed it
over.

Run by its path (``python -I -S build.py``), with the standard library alone:

    build.py SOCKET RULES NAME WALL WALL_MAC MACHINE MACHINE_MAC MTU TCP_PORT UDP_PORT DNS_PORT PID

``RULES`` are nft's. With a ``PID`` other than 0 the namespaces are those of that process, whose tap
is there already, and only rules and sockets are made. Sent over the descriptor ``SOCKET``: "built"
with the descriptors of tap, user and network namespace and the five sockets of
:class:`torpor.network.link.Ends`, in this order; or three lines: what failed, errno, and why.

Whoever runs here has every right over the new namespaces, and loses them when it ends: it starts
no program, and no user of a machine is root in them.
"""

# Not `socket`, which takes 7 of 15 ms to import; measured with Python 3.11.
import _socket as socket
import ctypes
import fcntl
import os
import struct
import sys

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # linux/sched.h
NS_GET_USERNS = 0xB701  # linux/nsfs.h
PIDFD_GETFD = 438  # the system call's number on all architectures
TUN = "/dev/net/tun"
TUNSETIFF = 0x400454CA  # linux/if_tun.h
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
IP_PKTINFO, IP_TRANSPARENT, IP_RECVORIGDSTADDR = 8, 19, 20  # linux/in.h
BACKLOG = 4096
SYSCTLS = (
    ("ipv4/ip_forward", "0"),
    ("ipv4/conf/all/route_localnet", "0"),
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    # No refusal is held back: a browser tries QUIC with many hosts at the same moment, and is to
    # hear at once that there is none. And none counts against what the host may send.
    ("ipv4/icmp_ratemask", "0"),
)

libc = ctypes.CDLL(None, use_errno=True)
step = ""
"""What is being done, for people, if it fails."""


def checked(result: int) -> int:
    """Return what a function of the C library returned. Raises OSError if it failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def make_namespaces() -> None:
    """Go to new namespaces, with every right over them and as nobody's root.

    The one user in them is number 1: who is not root there loses all rights with the next program
    that it becomes (capabilities(7)), and bubblewrap, which may be started in them, must have a
    number.
    """
    user, group = os.geteuid(), os.getegid()
    checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"1 {user} 1"),
        ("gid_map", f"1 {group} 1"),
    ):
        write(f"/proc/self/{name}", text)


def write(path: str, text: str) -> None:
    """Write a file of the kernel's."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def make_tap(name: str) -> int:
    """Make a tap whose packets have a header that lets the machine leave checksums and segments to
    us (twice as fast; measured), and return its descriptor."""
    tap = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return tap


def enter_namespaces(pid: int) -> int:
    """Go to the network namespace of a QEMU, as its owner; return a descriptor of its tap."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    users = fcntl.ioctl(network, NS_GET_USERNS)
    taps = [each for each in os.listdir(f"/proc/{pid}/fd") if is_tap(f"/proc/{pid}/fd/{each}")]
    if not taps:
        raise FileNotFoundError(2, "the process has no tap")
    pidfd = os.pidfd_open(pid)
    tap = checked(libc.syscall(PIDFD_GETFD, pidfd, int(taps[0]), 0))
    checked(libc.setns(users, CLONE_NEWUSER))
    checked(libc.setns(network, CLONE_NEWNET))
    return tap


def is_tap(path: str) -> bool:
    """Return whether a descriptor in ``/proc`` is that of a tap."""
    try:
        # Documentation/admin-guide/devices.txt; its name may be another where it was opened.
        return os.stat(path).st_rdev == os.makedev(10, 200)
    except FileNotFoundError:  # it was closed meanwhile
        return False


def set_up(tap: str, wall: str, wall_mac: str, machine: str, machine_mac: str, mtu: int) -> None:
    """Give the namespace its addresses, and the one route that makes every other address its own
    too ("AnyIP"): whatever the machine dials arrives here."""
    for name, text in SYSCTLS:
        try:
            write(f"/proc/sys/net/{name}", text)
        except OSError:
            pass  # read-only in some containers; the rules keep all of it from happening too
    lo, index = socket.if_nametoindex("lo"), socket.if_nametoindex(tap)
    here, there = socket.inet_aton(wall), socket.inet_aton(machine)
    inet, up, permanent = socket.AF_INET, 1, 0x80
    new, create = 0, 0x400  # NLM_F_CREATE
    rtm_newlink, rtm_newaddr, rtm_newroute, rtm_newneigh = 16, 20, 24, 28  # linux/rtnetlink.h
    ask(
        message(rtm_newlink, new, struct.pack("BxHiII", 0, 0, lo, up, up)),
        message(
            rtm_newlink,
            new,
            struct.pack("BxHiII", 0, 0, index, up, up)
            + attribute(1, octets(wall_mac))
            + attribute(4, struct.pack("I", mtu)),
        ),
        # The machine at the other end of it, and nobody else.
        message(
            rtm_newaddr,
            create,
            struct.pack("BBBBI", inet, 32, 0, 0, index) + attribute(1, there) + attribute(2, here),
        ),
        # In table main (254): in `local` it would also take in what is for the machine. Scope
        # host, type local.
        message(
            rtm_newroute,
            create,
            struct.pack("BBBBBBBBI", inet, 0, 0, 0, 254, 4, 254, 2, 0)
            + attribute(4, struct.pack("I", lo)),
        ),
        message(
            rtm_newneigh,
            create,
            struct.pack("BxxxiHBB", inet, index, permanent, 0, 0)
            + attribute(1, there)
            + attribute(2, octets(machine_mac)),
        ),
    )


def octets(mac: str) -> bytes:
    """Return the bytes of a MAC address."""
    return bytes.fromhex(mac.replace(":", ""))


def attribute(kind: int, value: bytes) -> bytes:
    """Return an attribute of a netlink message."""
    length = 4 + len(value)
    return struct.pack("HH", length, kind) + value + bytes(-length % 4)


def message(kind: int, flags: int, body: bytes) -> bytes:
    """Return a netlink message that asks for an answer."""
    return struct.pack("IHHII", 16 + len(body), kind, flags | 0x05, 0, 0) + body


def ask(*messages: bytes) -> None:
    """Send messages to rtnetlink(7), one after the other. Raises OSError."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    for each in messages:
        netlink.send(each)
        # An answer is a header of 16 bytes and the negative errno, 0 for none.
        (number,) = struct.unpack_from("i", netlink.recv(4096), 16)
        if number:
            raise OSError(-number, os.strerror(-number))


def load_rules(text: str) -> None:
    """Have nft's library put rules in place, all or none of them. Raises OSError."""
    nft = ctypes.CDLL("libnftables.so.1")
    nft.nft_ctx_new.restype = ctypes.c_void_p
    nft.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
    context = ctypes.c_void_p(nft.nft_ctx_new(0))
    nft.nft_ctx_buffer_error(context)
    if nft.nft_run_cmd_from_buffer(context, text.encode()):
        said = nft.nft_ctx_get_error_buffer(context).decode("utf-8", "replace")
        raise OSError(0, said.strip()[:500])


def make_sockets(tcp_port: int, udp_port: int, dns_port: int) -> list[socket.socket]:
    """Make the sockets of :class:`torpor.network.link.Ends`, in its order."""
    stream = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    packets = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    raw = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    tcp = bound(stream, tcp_port, IP_TRANSPARENT)
    udp = bound(packets, udp_port, IP_TRANSPARENT, IP_RECVORIGDSTADDR)
    dns_udp = bound(packets, dns_port, IP_PKTINFO)
    dns_tcp = bound(stream, dns_port)
    for each in (tcp, dns_tcp):
        each.listen(BACKLOG)
    ipproto_raw = 255  # with a header of our own making, raw(7)
    return [tcp, udp, dns_udp, dns_tcp, socket.socket(socket.AF_INET, raw, ipproto_raw)]


def bound(kind: int, port: int, *options: int) -> socket.socket:
    """Return a socket on a port of every address, with ``options`` of ip(7)."""
    new = socket.socket(socket.AF_INET, kind)
    if kind & 0xF == socket.SOCK_STREAM:
        # What an earlier server had open may still be dying there.
        new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for option in options:
        new.setsockopt(socket.IPPROTO_IP, option, 1)
    new.bind(("0.0.0.0", port))
    return new


def main(arguments: list[str]) -> list[int]:
    """Build a link as ``arguments`` say; return what is to be handed over."""
    global step
    rules, name, wall, wall_mac, machine, machine_mac, *numbers = arguments
    mtu, tcp_port, udp_port, dns_port, pid = map(int, numbers)
    if pid:
        step = f"enter the namespaces of process {pid}"
        tap = enter_namespaces(pid)
    else:
        step = "make a user and a network namespace"
        make_namespaces()
        step = f"make a tap with {TUN}"
        tap = make_tap(name)
    step = "load rules with nft's library"
    load_rules(rules)
    if not pid:
        step = "set addresses and routes"
        set_up(name, wall, wall_mac, machine, machine_mac, mtu)
    step = "bind sockets"
    sockets = make_sockets(tcp_port, udp_port, dns_port)
    namespaces = [os.open(f"/proc/self/ns/{each}", os.O_RDONLY) for each in ("user", "net")]
    return [tap, *namespaces, *(each.detach() for each in sockets)]


if __name__ == "__main__":
    mouth = socket.socket(fileno=int(sys.argv[1]))
    try:
        descriptors = main(sys.argv[2:])
    except OSError as error:
        mouth.send(f"{step}\n{error.errno or 0}\n{error.strerror or error}".encode())
    else:
        rights = struct.pack(f"{len(descriptors)}i", *descriptors)
        mouth.sendmsg([b"built"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os._exit(0)  # nothing is left to be done, and the end of an interpreter takes 2 ms
