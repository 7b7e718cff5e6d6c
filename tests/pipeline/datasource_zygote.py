"""Forks children that write partitions, receive, or visit a host, and are killed at a named step.

One JSON object a line comes in, one line with the child's wait status goes out.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from wheeld_client import Timers
from wheeld_pipeline.datasource import receiver, rows, visits, writer
from wheeld_pipeline.datasource.host import Host
from wheeld_pipeline.datasource.journal import Journal
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.receiver import Receiver
from wheeld_pipeline.datasource.spool import Spool
from wheeld_pipeline.datasource.stage import Stage


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


def half_parked(self: Timers, whole: Any, deadlines: Any, cookies: Any, **rest: Any) -> None:
    n = len(deadlines) // 2
    if rest["payloads"] is not None:
        data, offsets = rest["payloads"]
        rest["payloads"] = (data, offsets[: n + 1])
    rest["keys"] = rest["keys"][:n]
    whole(self, deadlines[:n], cookies[:n], **rest)


def half_moved(self: Timers, whole: Any, ids: Any, deadlines: Any) -> None:
    n = len(ids) // 2
    whole(self, ids[:n], deadlines[:n])
    time.sleep(0.1)  # some of them fire


def half_spooled(self: Spool, whole: Any, records: Any) -> None:
    (self.directory / "x.draft").write_bytes(b"ARROW1")


def half_acknowledged(self: Timers, whole: Any, events: Any) -> None:
    whole(self, events[: len(events) // 2])


WRITING: dict[str, tuple[Any, str, bool, Any]] = {
    "before the rows": (Stage, "draft", True, None),
    "after the rows": (Stage, "draft", False, None),
    "before the seal": (Stage, "seal", True, None),
    "after the seal": (Stage, "seal", False, None),
    "half parked": (Timers, "schedule_at_many", False, half_parked),
    "after parking": (Timers, "schedule_at_many", False, None),
    "after the account": (Host, "note", False, None),
    "after the count": (Stage, "note", False, None),
    "half moved": (Timers, "reschedule_at_many", False, half_moved),
    "after moving": (Timers, "reschedule_at_many", False, None),
    "before done": (Stage, "finish", True, None),
    "after done": (Stage, "finish", False, None),
}
RECEIVING: dict[str, tuple[Any, str, bool, Any]] = {
    "before the spool": (Spool, "hold", True, None),
    "half the spool": (Spool, "hold", False, half_spooled),
    "after the spool": (Spool, "hold", False, None),
    "half acknowledged": (Timers, "acknowledge", False, half_acknowledged),
    "after acknowledge": (Timers, "acknowledge", False, None),
    "after publishing": (Spool, "publish", False, None),
    "before close": (Receiver, "close", True, None),
    "after close": (Receiver, "close", False, None),
}
POINTS = WRITING | RECEIVING


def run(task: dict[str, Any]) -> None:
    rows.CHUNK_ROWS = task["chunk"]
    os.environ.update(task.get("environment", {}))
    options = Options.parse(task["options"])
    if task["point"] is not None:
        owner, name, before, part = POINTS[task["point"]]
        patch(owner, name, task["nth"], before, part)
    if "visit" in task:
        visits.visit(*task["visit"], options)
        return
    if "receive" in task:
        receiver.receive(Journal(options.journal), options)
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
