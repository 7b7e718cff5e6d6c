"""A daemon has little memory of its own: what it does not use, it does not load."""

from pathlib import Path

import pytest

from common_fixtures import daemon_process
from daemons import Daemon
from wheeld_client import connect

daemon = daemon_process(forked=False, capacity=64)


@pytest.mark.parametrize("who", ["supervisor", "clock"])
def test_no_library_of_cryptography(daemon: Daemon, who: str) -> None:
    with connect(str(daemon.directory)) as timers:
        timers.schedule(0.0)
        assert len(timers.poll(10.0)) == 1
    pid = daemon.pid if who == "supervisor" else daemon.clock_pid
    mapped = Path(f"/proc/{pid}/maps").read_text()
    assert "_native" in mapped
    assert "libssl" not in mapped
    assert "libcrypto" not in mapped
