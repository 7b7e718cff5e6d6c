"""Recording by real daemons: the trace says exactly what the workers say."""

import grp
import json
import os
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import wheeld
from daemons import stopped, until
from recorded import Recording, account, drain, load
from recorder_records import read
from wheeld_client import connect

MS = 10**6


# -- the account -----------------------------------------------------------------------------------


def test_counts_are_the_workers_own(recording: Recording, rng_seed: int) -> None:
    recording.daemon.start()
    rng = np.random.default_rng(rng_seed)
    with recording.worker("a") as a, recording.worker("b") as b:
        for _ in range(20):
            load(a, rng, 300)
            load(b, rng, 100)
            recording.advance(30 * MS)
        recording.advance(1000 * MS)
        drain(a)
        drain(b)
        expected = account(a, b)
        by_worker = {"a": account(a), "b": account(b)}
        recording.daemon.stop()
    assert recording.counts() == expected
    rows = recording.rows()
    for name, own in by_worker.items():
        mine: Counter[str] = Counter()
        for row in rows:
            mine[row["event"]] += row["count"] if row["worker"] == name else 0
        assert dict(mine) == own
    last = recording.last()
    assert {kind: last[kind] for kind in expected} == expected
    assert (last["lost"], last["ended"], last["fired"]) == (0, 0, expected["expired"])
    assert recording.spooled() == []


def test_a_life_of_a_timer(recording: Recording, daemon_name: str) -> None:
    start = datetime(2026, 11, 21, 12, 59, 59, tzinfo=UTC)
    start_ns = int(start.timestamp()) * 10**9
    recording.daemon.start(virtual_start=start_ns, payload_bytes=16)
    with recording.worker("a") as a, recording.worker("b") as b:
        id = a.schedule(0.5, 2**64 - 1, payload=b"12345", to="b")
        recording.advance(0)
        a.reschedule(id, 2.0)
        recording.advance(3000 * MS)
        drain(b)
        drain(a)
        recording.daemon.stop()
    rows = recording.rows()
    assert [row["event"] for row in rows] == ["scheduled", "rescheduled", "expired"]
    for row in rows:
        assert (row["timer_id"], row["cookie"], row["payload_bytes"]) == (id, -1, 5)
        assert (row["worker"], row["daemon"], row["periodic"]) == ("a", daemon_name, False)
        assert row["scheduled"] == start
    scheduled, _, expired = rows
    assert scheduled["delay_ns"] == 500 * MS
    assert (scheduled["pending"], expired["pending"]) == (1, 0)
    assert (scheduled["receiver"], expired["receiver"]) == (None, "b")
    assert expired["delay_ns"] == 2000 * MS
    assert expired["time"] == expired["deadline"] == start.replace(hour=13, minute=0, second=1)
    assert expired["lateness_ns"] == 0
    hours = {path.parent.name for path in (recording.trace / "events").rglob("*.parquet")}
    assert hours == {"hour=12", "hour=13"}


def test_on_the_real_clock(recording: Recording) -> None:
    before = datetime.now(UTC)
    recording.daemon.options.pop("virtual_clock")
    recording.daemon.start()
    with recording.worker("a") as a:
        a.schedule_many(np.full(100, 0.001))
        a.schedule(0.001, interval=0.002)
        ticks = 0
        while a.stats()["received"] < 150:
            ticks += len(a.poll(1.0))
        recording.daemon.stop()
    rows = recording.rows()
    assert {row["event"] for row in rows} == {"scheduled", "expired"}
    assert all(before <= row["time"] <= datetime.now(UTC) for row in rows)
    expired = [row for row in rows if row["event"] == "expired"]
    assert all(row["lateness_ns"] >= 0 for row in expired)
    assert sum(row["periodic"] for row in rows if row["event"] == "scheduled") == 1
    assert len(expired) >= 150
    assert recording.last()["expired"] == len(expired)
    counters = read(recording.trace, "counters")
    assert all(before <= row["time"] <= datetime.now(UTC) for row in counters)


def test_names_of_workers_that_came_and_went(recording: Recording) -> None:
    recording.daemon.start(max_workers=1)
    with stopped(recording.recorder_pid):
        for number in range(12):
            with recording.worker(f"w{number}") as timers:
                timers.schedule(10.0)
                recording.advance(MS)
    recording.kill_recorder()
    recording.daemon.stop()
    found = Counter((row["worker"], row["event"]) for row in recording.rows())
    assert found == {(f"w{n}", event): 1 for n in range(12) for event in ("scheduled", "dropped")}


def test_lost_events_are_counted(recording: Recording) -> None:
    recording.daemon.start(trace_ring=64)
    with recording.worker("a") as a:
        with stopped(recording.recorder_pid):
            for _ in range(5):
                a.cancel_many(a.schedule_many(np.full(200, 1.0))[:50])
                recording.advance(MS)
            recording.advance(5000 * MS)
            drain(a)
            assert recording.status()["lost"] > 1000
        a.schedule(0.001)
        recording.advance(10 * MS)
        drain(a)
        expected = account(a)
        recording.daemon.stop()
    assert recording.counts() == expected
    last = recording.last()
    lost = sum(row["count"] for row in recording.rows() if row["event"] == "lost")
    assert last["lost"] == lost > 1000
    assert {kind: last[kind] for kind in ("scheduled", "cancelled", "expired")} == {
        kind: expected[kind] for kind in ("scheduled", "cancelled", "expired")
    }


# -- start, again, otherwise -----------------------------------------------------------------------


def test_trace_is_switched_off_and_on(recording: Recording) -> None:
    daemon = recording.daemon.start()
    with recording.worker("a") as a:
        a.schedule_many(np.full(10, 1.0))
        recording.advance(MS)
        until(lambda: recording.status()["behind"] == 0, "kept")
        daemon.kill()
        trace = daemon.options.pop("trace")
        daemon.start()
        assert daemon.status()["trace"] is None
        assert not daemon.segment_path("trace").exists()
        a.schedule_many(np.full(10, 1.0))
        recording.advance(MS)
        daemon.kill()
        daemon.start(trace=trace)
        recording.advance(2000 * MS)
        drain(a)
        daemon.stop()
    rows = recording.rows()
    found = Counter((row["event"], row["found"]) for row in rows)
    assert found == {("scheduled", False): 10, ("scheduled", True): 20, ("expired", False): 20}
    assert len({row["run"] for row in rows}) == 1


def test_another_ring_is_refused(recording: Recording) -> None:
    daemon = recording.daemon.start(trace_ring=128)
    daemon.kill()
    before = daemon.segments()
    message = daemon.refused(trace_ring=256)
    for words in ("--trace-ring 128", "this start: 256", "--fresh"):
        assert words in message
    assert daemon.segments() == before
    daemon.start(trace_ring=128)
    daemon.stop()
    assert daemon.nothing_left()


def test_broken_trace_segment_is_made_anew(recording: Recording) -> None:
    daemon = recording.daemon.start()
    with recording.worker("a") as a:
        a.schedule(1.0)
        recording.advance(MS)
        daemon.kill()
        daemon.head("trace")["token"] = 1
        daemon.start()
        recording.advance(2000 * MS)
        drain(a)
        daemon.stop()
    assert "the trace" in daemon.said()
    assert "cannot be used" in daemon.said()
    assert recording.counts()["expired"] == 1


def test_no_pyarrow(recording: Recording) -> None:
    program = "import sys; sys.modules['pyarrow'] = None; import wheeld.cli.app as cli; cli.app()"
    recording.daemon.program = [sys.executable, "-c", program]
    assert "pip install '.[parquet]'" in recording.daemon.refused()
    assert recording.daemon.nothing_left()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text(""), "is not a directory"),
        (lambda path: path.symlink_to("/proc/self/mem"), "is not a directory"),
        (lambda path: path.symlink_to("/proc/self"), "give a directory that only uid"),
    ],
)
def test_unusable_directory(recording: Recording, make, words: str) -> None:
    make(recording.trace)
    message = recording.daemon.refused()
    assert str(recording.trace) in message
    assert words in message
    assert recording.daemon.nothing_left()


def test_segment_is_for_daemon_and_recorder_alone(recording: Recording) -> None:
    recording.daemon.start(group=grp.getgrgid(os.getgid()).gr_name)
    assert recording.daemon.segment_path("trace").stat().st_mode & 0o777 == 0o600
    recording.daemon.stop()


def test_status_and_doctor(recording: Recording) -> None:
    recording.daemon.start()
    command = [sys.executable, "-m", "wheeld"]
    where = ["--name", recording.daemon.name, "--runtime-dir", str(recording.daemon.base)]

    def run(*arguments: str) -> str:
        done = subprocess.run([*command, *arguments, *where], capture_output=True, text=True)
        return done.stdout

    with recording.worker("a") as a:
        a.schedule(1.0)
        recording.advance(MS)
        until(lambda: recording.status()["behind"] == 0, "kept")
        status = recording.status()
        assert {**status, "recorder_pid": None} == {
            "directory": str(recording.trace), "ring": 1 << 20, "recorded": 1, "lost": 0,
            "behind": 0, "recorder_pid": None, "restarts": 0, "last_file": None, "trouble": None,
        }  # fmt: skip
        text = run("status")
        assert f"trace       {recording.trace}" in text
        assert f"recorder pid {status['recorder_pid']}" in text
        findings = {f["name"]: f for f in json.loads(run("doctor", "--json"))["findings"]}
        assert (findings["recorder"]["status"], findings["trace"]["status"]) == ("ok", "ok")
        recording.kill_recorder()
        findings = {f["name"]: f for f in json.loads(run("doctor", "--json"))["findings"]}
        assert findings["recorder"]["status"] == "note"
        assert json.loads(run("fsck", "--json"))["damage"] == 0


def test_last_file(recording: Recording) -> None:
    recording.daemon.start(trace_every="100ms")
    with recording.worker("a") as a:
        a.schedule(1.0)
        recording.advance(MS)
        path = until(lambda: recording.status()["last_file"], "a file")
        assert Path(path).exists()
        until(lambda: recording.counts() == {"scheduled": 1}, "the event")


def test_embedded(tmp_path: Path) -> None:
    trace = tmp_path / "deep" / "trace"
    options = {"trace_ring": 1024, "trace_every": "1s", "trace_keep": "7d", "trace_bytes": "1G"}
    with wheeld.embedded(trace=trace, **options) as name, connect(name, worker="a") as timers:
        timers.schedule(0.001)
        assert len(timers.poll(60.0)) == 1
    found = {(row["event"], row["worker"]) for row in read(trace)}
    assert found == {("scheduled", "a"), ("expired", "a")}


def test_two_daemons_in_one_directory(recording: Recording, tmp_path: Path) -> None:
    recording.daemon.start(trace_every="100ms")
    with wheeld.embedded(trace=recording.trace, trace_every="100ms") as name:
        with connect(name, worker="other") as other, recording.worker("a") as a:
            other.schedule(0.001)
            a.schedule(1.0)
            recording.advance(MS)
            assert len(other.poll(60.0)) == 1
            recording.kill_recorder()
        recording.daemon.stop()
    found = Counter((row["event"], row["worker"]) for row in recording.rows())
    assert found == {
        ("scheduled", "a"): 1,
        ("dropped", "a"): 1, ("scheduled", "other"): 1,
        ("expired", "other"): 1,
    }  # fmt: skip
    assert recording.spooled() == []
