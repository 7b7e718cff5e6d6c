"""The supervisor's end of one clock process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from wheeld.processes.messages import Notice, Order
from wheeld.processes.offspring import Offspring
from wheeld.processes.spawn import CLOCK
from wheeld_core.control import Message
from wheeld_core.errors import WheelError


class ClockGone(WheelError):
    """The clock process ended before it answered; its successor can be asked."""


class ClockLink:
    """Starts a clock, sends it orders, waits for its answers.

    Parameters
    ----------
    on_exit : callable
        Called once when the clock's end of the channel closes.
    on_awake : callable
        Called when the clock reports the end of a long sleep.
    on_waiting : callable
        Called when a new clock has all that it needs but the lock.
    """

    def __init__(
        self,
        on_exit: Callable[[ClockLink], None],
        on_awake: Callable[[], None],
        on_waiting: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_exit = on_exit
        self._said = {Notice.AWAKE: on_awake, Notice.WAITS: on_waiting}
        self._waiting: dict[tuple[str, int], asyncio.Future[Message]] = {}
        self._process: Offspring | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self.ended = False
        """Is its end of the channel closed? It is dead then, or about to be."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self, hello: Callable[[], dict[str, Any]]) -> Message:
        """Start the process and wait until it drives the wheel; returns its answer.

        `hello` makes the first message. It is called once the process exists: orders sent from then
        on reach it, and those sent before are part of the hello.

        Raises
        ------
        ClockGone
            It ended before that; its message is on stderr.
        OSError
            There is no room for another process.
        """
        self._process = Offspring(CLOCK)
        await self._process.connect()
        ready = self._expect(Notice.READY, 0)
        self._reader_task = asyncio.create_task(self._read(self._process))
        self.tell(Order.HELLO, supervisor=os.getpid(), **hello())
        return await ready

    async def ask(self, op: Order, answer: Notice, key: int, **fields: Any) -> Message:
        """Send an order and wait for its answer, which is recognised by `key`.

        Raises
        ------
        ClockGone
            The process ended first.
        """
        done = self._expect(answer, key)
        self.tell(op, **fields)
        return await done

    def tell(self, op: Order, **fields: Any) -> None:
        if self._process is None or not self._process.connected:
            raise ClockGone("no clock process is running")
        self._process.send(op, **fields)

    async def stop(self, keep: bool = False) -> None:
        """Stop the process at the end of its pass; a clock that does not answer is killed. With
        `keep` it does not notify the workers."""
        if self._process is not None and self._process.connected:
            self.tell(Order.STOP, keep=keep)
        await self.end(5)

    def leave_running(self) -> tuple[int, int] | None:
        """Release the process, which ends when its channel is closed; returns its id and a
        descriptor of the channel, or None if none runs."""
        if self._process is None or not self._process.connected or self.ended:
            return None
        if self._reader_task is not None:
            self._reader_task.cancel()
        return self._process.pid, os.dup(self._process.channel.fileno())

    async def end(self, patience: float = 0) -> None:
        """Wait for the process to end, kill it if needed; also for one that has exited."""
        if self._process is not None:
            await self._process.end(patience or 0.001)
        if self._reader_task is not None:
            self._reader_task.cancel()
        if self._process is not None:
            self._process.hang_up()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _expect(self, op: Notice, key: int) -> asyncio.Future[Message]:
        if self.ended:
            raise ClockGone("the clock process is gone")
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[op, key] = future
        return future

    async def _read(self, process: Offspring) -> None:
        # To its end, also when the process is dead: an answer that it gave before is still good,
        # and must not be taken for its successor's.
        async for message in process.messages():
            if (heed := self._said.get(message["op"])) is not None:
                heed()
                continue
            key = int(message.get("row") or message.get("to") or 0)
            future = self._waiting.pop((message["op"], key), None)
            if future is not None and not future.done():
                future.set_result(message)
        self.ended = True
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ClockGone("the clock process is gone"))
        self._on_exit(self)
