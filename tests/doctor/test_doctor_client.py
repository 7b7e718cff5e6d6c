"""`wheeld doctor --client`: it names what is in the way of a first `connect`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from common_fixtures import daemon_process
from daemons import Daemon, end_of, map_segment
from strangers import run_as_stranger
from wheeld.doctor import client, run
from wheeld_core import _native
from wheeld_core.views import record

daemon = daemon_process(for_all=True)
APART = ("unshare", "--mount", "--fork")


def findings(
    where: Path, code: int, before: Sequence[str] = (), shell: str = ""
) -> dict[str, dict[str, str]]:
    """As the command prints them; `before` and `shell` say where it runs."""
    line = [sys.executable, "-m", "wheeld", "doctor", "--client", "--json", "--name", str(where)]
    if shell:
        line = ["sh", "-c", f'{shell} && exec "$@"', "sh", *line]
    done = subprocess.run([*before, *line], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr == ""
    return {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}


def last(found: dict[str, dict[str, str]], name: str, *words: str) -> None:
    assert list(found)[-1] == name
    *well, failure = found.values()
    assert [finding["status"] for finding in well] == ["ok"] * len(well)
    assert failure["status"] == "failure"
    assert failure["expected"]
    text = " ".join((failure["found"], failure["advice"]))
    assert [word for word in words if word not in text] == []


def able(*before: str) -> Sequence[str]:
    if os.getuid() != 0 or subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip(f"`{' '.join(before)}` is not possible here")
    return before


def test_all_is_well(daemon: Daemon) -> None:
    found = findings(daemon.directory, 0)
    assert {finding["status"] for finding in found.values()} == {"ok"}
    assert found["connection"]["found"] == "connected, and got a timer"
    done = daemon.command("doctor", "--client")
    assert done.returncode == 0
    assert "all well (8 checks)" in done.stdout


def test_no_daemon(runtime_dir: Path) -> None:
    found = findings(runtime_dir / "x", 1)
    last(found, "daemon", f"{runtime_dir / 'x'} (not there)", "wheeld start", "if-needed")


def test_one_that_was_killed(daemon: Daemon) -> None:
    daemon.kill()
    last(findings(daemon.directory, 1), "socket", "no wheeld daemon answers", "takes over")
    (daemon.directory / "control.sock").unlink()
    last(findings(daemon.directory, 1), "daemon", "continues with the timers")


def test_another_user(daemon: Daemon) -> None:
    stranger = run_as_stranger()
    last(findings(daemon.directory, 1, stranger), "user", "uid 0, mode 0700", "--group")
    daemon.directory.chmod(0o711)
    last(findings(daemon.directory, 1, stranger), "socket", "Permission denied", "--group")


def test_another_layout(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    head = record(map_segment(daemon.facts()["segments"]["wheel"], _native.KIND_WHEEL), "head")
    os.kill(daemon.pid, signal.SIGSTOP)  # it would find that its memory was damaged
    head["layout_version"] += 1
    monkeypatch.setattr(client, "_socket", lambda directory: client.ok("socket", ""))
    found = {finding.name: vars(finding) for finding in client.checks(str(daemon.directory), None)}
    last(found, "layout", f"layout version {_native.LAYOUT_VERSION + 1}", "wheeld restart")
    head["layout_version"] -= 1


def test_another_shm(daemon: Daemon) -> None:
    apart = able(*APART)
    found = findings(daemon.directory, 1, apart, "mount -t tmpfs tmpfs /dev/shm")
    last(found, "mount namespace", "has another /dev/shm", "--ipc=host")


def test_another_pid_namespace(daemon: Daemon) -> None:
    """A namespace below the daemon's is fine; one above or beside it is not."""
    apart = able("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    found = findings(daemon.directory, 0, apart)
    assert "which it can see into" in found["connection"]["found"]


def test_a_daemon_in_a_pid_namespace(runtime_dir: Path, daemon_name: str) -> None:
    apart = able("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    with Daemon(runtime_dir, daemon_name) as inside:
        inside.program = [*apart, sys.executable, "-m", "wheeld"]
        process = inside.launch()
        while not (inside.directory / "control.sock").exists():
            assert process.poll() is None, inside.said()
        last(findings(inside.directory, 1), "connection", "the daemon's is", "--pid=host")
        assert inside.process is not None
        end = end_of(inside.children()[0])
        os.kill(inside.children()[0], signal.SIGTERM)
        end()


def test_another_directory_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHEELD_RUNTIME_DIR", "/nowhere")
    (finding,) = run.run_for_client("default").findings
    assert "no /nowhere" in finding.found
    assert "$WHEELD_RUNTIME_DIR is set" in finding.advice
