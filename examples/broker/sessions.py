"""Delayed heartbeats: each member of a group has a timer, which its heartbeats move.

The timer is of the worker that the member talks to. When that worker dies, the wheel hands its
timers to the group of workers: one of them ends the session then, if the member has not come to
another worker meanwhile. Which timer counts stands in the group's file.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from examples.broker.groups import Group, Groups, Member
from wheeld_client import AsyncTimers


class Sessions:
    """The sessions of the members that talk to this worker.

    Parameters
    ----------
    tell : callable
        Called with the name of a group whose member is gone.
    """

    def __init__(self, timers: AsyncTimers, groups: Groups, tell: Callable[[str], Any]) -> None:
        self._timers, self._groups, self._tell = timers, groups, tell
        self._own: dict[int, tuple[int, str]] = {}  # number -> timer, group

    def prolong(self, member: Member) -> bool:
        """The member was heard of. False: its timer is not this worker's, or has fired."""
        timer, _ = self._own.get(member.timer, (0, ""))
        return bool(timer) and self._timers.reschedule(timer, member.session)

    def extend(self, group: Group, id: str, delay: float) -> None:
        """Give a member so many seconds; the group is locked, and to be stored."""
        member = group.members.get(id)
        if member is None:
            return
        timer, _ = self._own.get(member.timer, (0, ""))
        if not timer or not self._timers.reschedule(timer, delay):
            self._own.pop(member.timer, None)
            member.timer = secrets.randbits(63) | 1
            self._own[member.timer] = self._timers.schedule(delay, member.timer), group.name

    def end(self, group: Group, id: str) -> None:
        """The member goes by itself."""
        member = group.members.get(id)
        timer, _ = self._own.pop(member.timer, (0, "")) if member else (0, "")
        if timer:
            self._timers.cancel(timer)

    async def run(self) -> None:
        """End the sessions whose time is up, own ones and those of dead workers."""
        async for event in self._timers:
            self._over(int(event["cookie"]))

    def _over(self, number: int) -> None:
        own = self._own.pop(number, None)
        names = [own[1]] if own else [group.name for group in self._groups.all()]
        for name in names:
            ids = [id for id, one in self._groups.load(name).members.items() if one.timer == number]
            for id in ids:
                with self._groups.changing(name) as group:
                    if id in group.members and group.members[id].timer == number:
                        group.remove(id, self._timers.timers.now_ns())
                self._tell(name)
