"""Signals that are not meant to end a daemon do not; SIGHUP reloads what can be reloaded."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, until
from wheeld.config.settings import LIVE, Config, load, reloaded
from wheeld_client import WheelFull, connect

FATAL = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT),
    *(signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP),
    *(signal.SIGSYS, signal.SIGXCPU, signal.SIGPWR),
}
"""These end a process, or say that it is broken."""
STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
HARMLESS = sorted(set(signal.valid_signals()) - FATAL - STOPS)


daemon = daemon_process(started=False)


def test_harmless_signals(daemon: Daemon) -> None:
    daemon.start()
    clock = daemon.clock_pid
    with connect(str(daemon.directory)) as timers:
        timers.schedule_many(np.linspace(0.0, 0.2, 100), np.arange(100))
        for number in HARMLESS:
            os.kill(daemon.pid, number)
            os.kill(clock, number)
        assert sorted(receive(timers, 100)["cookie"].tolist()) == list(range(100))
    for name in ("SIGUSR1", "SIGUSR2", "SIGALRM"):
        until(lambda name=name: f"{name} has no meaning here and is ignored" in daemon.said(), name)
    assert daemon.status()["clock_pid"] == clock
    daemon.stop()
    assert daemon.nothing_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_stops(daemon: Daemon, number: int) -> None:
    daemon.start()
    os.kill(daemon.pid, number)
    assert daemon.wait() == 0
    assert daemon.nothing_left()


def test_reload(daemon: Daemon, runtime_dir: Path) -> None:
    file = runtime_dir / "wheeld.toml"
    file.write_text('keep_for = "1h"\nmax_workers = 8\n')
    daemon.start(config=file)
    with connect(str(daemon.directory), worker="first") as first:
        file.write_text('keep_for = "20ms"\nmax_workers = 9\nmax_per_worker = 64\n')
        os.kill(daemon.pid, signal.SIGHUP)
        until(
            lambda: "takes effect only after a stop and a start: max_workers" in daemon.said(),
            "reloaded",
        )
        assert "max_per_worker = 64, keep_for = 20ms" in daemon.said()
        assert daemon.status()["max_per_worker"] == 64
        assert len(first.schedule_many([1000.0] * 100)) == 100
        second = connect(str(daemon.directory), worker="second", on_death="keep")
        with pytest.raises(WheelFull):
            second.schedule_many([1000.0] * 100)
        second.schedule(1000.0)
        second.close()
        until(lambda: "no successor within 20ms" in daemon.said(), "given up")
        file.write_text('keep_for = "soon"\n')
        refusal = f"was not reloaded; the old one stays in force: {file}, line 1: keep_for = 'soon'"
        os.kill(daemon.pid, signal.SIGHUP)
        until(lambda: refusal in daemon.said(), "refused")
        assert daemon.status()["max_per_worker"] == 64


def test_what_the_options_say_stands_above_the_file() -> None:
    old = load({"keep_for": "3s"})
    assert reloaded(old, lambda: load({"keep_for": "3s"})) == old


@pytest.mark.parametrize("key", LIVE)
def test_each_live_key(key: str) -> None:
    value = {"evict_after": 7, "max_per_worker": 7, "log_level": "debug"}.get(key, "7s")
    new = reloaded(Config(), lambda: load({key: value, "max_workers": 3}))
    assert new == load({key: value})


# -- segments whose daemon.json was lost -----------------------------------------------------------


@pytest.mark.parametrize("lost", ["the file", "its content", "the directory"])
def test_segments_are_found_without_the_file(daemon: Daemon, lost: str) -> None:
    daemon.start()
    with connect(str(daemon.directory), worker="w", on_death="keep") as timers:
        timers.schedule_many([1000.0] * 30)
    until(lambda: daemon.workers()["w"]["state"] == "kept", "kept")
    segments = daemon.segments()
    daemon.kill()
    file = daemon.directory / "daemon.json"
    if lost == "its content":
        file.write_text("")
    elif lost == "the file":
        file.unlink()
    else:
        daemon.directory.rename(daemon.base / "elsewhere")
    daemon.start()
    assert daemon.status()["taken_over"]
    assert daemon.status()["pending"] == 30
    assert daemon.segments() == segments
    assert "but these segments belong to this user" in daemon.said()


def test_segments_of_another_directory_are_left_alone(daemon: Daemon, tmp_path: Path) -> None:
    """Two daemons of one name, each with a runtime directory of its own, know nothing of each
    other."""
    daemon.start()
    (tmp_path / "other").mkdir(mode=0o700)
    starts_anew(Daemon(tmp_path / "other", daemon.name))
    assert daemon.status()["clock_ok"]


def starts_anew(second: Daemon) -> None:
    second.start()
    assert not second.status()["taken_over"]
    second.stop()
