"""A start looks before it makes anything: at a place for snapshots, memory; and when it may
drop what an earlier daemon left."""

import errno
import json
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from commands import well
from common_fixtures import daemon_process
from daemons import Daemon, until
from remotes import Remote
from wheeld.config.settings import Config
from wheeld.resources import room
from wheeld.resources.owned import Resources
from wheeld_client import WheelError, connect
from wheeld_core import segments

MIB = 1 << 20


@pytest.fixture
def config(runtime_dir: Path, daemon_name: str) -> Iterator[Config]:
    yield Config(
        daemon_name,
        capacity=1024,
        runtime_dir=str(runtime_dir),
        state_dir=str(runtime_dir / "states"),
    ).check()
    segments.unlink_all(f"wheeld-{daemon_name}-")


def made_by(config: Config) -> list[str]:
    names = [name for name in os.listdir("/dev/shm") if f"-{config.name}-" in name]
    states = Path(str(config.state_dir))
    return names + (os.listdir(states) if states.exists() else [])


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", fsync)


@pytest.mark.usefixtures("full_disk")
def test_no_room_for_a_snapshot(config: Config) -> None:
    with pytest.raises(WheelError, match="not writable"):
        Resources(config)
    assert made_by(config) == []


def test_living_memory_is_gone_on_with_all_the_same(
    config: Config, full_disk: None, caplog: pytest.LogCaptureFixture
) -> None:
    Resources(replace(config, state_dir=None)).close(discard=False)
    resources = Resources(config)
    assert resources.taken_over
    assert "not writable" in caplog.text
    resources.close()


def test_a_probe_leaves_nothing(config: Config) -> None:
    Resources(config).close()
    assert made_by(config) == []


# -- the memory that control groups allow ----------------------------------------------------------


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    (tmp_path / "subject").mkdir()
    (tmp_path / "groups/a/b").mkdir(parents=True)
    (tmp_path / "groups/memory/a/b").mkdir(parents=True)
    return tmp_path


def look(config: Config, groups: Path, over_living: bool = False) -> None:
    room.check(config, over_living, groups / "subject", groups / "groups")


V2, V1 = ("0::/a/b", "a/memory.max"), ("4:memory:/a/b", "memory/a/memory.limit_in_bytes")


@pytest.mark.parametrize(("line", "file"), [V2, V1])
def test_memory_limit(
    config: Config, groups: Path, line: str, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(config, capacity=1 << 20, state_dir=None)
    (groups / "subject/cgroup").write_text(line + "\n")
    base = sum(map(sum, room.segment_sizes(config).values())) + room.OWN_BYTES
    limit = groups / "groups" / file
    limit.write_text(f"{base - 1}\n")
    with pytest.raises(WheelError) as refused:
        look(config, groups)
    said = str(refused.value)
    assert f"{(base - 1) / MIB:,.1f} MiB ({limit})" in said
    assert f"needs {base / MIB:,.1f} MiB" in said
    assert "--capacity" in said
    look(config, groups, over_living=True)
    assert said in caplog.text
    caplog.clear()
    limit.write_text(f"{base}\n")
    look(config, groups)
    assert "may need up to" in caplog.text
    caplog.clear()
    for none in ("max\n", f"{2**63 - 4096}\n", f"{10 * base}\n"):
        limit.write_text(none)
        look(config, groups)
    assert caplog.text == ""


def _memory_groups() -> Path | None:
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    if (v1 / "memory.limit_in_bytes").exists():
        return v1
    return v2 if "memory" in room.cgroups.read(v2 / "cgroup.subtree_control").split() else None


def test_a_real_limit(runtime_dir: Path, daemon_name: str) -> None:
    parent = _memory_groups()
    if os.getuid() != 0 or parent is None:
        pytest.skip("no control groups that this process may make")
    group = parent / daemon_name
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        names = ("memory.limit_in_bytes", "memory.max")
        file = next(group / name for name in names if (group / name).exists())
        file.write_text(str(96 * MIB))
        enter = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        start = [sys.executable, "-m", "wheeld", "start", "--name", daemon_name]
        start += ["--runtime-dir", str(runtime_dir), "--capacity", "1048576"]
        done = subprocess.run(
            ["sh", "-c", enter, str(group), *start], capture_output=True, text=True, timeout=60
        )
    finally:
        group.rmdir()
    assert done.returncode == 1, done.stderr
    assert f"allows 96.0 MiB ({file})" in done.stderr
    assert "Traceback" not in done.stderr


# -- what an earlier daemon left, of another make --------------------------------------------------


def test_an_empty_wheel_does_not_refuse_other_options(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    Resources(config).close(discard=False)
    before = made_by(config)
    resources = Resources(replace(config, capacity=4096))
    assert not resources.taken_over
    assert "nothing is pending there" in caplog.text
    assert not set(before) & set(made_by(config))
    resources.close()


daemon = daemon_process()
large = daemon_process(forked=False, capacity="4e6")


def test_a_worker_that_lives_is_not_robbed(daemon: Daemon) -> None:
    with connect(str(daemon.directory)) as timers:
        daemon.kill()
        assert "0 pending timers" in daemon.refused(capacity=8192)
        daemon.start()
        timers.schedule(0.0, 5)
        assert timers.poll(60.0)["cookie"].tolist() == [5]


def test_what_somebody_may_come_for_is_not_dropped(daemon: Daemon) -> None:
    with Remote(daemon, worker="kept", on_death="keep") as worker:
        worker.ask("timers.schedule(0.0, 6)")
        until(lambda: daemon.header("fired") == 1, "fired")
        worker.kill()
    until(lambda: daemon.workers()["kept"]["state"] == "kept", "kept")
    daemon.kill()
    assert "--capacity 1024" in daemon.refused(capacity=8192)
    daemon.start()
    with connect(str(daemon.directory), worker="kept", on_death="keep") as successor:
        assert successor.poll(60.0)["cookie"].tolist() == [6]


def test_commands_answer_while_the_daemon_may_take_no_memory(large: Daemon) -> None:
    space = psutil.Process(large.pid).memory_info().vms + (8 << 20)
    resource.prlimit(large.pid, resource.RLIMIT_AS, (space, space))
    with connect(str(large.directory), worker="w") as timers:
        timers.schedule(60)
        status = json.loads(well("status", "--json", *large.where))
        (worker,) = status["workers"]
        assert (status["pending"], worker["pending"], worker["held"]) == (1, 1, 64)
        assert status["capacity"] - 64 <= status["free"] <= status["capacity"]
    well("health", "--window", "10ms", *large.where)
    assert "stopped" in well("stop", *large.where)
    assert large.end() == 0
