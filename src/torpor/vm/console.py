"""The serial console: read by us, so that a guest cannot fill the host, and kept bounded."""

import asyncio
import contextlib
import socket
from pathlib import Path

KEEP = 64 << 10
"""Bytes of console output that are kept."""
SAVE_EVERY = 0.25
"""Seconds between two writes of what is kept."""
PIECE = 64 << 10
REST = 0.01
"""Seconds between two reads of ``PIECE`` bytes at most: QEMU makes a guest that prints faster wait,
and it takes little of this program's time."""


class Console:
    """Follows a machine's console; the newest ``KEEP`` bytes are in memory and in ``file``.

    What the guest prints while nobody follows is lost: QEMU drops it.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._kept = bytearray(file.read_bytes() if file.exists() else b"")
        self._earlier = len(self._kept)
        self._task: asyncio.Task[None] | None = None
        self._saving: asyncio.TimerHandle | None = None

    async def follow(self, sock: socket.socket) -> None:
        """Start to follow the console on a connected socket, which this object then owns."""
        reader, writer = await asyncio.open_connection(sock=sock)
        self._task = asyncio.create_task(self._read(reader, writer), name="console")

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(PIECE):
                self._kept += data
                self._earlier = max(0, self._earlier - max(0, len(self._kept) - KEEP))
                del self._kept[:-KEEP]
                self._save()
                await asyncio.sleep(REST)
        except OSError:
            pass  # the machine is gone: what was read stays
        finally:
            writer.close()

    def _save(self) -> None:
        # At most every quarter of a second, so that a guest that prints all the time costs little.
        if self._saving is None:
            loop = asyncio.get_running_loop()
            self._saving = loop.call_later(SAVE_EVERY, self._save_now)

    def _save_now(self) -> None:
        self._saving = None
        with contextlib.suppress(OSError):  # a full disk must not keep a machine from its end
            self._file.write_bytes(self._kept)

    def tail(self, lines: int = 12) -> str:
        """Return the last ``lines`` lines as text, unprintable bytes replaced."""
        text = _printable(self._kept)
        shown = [line for line in text.split("\n") if line.strip()]
        return "\n".join(shown[-lines:])

    def since_followed(self) -> str:
        """Return what is kept of what came since this object was made, as text."""
        return _printable(self._kept[self._earlier :])

    async def drain(self) -> None:
        """Wait a moment for the last output of a machine that has ended."""
        if self._task is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._task), 0.5)

    async def close(self) -> None:
        """Stop following and keep what was read."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._saving is not None:
            self._saving.cancel()
            self._save_now()


def _printable(data: bytes | bytearray) -> str:
    text = data.decode("utf-8", "replace").replace("\r", "")
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
