"""What the spawner does: it starts commands, and tells how they end.

Usually a command is started by :class:`subprocess.Popen`, which waits in the kernel until the
program runs. While a file system is mounted that may not answer (:mod:`torpor.guest.mounts`), a
child that nobody waits for finds directory and program instead: it costs more, and can be left
behind.
"""

import errno
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from typing import Any, NoReturn

from torpor.guest import trusted
from torpor.guest.descriptors import MOST, close_all
from torpor.guest.errors import describe
from torpor.guest.mounts import Mounts
from torpor.guest.users import User, find_user
from torpor.guest.work import do_work

MAX_MESSAGE = 1 << 20
"""Bytes of a message between agent and spawner."""
START_LIMIT = 20.0
"""Seconds that a program may take to be found and loaded by a child that nobody waits for."""
TERM = "xterm-256color"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REPORT = 3


@dataclass(frozen=True)
class Starting:
    """A command that a child is about to become, at the latest at ``deadline``."""

    exec_id: str
    pid: int
    pidfd: int
    deadline: float


class Starts:
    """The commands that the spawner has started."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._poll = select.epoll()
        self._poll.register(agent, select.EPOLLIN)
        self._mounts = Mounts()
        self._children: dict[int, tuple[str | None, int]] = {}
        self._starting: dict[int, Starting] = {}

    def serve(self) -> None:
        """Start what the agent asks for, until it is gone."""
        while True:
            for fd, _ in self._poll.poll(self._patience()):
                if fd in self._starting:
                    self._started(fd)
                elif fd in self._children:
                    self._ended(fd)
                elif fd == self._agent.fileno():
                    data, fds, _, _ = socket.recv_fds(self._agent, MAX_MESSAGE, 3)
                    if not data:
                        return
                    self._start(json.loads(data), fds)
            self._give_up()

    def _say(self, **said: Any) -> None:
        self._agent.send(json.dumps(said).encode())

    def _start(self, wanted: dict[str, Any], fds: list[int]) -> None:
        exec_id = wanted["id"]
        try:
            if len(fds) != (1 if wanted["terminal"] else 3):
                # The kernel drops those that this process may not open.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            user = find_user(wanted["user"])
            if wanted["work"]:
                pid = start_work(wanted["work"], user, fds)
            elif self._mounts.may_hang:
                pid, report = start_apart(wanted, user, fds)
                deadline = time.monotonic() + START_LIMIT
                self._poll.register(report, select.EPOLLIN)
                self._starting[report] = Starting(exec_id, pid, pidfd_of(pid), deadline)
                return
            else:
                pid = start_program(wanted, user, fds)
            self._follow(exec_id, pid, pidfd_of(pid))
            self._say(id=exec_id, pid=pid)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._say(id=exec_id, error=describe(error))
        finally:
            close_all(fds)

    def _follow(self, exec_id: str | None, pid: int, pidfd: int) -> None:
        """Tell how a child ends if it has an id; in any case leave nothing of it."""
        self._children[pidfd] = exec_id, pid
        self._poll.register(pidfd, select.EPOLLIN)

    def _ended(self, pidfd: int) -> None:
        exec_id, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        status = os.waitpid(pid, 0)[1]
        if exec_id is not None:
            self._say(id=exec_id, status=status)

    def _started(self, report: int) -> None:
        """A child has become its program, or cannot."""
        data = os.read(report, MAX_MESSAGE)
        begun = self._no_longer_starting(report)
        self._follow(None if data else begun.exec_id, begun.pid, begun.pidfd)
        if data:
            self._say(id=begun.exec_id, error=json.loads(data))
        else:
            self._say(id=begun.exec_id, pid=begun.pid)

    def _no_longer_starting(self, report: int) -> Starting:
        self._poll.unregister(report)
        os.close(report)
        return self._starting.pop(report)

    def _patience(self) -> float | None:
        """Return for how long nothing has to be given up."""
        if not self._starting:
            return None
        first = min(each.deadline for each in self._starting.values())
        return max(0.0, first - time.monotonic())

    def _give_up(self) -> None:
        now = time.monotonic()
        for report, each in list(self._starting.items()):
            if each.deadline <= now:
                self._no_longer_starting(report)
                os.kill(each.pid, signal.SIGKILL)
                self._follow(None, each.pid, each.pidfd)
                why = OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
                self._say(id=each.exec_id, error=describe(why))


def environment_of(wanted: dict[str, Any], user: User) -> dict[str, str]:
    """Return the environment of a command."""
    said = {"PATH": PATH, "HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    said.update(trusted.environment())
    if wanted["terminal"]:
        said["TERM"] = TERM
    said.update(wanted["env"])
    return said


def start_program(wanted: dict[str, Any], user: User, fds: list[int]) -> int:
    """Start a command; return its process id once it runs. Raises OSError and what else Popen
    does."""
    change: dict[str, Any] = {}
    if user.uid or user.gid:
        change = {"user": user.uid, "group": user.gid, "extra_groups": list(user.groups)}
    if wanted["terminal"]:
        os.fchown(fds[0], user.uid, -1)  # the group stays that of all terminals
        change["preexec_fn"] = take_terminal
    child = subprocess.Popen(
        wanted["argv"],
        stdin=fds[0],
        stdout=fds[-2] if len(fds) > 1 else fds[0],
        stderr=fds[-1],
        cwd=wanted["cwd"] or (user.home if os.path.isdir(user.home) else "/"),
        env=environment_of(wanted, user),
        start_new_session=True,
        **change,
    )
    child.returncode = 0  # it is waited for by pidfd; keeps Popen from doing so too
    return child.pid


def start_apart(wanted: dict[str, Any], user: User, fds: list[int]) -> tuple[int, int]:
    """Begin to start a command; return its process id, and a pipe that ends when it runs. If it
    cannot, there is an error document in the pipe before its end. Raises OSError."""
    if wanted["terminal"]:
        os.fchown(fds[0], user.uid, -1)
    report, theirs = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _become(wanted, user, fds, theirs)
    except BaseException:
        os.close(report)
        raise
    finally:
        os.close(theirs)
    return pid, report


def _become(wanted: dict[str, Any], user: User, fds: list[int], report: int) -> NoReturn:
    """Become a command, or report why not. Of the child that is to."""
    try:
        _stand_alone(fds if len(fds) > 1 else fds * 3, report)
        # Python ignores these, and programs should not.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if wanted["terminal"]:
            take_terminal()
        if wanted["cwd"]:
            os.chdir(wanted["cwd"])
        else:
            try:
                os.chdir(user.home)
            except OSError:
                os.chdir("/")
        _give_up_root(user)
        name = wanted["argv"][0]
        try:
            os.execvpe(name, wanted["argv"], environment_of(wanted, user))  # noqa: S606
        except OSError as error:
            error.filename = name
            raise
    except BaseException as error:
        said = describe(error if isinstance(error, Exception) else OSError(errno.EINTR, "ended"))
        os.write(_REPORT, json.dumps(said).encode())
    finally:
        os._exit(127)


def take_terminal() -> None:
    """Make standard input the controlling terminal of this session, which has just begun."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def start_work(work: dict[str, Any], user: User, fds: list[int]) -> int:
    """Do something of our own in a child of ours, as ``user``; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _stand_alone(fds)
        _give_up_root(user)
        status = do_work(work)
    except BaseException as error:
        print(f"torpor {work['name']}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _stand_alone(fds: list[int], report: int | None = None) -> None:
    """Begin a session, with ``fds`` as standard input, output and error, and nothing else open but
    the ``report``, which an exec closes."""
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    if report is not None:
        os.dup2(report, _REPORT, inheritable=False)
    os.closerange(_REPORT if report is None else _REPORT + 1, MOST)


def _give_up_root(user: User) -> None:
    if user.uid or user.gid:
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)


def pidfd_of(pid: int) -> int:
    """Return a descriptor of a child, which is ended if there can be none. Raises OSError."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
