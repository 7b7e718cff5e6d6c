"""Ring, spool, Parquet: nothing is lost or doubled, whatever a recorder was at when it was killed.

Here with one thread and a ring in private memory; test_recorder_daemon.py kills real ones. Names,
clocks and the remains of other recorders are tested here, too.
"""

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recorder_alone import Recorder, left, small_spools
from recorder_records import OFFSETS, ORIGIN, RUN, Ring, cookies, facts, read, records
from wheeld.recorder import facts as facts_module, parquet, ring_reader
from wheeld.recorder.facts import Facts, Offsets
from wheeld.recorder.process import abandoned
from wheeld.recorder.spool import (
    FACTS,
    RECORDS,
    RecordSpool,
    SpoolName,
    chunks,
    counter_rows,
    record_size,
    spools,
)
from wheeld_core import _native

settings = pytest.fixture(autouse=True)(small_spools)


def test_all_becomes_parquet(ring: Ring, tmp_path: Path) -> None:
    recorder = Recorder(ring, tmp_path).resume()
    ring.more(250)
    assert recorder.take() == 250
    assert recorder.converter.waiting == 2
    assert ring.view.waiting == 0
    recorder.finish()
    assert cookies(tmp_path) == list(range(250))
    assert [rows for _, rows in recorder.files] == [100, 100, 50]
    assert [path.name for path, _ in recorder.files] == [
        f"{RUN}-{(5 << 40) + at:016x}.parquet" for at in (0, 100, 200)
    ]
    assert left(tmp_path) == []
    assert recorder.said == []


def test_it_takes_what_was_there_when_it_looked(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(ring, tmp_path).resume()
    ring.more(90)
    tail, take = ring.view.tail, _native.trace_take

    def and_more_come(*arguments: Any) -> int:
        ring.more(60)
        return int(take(*arguments))

    monkeypatch.setattr(_native, "trace_take", and_more_come)
    assert recorder.intake.take(tail) == 90
    assert ring.view.head == tail


def test_around_the_end_of_the_ring_and_of_64_bits(tmp_path: Path) -> None:
    ring = Ring(bits=6, position=2**64 - 70)
    recorder = Recorder(ring, tmp_path).resume()
    for _ in range(5):
        ring.more(40)
        recorder.take()
    recorder.finish()
    assert cookies(tmp_path) == list(range(200))


# -- killed after each step ------------------------------------------------------------------------


def test_killed_before_the_spool_was_removed(ring: Ring, tmp_path: Path) -> None:
    ring.more(30)
    first = Recorder(ring, tmp_path).resume()
    first.take()
    path = spools(tmp_path / "_spool", RECORDS)[0]
    parquet.convert_records(path, tmp_path, lambda *_: None, first.said.append)
    assert cookies(tmp_path) == list(range(30))
    ring.more(20)
    Recorder(ring, tmp_path).resume().finish()
    assert cookies(tmp_path) == list(range(50))
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_two_spools_left(ring: Ring, tmp_path: Path) -> None:
    first = Recorder(ring, tmp_path).resume()
    ring.more(130)
    first.take()
    second = Recorder(ring, tmp_path).resume()
    ring.more(10)
    second.finish()
    assert cookies(tmp_path) == list(range(140))
    assert [rows for _, rows in second.files] == [100, 40]


def test_spool_without_facts(ring: Ring, tmp_path: Path) -> None:
    made = tmp_path / "_spool"
    made.mkdir()
    (made / f"{RUN}-{ring.view.head:016x}{FACTS}").write_bytes(b'{"segment":"x","ho')
    ring.more(10)
    Recorder(ring, tmp_path).resume().finish()
    assert cookies(tmp_path) == list(range(10))
    assert {row["worker"] for row in read(tmp_path)} == {"w0"}
    assert left(tmp_path) == []


class Killed(BaseException):
    """The process is no more."""


@contextmanager
def killed_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Iterator[Callable[[], int]]:
    """Each step that changes what outlives the process is counted; at step `number` it is killed,
    before the step or, of a write, in its middle. Nothing that comes after has any effect."""
    steps = 0

    def guarded(step: Callable[..., Any], half: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == number and half:
                fd, data = arguments
                step(fd, memoryview(data)[: len(data) // 2])
            if steps >= number:
                raise Killed
            return step(*arguments, **more)

        return call

    with monkeypatch.context() as patch:
        for name in ("write", "ftruncate", "fsync", "rename", "unlink", "mkdir", "rmdir"):
            patch.setattr(os, name, guarded(getattr(os, name), name == "write"))
        for name in ("trace_release",):
            patch.setattr(_native, name, guarded(getattr(_native, name), False))
        yield lambda: steps


def live(ring: Ring, trace: Path) -> None:
    recorder = Recorder(ring, trace).resume()
    recorder.finish()
    assert recorder.said == []
    assert [text for text in recorder.trouble if text] == []


def test_killed_at_each_step(ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    number = reached = 0
    while reached >= number:
        number += 1
        trace = tmp_path / str(number)
        trace.mkdir()
        ring = Ring()
        ring.more(130)
        with killed_at(monkeypatch, number) as count:
            with suppress(Killed):
                live(ring, trace)
            reached = count()
        ring.more(20)
        live(ring, trace)
        assert cookies(trace) == list(range(150)), f"killed at step {number}"
        assert left(trace) == []
    assert number > 30


def test_killed_again_and_again(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng_seed: int
) -> None:
    rng = np.random.default_rng(rng_seed)
    for _ in range(60):
        ring.more(int(rng.integers(0, min(90, ring.view.size - ring.view.waiting))))
        with killed_at(monkeypatch, int(rng.integers(1, 40))), suppress(Killed):
            live(ring, tmp_path)
    live(ring, tmp_path)
    assert cookies(tmp_path) == list(range(ring.written))
    assert left(tmp_path) == []


# -- the system refuses ----------------------------------------------------------------------------


def test_no_room_for_the_spool(ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(ring, tmp_path).resume()
    ring.more(30)
    recorder.take()
    ring.more(30)

    def full(fd: int, data: Any) -> int:
        if len(data) > 1000:
            return write(fd, memoryview(data)[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space left"):
                recorder.take()
            assert ring.view.waiting == 30
    path = spools(tmp_path / "_spool", RECORDS)[0]
    assert path.stat().st_size == 30 * record_size()
    recorder.finish()
    assert cookies(tmp_path) == list(range(60))


def test_no_room_for_parquet(ring: Ring, tmp_path: Path) -> None:
    (tmp_path / "events").write_text("in the way")
    ring.more(10)
    recorder = Recorder(ring, tmp_path).resume()
    recorder.finish()
    assert len(left(tmp_path)) == 2
    assert any(str(tmp_path / "events") in str(text) for text in recorder.trouble)
    assert recorder.trouble[-1] is not None
    (tmp_path / "events").unlink()
    recorder.convert()
    assert cookies(tmp_path) == list(range(10))
    assert recorder.trouble[-1] is None
    assert left(tmp_path) == []


def test_directory_removed(ring: Ring, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.mkdir()
    recorder = Recorder(ring, trace).resume()
    ring.more(30)
    recorder.take()
    for path in (*(trace / "_spool").iterdir(), trace / "_spool", trace):
        path.rmdir() if path.is_dir() else path.unlink()
    ring.more(30)
    recorder.finish()
    assert cookies(trace) == list(range(30, 60))
    assert len(recorder.said) == 1
    assert "was removed with 30 records" in recorder.said[0]


def test_spool_was_cut(ring: Ring, tmp_path: Path) -> None:
    first = Recorder(ring, tmp_path).resume()
    ring.more(30)
    first.take()
    path = spools(tmp_path / "_spool", RECORDS)[0]
    os.truncate(path, 25 * record_size())
    ring.more(5)
    second = Recorder(ring, tmp_path).resume()
    second.finish()
    assert cookies(tmp_path) == [*range(25), *range(30, 35)]
    assert second.said == [f"{path} was cut: 5 records are missing"]


def test_spool_of_another_ring_of_the_run(tmp_path: Path) -> None:
    old = Ring(position=5 << 40)
    recorder = Recorder(old, tmp_path).resume()
    old.more(20)
    recorder.take()
    new = Ring(position=6 << 40)
    new.written = 20
    new.more(20)
    second = Recorder(new, tmp_path).resume()
    second.finish()
    assert cookies(tmp_path) == list(range(40))
    assert second.said == []


def test_records_that_are_none(ring: Ring, tmp_path: Path) -> None:
    recorder = Recorder(ring, tmp_path).resume()
    ring.more(30)
    recorder.take()
    path = spools(tmp_path / "_spool", RECORDS)[0]
    with path.open("r+b") as file:
        file.seek(10 * record_size())
        file.write(b"\0" * 3 * record_size() + b"\xff" * record_size())
    recorder.finish()
    assert cookies(tmp_path) == [*range(10), *range(14, 30)]
    assert recorder.said == [f"{path.name}: 4 records of no known kind were left out"]


def test_spool_that_cannot_be_read(ring: Ring, tmp_path: Path) -> None:
    recorder = Recorder(ring, tmp_path).resume()
    ring.more(30)
    recorder.take()
    path = spools(tmp_path / "_spool", RECORDS)[0]
    path.with_suffix(FACTS).unlink()
    recorder.finish()
    assert path.with_name(path.name + ".refused").exists()
    assert "is kept as" in recorder.said[0]
    assert read(tmp_path) == []


def test_a_spool_that_is_set_aside_keeps_its_facts(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(ring, tmp_path).resume()
    ring.more(30)
    recorder.take()
    path = spools(tmp_path / "_spool", RECORDS)[0]
    known = path.with_suffix(FACTS).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(parquet.columns, "event_table", _unreadable)
        recorder.finish()
    assert "is kept as" in recorder.said[0]
    Recorder(ring, tmp_path).resume()
    kept = path.with_suffix(FACTS)
    assert kept.with_name(kept.name + ".refused").read_bytes() == known
    assert path.with_name(path.name + ".refused").stat().st_size == 30 * record_size()


def _unreadable(*_: object) -> None:
    raise ValueError("of another version")


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
