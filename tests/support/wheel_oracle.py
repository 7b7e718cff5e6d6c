"""A sorted-list oracle of the wheel: what must be delivered, to whom, and when.

It knows nothing of buckets: a timer is a due time, and the next one to fire is the minimum.
"""

from dataclasses import dataclass, field

from local_wheel import FOREVER

Event = tuple[int, int, int, int, int, bytes]
"""timer_id, cookie, deadline, fired, missed, payload."""


def seconds_to_ns(delay: float) -> int:
    return int(delay * 1e9) if delay < 9.2e9 else FOREVER


@dataclass
class Armed:
    id: int
    owner: int
    target: int
    deadline: int
    asked: int
    """When it was last scheduled or moved: it never fires before."""
    interval: int = 0
    cookie: int = 0
    payload: bytes = b""
    last: int = -1
    """The last due time of a periodic timer that fired."""

    @property
    def due(self) -> int:
        if not self.interval or self.deadline > self.last:
            return self.deadline
        steps = (self.last - self.deadline) // self.interval + 1
        return min(self.deadline + steps * self.interval, FOREVER)


@dataclass
class Oracle:
    """The same calls as on the wheel, with plain lists."""

    tick: int
    now: int
    armed: dict[int, Armed] = field(default_factory=dict)
    unread: dict[int, list[Event]] = field(default_factory=dict)

    def fires_at(self, timer: Armed) -> int:
        if timer.due <= timer.asked:
            return timer.asked
        return -(-timer.due // self.tick) * self.tick

    def schedule(self, timer: Armed) -> None:
        assert timer.id not in self.armed, f"id {timer.id:#x} was given twice"
        self.armed[timer.id] = timer

    def cancel(self, id: int) -> bool:
        timer = self.armed.pop(id, None)
        if timer is None:
            return False
        self.forget_unread(id)
        return True

    def forget_unread(self, id: int) -> None:
        for events in self.unread.values():
            events[:] = [event for event in events if event[0] != id]

    def reschedule(self, id: int, delay: int) -> bool:
        timer = self.armed.get(id)
        if timer is None:
            return False
        self.forget_unread(id)  # ticks of before a move are not delivered
        deadline = min(self.now + delay, FOREVER)
        if deadline < timer.deadline or timer.interval:
            timer.asked = self.now  # the clock is told; what is later waits where it is
        timer.deadline = deadline
        return True

    def pending(self, owner: int) -> int:
        return sum(timer.owner == owner for timer in self.armed.values())

    def advance_to(self, target: int) -> None:
        while self.armed:
            timer = min(self.armed.values(), key=self.fires_at)
            at = self.fires_at(timer)
            if at > target:
                break
            self._fire(timer, at)
        self.now = target

    def _fire(self, timer: Armed, at: int) -> None:
        due = timer.due
        assert due <= at
        assert at - due < self.tick or at == timer.asked
        missed = (at - due) // timer.interval if timer.interval else 0
        event = (timer.id, timer.cookie, due, at, missed, timer.payload)
        self.unread.setdefault(timer.target, []).append(event)
        if timer.interval:
            timer.last = due + missed * timer.interval
        else:
            del self.armed[timer.id]

    def next_fire(self) -> int | None:
        return min(map(self.fires_at, self.armed.values()), default=None)

    def shortest_interval(self) -> int | None:
        return min((t.interval for t in self.armed.values() if t.interval), default=None)
