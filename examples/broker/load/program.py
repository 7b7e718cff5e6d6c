"""Program: a client that runs for the demo, as a process."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from contextlib import suppress

from examples.broker.load import clients
from examples.broker.load.clients import Line
from examples.broker.parent import ROOT


class Program:
    """A client's process, and what it has said."""

    def __init__(self, library: str, process: asyncio.subprocess.Process) -> None:
        self.library, self.process = library, process
        self.lines: list[Line] = []
        self.unsure: list[Line] = []
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, library: str, *arguments: str) -> Program:
        """Run `examples.broker.load.clients`."""
        command = clients.command(library, *arguments)
        return cls(
            library,
            await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, cwd=ROOT),
        )

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            lines = self.unsure if line.startswith(b"?") else self.lines
            partition, offset, value = line.strip(b"?\n").split(b" ", 2)
            lines.append((int(partition), int(offset), value))

    async def end(self, patience: float) -> bool:
        """Close its input, and wait; False: it hung, and was killed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        done, _ = await asyncio.wait([self._reader], timeout=patience)
        if not done:
            with suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()
        await self._reader
        return bool(done)
