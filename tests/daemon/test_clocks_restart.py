"""Timers of the wall clock and of the boot clock over the death of the clock process."""

import os
import signal
import time

import wheeld
from wheeld_client import connect
from wheeld_core.control import Connection
from wheeld_core.runtime import find

LONG = 30.0
CLOCKS = {"monotonic": 1, "realtime": 7, "boottime": 11}


def test_each_clock_goes_on() -> None:
    reading = {"monotonic": 1, "realtime": 0, "boottime": 7}
    with wheeld.embedded(capacity=1024) as name, connect(name) as timers:
        for clock, cookie in CLOCKS.items():
            now = time.clock_gettime(reading[clock])
            timers.schedule_at(now + 0.7, cookie, clock=clock)
            timers.schedule_at(now + 1e6, 100, clock=clock)
        connection = Connection(find(name))
        os.kill(connection.request("status")["status"]["clock_pid"], signal.SIGKILL)
        seen: list[int] = []
        give_up = time.monotonic() + LONG
        while len(seen) < 3 and time.monotonic() < give_up:
            for event in timers.poll(1.0):
                assert event["fired"] >= event["deadline"]
                seen.append(int(event["cookie"]))
        assert sorted(seen) == sorted(CLOCKS.values())
        assert timers.pending == 3
        connection.close()
