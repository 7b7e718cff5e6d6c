"""`replay` against real daemons: exact accounts, full wheels, deaths, Ctrl-C."""

import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest
from workloads import all_of, requests, save

import wheeld
from daemons import until
from programs import start_program
from wheeld_client import DaemonNotRunning, connect
from wheeld_client.replay import Feed, Player
from wheeld_pipeline import PipelineError
from wheeld_pipeline.replay import replay, source
from wheeld_pipeline.workload import Model

ROWS = 20_000
MODEL = Model.constant(rate=20_000, timeouts_ms=((100, 1), (200, 1)))


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    return save(tmp_path / "w.parquet", all_of(MODEL, ROWS))


def test_each_request_ends_as_the_workload_says(tmp_path: Path) -> None:
    count = 2000
    latencies = np.arange(count) % 97 * 1.0
    columns = requests(np.arange(count) / 4, latencies, 48.0, np.arange(count) % 3 * 20)
    found = source.look(save(tmp_path / "w.parquet", columns))
    with (
        wheeld.embedded(capacity=4096, virtual_clock=True, payload_bytes=40) as daemon,
        connect(daemon) as timers,
    ):
        player = Player(timers, Feed(source.stream(found, 0, 1), 1.0), 0, 1, timers.now_ns())
        for _ in range(700):
            player.turn(timers.now_ns())
            player.receive(0.0)
            daemon.advance(0.001)
        assert player.turn(timers.now_ns()) is None
    account = player.account
    # taken up at whole ms and cancelled at most a turn later
    in_time = int((latencies < 48 - 3).sum())
    not_in_time = int((latencies >= 48).sum())
    assert account.scheduled == count
    assert in_time <= account.cancelled <= count - not_in_time
    assert account.expired == count - account.cancelled
    assert player.late == account.expired - not_in_time
    assert (account.doubled, account.strangers, sum(account.faults.values())) == (0, 0, 0)
    behind = player.behind.percentiles_ms()
    assert behind is not None
    assert behind["max"] <= 1.0


@pytest.mark.parametrize("speed", ["max", "2"])
def test_a_replay_accounts_for_every_request(workload: Path, speed: str) -> None:
    told: list[int] = []
    with wheeld.embedded(capacity=200_000, payload_bytes=104) as name:
        outcome = replay(workload, name, speed=speed, workers=3, tell=told.append)
    assert outcome.faults == {}
    assert outcome.requests == outcome.scheduled == ROWS
    assert outcome.cancelled + outcome.expired == ROWS
    columns = all_of(MODEL, ROWS)
    in_time = int((columns["latency_ns"] < columns["timeout_ns"]).sum())
    assert outcome.cancelled + outcome.late == in_time
    assert outcome.counters["scheduled"] == ROWS
    assert outcome.workers == 3
    assert (outcome.asked_per_s is None) == (speed == "max")
    assert (outcome.behind_ms is None) == (speed == "max")
    assert told == sorted(told)
    assert "OK: every request ended exactly once" in outcome.text()


def test_a_full_wheel_slows_down_and_loses_nothing(tmp_path: Path) -> None:
    columns = requests(np.zeros(3000), np.arange(3000) % 20 * 1.0, 10.0, np.arange(3000) % 2 * 8)
    path = save(tmp_path / "w.parquet", columns)
    with wheeld.embedded(capacity=256, payload_bytes=8) as name:
        outcome = replay(path, name, speed="1", workers=2)
    assert outcome.faults == {}
    assert outcome.scheduled == 3000
    assert outcome.wheel_full > 0
    assert outcome.wheel_full_s > 0
    assert "WHEEL FULL" in outcome.text()


def test_payloads_need_room(workload: Path) -> None:
    with wheeld.embedded(capacity=50_000) as name:
        with pytest.raises(PipelineError, match=r"up to 100 bytes, and the daemon in .* holds 0"):
            replay(workload, name)
        assert replay(workload, name, speed="max", payloads=False).faults == {}


def test_without_a_daemon_nothing_starts(workload: Path, daemon_name: str) -> None:
    with pytest.raises(DaemonNotRunning, match=daemon_name):
        replay(workload, daemon_name)


def test_values_that_a_worker_finds_wrong_are_told(tmp_path: Path) -> None:
    columns = requests(np.arange(1000), 5, 10) | {"latency_ns": np.full(1000, -3)}
    path = save(tmp_path / "w.parquet", columns)
    with wheeld.embedded(capacity=5000) as name:
        with pytest.raises(PipelineError, match=r"w\.parquet: column latency_ns: got -3"):
            replay(path, name)
        with connect(name) as timers:
            assert timers.stats()["wheel"]["linked"] == 0


@pytest.mark.parametrize("workers", [0, 1000])
def test_a_wrong_number_of_workers_is_refused(workload: Path, workers: int) -> None:
    with pytest.raises(PipelineError, match="workers: got"):
        replay(workload, workers=workers)


# -- the command, and what goes wrong in the middle -----------------------------------------------


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return save(tmp_path / "slow.parquet", requests(np.arange(60_000) * 5, 1000, 60_000))


def start(environment: dict[str, str], *options: str) -> subprocess.Popen[str]:
    return start_program(environment, "-m", "wheeld", "pipeline", "replay", *options)


def errors_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("replay: ")]


def linked(name: str) -> int:
    with connect(name) as timers:
        return int(timers.stats()["wheel"]["linked"])


def test_the_command_prints_the_account(private: dict[str, str], workload: Path) -> None:
    with wheeld.embedded(capacity=50_000, payload_bytes=104) as name:
        running = start(private, str(workload), "--name", name, "--speed", "max", "--json")
        out, err = running.communicate()
    assert running.returncode == 0, err
    content = json.loads(out)
    assert content["scheduled"] == ROWS
    assert content["faults"] == {}
    assert content["kept_up"] is True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_it_leaves_nothing(
    private: dict[str, str], slow: Path, number: int
) -> None:
    with wheeld.embedded(capacity=50_000) as name:
        running = start(private, str(slow), "--name", name)
        until(lambda: linked(name) > 10, "requests wait")
        everyone = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(number)
        out, err = running.communicate()
        assert (running.returncode, out, errors_of(err)) == (130, "", [])
        assert psutil.wait_procs(everyone, timeout=30)[1] == []
        until(lambda: linked(name) == 0, "nothing waits")


def test_a_worker_that_dies_ends_the_replay(private: dict[str, str], slow: Path) -> None:
    with wheeld.embedded(capacity=50_000) as name:
        running = start(private, str(slow), "--name", name)
        until(lambda: linked(name) > 10, "requests wait")
        victim, *others = psutil.Process(running.pid).children(recursive=True)
        victim.kill()
        _, err = running.communicate()
        assert running.returncode == 1
        assert f"(pid {victim.pid}) was killed by signal 9; its requests cannot be" in err
        assert psutil.wait_procs(others, timeout=30)[1] == []


def test_a_daemon_that_stops_ends_the_replay(private: dict[str, str], slow: Path) -> None:
    with wheeld.embedded(capacity=50_000) as name:
        running = start(private, str(slow), "--name", name)
        until(lambda: linked(name) > 10, "requests wait")
    _, err = running.communicate()
    assert running.returncode == 1
    (said,) = errors_of(err)
    assert said.startswith("wheeld: ")
    assert "daemon" in said


def test_workers_end_when_their_parent_is_killed(private: dict[str, str], slow: Path) -> None:
    with wheeld.embedded(capacity=50_000) as name:
        running = start(private, str(slow), "--name", name)
        until(lambda: linked(name) > 10, "requests wait")
        everyone = psutil.Process(running.pid).children(recursive=True)
        running.kill()
        running.communicate()
        assert psutil.wait_procs(everyone, timeout=30)[1] == []
        until(lambda: linked(name) == 0, "nothing waits")
    for left in Path(private["TMPDIR"]).iterdir():  # nobody is left to remove it
        assert left.name.startswith("wheeld-replay-")
        for file in left.iterdir():
            file.unlink()
        left.rmdir()
