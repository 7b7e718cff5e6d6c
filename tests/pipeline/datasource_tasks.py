"""Tools of the journal's tests: tasks without Spark, and a reader of a host."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from daemons import until
from wheeld_client import Observer
from wheeld_pipeline.datasource.host import Host
from wheeld_pipeline.datasource.journal import Journal
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.receiver import receive
from wheeld_pipeline.datasource.writer import PartitionWriter

ZYGOTE = Path(__file__).with_name("datasource_zygote.py")
ROWS, CHUNK = 3000, 700


class Zygote:
    """Children that write partitions; see datasource_zygote.py."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ZYGOTE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def attempt(
        self, options: dict[str, str], point: str | None, nth: int = 1, **task: Any
    ) -> bool:
        task = {"batch": 0, "partition": 0, "first": 0, "rows": ROWS, "chunk": CHUNK} | task
        task |= {"options": options, "point": point, "nth": nth}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        status = int(self.process.stdout.readline())
        assert status in (0, signal.SIGKILL), status
        return status == 0


def read_some(given: dict[str, str]) -> None:
    receive(Journal(given["journal"]), Options.parse(given))


def read_all(given: dict[str, str]) -> pa.Table:
    journal = Journal(given["journal"])

    def emptied() -> bool:
        with Observer(given["name"]) as observer:
            pending = len(observer.pending().timers)
            read_some(given)
            return not pending and not len(observer.fired(journal.receiver))

    until(emptied, "all expired")
    spool = Host(journal).spool
    parts = list(spool.read(*spool.bounds(), 10**6))
    return pa.Table.from_batches(parts) if parts else pa.table({"cookie": pa.array([], "i8")})


def batches(cookies: Any, delay: float = 0.0, **more: Any) -> Iterator[pa.RecordBatch]:
    columns = {"delay": np.full(len(cookies), delay), "cookie": np.asarray(cookies), **more}
    return iter([pa.record_batch(columns)])


def partition_writer(given: dict[str, str], batch: int = 0, **more: str) -> PartitionWriter:
    return PartitionWriter(Options.parse(given | more), "monotonic", "query", batch)
