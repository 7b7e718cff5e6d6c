"""The broker example's commands: what its README shows, and everything under kills."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import wheeld
from daemons import LONG, Daemon, end_of, until
from examples.broker import demo, report, storage
from examples.broker.__main__ import app
from examples.broker.account import account
from examples.broker.load import Load
from examples.broker.parent import Broker
from examples.broker.settings import Settings
from examples.broker.workload import Plan

ROOT = Path(__file__).parent.parent
README = ROOT / "examples" / "broker" / "README.md"
BROKER = [sys.executable, "-m", "examples.broker"]


@pytest.fixture
def environment() -> dict[str, str]:
    """A free port, and the interpreter of the tests."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "BROKER_PORT": port}


def command(*arguments: str, environment: dict[str, str] | None = None, code: int = 0) -> str:
    """Run a command of the example; its output."""
    done = subprocess.run(
        [*BROKER, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * LONG,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def started(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A broker by `start`, ready."""
    process = subprocess.Popen(
        [*BROKER, "start"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    assert f"127.0.0.1:{environment['BROKER_PORT']}: 2 workers, 2 followers" in said
    yield process
    process.terminate()
    process.communicate(timeout=LONG)
    shutil.rmtree(said.split()[-1], ignore_errors=True)  # one that was killed could not


# -- under kills -------------------------------------------------------------------------------


def test_kills_under_load_lose_nothing(rng_seed: int) -> None:
    """Every request gets exactly one answer, every record is in the log exactly once."""
    arguments = ["demo", "--kill", "7", "--requests", "800", "--connections", "12"]
    figures = json.loads(command(*arguments, "--json", "--seed", str(rng_seed)))
    assert figures["exact"], figures
    assert figures["sent"] == figures["answered"] == 800
    assert figures["lost"] == figures["doubled"] == figures["unaccounted"] == 0
    assert figures["errors"] == figures["faults"] == {}
    assert figures["killed"] == {"worker": 5, "follower": 2}
    assert figures["restarts"] >= 7
    produced = figures["kinds"]["produce"]
    assert figures["records"] == sum(produced.get(name, 0) for name in ("ok", "timed-out"))
    assert figures["replica_bytes"] > 0
    assert figures["generations"] > 0
    assert figures["fetched_records"] > 0


def test_dead_clocks_lose_nothing(
    daemon_name: str, runtime_dir: Path, environment: dict[str, str]
) -> None:
    """Timeouts and triggers go on when the daemon's clock is killed, too."""
    environment["WHEELD_RUNTIME_DIR"] = str(runtime_dir)
    arguments = ["demo", "--kill", "2", "--requests", "800", "--name", daemon_name, "--json"]
    with Daemon(runtime_dir, daemon_name, pool="requests=1M").start() as daemon:
        process = subprocess.Popen(
            [*BROKER, *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            until(daemon.workers, "connected workers")
            for _ in range(3):
                daemon.kill_clock()
            figures = json.loads(process.communicate(timeout=2 * LONG)[0])
        finally:
            process.kill()
            process.communicate()
    assert process.returncode == 0, figures
    assert figures["exact"]
    assert figures["sent"] == figures["answered"] == 800


def test_account_of_a_broken_broker_is_not_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record that is in the log twice, as of a broker that does not know its producers."""

    async def run(daemon: str) -> dict[str, Any]:
        settings = Settings(str(tmp_path), daemon, 0, workers=1, followers=0, topics={"t": 1})
        async with Broker(settings) as broker:
            load = Load(Plan(2, 40, mix={"produce": 1}), "127.0.0.1", broker.settings.port)
            await load.run()
            (log,) = broker.settings.open_logs().values()
            (record,) = storage.records.unpack(log.read(3, 4, 1 << 20))
            log._write(log.log_end, [record])
            log.close()
            return await account(load)

    with wheeld.embedded(capacity=1024, pools=["requests=1M"]) as daemon:
        figures = asyncio.run(run(daemon))
    assert figures["faults"] == {"record doubled": 1}
    assert not figures["exact"]
    assert report.text({**figures, "seconds": 1.0}).endswith("NOT exact")


def test_kills_are_spread_over_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its progress: the load has not ended before the last of them."""

    class Everybody:
        """Counts kills; always ready."""

        settings = Settings("", "", 0)

        def __init__(self) -> None:
            self.children = Broker(self.settings).children
            for child in self.children:
                child.ready.set()
            self.at: list[int] = []

        def kill(self, child: Any) -> None:
            """Note when."""
            self.at.append(load.results.answered())

    load = Load(Plan(requests=100), "", 0)

    async def main() -> None:
        broker, killed = Everybody(), Counter[str]()
        killer = asyncio.create_task(demo.kill_some(broker, load, 4, killed))  # type: ignore[arg-type]
        for _ in range(100):
            load.results.note("fetch", "", 0.0)
            load._moved.set()
            for _ in range(5):
                await asyncio.sleep(0)
        await killer
        assert broker.at == [20, 40, 60, 80]
        assert killed == {"worker": 3, "follower": 1}

    asyncio.run(main())


# -- the commands ------------------------------------------------------------------------------


def test_readme_commands_run(environment: dict[str, str]) -> None:
    """One after the other, as they stand there."""
    (block,) = re.findall(r"```sh\n(.*?)```", README.read_text(), re.S)
    done = subprocess.run(
        ["bash", "-euc", block + "wait"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * LONG,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    (began,) = [line for line in lines if line.startswith("broker on 127.0.0.1:")]
    lines.remove(began)  # the first command may be answered before its last process is ready
    assert '"offset": 0' in lines[0]
    assert lines[1] == "0\thello"
    assert '"generation": 1' in lines[2]
    assert lines[3] == "1\t0\thello"
    assert "\nexact\n" in done.stdout
    assert '"worker": "worker-' in done.stdout


def test_readme_names_real_files_and_options() -> None:
    """Files in its text, options of its commands."""
    text = README.read_text()
    for name in re.findall(r"`(\w+\.py)`|\((\w+\.py)\)", text):
        assert (README.parent / "".join(name)).exists(), name
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    shown = {name for one in commands for option in one.params for name in option.opts}
    options = set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", text)) - {"--pool"}
    assert options <= shown


def test_uses_a_running_daemon(
    daemon_name: str, runtime_dir: Path, environment: dict[str, str]
) -> None:
    """By its name; a pool that it has not is named, and what pools there are."""
    environment["WHEELD_RUNTIME_DIR"] = str(runtime_dir)
    with Daemon(runtime_dir, daemon_name, pool="other=1M").start():
        arguments = ["demo", "--kill", "0", "--requests", "30", "--name", daemon_name]
        said = command(*arguments, "--pool", "other", environment=environment)
        assert said.endswith("exact\n")
        said = command(*arguments, environment=environment, code=1)
        assert "requests" in said
        assert "ended 3 times before it was ready" in said


@pytest.mark.usefixtures("started")
def test_errors_are_lines(environment: dict[str, str]) -> None:
    """Each with its exit code."""
    assert "unknown-partition" in command(
        "produce", "x", "--partition", "9", environment=environment, code=1
    )
    assert "offset-out-of-range" in command(
        "fetch", "--offset", "1", environment=environment, code=1
    )
    assert "timed-out" in command("join", "g", "--timeout", "0", environment=environment, code=1)
    assert "mix" in command("load", "--mix", "none=1", environment=environment, code=2)
    assert "Address already in use" in command("start", environment=environment, code=1)
    said = command("status", "--port", "9", "--patience", "0.1", environment=environment, code=3)
    assert "no broker at 127.0.0.1:9" in said


@pytest.mark.usefixtures("started")
def test_load_keeps_its_rate_and_ends_in_time(environment: dict[str, str]) -> None:
    """Not faster than asked for; without a number of requests, when its time is over."""
    rated = command("load", "--requests", "40", "--rate", "100", "--json", environment=environment)
    figures = json.loads(rated)
    assert figures["exact"]
    assert figures["sent"] == 40
    assert figures["seconds"] >= 0.39
    timed = command(
        "load", "--requests", "0", "--seconds", "0.5", "--json", environment=environment
    )
    figures = json.loads(timed)
    assert figures["exact"]
    assert figures["sent"] == figures["answered"] > 16
    assert figures["seconds"] >= 0.5
    assert figures["kinds"]["join"].keys() == {"ok", "p50_ms", "p99_ms"}  # nobody waited in vain


def test_children_end_with_their_parent(started: subprocess.Popen[str]) -> None:
    """Also when it is killed: workers, followers and the daemon."""
    tasks = Path(f"/proc/{started.pid}/task").glob("*/children")
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    assert len(children) == 5
    endings = [end_of(pid) for pid in children]
    started.send_signal(signal.SIGKILL)
    for ended in endings:
        ended()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_is_orderly(started: subprocess.Popen[str], number: int) -> None:
    """Exit code 0, and nothing of it is left."""
    opened = " ".join(map(os.readlink, Path(f"/proc/{started.pid}/fd").iterdir()))
    (directory,) = set(re.findall(r"/\S*broker-\w+", opened))
    started.send_signal(number)
    assert started.wait(LONG) == 0
    assert not Path(directory).exists()
