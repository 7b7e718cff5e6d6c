"""Operations whose time other workers extend and cancel, by Deadlines of their keys."""

from __future__ import annotations

import pytest

from common_fixtures import local_wheel, local_workers
from local_wheel import REROUTE, LocalTimers, LocalWheel, pass_by
from wheeld_client import Deadlines, DelayedOperation, Purgatory

KEY = ("group", "member-1")

wheel = local_wheel(payload_bytes=64)
workers = local_workers(3, group="coordinators")


class Session(DelayedOperation):
    """An operation of one worker, whose time any worker extends or cancels, as docs/purgatory.md
    has it.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        super().__init__(86_400.0)
        self._deadlines = deadlines
        self.ended = 0

    def try_complete(self) -> bool:
        return not self._deadlines.remaining(KEY) and self.force_complete()

    def on_complete(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("end", ["its time", "cancelled", "its worker is gone"])
def test_an_operation_that_other_workers_extend_and_cancel(
    wheel: LocalWheel, workers: list[LocalTimers], end: str
) -> None:
    purgatories = [Purgatory(timers, "members") for timers in workers]
    sessions = [
        Deadlines(timers, "sessions", each.check_and_complete)
        for timers, each in zip(workers, purgatories, strict=True)
    ]
    sessions[1].start(KEY, 5.0)
    session = Session(sessions[0])
    assert not purgatories[0].try_complete_else_watch(session, [KEY])
    for _ in range(5):
        pass_by(wheel, workers, 3)
        assert sessions[2].extend(KEY, 5.0)
    if end == "cancelled":
        assert sessions[2].cancel(KEY)
        purgatories[2].check_and_complete(KEY)
        pass_by(wheel, workers, 0.1)
    else:
        gone = end == "its worker is gone"
        if gone:
            wheel.settle()
            wheel.depart(1, REROUTE)
            wheel.settle()
        there = workers[::2] if gone else workers
        pass_by(wheel, there, 4.9)
        assert session.ended == 0
        pass_by(wheel, there, 5.2 if gone else 0.2)
        pass_by(wheel, there, 0.1)  # the end is another worker's, which then rings the first
    assert session.ended == 1
    assert not sessions[2].extend(KEY, 5.0)
    assert purgatories[0].num_delayed == 0
