"""Processes that /proc does not show: with hidepid=2, those of other users."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import Daemon, until
from remotes import Remote
from strangers import AS_ITSELF, GROUP, NOBODY, OTHER, as_root, member
from wheeld.processes import identity
from wheeld.tables.registry import RowState

HIDE = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
HIDDEN = ["unshare", "--mount", "sh", "-c", HIDE, "sh"]


@pytest.fixture
def daemon(runtime_dir: Path, daemon_name: str) -> Iterator[Daemon]:
    before = member(OTHER)
    if subprocess.run([*HIDDEN, "true"], capture_output=True).returncode:
        pytest.skip("/proc cannot be mounted here")
    runtime_dir.chmod(0o755)
    base = runtime_dir / "of-nobody"
    base.mkdir(mode=0o755)
    os.chown(base, NOBODY, NOBODY)
    before[1:3] = [f"--reuid={NOBODY}", f"--regid={NOBODY}"]
    with Daemon(base, daemon_name, group=GROUP, keep_for="30s") as daemon:
        daemon.program = [*HIDDEN, *before, sys.executable, "-c", AS_ITSELF]
        tried = subprocess.run([*daemon.program, "try"], capture_output=True, timeout=60)
        if tried.returncode:
            pytest.skip("another user cannot run this Python")
        yield daemon


def states(daemon: Daemon) -> dict[str, int]:
    rows = daemon.registry().rows
    return {
        bytes(row["name"]).decode(): int(row["state"])
        for row in rows
        if row["state"] != RowState.FREE
    }


@as_root
def test_a_hidden_worker_outlives_the_supervisor(daemon: Daemon) -> None:
    daemon.start()
    with Remote(daemon, member(OTHER), worker="w") as worker:
        worker.ask("timers.schedule_many([1000.0] * 70).tolist()")
        for _ in range(2):
            daemon.kill()
            daemon.start()
            assert "died" not in daemon.said()
            assert states(daemon) == {"w": RowState.ACTIVE}
            assert worker.ask("[timers.schedule(0.0, 1) > 0, receive(1)]") == [True, [1]]
            assert worker.ask("timers.pending") == 70
        os.kill(worker.pid, signal.SIGSTOP)  # so that it does not connect
        daemon.kill()
        daemon.start()
        assert states(daemon) == {"w": RowState.ACTIVE}
        worker.kill()
        until(lambda: states(daemon) == {}, "gone")
        daemon.stop()


@as_root
def test_one_that_died_meanwhile_is_dead(daemon: Daemon) -> None:
    daemon.start()
    with Remote(daemon, member(OTHER), worker="w") as worker:
        daemon.kill()
        worker.kill()
        daemon.start()
        until(lambda: states(daemon) == {}, "gone")


def test_what_a_process_is_known_by(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    pid, namespace = process.pid, identity.pid_namespace(process.pid)
    seen = identity.of_pid(pid)
    assert 0 < seen < 1 << 63
    monkeypatch.setattr(identity, "_start_time", lambda pid: 0)
    hidden = identity.of_pid(pid)
    assert hidden == 0 or hidden > 1 << 63
    for known in (0, seen, hidden):  # seen then, hidden now: nothing speaks against it
        assert identity.lives(pid, known, namespace)
    monkeypatch.undo()
    for known in (0, seen, hidden):
        assert identity.lives(pid, known, namespace)
        assert identity.lives(pid, known, 0)
        assert not identity.lives(pid, known, namespace + 1)
    assert not identity.lives(pid, seen + 1, namespace)
    if hidden:
        assert not identity.lives(pid, hidden + 1, namespace)
    process.kill()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    for known in (0, seen, hidden):  # a zombie
        assert not identity.lives(pid, known, namespace)
    with process:
        pass
    assert identity.of_pid(pid) == 0
    for absurd in (0, -1, 2**40):
        assert not identity.lives(absurd, 0, 0)
        assert identity.of_pid(absurd) == 0
