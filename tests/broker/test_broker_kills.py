"""Clients of all libraries, while workers, followers and the clock are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

pytest.importorskip("kio")

from kio.records.readers import read_batch

import broker_clients
from broker_clients import Line
from broker_runs import running, until

pytestmark = pytest.mark.filterwarnings("ignore:.*_text is deprecated")  # in kafka-python
COUNT, RATE, PARTITIONS = 300, 150.0, 4
PATTERN = ("worker", 0), ("follower", 1), ("worker", 1), ("clock", 0), ("worker", 0)


def clock_of(daemon: str) -> int:
    facts = json.loads((Path(daemon) / "daemon.json").read_text())
    children = psutil.Process(facts["pid"]).children()
    return next(child.pid for child in children if child.name() == "wheeld-clock")


def records(log: Path) -> dict[int, bytes]:
    raw, at, found = log.read_bytes(), 0, {}
    while at < len(raw):
        batch, size = read_batch(raw, at)
        at += size
        found |= {one.offset: one.value or b"" for one in batch.records}
    return found


@pytest.mark.skipif(not broker_clients.installed(), reason="no client is there")
def test_every_acknowledged_record_is_there_once_and_is_read(tmp_path: Path) -> None:
    libraries = broker_clients.installed()
    wanted = {b"%s/%d" % (name.encode(), n) for name in libraries for n in range(COUNT)}

    def enough(lines: list[Line]) -> bool:
        return len({line[2] for line in lines}) == len(wanted)

    with running(tmp_path, followers=2, min_in_sync=2) as run, ThreadPoolExecutor() as pool:
        clients = {name: broker_clients.ALL[name](run.address) for name in libraries}
        reading = {n: pool.submit(clients[n].consume, "t", n, enough) for n in libraries}
        sending = [
            pool.submit(clients[n].produce, "t", broker_clients.paced(n, COUNT, RATE))
            for n in libraries
        ]
        for role, index in PATTERN:
            time.sleep(COUNT / RATE / len(PATTERN))
            if role == "clock":
                os.kill(clock_of(str(run.daemon)), signal.SIGKILL)
            else:
                run.kill(role, index)
        told = [line for one in sending for line in one.result()]
        read = {name: one.result() for name, one in reading.items()}
        logs = sorted(tmp_path.glob("logs/*/*/log"))
        copies = [
            (log, tmp_path / f"replica-{node}" / log.relative_to(tmp_path / "logs"))
            for log in logs
            for node in (1, 2)
        ]
        until(
            lambda: all(copy.stat().st_size == log.stat().st_size for log, copy in copies), "copied"
        )
        assert all(copy.read_bytes() == log.read_bytes() for log, copy in copies)
    found = {(int(log.parent.name), o): v for log in logs for o, v in records(log).items()}
    assert Counter(found.values()) == Counter(dict.fromkeys(wanted, 1))
    assert {line[2] for line in told} == wanted
    assert all(found[line[:2]] == line[2] for line in told if line[1] >= 0)
    for lines in read.values():
        assert {line[:2]: line[2] for line in lines} == found
        first = dict.fromkeys(line[:2] for line in lines)
        for number in range(PARTITIONS):
            offsets = [offset for partition, offset in first if partition == number]
            assert offsets == sorted(offsets)
