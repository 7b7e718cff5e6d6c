"""Recorder, clock and supervisor die, or the recorder cannot write: what the trace says then."""

import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np

from daemons import end_of, is_running, stopped, until
from recorded import Recording, account, drain, load
from wheeld.recorder.retention import files
from wheeld_core import segments

MS = 10**6


# -- deaths ----------------------------------------------------------------------------------------


def test_recorder_is_killed_again_and_again(recording: Recording, rng_seed: int) -> None:
    recording.daemon.start(trace_every="100ms")
    rng = np.random.default_rng(rng_seed)
    with recording.worker("a") as a:
        for _ in range(4):
            for _ in range(10):
                load(a, rng, 200)
                recording.advance(30 * MS)
            recording.kill_recorder()
        recording.advance(1000 * MS)
        drain(a)
        expected = account(a)
        assert recording.status()["restarts"] == 4
        recording.daemon.stop()
    assert recording.counts() == expected
    assert recording.last()["lost"] == 0
    assert recording.spooled() == []


def test_supervisor_is_killed(recording: Recording, rng_seed: int) -> None:
    recording.daemon.start()
    rng = np.random.default_rng(rng_seed)
    with recording.worker("a") as a:
        for _ in range(3):
            load(a, rng, 300)
            recording.advance(30 * MS)
            gone = end_of(recording.recorder_pid)
            recording.daemon.kill()
            gone()
            recording.daemon.start()
        load(a, rng, 300)
        recording.advance(1000 * MS)
        drain(a)
        expected = account(a)
        recording.daemon.stop()
    assert recording.counts() == expected
    assert len({row["run"] for row in recording.rows()}) == 1
    assert not any(row["found"] for row in recording.rows())
    assert recording.spooled() == []


def test_clock_is_killed(recording: Recording) -> None:
    recording.daemon.start()
    with recording.worker("a") as a:
        a.schedule_many(np.full(100, 1.0))
        recording.advance(MS)
        recording.daemon.kill_clock()
        a.schedule_many(np.full(100, 1.0))
        recording.advance(2000 * MS)
        drain(a)
        recording.daemon.stop()
    assert recording.counts() == {"scheduled": 200, "expired": 200}
    assert recording.last()["clock_epoch"] == 2


def test_all_are_killed_and_the_memory_is_gone(recording: Recording) -> None:
    daemon = recording.daemon.start()
    with recording.worker("a") as a:
        a.schedule_many(np.full(100, 1.0))
        recording.advance(MS)
        until(lambda: recording.status()["behind"] == 0, "kept")
        daemon.kill()
    shutil.rmtree(daemon.directory)
    for name in daemon.segments():
        segments.unlink(name)
    assert recording.spooled() != []
    daemon.start()
    until(lambda: recording.counts() == {"scheduled": 100}, "the other run's events")
    daemon.stop()
    assert recording.counts() == {"scheduled": 100}
    assert recording.spooled() == []


def test_stop_while_the_recorder_hangs(recording: Recording) -> None:
    patch = (
        "import wheeld.recorder.guard as guard, wheeld.cli.app as cli; guard.STOP_PATIENCE = 0.3; "
    )
    recording.daemon.program = [sys.executable, "-c", patch + "cli.app()"]
    recording.daemon.start()
    pid = recording.recorder_pid
    with recording.worker("a") as a, stopped(pid):
        a.schedule_many(np.full(100, 1.0))
        recording.advance(MS)
        recording.daemon.stop()
    assert not is_running(pid)
    assert f"recorder (pid {pid}) made no progress: killed" in recording.daemon.said()
    assert "100 events are not in the trace" in recording.daemon.said()


def test_recorder_dies_during_the_stop(recording: Recording) -> None:
    recording.daemon.start()
    process, pid = recording.daemon.process, recording.recorder_pid
    assert process is not None
    with recording.worker("a") as a:
        with stopped(pid):
            a.schedule_many(np.full(100, 1.0))
            recording.advance(MS)
            process.terminate()
            until(lambda: recording.daemon.find_clock() is None, "the end of the clock")
            os.kill(pid, signal.SIGKILL)
        assert process.wait(60) == 0
    assert recording.counts() == {"scheduled": 100}
    assert recording.last()["scheduled"] == 100


def test_recorder_that_never_starts(recording: Recording, tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "pyarrow"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('not for this machine')")
    program = "import os, sys; os.environ['PYTHONPATH'] = {!r} + ':' + os.environ.get('PYTHONPATH'"
    program += ", ''); import wheeld.cli.app as cli; cli.app()"
    recording.daemon.program = [sys.executable, "-c", program.format(str(broken.parent))]
    recording.daemon.start()
    with recording.worker("a") as a:
        a.schedule(0.001)
        recording.advance(5 * MS)
        assert len(a.poll()) == 1
    until(lambda: recording.status()["restarts"] >= 2, "restarts")
    recording.daemon.stop()
    assert "not for this machine" in recording.daemon.said()
    assert "events are not in the trace" in recording.daemon.said()


# -- it cannot write -------------------------------------------------------------------------------


def test_spool_cannot_be_written(recording: Recording) -> None:
    recording.daemon.start(trace_ring=256)
    spool = recording.trace / "_spool"
    with recording.worker("a") as a:
        shutil.rmtree(spool)
        spool.write_text("in the way")
        a.schedule_many(np.full(1000, 1.0))
        recording.advance(MS)
        until(lambda: recording.status()["trouble"], "trouble")
        assert str(spool) in recording.status()["trouble"]
        a.schedule_many(np.full(500, 1.0))
        recording.advance(2000 * MS)
        drain(a)
        spool.unlink()
        until(lambda: recording.status()["trouble"] is None, "no trouble")
        a.schedule(0.001)
        recording.advance(5 * MS)
        drain(a)
        expected = account(a)
        recording.daemon.stop()
    assert recording.counts() == expected
    said = recording.daemon.said()
    assert said.count("the recorder cannot write") == 1
    assert said.count("the recorder can write again") == 1


def test_parquet_cannot_be_written(recording: Recording) -> None:
    daemon = recording.daemon.start(trace_every="100ms")
    events = recording.trace / "events"
    events.write_text("in the way")
    with recording.worker("a") as a:
        a.schedule_many(np.full(100, 1.0))
        recording.advance(MS)
        until(lambda: recording.status()["trouble"], "trouble")
        daemon.stop()
    assert "the end of the trace stays in" in daemon.said()
    events.unlink()
    daemon.start()
    until(lambda: recording.counts() == {"scheduled": 100}, "the other run's events")
    daemon.stop()
    assert recording.counts() == {"scheduled": 100}
    assert recording.spooled() == []


def test_directory_is_removed(recording: Recording) -> None:
    recording.daemon.start()
    with recording.worker("a") as a:
        a.schedule(1.0)
        recording.advance(MS)
        until(lambda: recording.status()["behind"] == 0, "kept")
        shutil.rmtree(recording.trace)
        a.schedule(1.0)
        recording.advance(MS)
        recording.daemon.stop()
    assert recording.counts() == {"scheduled": 1}
    assert "was removed with 1 records" in recording.daemon.said()


def test_retention(recording: Recording) -> None:
    recording.daemon.start(trace_every="100ms", trace_bytes="20K")
    with recording.worker("a") as a:
        first: set[Path] = set()
        removed = False
        while not removed:
            a.cancel_many(a.schedule_many(np.full(500, 1.0)))
            recording.advance(MS)
            until(lambda: recording.status()["behind"] == 0, "kept")
            now = set(recording.trace.rglob("*.parquet"))
            removed = bool(first - now)
            first |= now
        recording.daemon.stop()
    left = files(recording.trace)
    newest = {file.path.relative_to(recording.trace).parts[0]: file for file in left}
    assert sum(file.size for file in left if file not in newest.values()) < 20 << 10
    assert recording.last()["lost"] == 0
