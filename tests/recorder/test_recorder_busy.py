"""While records come in fast, spools wait to become Parquet; not for ever, and not at the end.
While the ring overflows, the recorder takes little of a processor."""

import threading
import time
from pathlib import Path

import pytest

from recorder_alone import Recorder
from recorder_records import Ring, read
from wheeld.recorder import converter


class Load(converter.Load):
    """A load that a test switches, and that says when it was looked at."""

    def __init__(self, rest: float = 0.0) -> None:
        super().__init__()
        self.high = True
        self.pause = rest
        self.asked = threading.Semaphore(0)

    @property
    def busy(self) -> bool:
        self.asked.release()
        return self.high

    @property
    def lossy(self) -> bool:
        return self.high and self.pause > 0

    def rest(self, worked: float) -> float:
        assert worked > 0
        return self.pause


def spooled(trace: Path, spools: int) -> Recorder:
    recorder = Recorder(Ring(), trace)
    more_spools(recorder, spools)
    return recorder


def more_spools(recorder: Recorder, count: int) -> None:
    for _ in range(count):
        recorder.ring.more(3)
        recorder.take()
        recorder.intake.close()


def started(recorder: Recorder, of: Load) -> converter.Converter:
    thread = recorder.converter
    thread._load = of
    thread.start()
    return thread


@pytest.mark.parametrize("before", [0, 1, 2])
def test_spools_wait_for_a_quieter_time(tmp_path: Path, before: int) -> None:
    now = Load()
    recorder = spooled(tmp_path, before)
    thread = started(recorder, now)
    more_spools(recorder, 2 - before)  # to a thread that waits for some
    for _ in range(3):
        assert now.asked.acquire(timeout=60)
    assert (thread.waiting, read(tmp_path)) == (2, [])
    now.high = False
    while thread.waiting:
        assert thread.is_alive()
        time.sleep(0.005)
    thread.end()
    thread.join(60)
    assert len(read(tmp_path)) == 6


def test_too_many_spools_do_not_wait(tmp_path: Path) -> None:
    now = Load()
    recorder = spooled(tmp_path, converter.MOST_WAITING + 2)
    thread = started(recorder, now)
    assert now.asked.acquire(timeout=60)  # only when there are few again
    assert thread.waiting == converter.MOST_WAITING
    thread.end()
    thread.join(60)


def test_the_end_waits_for_nothing(tmp_path: Path) -> None:
    now = Load()
    recorder = spooled(tmp_path, 2)
    thread = started(recorder, now)
    assert now.asked.acquire(timeout=60)
    thread.end()
    thread.join(60)
    thread.finish()
    assert len(read(tmp_path)) == 6


def test_it_rests_while_there_are_gaps(tmp_path: Path) -> None:
    now = Load(rest=1e6)
    recorder = spooled(tmp_path, converter.MOST_WAITING + 3)
    thread = started(recorder, now)
    while thread.waiting > converter.MOST_WAITING + 2:  # one is converted
        assert thread.is_alive()
        time.sleep(0.005)
    thread.add(tmp_path / "another")  # which wakes it, and does not end its rest
    time.sleep(0.1)
    assert thread.waiting == converter.MOST_WAITING + 3
    now.high = False  # it looks every BUSY_PAUSE
    while thread.waiting:
        assert thread.is_alive()
        time.sleep(0.005)
    thread.end()
    thread.join(60)
    assert recorder.said == [f"{tmp_path / 'another'} was removed before it became Parquet"]


class Clock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_what_counts_as_busy() -> None:
    clock = Clock()
    measured = converter.Load(clock)
    assert not measured.busy
    quarter = converter.BUSY * converter.BUSY_SECONDS / 4
    for _ in range(8):  # half as many as are too many
        clock.now += converter.BUSY_SECONDS / 2
        measured.measure(int(quarter), 0)
        assert not measured.busy
    measured.measure(int(4 * quarter), 0)  # a burst is seen before a tenth of a second is over
    assert measured.busy
    assert not measured.lossy
    clock.now += converter.BUSY_SECONDS
    measured.measure(0, 0)  # what came since the last full tenth was too much
    clock.now += converter.BUSY_SECONDS
    measured.measure(0, 0)
    assert not measured.busy
    assert measured.rest(1.0) == 0.0


def test_a_loss_makes_it_rest_for_a_while() -> None:
    clock = Clock()
    measured = converter.Load(clock)
    measured.measure(1, 5)
    assert measured.busy
    assert measured.lossy
    worked = 0.01
    assert worked / (worked + measured.rest(worked)) <= converter.SHARE * 1.001
    clock.now += converter.LOSSY_SECONDS * 0.9
    measured.measure(1, 6)
    clock.now += converter.LOSSY_SECONDS * 0.9
    measured.measure(1, 6)
    assert measured.lossy
    clock.now += converter.LOSSY_SECONDS * 0.2
    assert not measured.lossy
    assert measured.rest(worked) == 0.0
