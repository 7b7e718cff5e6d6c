"""What stands beside the records: names, clocks; and what other recorders left."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from recorder_alone import Recorder, left, small_spools
from recorder_records import OFFSETS, ORIGIN, RUN, Ring, cookies, facts, read, records
from wheeld.recorder import facts as facts_module, ring_reader
from wheeld.recorder.facts import Facts, Offsets
from wheeld.recorder.process import abandoned
from wheeld.recorder.spool import RECORDS, RecordSpool, SpoolName, chunks, counter_rows

settings = pytest.fixture(autouse=True)(small_spools)


# -- facts -----------------------------------------------------------------------------------------


def test_names_outlive_their_workers(ring: Ring, tmp_path: Path) -> None:
    first = Recorder(ring, tmp_path).resume()
    first.intake.learn(3, 7, "early", ring.view.tail)
    ring.write(records(10, worker=3, incarnation=7))
    first.take()
    first.intake.learn(3, 8, "late", ring.view.tail)
    ring.write(records(10, worker=3, incarnation=8))
    first.take()
    second = Recorder(ring, tmp_path).resume()
    ring.write(records(10, worker=3, incarnation=8, kind=4, receiver=3))
    second.finish()
    rows = read(tmp_path)
    assert [row["worker"] for row in rows] == ["early"] * 10 + ["late"] * 20
    assert [row["receiver"] for row in rows[20:]] == ["late"] * 10


def test_names_go_on_to_later_spools(ring: Ring, tmp_path: Path) -> None:
    first = Recorder(ring, tmp_path).resume()
    first.intake.learn(3, 7, "early", ring.view.tail)
    ring.write(records(10, worker=3, incarnation=7))
    first.take()
    second = Recorder(ring, tmp_path).resume()
    ring.write(records(200, worker=3, incarnation=7))
    second.finish()
    assert [rows for _, rows in second.files] == [100, 100, 10]
    assert {row["worker"] for row in read(tmp_path)} == {"early"}


def test_time_is_set(ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(ring, tmp_path).resume()
    ring.more(5)
    recorder.take()
    stepped = replace(OFFSETS, base=OFFSETS.base + 3600 * 10**9)
    slewed = replace(OFFSETS, base=OFFSETS.base + facts_module.STEP_NS - 1)
    for offsets in (slewed, stepped):
        monkeypatch.setattr(Offsets, "read", classmethod(lambda cls, o=offsets: o))
        ring.more(5)
        recorder.take()
    Recorder(ring, tmp_path).resume().finish()
    times = [row["time"].hour for row in read(tmp_path)]
    assert times == [12] * 10 + [13] * 5


def test_names_are_not_kept_for_ever(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_reader, "NAMES", 5)
    known = facts()
    recorder = Recorder(ring, tmp_path, known).resume()
    for number in range(20):
        recorder.intake.learn(number, 2, f"n{number}", 0)
    ring.more(1)
    recorder.take()
    assert [name for _, _, name, _ in known.names.known()] == [f"n{i}" for i in range(15, 20)]


# -- what others left ------------------------------------------------------------------------------


def left_by(trace: Path, run: str, segment: str, host: str = "host-1") -> None:
    origin = replace(ORIGIN, run=run, host=host, daemon="other")
    (trace / "_spool").mkdir(exist_ok=True)
    path = trace / "_spool" / str(SpoolName(run, 7, RECORDS))
    spool = RecordSpool(path, Facts(origin, segment))
    spool.append(memoryview(records(10).tobytes() + b"half"))
    spool.close()
    counters = path.with_name(str(SpoolName(run, 8, ".counters")))
    counters.write_bytes(next(Facts(origin, segment).lines()))


def test_spools_of_daemons_that_are_gone(ring: Ring, tmp_path: Path) -> None:
    living = Path("/dev/shm", f"wheeld-t{os.getpid()}-living-trace")
    living.touch()
    try:
        left_by(tmp_path, "0" * 15 + "1", "wheeld-gone-trace")
        left_by(tmp_path, "0" * 15 + "2", living.name)
        left_by(tmp_path, "0" * 15 + "3", "wheeld-gone-trace", "host-2")
        found = abandoned(tmp_path / "_spool", ORIGIN)
    finally:
        living.unlink()
    assert [path.name for path in found] == [
        f"{1:016x}-{7:016x}.records", f"{1:016x}-{8:016x}.counters",
    ]  # fmt: skip
    recorder = Recorder(ring, tmp_path)
    for path in found:
        recorder.converter.add(path)
    recorder.finish()
    assert [(row["daemon"], row["run"]) for row in read(tmp_path)] == [("other", f"{1:016x}")] * 10
    assert len(left(tmp_path)) == 6


def test_lost_events_that_no_record_tells_of(ring: Ring, tmp_path: Path) -> None:
    ring.more(10)
    ring.view.header["lost"][1:6] = [5, 0, 2**32 + 3, 7, 0]
    ring.view.header["told"][4] = 7
    for _ in range(2):
        recorder = Recorder(ring, tmp_path).resume()
        recorder.take()
        recorder.intake.tell_lost(2000 * 10**9)
        recorder.finish()
    lost = [row for row in read(tmp_path) if row["event"] == "lost"]
    assert sorted((row["lost_event"], row["count"]) for row in lost) == [
        ("cancelled", 4),
        ("cancelled", 2**32 - 1),
        ("scheduled", 5),
    ]
    assert cookies(tmp_path) == sorted([*range(10), 0, 0, 0])


# -- files -----------------------------------------------------------------------------------------


def test_file_names() -> None:
    name = SpoolName(RUN, 2**64 - 1, RECORDS)
    assert SpoolName.parse(str(name)) == name
    for other in ("x.records", f"{RUN}-1.records", f"{name}.refused", f"{RUN}-{1:016x}.parquet"):
        assert SpoolName.parse(other) is None


def test_chunks(tmp_path: Path) -> None:
    path = tmp_path / str(SpoolName(RUN, 50, RECORDS))
    path.write_bytes(records(25).tobytes() + b"x" * 63)
    assert [(at, len(part)) for at, part in chunks(path, 10)] == [(50, 10), (60, 10), (70, 5)]


def test_counters_line_that_is_half(tmp_path: Path) -> None:
    path = tmp_path / "c.counters"
    path.write_bytes(b'{"host":"h"}\n{"time":1}\n{"time":2}\n{"ti')
    assert [row["time"] for row in counter_rows(path)] == [1, 2]
    assert json.loads(path.read_bytes().split(b"\n")[0]) == {"host": "h"}
