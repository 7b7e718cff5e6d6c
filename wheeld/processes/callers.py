"""The order in which connections are served, at the control socket and at the metrics port.

Connections are accepted as they come and their messages are read concurrently. Their requests are
scheduled by user: one message of each user in turn, a few per turn of the loop. So a user who opens
connections endlessly delays only his own requests. When there are too many connections, the longest
silent one of the user with the most is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import Final, Generic, TypeVar

from wheeld_core import control
from wheeld_core.errors import DaemonBusy

Answer = TypeVar("Answer")

HEARD_AT_ONCE: Final = 16
"""Messages per turn of the loop."""
SHARE: Final = 4
"""Repeated requests for the same answer take at most one part in this many of the time."""
_LONG: Final = 3600.0
"""Seconds; a timer of asyncio cannot be infinite."""


class Callers:
    """The connections of one daemon that are not workers'."""

    def __init__(self) -> None:
        self._silent: dict[Hashable, dict[Callable[[], object], None]] = {}
        self._lines: dict[int, deque[asyncio.Future[None]]] = {}

    @contextlib.contextmanager
    def silent(self, uid: Hashable, dismiss: Callable[[], object]) -> Iterator[None]:
        """During the block this caller is silent: `dismiss` may be called to end its connection.

        `uid` is the user, or another property that distinguishes peers.
        """
        self._silent.setdefault(uid, {})[dismiss] = None
        try:
            yield
        finally:
            self._speaks(uid, dismiss)

    def _speaks(self, uid: Hashable, dismiss: Callable[[], object]) -> None:
        mine = self._silent.get(uid, {})
        mine.pop(dismiss, None)
        if not mine:
            self._silent.pop(uid, None)

    def make_room(self) -> bool:
        """Close one silent connection. False: there is none."""
        if not self._silent:
            return False
        uid = max(self._silent, key=lambda uid: len(self._silent[uid]))
        dismiss = next(iter(self._silent[uid]))
        self._speaks(uid, dismiss)
        dismiss()
        return True

    async def turn(self, uid: int) -> None:
        if not self._lines:
            asyncio.get_running_loop().call_soon(self._next_round)
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(uid, deque()).append(turn)
        await turn

    def _next_round(self) -> None:
        heard = 0
        while self._lines and heard < HEARD_AT_ONCE:
            uid = next(iter(self._lines))
            line = self._lines.pop(uid)
            turn = line.popleft()
            if not turn.done():  # it may have hung up
                turn.set_result(None)
                heard += 1
            if line:
                self._lines[uid] = line  # behind the others
        if self._lines:
            asyncio.get_running_loop().call_soon(self._next_round)


def refuse(writer: asyncio.StreamWriter) -> None:
    crowd = DaemonBusy("too many connections to this daemon; try again later")
    writer.write(control.encode(control.failure(crowd)))


def dismiss(task: asyncio.Task[None] | None, writer: asyncio.StreamWriter) -> None:
    refuse(writer)
    if task is not None:
        task.cancel()


class OneForAll(Generic[Answer]):
    """An answer that is expensive to compute: `find` computes it once for all callers that ask
    before it starts, at most `longest_pause` seconds after they ask. If a computation takes longer
    than that, the next one begins when it has ended."""

    def __init__(
        self, find: Callable[[], Awaitable[Answer]], longest_pause: float = math.inf
    ) -> None:
        self._find = find
        self._longest_pause = longest_pause
        self._next: asyncio.Task[Answer] | None = None
        self._last: asyncio.Task[Answer] | None = None
        self._not_before = 0.0

    async def get(self) -> Answer:
        """An answer whose computation starts after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._find_soon())
        return await asyncio.shield(self._next)

    async def _find_soon(self) -> Answer:
        time = asyncio.get_running_loop().time
        latest = time() + self._longest_pause
        if self._last is not None:
            await asyncio.wait([self._last], timeout=min(self._longest_pause, _LONG))
        await asyncio.sleep(max(min(self._not_before, latest) - time(), 0.0))
        self._last, self._next = self._next, None
        began = time()
        try:
            return await self._find()
        finally:
            self._not_before = time() + min((SHARE - 1) * (time() - began), self._longest_pause)
