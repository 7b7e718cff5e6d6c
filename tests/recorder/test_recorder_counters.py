"""The daemon's counters, one row a second: what is in them, and that none is there twice."""

import os
from pathlib import Path

import pytest

from common_fixtures import local_wheel
from local_wheel import MS, LocalWheel
from recorder_records import RUN, facts, read
from wheeld.processes.identity import run_delay_ns
from wheeld.recorder import counters as counters_module
from wheeld.recorder.counters import Counters
from wheeld.recorder.parquet import convert_counters
from wheeld_pipeline import COUNTER_COLUMNS

POOLS = (("requests", 1000, 1000, False), ("answers", 50, 50, True))


@pytest.fixture
def full() -> list[Path]:
    return []


wheel = local_wheel(trace=6, pools=POOLS, start_ns=7000)


def make(wheel: LocalWheel, trace: Path, full: list[Path]) -> Counters:
    memories = wheel.wheel_memory, wheel.trace_memory, wheel.shared("pools"), wheel.registry_memory
    found = Counters(*memories, trace, facts(), full.append, os.getpid)
    found.resume()
    return found


def test_a_row(wheel: LocalWheel, tmp_path: Path, full: list[Path]) -> None:
    timers = wheel.worker()
    ids = [timers.schedule(0.005 * (i + 1)) for i in range(4)]
    timers.cancel(ids[3])
    wheel.advance(6 * MS)
    waited = run_delay_ns(Path("/proc/self"))
    row = make(wheel, tmp_path, full).row()
    assert waited <= row["run_delay_ns"] <= run_delay_ns(Path("/proc/self"))
    assert list(row) == [column.name for column in COUNTER_COLUMNS]
    header = wheel.view.header
    assert {name: row[name] for name in ("host", "daemon", "run")} == {
        "host": "host-1", "daemon": "daemon-1", "run": RUN,
    }  # fmt: skip
    assert row["time"] == int(header["virtual_now"]) // 1000
    assert (row["tick_ns"], row["wheel_size"], row["capacity"]) == (MS, 64, 1024)
    assert (row["linked"], row["fired"], row["last"]) == (2, 1, False)
    assert (row["scheduled"], row["rescheduled"], row["expired"]) == (4, 0, 1)
    assert (row["cancelled"], row["ended"], row["lost"]) == (1, 0, 0)
    assert row["passes"] == header["passes"] > 0
    assert row["pools"] == [
        {"name": "requests", "size": 1000, "used": 0, "depleted_ns": 0},
        {"name": "answers", "size": 50, "used": 0, "depleted_ns": 0},
    ]


def test_a_ring_that_is_full(wheel: LocalWheel, tmp_path: Path, full: list[Path]) -> None:
    timers = wheel.worker()
    counters = make(wheel, tmp_path, full)
    room = 1 << int(wheel.view.header["comp_bits"])
    ids = timers.schedule_many([0.001] * 100, interval=0.001)
    assert counters.row()["full_rings"] == []
    for _ in range(room // 100 + 4):
        wheel.advance(MS)
    assert len(counters.row()["full_rings"]) == 1
    timers.cancel_many(ids)
    timers.poll(0)
    wheel.advance(MS)
    assert counters.row()["full_rings"] == []


def test_one_a_second(
    wheel: LocalWheel, tmp_path: Path, full: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(counters_module.time, "monotonic", lambda: now)
    counters = make(wheel, tmp_path, full)
    for _ in range(50):
        counters.keep()
        wheel.advance(MS)
        now += 0.1
    assert counters.age() == pytest.approx(5.0)
    counters.close()
    assert (len(full), counters.age()) == (1, 0.0)
    convert_counters(full[0], tmp_path, lambda *_: None)
    assert len(read(tmp_path, "counters")) == 5


plain = local_wheel(trace=6, start_ns=7000)


def test_none_while_nothing_changes(
    plain: LocalWheel, tmp_path: Path, full: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(counters_module.time, "monotonic", lambda: now)
    counters = make(plain, tmp_path, full)
    stills = []
    for _ in range(5):
        counters.keep()
        counters.wake()
        stills.append(counters.still)
        now += 1.0
    assert stills == [False, True, True, True, True]
    plain.advance(50 * MS)
    counters.wake()  # up to now nothing had changed
    assert not counters.still
    counters.keep()  # which is the row of this second
    now += 1.0
    counters.keep()
    counters.close()
    convert_counters(full[0], tmp_path, lambda *_: None)
    rows = read(tmp_path, "counters")
    passes = [row["passes"] for row in rows]
    assert len(rows) == 4
    assert passes[0] == passes[1] == passes[2] < passes[3]
    assert rows[1]["time"] < rows[2]["time"]


def test_pools_are_looked_at_each_second(
    wheel: LocalWheel, tmp_path: Path, full: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters_module, "EVERY_SECONDS", 0.0)
    counters = make(wheel, tmp_path, full)
    for _ in range(4):
        counters.keep()
        assert not counters.still
    counters.close()
    convert_counters(full[0], tmp_path, lambda *_: None)
    assert len(read(tmp_path, "counters")) == 4


def test_killed_recorder_loses_none(
    wheel: LocalWheel, tmp_path: Path, full: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters_module, "EVERY_SECONDS", 0.0)
    first = make(wheel, tmp_path, full)
    for _ in range(3):
        first.keep()
    second = make(wheel, tmp_path, full)
    assert len(full) == 1
    second.keep()
    second.close()
    for path in full:
        convert_counters(path, tmp_path, lambda *_: None)
    assert len(read(tmp_path, "counters")) == 4


def test_the_last_row_is_there_once(wheel: LocalWheel, tmp_path: Path, full: list[Path]) -> None:
    for _ in range(2):
        counters = make(wheel, tmp_path, full)
        counters.keep_last(wheel.trace.head)
        for path in full:
            convert_counters(path, tmp_path, lambda *_: None)
        full.clear()
    assert [row["last"] for row in read(tmp_path, "counters")] == [True]


def test_folder_is_removed(wheel: LocalWheel, tmp_path: Path, full: list[Path]) -> None:
    counters = make(wheel, tmp_path, full)
    counters.keep()
    for path in (tmp_path / "_spool").iterdir():
        path.unlink()
    (tmp_path / "_spool").rmdir()
    counters.keep_last(5)
    convert_counters(full[-1], tmp_path, lambda *_: None)
    assert len(read(tmp_path, "counters")) == 1
