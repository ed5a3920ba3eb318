"""Hooks: the image's own programs, run as root around a freeze and a thaw (``docs/hooks.md``).

They run one after the other, as processes of this agent's own event loop, so that the channel is
served meanwhile. They live in a cgroup of their own, outside the user's: the user's is frozen while
some of them run, and all that a hook has started can be killed at once.
"""

import errno
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torpor.guest.loop import READ, Loop, Timer

DIRECTORY = Path("/etc/torpor/hooks")
BEFORE_FREEZE, FIRST, AFTER_THAW = STAGES = ("before-freeze", "first-after-thaw", "after-thaw")
MOST = 32
"""Hooks of one stage that are run; what the host is told of all of them must fit into a frame."""
TAIL = 4096
"""Bytes of a hook's output that are kept, the last ones."""
EACH_MS, TOTAL_MS = 10_000, 30_000
KILL_GRACE = 1.0
"""Seconds that a killed hook may take to go. One that waits in the kernel may never."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_READ_AT_ONCE = 64 << 10
_READ_AT_END = 16

Result = dict[str, Any]


class Hooks:
    """Finds and runs hooks, and keeps what became of the last ones.

    ``cgroup`` is where they live; it is made when the first one runs.
    """

    def __init__(self, loop: Loop, cgroup: Path, directory: Path = DIRECTORY) -> None:
        self._loop = loop
        self._cgroup = cgroup
        self._directory = directory
        self._kept: deque[Result] = deque(maxlen=MOST)
        self._running: _Hook | None = None

    def find(self, stages: Iterable[str] = STAGES) -> dict[str, list[Path]]:
        """Return the hooks of each stage that has any, in the order of their names.

        Executable files only; names that begin with a dot or end with ``~`` are left out. Costs one
        call of the system where there are none.
        """
        try:
            there = os.listdir(self._directory)
        except OSError:
            return {}
        found = {}
        for stage in stages:
            if stage in there:
                hooks = _executables(self._directory / stage)
                if hooks:
                    found[stage] = hooks
        return found

    def run(
        self,
        stage: str,
        hooks: list[Path],
        wanted: Mapping[str, Any],
        done: Callable[[list[Result]], None],
    ) -> None:
        """Run ``hooks`` one after the other and call ``done`` with what became of each.

        ``wanted`` may have ``each_ms`` and ``total_ms``, and ``env``, of which the names that begin
        with ``TORPOR_`` are given on. Raises OSError (EBUSY) while others run.
        """
        if self._running is not None:
            raise OSError(errno.EBUSY, f"the hook {self._running.path} runs")
        each = _seconds(wanted.get("each_ms"), EACH_MS)
        deadline = time.monotonic() + _seconds(wanted.get("total_ms"), TOTAL_MS)
        environment = {"PATH": PATH, "HOME": "/root", "USER": "root", "TORPOR_STAGE": stage}
        for name, value in (wanted.get("env") or {}).items():
            if name.startswith("TORPOR_"):
                environment[name] = str(value)
        results: list[Result] = []
        waiting = deque(hooks)

        def go_on() -> None:
            self._running = None
            while waiting:
                path = waiting.popleft()
                limit = min(each, deadline - time.monotonic())
                if limit <= 0:
                    ended(_result(stage, path, timed_out=True, error="there was no time left"))
                    continue
                try:
                    self._cgroup.mkdir(exist_ok=True)
                    self._running = _Hook(
                        self._loop, self._cgroup, stage, path, environment, limit, finished
                    )
                except (OSError, ValueError, subprocess.SubprocessError) as error:
                    ended(_result(stage, path, error=f"it could not be started: {error}"))
                    continue
                return
            done(results)

        def ended(result: Result) -> None:
            results.append(result)
            self._kept.append(result)

        def finished(result: Result) -> None:
            ended(result)
            go_on()

        go_on()

    @property
    def running(self) -> bool:
        """Whether a hook runs."""
        return self._running is not None

    def take_over(self, kept: list[Result]) -> None:
        """Go on with what another agent has kept."""
        self._kept.extend(kept)

    def kept(self) -> dict[str, Any]:
        """Return what became of the hooks that ran last, the oldest first."""
        return {"hooks": list(self._kept)}


class _Hook:
    """One hook that runs. ``finished`` is called once, from the loop."""

    def __init__(
        self,
        loop: Loop,
        cgroup: Path,
        stage: str,
        path: Path,
        environment: dict[str, str],
        limit: float,
        finished: Callable[[Result], None],
    ) -> None:
        self.path = path
        self._loop = loop
        self._cgroup = cgroup
        self._stage = stage
        self._finished = finished
        self._output = bytearray()
        self._timed_out = False
        self._began = time.monotonic()
        self._pipe, theirs = os.pipe()
        try:
            self._child = subprocess.Popen(
                [path],
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                cwd="/",
                env=environment,
                start_new_session=True,
                preexec_fn=self._enter,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(self._pipe, False)
        self._pidfd = os.pidfd_open(self._child.pid)
        loop.watch(self._pipe, READ, self._readable)
        loop.watch(self._pidfd, READ, lambda _events: self._end())
        self._timer: Timer = loop.after(limit, self._too_slow)

    def _enter(self) -> None:
        # Between fork and exec. Errors come back as the reason why it was not started.
        (self._cgroup / "cgroup.procs").write_text("0")
        Path("/proc/self/oom_score_adj").write_text("0")  # the agent's own is -1000

    def _readable(self, _events: int) -> None:
        self._read()

    def _read(self) -> bool:
        """Read some output; return whether there may be more."""
        try:
            data = os.read(self._pipe, _READ_AT_ONCE)
        except BlockingIOError:
            return False
        if not data:
            self._loop.forget(self._pipe)
            return False
        self._output += data
        del self._output[:-TAIL]
        return True

    def _too_slow(self) -> None:
        self._timed_out = True
        self._kill()
        self._timer = self._loop.after(KILL_GRACE, self._end)

    def _kill(self) -> None:
        """Kill the hook and all that it has started."""
        try:
            (self._cgroup / "cgroup.kill").write_text("1")
        except OSError:
            pass  # a kernel before 5.14; the session is killed below
        try:
            os.killpg(self._child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _end(self) -> None:
        self._timer.cancel()
        status = self._child.poll()
        # What it left running would be frozen with nobody, so it ends too.
        self._kill()
        for _ in range(_READ_AT_END):
            if not self._read():
                break
        for fd in (self._pipe, self._pidfd):
            self._loop.forget(fd)
            os.close(fd)
        self._finished(
            _result(
                self._stage,
                self.path,
                exit=status if status is not None and status >= 0 else None,
                signal=-status if status is not None and status < 0 else None,
                duration_ms=round(1000 * (time.monotonic() - self._began)),
                timed_out=self._timed_out,
                output=self._output.decode("utf-8", "backslashreplace")[-TAIL:],
                error=None if status is not None else "it was killed and has not gone",
            )
        )


def _executables(directory: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    wanted = [
        directory / name for name in names if not name.startswith(".") and not name.endswith("~")
    ]
    return [path for path in wanted if path.is_file() and os.access(path, os.X_OK)][:MOST]


def _seconds(wanted: Any, otherwise_ms: int) -> float:
    return int(otherwise_ms if wanted is None else wanted) / 1000


def _result(stage: str, path: Path, **known: Any) -> Result:
    """Return a result with all of its fields; names of files may be any bytes."""
    name = os.fsencode(path.name).decode("utf-8", "backslashreplace")
    nothing = {"exit": None, "signal": None, "duration_ms": 0, "timed_out": False}
    return {"stage": stage, "name": name, **nothing, "output": "", "error": None} | known
