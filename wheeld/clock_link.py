"""The supervisor's end of the clock process."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from wheeld_core import control
from wheeld_core.control import Message
from wheeld_core.errors import WheelError


class ClockLink:
    """Starts the clock, sends it orders, waits for its answers.

    Parameters
    ----------
    on_exit : callable
        Called once when the clock's end of the channel closes.
    """

    def __init__(self, on_exit: Callable[[], None]) -> None:
        self._on_exit = on_exit
        self._waiting: dict[tuple[str, int], asyncio.Future[Message]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader_task: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the clock."""
        return self._process.pid if self._process else None

    async def start(self, names: dict[str, str], bell: Path, pin_cpu: int | None) -> None:
        """Start the process and wait until it drives the wheel."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "wheeld.clock",
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the supervisor's to handle
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        ready = self._expect("ready", 0)
        self._reader_task = asyncio.create_task(self._read(reader))
        self._send({"op": "hello", "segments": names, "bell": str(bell), "pin_cpu": pin_cpu})
        await ready

    async def attach(self, row: int, incarnation: int, segment: str, bell: Path) -> None:
        """Have the clock serve the worker in `row`."""
        done = self._expect("attached", row)
        self._send(
            {
                "op": "attach",
                "row": row,
                "incarnation": incarnation,
                "segment": segment,
                "bell": str(bell),
            }
        )
        await done

    async def reap(self, row: int) -> None:
        """Have the clock drop what the worker in `row` left; returns when its slabs are free."""
        done = self._expect("reaped", row)
        self._send({"op": "detach", "row": row})
        await done

    async def advance(self, to_ns: int) -> None:
        """Move a virtual clock; returns when all that fell due was handed out."""
        done = self._expect("advanced", to_ns)
        self._send({"op": "advance", "to": to_ns})
        await done

    async def stop(self) -> None:
        """Stop the process; a clock that does not answer is killed."""
        if self._process is None:
            return
        if self._writer is not None:
            self._send({"op": "stop"})
        try:
            await asyncio.wait_for(self._process.wait(), 5)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._reader_task is not None:
            self._reader_task.cancel()
        if self._writer is not None:
            self._writer.close()

    def _send(self, message: Message) -> None:
        assert self._writer is not None
        self._writer.write(control.encode(message))

    def _expect(self, op: str, key: int) -> asyncio.Future[Message]:
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[op, key] = future
        return future

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = control.decode(line)
            key = int(message.get("row") or message.get("to") or 0)
            future = self._waiting.pop((message["op"], key), None)
            if future is not None and not future.done():
                future.set_result(message)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(WheelError("the clock process is gone"))
        self._waiting.clear()
        self._on_exit()
