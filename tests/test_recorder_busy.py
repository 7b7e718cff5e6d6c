"""While records come in fast, spools wait to become Parquet; not for ever, and not at the end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from recorder_alone import Recorder
from recorder_records import Ring, read
from wheeld.trace import converter


class Load:
    """A load that a test switches, and that says when it was looked at."""

    def __init__(self) -> None:
        self.high = True
        self.asked = threading.Semaphore(0)

    def __call__(self) -> bool:
        self.asked.release()
        return self.high


def spooled(trace: Path, spools: int) -> Recorder:
    """A recorder whose spools nobody has converted yet."""
    recorder = Recorder(Ring(), trace)
    for _ in range(spools):
        recorder.ring.more(3)
        recorder.take()
        recorder.intake.close()
    return recorder


def started(recorder: Recorder, load: Load) -> converter.Converter:
    thread = recorder.converter
    thread._busy = load
    thread.start()
    return thread


def test_spools_wait_for_a_quieter_time(tmp_path: Path) -> None:
    load = Load()
    recorder = spooled(tmp_path, 2)
    thread = started(recorder, load)
    for _ in range(3):
        assert load.asked.acquire(timeout=60)
    assert (thread.waiting, read(tmp_path)) == (2, [])
    load.high = False
    while thread.waiting:
        assert thread.is_alive()
        time.sleep(0.005)
    thread.end()
    thread.join(60)
    assert len(read(tmp_path)) == 6


def test_too_many_spools_do_not_wait(tmp_path: Path) -> None:
    load = Load()
    recorder = spooled(tmp_path, converter.MOST_WAITING + 2)
    thread = started(recorder, load)
    assert load.asked.acquire(timeout=60)  # only when there are few again
    assert thread.waiting == converter.MOST_WAITING
    thread.end()
    thread.join(60)


def test_the_end_waits_for_nothing(tmp_path: Path) -> None:
    load = Load()
    recorder = spooled(tmp_path, 2)
    thread = started(recorder, load)
    assert load.asked.acquire(timeout=60)
    thread.end()
    thread.join(60)
    thread.finish()
    assert len(read(tmp_path)) == 6
