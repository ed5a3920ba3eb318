"""What the guest agent does in a process of its own, as the host follows it.

A :class:`Work` goes on where it was after a lost channel or on a machine that was thawed, as any
flow does: attach it again, and go on reading or writing.
"""

import json
from collections.abc import AsyncIterator
from signal import SIGKILL
from typing import Any, Self

from torpor.vm.answers import file_name
from torpor.vm.channel import Channel, plain
from torpor.vm.errors import GuestError
from torpor.vm.execs import Exec
from torpor.vm.flows import STDERR, Gap

MAX_LINE = 256 << 10
"""Bytes of one line. A path is at most 4096 bytes, each six characters in JSON, and a line has
two."""
KEPT = 64 << 10
"""Bytes of standard error that are kept, the last ones: the report is its last line."""


class Work:
    """Work that is under way. ``report`` is what it said of itself at its end.

    Unless it is ``patient``, it raises :exc:`torpor.vm.HeldError` while its machine is held.
    """

    patient = False

    def __init__(self, running: Exec, what: str) -> None:
        self.running = running
        self.what = what
        self.report: dict[str, Any] = {}
        self._said = bytearray()
        self._line = bytearray()

    @classmethod
    async def start(
        cls,
        channel: Channel,
        name: str,
        arguments: dict[str, Any],
        user: str,
        *,
        stdin: bool = False,
    ) -> Self:
        """Start ``name`` of ``guest/work.py`` as ``user``. Raises :exc:`GuestError`."""
        work = {"name": name, **arguments}
        started = await Exec.start_work(channel, work, user=user, stdin=stdin, patient=cls.patient)
        return cls(started, name)

    async def attach(self, channel: Channel) -> None:
        """Go on, perhaps on another machine's channel. Raises :exc:`GuestError`."""
        await self.running.attach(channel)

    def close(self) -> None:
        """End it, if it has not ended; what it has done stays done."""
        self.running.kill(SIGKILL)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()

    async def next_output(self) -> bytes | None:
        """Return what it writes next to standard output, None once it has ended well.

        Raises :exc:`GuestError` if it fails, and what :meth:`Exec.output` raises.
        """
        while (item := await self.running.next_output()) is not None:
            if isinstance(item, Gap):
                self.close()
                raise GuestError("EPIPE", f"output of {self.what} was lost: it was left too long")
            if item.source != STDERR:
                return item.data
            self._said += item.data
            del self._said[:-KEPT]
        self._check_end()
        return None

    async def next_line(self) -> dict[str, Any] | None:
        """Return the JSON object in its next line of output, None once it has ended well."""
        while True:
            end = self._line.find(b"\n")
            if end >= 0:
                line = bytes(self._line[:end])
                del self._line[: end + 1]  # in place: many lines in one piece are not copied again
                return self._parse(line)
            if len(self._line) > MAX_LINE:
                self.close()
                raise GuestError("EPROTO", f"{self.what} writes a line without end")
            data = await self.next_output()
            if data is None:
                if self._line:
                    raise GuestError("EPROTO", f"{self.what} ended in the middle of a line")
                return None
            self._line += data

    async def finish(self) -> dict[str, Any]:
        """Read to the end, drop the output and return the report."""
        while await self.next_output() is not None:
            pass
        return self.report

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            self.close()
            raise GuestError("EPROTO", f"{self.what} writes what is no JSON object")
        return value

    def _check_end(self) -> None:
        """Take the last line of standard error for the report, or for the error."""
        last = bytes(self._said).rstrip(b"\n").rpartition(b"\n")[2]
        try:
            said = json.loads(last)
        except (ValueError, RecursionError):
            said = None
        how = self.running.exit
        if how is not None and how.ok:
            self.report = said if isinstance(said, dict) else {}
            return
        if isinstance(said, dict) and "code" in said:
            raise GuestError(plain(said["code"], 64), plain(said.get("message"), 2000))
        ended = plain(last.decode("utf-8", "replace"), 2000) or str(how)
        raise GuestError("EIO", f"{self.what} ended before its time: {ended}")


class Packing(Work):
    """A tar archive on its way out of a machine."""

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the archive. After a lost channel and :meth:`attach`, a new call goes on."""
        while (data := await self.next_output()) is not None:
            yield data


class Unpacking(Work):
    """A tar archive on its way into a machine."""

    @property
    def written(self) -> int:
        """How many bytes of the archive :meth:`write` has accepted."""
        return self.running.written

    async def write(self, data: bytes) -> None:
        """Give some of the archive. Raises :exc:`GuestError` with what was wrong if it has ended
        before its time."""
        try:
            await self.running.write(data)
        except GuestError as error:
            if error.code == "EPIPE":
                await super().finish()
            raise

    async def finish(self) -> dict[str, Any]:
        """Say that this was all, wait until it is unpacked, and return the report: counts of
        ``members``, of ``attributes`` that could not be given and of ``skipped`` members."""
        await self.running.close_stdin()
        return await super().finish()


class Watch(Work):
    """Changes of a directory, as they happen: while the machine is held there are none."""

    patient = True

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield what changes, until what is watched is gone: ``event`` and ``path``, and of a
        ``moved`` also ``from``; ``directory`` is there if it is one.

        The first is ``ready``. After ``overflow`` something may have been missed: look anew.
        """
        while (event := await self.next_line()) is not None:
            for name in ("event", "path", "from"):
                if name in event:
                    try:
                        file_name(event, name)
                    except GuestError:
                        self.close()
                        raise
            yield event
