"""`test_wall_clock.py` runs this under its shim: it prints a line per case.

Nothing is timed: an event must come, and when it is received its clock has
reached its deadline.
"""

import json
import mmap
import os
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import wheeld
from wheeld_client import Timers, connect
from wheeld_core import _native, segments
from wheeld_core.views import WheelView

LONG = 30.0
FAR = 100_000.0
BUSY_TRIES = 240
SWEEP_PASSES = 100
"""By so many passes the sweep that follows a step is over."""
_FLOOD = """
import sys, numpy as np
from wheeld_client import connect
timers = connect(sys.argv[1])
print("ready", flush=True)
while True:
    timers.cancel_many(timers.schedule_many(np.full(20000, 100.0)))
    timers.poll()
"""


class WallClock:
    """Sets the clocks of all processes that run under the shim."""

    def __init__(self) -> None:
        self._offsets = mmap.mmap(os.open(os.environ["STEP_FILE"], os.O_RDWR), 4096)
        self._news = os.open(os.environ["STEP_FIFO"], os.O_RDWR | os.O_NONBLOCK)

    def step(self, real: float = 0.0, boot: float = 0.0) -> None:
        for index, seconds in enumerate((real, boot)):
            (offset,) = struct.unpack_from("q", self._offsets, 8 * index)
            struct.pack_into("q", self._offsets, 8 * index, offset + int(seconds * 1e9))
        os.write(self._news, b"!")


def boot_time() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def comes(timers: Timers, cookie: int, now: Callable[[], float], deadline: float) -> None:
    events = timers.poll(LONG)
    assert now() >= deadline - 1e-6, f"{deadline - now():.6f} s early"
    assert [int(event["cookie"]) for event in events] == [cookie]


def forward(timers: Timers, clock: WallClock) -> None:
    deadline = time.time() + FAR
    timers.schedule_at(deadline, 1, clock="realtime")
    clock.step(2 * FAR)
    comes(timers, 1, time.time, deadline)


def forward_many(timers: Timers, clock: WallClock) -> None:
    for cookie in range(500):
        timers.schedule_at(time.time() + FAR + cookie / 100, cookie, clock="realtime")
    clock.step(2 * FAR)
    seen: list[int] = []
    while len(seen) < 500 and len(events := timers.poll(LONG)):
        seen += [int(event["cookie"]) for event in events]
    assert sorted(seen) == list(range(500))


def back(timers: Timers, clock: WallClock) -> None:
    deadline = time.time() + 0.2
    timers.schedule_at(deadline, 1, clock="realtime")
    clock.step(-0.3)
    comes(timers, 1, time.time, deadline)


def there_and_back(timers: Timers, clock: WallClock) -> None:
    deadline = time.time() + 0.2
    timers.schedule_at(deadline, 1, clock="realtime")
    for seconds in (-3600, 3600, -86400, 86400):
        clock.step(seconds)
    comes(timers, 1, time.time, deadline)


def moved(timers: Timers, clock: WallClock) -> None:
    id = timers.schedule_at(time.time() + 2 * FAR, 1, clock="realtime")
    deadline = time.time() + FAR
    assert timers.reschedule(id, FAR)
    clock.step(1.5 * FAR)
    comes(timers, 1, time.time, deadline)


def moved_before_its_last_tick(timers: Timers, clock: WallClock) -> None:
    """A move begins a new grid: the tick of the old one, which is later now, does not count."""
    id = timers.schedule_at(time.time() + FAR, 1, clock="realtime", interval=FAR)
    clock.step(1.5 * FAR)
    assert len(timers.poll(LONG)) == 1
    clock.step(-1.5 * FAR)
    deadline = time.time() + FAR / 2
    assert timers.reschedule(id, FAR / 2)
    clock.step(FAR)
    comes(timers, 1, time.time, deadline)
    assert timers.cancel(id)


def resumed(timers: Timers, clock: WallClock) -> None:
    deadline = boot_time() + FAR
    timers.schedule_at(deadline, 1, clock="boottime")
    clock.step(boot=2 * FAR)
    comes(timers, 1, boot_time, deadline)


def others(timers: Timers, clock: WallClock) -> None:
    deadline = time.monotonic() + 0.1
    timers.schedule_at(deadline, 1)
    clock.step(86400, 86400)
    comes(timers, 1, time.monotonic, deadline)


def just_after_back(timers: Timers, clock: WallClock) -> None:
    """The clock process wakes for a timer, and the wall clock is set back: what is armed after that
    is judged by the time as it is then."""
    for _ in range(60):
        timers.schedule_at(time.time() + 10, 1, clock="realtime")
        clock.step(20)
        assert [int(event["cookie"]) for event in timers.poll(LONG)] == [1]
        clock.step(-20)
        deadline = time.time() + 5
        id = timers.schedule_at(deadline, 2, clock="realtime")
        early = timers.poll(0.01)
        assert len(early) == 0 or time.time() >= deadline, "it came seconds early"
        timers.cancel(id)


IDLE = (forward, forward_many, back, there_and_back, moved, moved_before_its_last_tick, resumed,
        others, just_after_back)  # fmt: skip


def without_sleep(timers: Timers, clock: WallClock, wheel: WheelView) -> None:
    def await_more(counter: str, more: int) -> None:
        reached, give_up = int(wheel.header[counter]) + more, time.monotonic() + LONG
        while int(wheel.header[counter]) < reached and time.monotonic() < give_up:
            time.sleep(0.0001)

    for _ in range(BUSY_TRIES):
        timers.schedule_at(time.time() + FAR, 1, clock="realtime")
        await_more("wakes", 2)  # it has learnt of the last step, at the latest by now
        await_more("passes", SWEEP_PASSES)
        assert len(timers.poll(0)) == 0, "it came before the step"
        wakes = int(wheel.header["wakes"])
        clock.step(2 * FAR)
        assert len(timers.poll(LONG)) == 1
        if int(wheel.header["wakes"]) == wakes:
            return
        clock.step(-2 * FAR)
    raise AssertionError(f"{BUSY_TRIES} steps were learnt of after a sleep")


@contextmanager
def flood(name: str) -> Iterator[None]:
    command = [sys.executable, "-c", _FLOOD, name]
    crowd = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for one in crowd:
            assert one.stdout is not None
            one.stdout.readline()
        yield
    finally:
        for one in crowd:
            one.kill()
            one.communicate()


class Failed(Exception):
    """A case did; what it said is printed."""


def play(case: Callable[[Timers, WallClock], None], name: str, say: str) -> None:
    """Run one case with a worker of its own and print what came of it; the first to fail is the
    last, as each later one might wait in vain for long."""
    found = None
    try:
        with connect(name) as timers:
            case(timers, WallClock())
    except Exception:
        found = traceback.format_exc()
    print(json.dumps({"case": say, "error": found}), flush=True)
    if found:
        raise Failed


def main() -> None:
    with wheeld.embedded(capacity=1 << 18) as name:
        segment = json.loads((Path(name) / "daemon.json").read_text())["segments"]["wheel"]
        wheel = WheelView(segments.attach(segment, _native.KIND_WHEEL, writable=False))
        for case in IDLE:
            play(case, name, case.__name__)
        with flood(name):
            for case in IDLE[:-1]:
                play(case, name, f"busy {case.__name__}")
            play(lambda timers, clock: without_sleep(timers, clock, wheel), name, "without_sleep")


if __name__ == "__main__":
    with suppress(Failed):
        main()
