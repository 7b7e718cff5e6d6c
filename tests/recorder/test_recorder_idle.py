"""A recorder without records sleeps, all of its threads, and wakes for the next one."""

import time
from pathlib import Path

from daemons import until
from recorded import Recording


def wakes(pid: int) -> int:
    """How often a thread of the process has slept, and was woken."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = status.read_text().splitlines()
        count += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))
    return count


def quiet(pid: int) -> bool:
    before = wakes(pid)
    time.sleep(1.2)  # longer than between two rows of counters
    return wakes(pid) == before


def test_idle_recorder_does_not_wake(recording: Recording) -> None:
    recording.daemon.options.pop("virtual_clock")
    recording.daemon.start(trace_every="200ms")
    recorder = recording.recorder_pid
    with recording.worker("a") as timers:
        for ended in range(1, 3):
            until(lambda: quiet(recorder), "asleep again")
            timers.schedule(0.001)
            assert len(timers.poll(30.0)) == 1
            until(lambda: recording.counts() == {"scheduled": ended, "expired": ended}, "a file")  # noqa: B023
    recording.daemon.stop()
    assert recording.last()["expired"] == 2
    assert recording.spooled() == []


def test_killed_in_its_sleep(recording: Recording) -> None:
    recording.daemon.options.pop("virtual_clock")
    recording.daemon.start(trace_every="200ms")
    with recording.worker("a") as timers:
        until(lambda: quiet(recording.recorder_pid), "asleep")
        recording.kill_recorder()
        until(lambda: quiet(recording.recorder_pid), "the next one is asleep")
        recording.daemon.kill_clock()
        timers.schedule(0.001)
        assert len(timers.poll(30.0)) == 1
        until(lambda: recording.counts() == {"scheduled": 1, "expired": 1}, "a file")
    recording.daemon.stop()
