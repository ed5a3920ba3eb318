"""The process that starts commands.

It lives in the cgroup of the user's processes, so that what it starts is born there: moving a
process between cgroups waits for an RCU grace period (``kernel/cgroup/cgroup.c``,
``cgroup_attach_lock``), which each exec would pay. It is frozen with its cgroup, so a command that
is asked for during a freeze starts after the thaw.

Agent and spawner talk over a SOCK_SEQPACKET pair, one JSON object a message. To the spawner:
``{"id", "argv", "env", "cwd", "user"}`` with the descriptors of standard input, output and error.
From it: ``{"id", "pid"}`` or ``{"id", "error": {"code", "message"}}``, and later ``{"id",
"status"}`` with the wait status.
"""

import ctypes
import errno
import grp
import json
import os
import pwd
import select
import socket
import subprocess
from dataclasses import dataclass
from typing import Any

MAX_MESSAGE = 1 << 20
CLONE_NEWCGROUP = 0x02000000
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class User:
    """Whom a command runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


def fork_spawner(cgroup: str) -> socket.socket:
    """Start the spawner in ``cgroup`` and return the agent's end of its socket.

    The spawner is a fork without exec, so it shares the agent's memory.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_MESSAGE)
    if os.fork() == 0:
        try:
            ours.close()
            _enter(cgroup)
            _serve(theirs)
        finally:
            os._exit(0)
    theirs.close()
    return ours


def _enter(cgroup: str) -> None:
    with open(f"{cgroup}/cgroup.procs", "w") as procs:
        procs.write("0")
    # From inside, the user's cgroup is the root: what a container engine makes stays frozen with
    # it.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWCGROUP) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWCGROUP)")
    os.setsid()


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
                answer, pid = _start(json.loads(data), fds)
                if pid is not None:
                    pidfd = os.pidfd_open(pid)
                    children[pidfd] = (answer["id"], pid)
                    poll.register(pidfd, select.EPOLLIN)
            else:
                exec_id, pid = children.pop(fd)
                poll.unregister(fd)
                os.close(fd)
                answer = {"id": exec_id, "status": os.waitpid(pid, 0)[1]}
            agent.send(json.dumps(answer).encode())


def _start(wanted: dict[str, Any], fds: list[int]) -> tuple[dict[str, Any], int | None]:
    try:
        user = find_user(wanted["user"])
        environment = {"PATH": PATH, "HOME": user.home, "USER": user.name, "LOGNAME": user.name}
        change: dict[str, Any] = {}
        if user.uid or user.gid:
            change = {"user": user.uid, "group": user.gid, "extra_groups": list(user.groups)}
        child = subprocess.Popen(
            wanted["argv"],
            stdin=fds[0],
            stdout=fds[1],
            stderr=fds[2],
            cwd=wanted["cwd"] or user.home,
            env=environment | wanted["env"],
            start_new_session=True,
            **change,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"id": wanted["id"], "error": describe(error)}, None
    finally:
        for fd in fds:
            os.close(fd)
    pid = child.pid
    child.returncode = 0  # it is waited for by pidfd; keeps Popen from doing so too
    return {"id": wanted["id"], "pid": pid}, pid


def find_user(wanted: str) -> User:
    """Return the user called ``wanted``: a name, a uid, or ``uid:gid``; names from /etc/passwd.

    Raises ValueError for a name that the image does not have.
    """
    uid_text, _, gid_text = wanted.partition(":")
    try:
        entry = pwd.getpwuid(int(uid_text)) if uid_text.isdigit() else pwd.getpwnam(uid_text)
    except KeyError:
        if not uid_text.isdigit():
            raise ValueError(f"this image has no user {uid_text!r}") from None
        uid = int(uid_text)
        gid = int(gid_text) if gid_text.isdigit() else uid
        return User(uid, gid, (), uid_text, "/root" if uid == 0 else "/")
    gid = int(gid_text) if gid_text.isdigit() else entry.pw_gid
    groups = tuple(group.gr_gid for group in grp.getgrall() if entry.pw_name in group.gr_mem)
    return User(entry.pw_uid, gid, groups, entry.pw_name, entry.pw_dir)


def describe(error: Exception) -> dict[str, str]:
    """Return an error document: ``code`` is the errno's name or the exception's."""
    if isinstance(error, OSError) and error.errno is not None:
        code = errno.errorcode.get(error.errno, "EIO")
        where = f": {error.filename}" if error.filename else ""
        return {"code": code, "message": f"{os.strerror(error.errno)}{where}"}
    return {"code": type(error).__name__, "message": str(error)}
