"""Several processes on one daemon: exact accounts, deaths, and what is left of the dead."""

import contextlib
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wheeld
from common_fixtures import connected, embedded
from daemons import status_of, until
from local_wheel import MS, SECOND, LocalWheel
from wheeld_client import Timers, connect

LONG = 60.0
processes = multiprocessing.get_context("spawn")


# -- accounts ------------------------------------------------------------

WORKERS, EACH = 4, 4000
SCHEDULED, WON, RECEIVED, COUNTS = range(4)


def take_part(name: str, me: int, seed: int, board: Any, counts: Any, answer: Connection) -> None:
    rng = np.random.default_rng([seed, me])
    ids = np.frombuffer(board, np.uint64).reshape(WORKERS, EACH)
    account = np.frombuffer(counts, np.int64).reshape(WORKERS, COUNTS)
    won: list[int] = []
    got: list[int] = []
    with connect(name, worker=f"part-{me}") as timers:
        answer.send("here")
        answer.recv()
        for i in range(EACH):
            to = None if rng.random() < 0.6 else f"part-{rng.integers(WORKERS)}"
            ids[me, i] = timers.schedule(float(rng.exponential(0.01)), i, to=to)
            account[me, SCHEDULED] += 1
            victim = ids[rng.integers(WORKERS), rng.integers(EACH)]
            if victim and timers.cancel(int(victim)):
                won.append(int(victim))
            if i % 16 == 0:
                got += timers.poll()["timer_id"].tolist()
            account[me, WON:] = len(won), len(got)
        give_up = time.monotonic() + LONG
        while account[:, SCHEDULED].sum() != account[:, WON:].sum() and time.monotonic() < give_up:
            got += timers.poll(0.01)["timer_id"].tolist()
            account[me, RECEIVED] = len(got)
        answer.send((won, got + timers.poll()["timer_id"].tolist(), timers.pending))
        answer.recv()  # a worker that leaves takes its timers with it: wait for all


def test_account_is_exact(rng_seed: int) -> None:
    board = processes.RawArray("Q", WORKERS * EACH)
    counts = processes.RawArray("q", WORKERS * COUNTS)
    with wheeld.embedded(capacity=65_536) as name:
        pipes, running = [], []
        for me in range(WORKERS):
            ours, theirs = processes.Pipe()
            arguments = (name, me, rng_seed, board, counts, theirs)
            running.append(processes.Process(target=take_part, args=arguments))
            running[-1].start()
            pipes.append(ours)
        assert [pipe.recv() for pipe in pipes] == ["here"] * WORKERS
        for pipe in pipes:
            pipe.send("go")
        ends = [pipe.recv() for pipe in pipes]
        assert status_of(name)["pending"] == 0
        for pipe in pipes:
            pipe.send("go home")
        for process in running:
            process.join(LONG)
            assert process.exitcode == 0
        assert not any(worker["offences"] for worker in status_of(name)["workers"])
    ids = np.sort(np.frombuffer(board, np.uint64))
    ended = np.sort(np.array([id for won, got, _ in ends for id in won + got], np.uint64))
    assert len(np.unique(ids)) == WORKERS * EACH
    assert np.array_equal(ended, ids), f"seed {rng_seed}: lost, doubled or unexpected"
    assert all(pending == 0 for _, _, pending in ends)


# -- deaths ------------------------------------------------------------

VICTIM = """
import sys, numpy as np
from wheeld_client import connect
timers = connect(sys.argv[1], worker="victim")
{work}
print("ready", flush=True)
sys.stdin.read()
timers.close()
"""


class Victim:
    """A program with one worker, "victim", that does `work` and then waits for its end."""

    def __init__(self, name: str, work: str) -> None:
        command = [sys.executable, "-c", VICTIM.format(work=work), name]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            self.end("killed")
            pytest.fail("the victim did not get ready; see its messages")

    def kill(self) -> None:
        self._process.kill()

    def end(self, how: str) -> None:
        with self._process:
            if how == "killed":
                self.kill()
            self._process.communicate(timeout=LONG)


def worker_names(name: str) -> list[str]:
    return [worker["name"] for worker in status_of(name)["workers"]]


daemon = embedded(scope="function", capacity=1024, max_workers=2)
timers = connected(worker="survivor")


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_departed_worker_leaves_nothing(daemon: str, how: str) -> None:
    files = set(os.listdir(daemon))
    for _ in range(3):
        victim = Victim(daemon, "timers.schedule_many(np.full(1024, 500.0))")
        assert status_of(daemon)["pending"] == 1024
        victim.end(how)
        until(lambda: worker_names(daemon) == [], "departed")
        assert (status_of(daemon)["pending"], status_of(daemon)["counters"]["linked"]) == (0, 0)
        ours = [segment for segment in os.listdir("/dev/shm") if Path(daemon).name in segment]
        assert len(ours) == 6
        assert set(os.listdir(daemon)) == files
        with connect(daemon, worker="victim") as successor:
            assert len(successor.schedule_many(np.full(1024, 500.0))) == 1024


HOLDS_THE_CONNECTION = """
import os
timers.schedule(500.0)
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
"""


def test_death_is_seen_though_a_child_holds_the_connection(daemon: str) -> None:
    victim = Victim(daemon, HOLDS_THE_CONNECTION)
    victim.kill()
    until(lambda: worker_names(daemon) == [], "departed")
    assert status_of(daemon)["pending"] == 0
    victim.end("closed")


@pytest.mark.parametrize("how", ["killed", "closed"])
@pytest.mark.parametrize("read", ["pending", "unread"])
def test_timers_sent_to_the_dead_return(daemon: str, timers: Timers, how: str, read: str) -> None:
    victim = Victim(daemon, "")
    ids = timers.schedule_many(np.full(300, 0.3 if read == "pending" else 0.0), 5, to="victim")
    if read == "unread":
        until(lambda: timers.pending == 0, "fired")
    victim.end(how)
    got: list[int] = []
    while len(got) < 300:
        events = timers.poll(LONG)
        assert len(events)
        got += events["timer_id"].tolist()
    assert sorted(got) == sorted(ids.tolist())
    assert timers.pending == len(timers.poll()) == 0
    until(lambda: worker_names(daemon) == ["survivor"], "departed")
    assert len(timers.schedule_many(np.full(1024, 5.0))) == 1024


def test_events_on_loan_survive_their_owner(daemon: str, timers: Timers) -> None:
    victim = Victim(daemon, "[timers.schedule(0.0, i, to='survivor') for i in range(400)]")
    victim.end("killed")
    got: list[int] = []
    while events := timers.poll(0.5)["cookie"].tolist():
        got += events
    assert len(got) == len(set(got))
    until(lambda: worker_names(daemon) == ["survivor"], "departed")
    assert len(timers.schedule_many(np.full(1024, 5.0))) == 1024


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("chain", [2, 3])
def test_workers_that_die_with_loans_to_each_other(order: tuple[int, int], chain: int) -> None:
    with LocalWheel(max_workers=chain) as wheel:
        workers = [wheel.worker(row) for row in range(chain)]
        for row, worker in enumerate(workers):
            worker.schedule_many([0.01] * 70, to=f"w{(row + 1) % chain}")
            worker.schedule_many([5.0] * 70, to=f"w{(row + 1) % chain}")
        wheel.advance(20 * MS)
        for row in [*order, *range(2, chain)]:
            wheel.depart(row)
        assert sorted(wheel.settle() + wheel.advance(SECOND)) == list(range(chain))
        assert wheel.clock.check() == 0
        assert not wheel.slots.owners.any()
        assert len(wheel.worker(0).schedule_many(np.ones(1024))) == 1024


# -- embedded daemons ------------------------------------------------------------

PROGRAM = """
import signal, time, wheeld
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored above us
from wheeld_client import connect
with wheeld.embedded(capacity=1024) as name:
    timers = connect(name)
    timers.schedule(1000.0)
    print(name, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_embedded_daemon_goes_with_its_program(number: int) -> None:
    pipe = subprocess.PIPE
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=pipe, stderr=pipe, text=True)
    assert program.stdout is not None
    name = Path(program.stdout.readline().strip())
    facts = json.loads((name / "daemon.json").read_text())
    pidfds = [os.pidfd_open(facts[key]) for key in ("pid", "clock_pid")]
    program.send_signal(number)
    program.communicate(timeout=LONG)
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], LONG)[0]
        os.close(pidfd)
    assert not [segment for segment in os.listdir("/dev/shm") if name.name in segment]
    assert not name.exists()
    until(lambda: not name.parent.exists(), f"{name.parent} removed")


def test_embedded_daemon_that_was_killed_leaves_nothing() -> None:
    with wheeld.embedded(capacity=1024) as name:
        timers = connect(name)
        facts = json.loads((Path(name) / "daemon.json").read_text())
        os.kill(facts["clock_pid"], signal.SIGSTOP)
        os.kill(facts["pid"], signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it dies with its supervisor
            os.kill(facts["clock_pid"], signal.SIGKILL)
        timers.close()
    assert not [segment for segment in os.listdir("/dev/shm") if Path(name).name in segment]
    assert not Path(name).parent.exists()
