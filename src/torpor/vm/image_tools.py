"""QEMU's programs for disk layers, run where they can read those layers and nothing else.

A layer was written by a machine's QEMU, which the guest may have taken over, or came from a
stranger. Who reads it outside of the machine's jail gets one too: no network, no other files, no
capabilities, and no life after this program's.
"""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torpor.vm.bubblewrap import system, walls
from torpor.vm.errors import HostError, VmError
from torpor.vm.programs import end_group, start_group

LIMIT = 3600.0
"""Seconds after which a program is ended; merging takes seconds."""


@dataclass(frozen=True)
class Bench:
    """The files that the programs may use: ``layers`` to read, ``target`` to write.

    Without ``jailed`` they run as ordinary programs, where the host allows no namespaces.
    """

    layers: tuple[Path, ...]
    target: Path
    jailed: bool

    @property
    def seen(self) -> tuple[str, ...]:
        """How the programs see the layers."""
        return tuple(
            f"/layers/{number}" if self.jailed else str(layer)
            for number, layer in enumerate(self.layers)
        )

    @property
    def seen_target(self) -> str:
        """How the programs see the target."""
        return "/target" if self.jailed else str(self.target)

    async def run(self, *command: str, stdin: str = "") -> str:
        """Run a program and return its output. Raises :exc:`VmError` with what it said.

        If this task is cancelled, the program is ended.
        """
        # The work can wait; freezes and thaws cannot.
        whole = ["nice", "-n", "10", *self.wrap(command)]
        try:
            process = await start_group(
                *whole,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except FileNotFoundError as error:
            raise HostError(
                f"{error.filename} is not installed.", todo="Run `torpor doctor`."
            ) from None
        try:
            async with asyncio.timeout(LIMIT):
                output, said = await process.communicate(stdin.encode())
        except BaseException as error:
            await asyncio.shield(end_group(process, signal.SIGKILL, 0))
            if isinstance(error, TimeoutError):
                raise VmError(f"{command[0]} did not end within {LIMIT:g} s.") from None
            raise
        if process.returncode != 0:
            words = (said or output).decode("utf-8", "replace").strip()[-500:]
            raise VmError(f"{command[0]} {command[1]} failed: {words}")
        return output.decode("utf-8", "replace")

    def wrap(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` where it sees these files only."""
        if not self.jailed:
            return list(command)
        # Of what is at the top QEMU's tools need no more.
        line = ["bwrap", *walls(), *system(("bin", "lib", "lib64"))]
        line += ["--proc", "/proc", "--dev", "/dev"]
        for layer, seen in zip(self.layers, self.seen, strict=True):
            line += ["--ro-bind", str(layer), seen]
        line += ["--bind", str(self.target), self.seen_target]
        return [*line, "--chdir", "/", "--", *command]
