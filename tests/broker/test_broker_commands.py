"""How the example's broker is started, ended, and started again."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("kio")

from broker_runs import LONG, ROOT, Consumer, produce, running, until
from examples.broker.__main__ import _quota
from examples.broker.load import clients
from examples.broker.parent import Broker, BrokerFailed
from examples.broker.settings import Settings

COMMAND = [sys.executable, "-m", "examples.broker"]


async def begin(settings: Settings) -> None:
    async with Broker(settings):
        pass


def test_a_broker_says_where_it_is_and_ends_when_it_is_told(tmp_path: Path) -> None:
    options = ["--port", "0", "--workers", "1", "--followers", "1", "--directory", str(tmp_path)]
    broker = subprocess.Popen([*COMMAND, "start", *options], cwd=ROOT, stdout=subprocess.PIPE)
    with broker:
        assert broker.stdout is not None
        said = broker.stdout.readline().decode()
        port = int(said.split(":")[1])
        assert f"127.0.0.1:{port}: 1 workers, 1 followers, {tmp_path}" in said
        for directory, wanted, message in (
            (tmp_path / "other", port, "Address already in use"),
            (tmp_path, 0, "another broker runs in"),
        ):
            with pytest.raises(BrokerFailed, match=message):
                asyncio.run(begin(Settings(str(directory), "nobody", wanted)))
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(LONG) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    """Also what a group has committed."""
    library = next((one for one in clients.installed() if one != "kcat"), None)
    if library is None:
        pytest.skip("no client is installed")
    seen = []
    for turn in ("first", "second"):
        with running(tmp_path, followers=1) as run:
            produce(run, library, "kept", 20, turn)
            with Consumer(run, library, "kept", "kept") as consumer:
                until(lambda: len(consumer.lines) >= 20, f"the {turn} 20")
            seen += consumer.lines
    assert len(seen) == len(set(seen)) == 40


def test_quotas_on_the_command_line() -> None:
    assert _quota("a=b=10,20") == ("a=b", {"produce": 10, "fetch": 20})
    for wrong in ("10,20", "a=10", "a=x,1", "=1,2"):
        with pytest.raises(Exception, match="expected CLIENT=BYTES,BYTES"):
            _quota(wrong)
