"""Forks children that write partitions, or visit a host, and are killed at a named step.

One JSON object a line comes in, one line with the child's wait status goes out.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from wheeld_client import Timers
from wheeld_pipeline.datasource import rows, stage, visits, writer
from wheeld_pipeline.datasource.lane import Lane
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.spool import Spool


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def patch(owner: Any, name: str, nth: int, before: bool, part: Callable[..., Any] | None) -> None:
    whole, calls = getattr(owner, name), [0]

    def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] < nth:
            return whole(self, *args, **kwargs)
        if part is not None:
            part(self, whole, *args, **kwargs)
        elif not before:
            whole(self, *args, **kwargs)
        return die()

    setattr(owner, name, patched)


def half_note(self: stage.StagedPartition, whole: Any, ids: Any) -> None:
    whole(self, ids[: len(ids) // 2])
    with self.ids_path.open("ab") as file:
        file.write(b"abc")


def half_arm(self: Timers, whole: Any, deadlines: Any, cookies: Any, **rest: Any) -> None:
    n = len(deadlines) // 2
    if rest["payloads"] is not None:
        data, offsets = rest["payloads"]
        rest["payloads"] = (data, offsets[: n + 1])
    whole(self, deadlines[:n], cookies[:n], **rest)


def half_moved(self: Timers, whole: Any, ids: Any, deadlines: Any) -> None:
    n = len(ids) // 2
    whole(self, ids[:n], deadlines[:n])
    self.poll(0.1, max_events=1, hold=True)


def half_append(self: Spool, whole: Any, records: Any) -> None:
    whole(self, records[: len(records) // 2])
    with self.files()[-1][2].open("ab") as file:
        file.write(b"abc")


POINTS: dict[str, tuple[Any, str, bool, Any]] = {
    "before the rows": (stage.StagedPartition, "write", True, None),
    "after the rows": (stage.StagedPartition, "write", False, None),
    "before the seal": (stage.StagedPartition, "put_seal", True, None),
    "after the seal": (stage.StagedPartition, "put_seal", False, None),
    "after begin": (stage.StagedPartition, "begin", False, None),
    "half armed": (Timers, "schedule_at_many", False, half_arm),
    "after arming": (Timers, "schedule_at_many", False, None),
    "before the ids": (stage.StagedPartition, "note", True, None),
    "half the ids": (stage.StagedPartition, "note", False, half_note),
    "after the ids": (stage.StagedPartition, "note", False, None),
    "half moved": (Timers, "reschedule_at_many", False, half_moved),
    "after moving": (Timers, "reschedule_at_many", False, None),
    "before done": (stage.StagedPartition, "finish", True, None),
    "after done": (stage.StagedPartition, "finish", False, None),
    "before the spool": (Spool, "append", True, None),
    "half the spool": (Spool, "append", False, half_append),
    "after the spool": (Spool, "append", False, None),
    "after acknowledge": (Timers, "acknowledge", False, None),
    "before close": (Lane, "_leave", True, None),
    "after close": (Lane, "_leave", False, None),
}


def run(task: dict[str, Any]) -> None:
    stage.CHUNK_ROWS = rows.CHUNK_ROWS = task["chunk"]
    os.environ.update(task.get("environment", {}))
    options = Options.parse(task["options"])
    if task["point"] is not None:
        owner, name, before, part = POINTS[task["point"]]
        patch(owner, name, task["nth"], before, part)
    if "visit" in task:
        visits.visit(*task["visit"], options)
        return
    partition = writer.PartitionWriter(options, "monotonic", "query", task["batch"])
    first, count = task["first"], task["rows"]
    cookies = np.arange(first, first + count)
    batches = [
        pa.record_batch(
            {
                "delay": cookies[at : at + 700] % 7 / 500.0,
                "cookie": cookies[at : at + 700],
                "payload": [b"%d" % cookie for cookie in cookies[at : at + 700]],
            }
        )
        for at in range(0, count, 700)
    ]
    partition.write(task["partition"], iter(batches))


def main() -> None:
    pa.array([b""])  # pyarrow loads pandas, here and not in each child
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                run(json.loads(line))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
