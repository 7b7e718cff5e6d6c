"""`wheeld doctor` in a PID namespace of its own, as in a container: what it cannot see it does not
take for dead."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_doctor import PREFIX, assert_bad, segment

from daemons import Daemon, until
from remotes import Remote
from wheeld.doctor import leftovers
from wheeld.doctor.machine import Finding
from wheeld.processes import identity
from wheeld.resources.remains import DaemonMemory, Use, own_pid_namespace, workers_use
from wheeld_client import connect
from wheeld_core.views import RegistryView

APART = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.fixture
def daemon(runtime_dir: Path, daemon_name: str) -> Iterator[Daemon]:
    if os.getuid() != 0 or subprocess.run([*APART, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespace can be made")
    with Daemon(runtime_dir, daemon_name) as daemon:
        yield daemon.start()


def findings(daemon: Daemon) -> dict[str, dict[str, str]]:
    command = [*APART, sys.executable, "-m", "wheeld", "doctor", "--json"]
    command += ["--name", daemon.name, "--runtime-dir", str(daemon.base)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


def check_no_removal(daemon: Daemon, found: dict[str, dict[str, str]]) -> None:
    for name in ("left segments", "left directories"):
        assert f"rm /dev/shm/wheeld-{daemon.name}" not in found[name]["advice"]
        assert f"{daemon.name} --fresh" not in found[name]["advice"]
    assert "remove it" not in found["left directories"]["advice"]


def test_a_living_daemon(daemon: Daemon) -> None:
    """It answers, and its memory is in use; its processes cannot be seen, and nothing is said of
    them."""
    with connect(str(daemon.directory)):
        found = findings(daemon)
    check_no_removal(daemon, found)
    assert found["daemon"]["status"] == "ok"
    assert daemon.name not in found["left segments"]["found"]
    assert daemon.name not in found["left directories"]["found"]
    assert "another PID namespace" in found["processes"]["found"]
    assert "clock" not in found


def test_a_worker_that_lives_without_a_supervisor(daemon: Daemon) -> None:
    with Remote(daemon):
        daemon.kill()
        found = findings(daemon)
        daemon.start()
    check_no_removal(daemon, found)
    assert found["daemon"]["status"] == "failure"
    assert "cannot tell" in found["left segments"]["found"]


def test_a_supervisor_that_does_not_answer(daemon: Daemon) -> None:
    (daemon.directory / "control.sock").rename(daemon.directory / "aside")
    found = findings(daemon)
    check_no_removal(daemon, found)
    assert daemon.name not in found["left segments"]["found"]
    (daemon.directory / "aside").rename(daemon.directory / "control.sock")


def test_fsck_repairs_nothing_under_a_worker_that_it_cannot_see(daemon: Daemon) -> None:
    with Remote(daemon, worker="one", on_death="keep") as worker:
        patient = DaemonMemory(daemon.directory)
        patient.headers()
        registry, own = patient.memories().registry, own_pid_namespace()
        assert patient.workers_live()
        assert workers_use(registry, own + 1) == Use.UNSEEN
        worker.kill()
    until(lambda: daemon.workers()["one"]["state"] == "kept", "kept")
    assert not patient.workers_live()
    assert workers_use(registry, own + 1) == Use.DEAD


def test_what_is_proven_dead_may_be_removed(daemon: Daemon) -> None:
    daemon.kill()
    found = findings(daemon)
    assert f"wheeld-{daemon.name}" in found["left segments"]["found"]
    assert found["left segments"]["status"] == "warning"
    assert "remove it" in found["left directories"]["advice"]
    daemon.start()


# -- in a tree of its own --------------------------------------------------------------------------


def test_what_cannot_be_seen_is_not_dead(tmp_path: Path) -> None:
    """From a PID namespace of its own: segments of which nothing tells who had them, and those of a
    daemon of another namespace with a worker. No advice to remove them; but of an earlier boot."""
    shm, proc, own = tmp_path / "shm", tmp_path / "proc", 4026532179
    shm.mkdir()
    proc.mkdir()

    def left(boot: str = "boot-1", of_the_daemon: int = 0) -> Finding:
        if table is not None:
            table.header["pid_ns"] = of_the_daemon
        return leftovers.segments(shm, proc, boot, os.getuid(), own)

    segment(shm, "wheel")
    table: RegistryView | None = None
    unknown = left()
    segment(shm, "registry")
    with (shm / f"{PREFIX}registry").open("r+b") as file:
        table = RegistryView(memory := mmap.mmap(file.fileno(), 0))
        rows = table.rows
        rows["pid"][0], rows["start_time"][0], rows["state"][0] = 2**22 - 1, 1, 2
        for finding in (unknown, left(), left(of_the_daemon=own + 1)):
            assert_bad(finding, "note", PREFIX, "cannot tell", "check from there")
            assert "rm " not in finding.advice
            assert "--fresh" not in finding.advice
        assert_bad(left("boot-2"), "warning", "of an earlier boot", "--fresh")
        assert_bad(left(of_the_daemon=own), "warning", "a dead daemon", "--fresh")
        rows["pid"][0], rows["start_time"][0] = os.getpid(), identity.of_pid(os.getpid())
        assert left(of_the_daemon=own).status == "ok"
        rows["state"][0] = 0
        assert left(of_the_daemon=own + 1).status == "warning"  # nobody was left there
        del rows
        table = None
        memory.close()
    with (shm / f"{PREFIX}wheel").open() as wheel:
        fcntl.flock(wheel, fcntl.LOCK_EX)
        assert left().status == "ok"
