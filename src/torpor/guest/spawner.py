"""The process that starts commands.

It lives in the cgroup of the user's processes, so that what it starts is born there: moving a
process between cgroups waits for an RCU grace period (``kernel/cgroup/cgroup.c``,
``cgroup_attach_lock``), which each exec would pay. It is frozen with its cgroup, so a command that
is asked for during a freeze starts after the thaw.

Agent and spawner talk over a SOCK_SEQPACKET pair, one JSON object a message. To the spawner:
``{"id", "argv", "work", "env", "cwd", "user", "terminal"}`` with the descriptors of standard input,
output and error, or of the terminal that is all three. ``work`` is null, or names something that
the spawner does itself in a child (:mod:`torpor.guest.work`) in place of starting ``argv``. From
it: ``{"id", "pid"}`` or ``{"id", "error": {"code", "message"}}``, and later ``{"id",
"status"}`` with the wait status.
"""

import ctypes
import errno
import fcntl
import grp
import json
import os
import pwd
import resource
import select
import signal
import socket
import subprocess
import sys
import termios
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torpor.guest.errors import describe
from torpor.guest.loop import READ, WRITE, Loop
from torpor.guest.work import do_work

MAX_MESSAGE = 1 << 20
CLONE_NEWCGROUP = 0x02000000
DESCRIPTORS = 64 << 10
"""Descriptors that the agent may have open."""
_SO_SNDBUFFORCE = 32  # asm-generic/socket.h; the socket module does not name it
REAP_EVERY = 5.0
TERM = "xterm-256color"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class User:
    """Whom a command runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


class Client:
    """The agent's end: asks for commands, never waits. ``said`` gets what the spawner says."""

    def __init__(
        self,
        loop: Loop,
        spawner: tuple[socket.socket, int],
        said: Callable[[dict[str, Any]], None],
    ) -> None:
        self._loop = loop
        self._said = said
        self._socket, self._pid = spawner
        self._socket.setblocking(False)
        self._unsent: deque[tuple[str, bytes, list[int]]] = deque()
        self._watch()

    def hand_over(self) -> dict[str, Any]:
        """Return all that this is, for :meth:`take_over`; it must not be used any more."""
        self._loop.forget(self._socket.fileno())
        return {"socket": self._socket.detach(), "pid": self._pid, "unsent": list(self._unsent)}

    @classmethod
    def take_over(
        cls, loop: Loop, said: Callable[[dict[str, Any]], None], left: dict[str, Any]
    ) -> "Client":
        """Go on with a spawner that another agent has started."""
        client = cls(loop, (socket.socket(fileno=left["socket"]), left["pid"]), said)
        client._unsent.extend(tuple(each) for each in left["unsent"])
        client._watch()
        return client

    def close(self) -> None:
        """Let the spawner go; it ends."""
        self._loop.forget(self._socket.fileno())
        self._socket.close()
        self._reap()

    def _reap(self) -> None:
        # Frozen with the user's processes it ends only once they run again.
        if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            self._loop.after(REAP_EVERY, self._reap)

    def start(self, message: dict[str, Any], *, stdin: bool) -> tuple[int | None, int, int]:
        """Ask for a command; return our ends of its input (or None), output and error pipes.

        Raises OSError, nothing being asked for then.
        """
        text = _encode(message)
        opened: list[int] = []
        try:
            if stdin:
                opened += os.pipe()
            else:
                opened += [os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), -1]
            opened += os.pipe()
            opened += os.pipe()
        except OSError:
            _close(opened)
            raise
        their_in, our_in, our_out, their_out, our_err, their_err = opened
        for fd in (our_in, our_out, our_err):
            if fd >= 0:
                os.set_blocking(fd, False)
        self._unsent.append((message["id"], text, [their_in, their_out, their_err]))
        self._send()
        return (our_in if stdin else None), our_out, our_err

    def start_on(self, message: dict[str, Any], terminal: int) -> None:
        """Ask for a command on a terminal, which is closed here then. Raises OSError, nothing being
        asked for then."""
        try:
            text = _encode(message)
        except BaseException:
            os.close(terminal)
            raise
        self._unsent.append((message["id"], text, [terminal]))
        self._send()

    def _send(self) -> None:
        """Send what fits. While the spawner is frozen nothing is read, and the rest waits here."""
        while self._unsent:
            exec_id, text, fds = self._unsent[0]
            try:
                socket.send_fds(self._socket, [text], fds)
            except BlockingIOError:
                break
            except OSError as error:
                said = {"id": exec_id, "error": describe(error)}
                self._loop.after(0, partial(self._said, said))
            self._unsent.popleft()
            _close(fds)
        self._watch()

    def _watch(self) -> None:
        self._loop.watch(self._socket.fileno(), READ | (WRITE if self._unsent else 0), self._ready)

    def _ready(self, _events: int) -> None:
        try:
            data = self._socket.recv(MAX_MESSAGE)
        except BlockingIOError:
            pass
        else:
            if not data:
                raise SystemExit("the spawner is gone")  # init starts agent and spawner anew
            self._said(json.loads(data))
        if self._unsent:
            self._send()


def _encode(message: dict[str, Any]) -> bytes:
    # A word of a command line is bytes: what is not UTF-8 comes as lone surrogates.
    text = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if len(text) > MAX_MESSAGE:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    return text


def fork_spawner(cgroup: str, limits: tuple[int, int]) -> tuple[socket.socket, int]:
    """Start a spawner in ``cgroup``; return the agent's end of its socket, and its process id.

    It is a fork without exec, so it shares the agent's memory. ``limits`` are those of the
    descriptors that a command may have open.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        # A message must fit. SO_SNDBUF ends at net.core.wmem_max, which is less, but the other is
        # for CAP_NET_ADMIN only.
        try:
            end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 4 * MAX_MESSAGE)
        except PermissionError:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_MESSAGE)
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(theirs.fileno(), 3)
            os.closerange(4, DESCRIPTORS)  # of an agent that took over from another: its flows
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            _enter(cgroup)
            _serve(socket.socket(fileno=3))
        except BaseException as error:
            print(f"torpor spawner: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(0)
    theirs.close()
    return ours, pid


def allow_many_descriptors() -> None:
    """Allow this process, which holds three for each running command, as many as it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(hard, DESCRIPTORS)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _enter(cgroup: str) -> None:
    with open(f"{cgroup}/cgroup.procs", "w") as procs:
        procs.write("0")
    # From inside, the user's cgroup is the root: what a container engine makes stays frozen with
    # it.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWCGROUP) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWCGROUP)")
    # A group has processes or hands its controllers on, not both (Documentation/admin-guide/
    # cgroup-v2.rst, "No Internal Process Constraint"). So all live one level down, and a container
    # engine finds the root of its tree free.
    os.makedirs(f"{cgroup}/commands", exist_ok=True)
    with open(f"{cgroup}/commands/cgroup.procs", "w") as procs:
        procs.write("0")
    os.setsid()
    # What it starts is the user's, and may be killed for want of memory; the agent may not.
    Path("/proc/self/oom_score_adj").write_text("0")


def _serve(agent: socket.socket) -> None:
    poll = select.epoll()
    poll.register(agent, select.EPOLLIN)
    children: dict[int, tuple[str, int]] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == agent.fileno():
                data, fds, _, _ = socket.recv_fds(agent, MAX_MESSAGE, 3)
                if not data:
                    return
                answer, child = _start(json.loads(data), fds)
                if child is not None:
                    children[child] = (answer["id"], answer["pid"])
                    poll.register(child, select.EPOLLIN)
            else:
                exec_id, pid = children.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                answer = {"id": exec_id, "status": os.waitpid(pid, 0)[1]}
            agent.send(json.dumps(answer).encode())


def _start(wanted: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], int | None]:
    """Start a command; return what to say, and a pidfd if it runs."""
    try:
        if len(fds) != (1 if wanted["terminal"] else 3):
            # The kernel drops those that this process may not open.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        user = find_user(wanted["user"])
        if wanted["work"]:
            pid = _start_work(wanted["work"], user, fds)
        else:
            pid = _start_program(wanted, user, fds)
        return {"id": wanted["id"], "pid": pid}, _pidfd(pid)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"id": wanted["id"], "error": describe(error)}, None
    finally:
        _close(fds)


def _start_program(wanted: dict[str, Any], user: User, fds: list[int]) -> int:
    environment = {"PATH": PATH, "HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    change: dict[str, Any] = {}
    if user.uid or user.gid:
        change = {"user": user.uid, "group": user.gid, "extra_groups": list(user.groups)}
    if wanted["terminal"]:
        environment["TERM"] = TERM
        os.fchown(fds[0], user.uid, -1)  # the group stays that of all terminals
        change["preexec_fn"] = _take_terminal
    child = subprocess.Popen(
        wanted["argv"],
        stdin=fds[0],
        stdout=fds[-2] if len(fds) > 1 else fds[0],
        stderr=fds[-1],
        cwd=wanted["cwd"] or (user.home if os.path.isdir(user.home) else "/"),
        env=environment | wanted["env"],
        start_new_session=True,
        **change,
    )
    child.returncode = 0  # it is waited for by pidfd; keeps Popen from doing so too
    return child.pid


def _take_terminal() -> None:
    """Make standard input the controlling terminal of this session, which has just begun."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _start_work(work: dict[str, Any], user: User, fds: list[int]) -> int:
    """Do something of our own in a child of ours, as ``user``; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
        os.closerange(3, DESCRIPTORS)
        if user.uid or user.gid:
            os.setgroups(user.groups)
            os.setresgid(user.gid, user.gid, user.gid)
            os.setresuid(user.uid, user.uid, user.uid)
        status = do_work(work)
    except BaseException as error:
        print(f"torpor {work['name']}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _close(fds: list[int]) -> None:
    for fd in fds:
        if fd >= 0:
            os.close(fd)


def find_user(wanted: str) -> User:
    """Return the user called ``wanted``: ``user`` or ``user:group``, each a name or a number.

    Raises ValueError for a name that the image does not have.
    """
    user, colon, group = wanted.partition(":")
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except KeyError:
        if not user.isdecimal():
            raise ValueError(f"this image has no user {user!r}") from None
        uid = int(user)
        gid = find_group(group) if colon else uid
        return User(uid, gid, (), user, "/root" if uid == 0 else "/")
    gid = find_group(group) if colon else entry.pw_gid
    groups = tuple(each.gr_gid for each in grp.getgrall() if entry.pw_name in each.gr_mem)
    return User(entry.pw_uid, gid, groups, entry.pw_name, entry.pw_dir)


def find_group(wanted: str) -> int:
    """Return the gid of a group, a name or a number. Raises ValueError if there is none."""
    if wanted.isdecimal():
        return int(wanted)
    try:
        return grp.getgrnam(wanted).gr_gid
    except KeyError:
        raise ValueError(f"this image has no group {wanted!r}") from None
