"""Who waits at the control socket, and in which order they are heard.

Connections are accepted as they come and their messages read side by side. What is done for them is
shared out among the users: one message of each user in turn, a few in each round of the loop. Who
connects without end delays his own requests, not those of others. When too many are connected, the
one that has been silent for longest makes room, of the user who has most.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from wheeld_core import control
from wheeld_core.errors import WheelError

Answer = TypeVar("Answer")

HEARD_AT_ONCE: Final = 16
"""Messages in one round of the loop."""
SHARE: Final = 4
"""What is asked for again and again takes a part of the time that is no larger than one in so
many."""


class Callers:
    """The connections of one daemon that are no worker's."""

    def __init__(self) -> None:
        self._silent: dict[int, dict[Callable[[], None], None]] = {}
        self._lines: dict[int, deque[asyncio.Future[None]]] = {}

    @contextlib.contextmanager
    def silent(self, uid: int, dismiss: Callable[[], None]) -> Iterator[None]:
        """For the block this caller says nothing: `dismiss` may be called, to end it."""
        self._silent.setdefault(uid, {})[dismiss] = None
        try:
            yield
        finally:
            self._speaks(uid, dismiss)

    def _speaks(self, uid: int, dismiss: Callable[[], None]) -> None:
        mine = self._silent.get(uid, {})
        mine.pop(dismiss, None)
        if not mine:
            self._silent.pop(uid, None)

    def make_room(self) -> bool:
        """Dismiss one of those who say nothing. False: there is none."""
        if not self._silent:
            return False
        uid = max(self._silent, key=lambda uid: len(self._silent[uid]))
        dismiss = next(iter(self._silent[uid]))
        self._speaks(uid, dismiss)
        dismiss()
        return True

    async def turn(self, uid: int) -> None:
        """Wait for this user's turn."""
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
    """Answer that there is no room."""
    crowd = WheelError("too many connections to this daemon; try again later")
    writer.write(control.encode(control.failure(crowd)))


def dismiss(task: asyncio.Task[None] | None, writer: asyncio.StreamWriter) -> None:
    """End the connection that a task serves, and say why."""
    refuse(writer)
    if task is not None:
        task.cancel()


class OneForAll(Generic[Answer]):
    """An answer that takes time to find: found once for all who ask before the search begins.

    Parameters
    ----------
    find : callable
        Finds it.
    """

    def __init__(self, find: Callable[[], Answer]) -> None:
        self._find = find
        self._next: asyncio.Task[Answer] | None = None
        self._not_before = 0.0

    async def get(self) -> Answer:
        """One that is found after this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._find_soon())
        return await asyncio.shield(self._next)

    async def _find_soon(self) -> Answer:
        time = asyncio.get_running_loop().time
        await asyncio.sleep(max(self._not_before - time(), 0.0))
        self._next = None
        began = time()
        try:
            return self._find()
        finally:
            self._not_before = time() + (SHARE - 1) * (time() - began)
