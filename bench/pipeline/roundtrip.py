"""`python -m bench.pipeline.roundtrip`: from a made workload to the report, all counts compared.

generate -> replay against a daemon that records -> trace -> report. It prints side by side what
each of them counted:

    requests   the replay's own account, request by request
    workers    the counters of the workers (`timers.stats()`)
    clock      the daemon's last row of counters
    trace      rows of the trace, and those that it says it lost
    report     what the report says, and what it says was lost

Exit code 1 when two of them differ anywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wheeld
from bench.result import machine
from wheeld_pipeline import COUNTERS_FOLDER, EVENTS_FOLDER, report, session, workload
from wheeld_pipeline.replay import Outcome, replay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("scheduled", "rescheduled", "cancelled", "expired")


@dataclass(frozen=True)
class Accounts:
    """Counts by source and kind of event, and how many of them the ring had no room for."""

    counts: dict[str, dict[str, int]]
    lost: int
    outcome: Outcome

    @property
    def equal(self) -> bool:
        """Do all say the same, and did every request end exactly once?"""
        first, *others = self.counts.values()
        return not self.outcome.faults and all(other == first for other in others)

    def text(self) -> str:
        lines = [f"{'':<12}" + "".join(f"{source:>14}" for source in self.counts)]
        for kind in KINDS:
            row = "".join(f"{counts[kind]:>14,}" for counts in self.counts.values())
            lines.append(f"{kind:<12}{row}")
        verdict = "EQUAL" if self.equal else "THEY DIFFER"
        lines.append(f"{verdict}; {self.lost:,} events found the trace ring full and were counted")
        return "\n".join(lines)


def around(
    spark: SparkSession,
    folder: Path,
    rows: int,
    model: workload.Model,
    *,
    seed: int = 1,
    speed: str = "max",
    workers: int = 2,
    say: Callable[[str], None] = lambda text: None,
    **config: Any,
) -> Accounts:
    """Make, replay, record and report; all files are in `folder`.

    `config` is the daemon's, such as `trace_ring=1024`.
    """
    made, trace, out = folder / "workload", folder / "trace", folder / "report"
    with _timed(say, f"generate {rows:,} requests"):
        workload.write(workload.generate(spark, rows, model, seed), str(made))
    given = {"payload_bytes": max(model.payload_bytes.values) or None, "trace": trace} | config
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(wheeld.embedded(**given))
        with _timed(say, "replay"):
            outcome = replay(made, name, speed=speed, workers=workers)
        say(outcome.text())
        with _timed(say, "stop the daemon; its recorder writes the rest"):
            stack.close()
    with _timed(say, "report"):
        paths = report.write(spark, trace, out)
    facts = json.loads(paths.json.read_text())
    facts = facts.get("facts", facts)
    rows_of_trace, lost = _rows(trace)
    counts = {
        "requests": _of_requests(outcome),
        "workers": _of_workers(outcome),
        "clock": _of_clock(trace),
        "trace": rows_of_trace,
        "report": {kind: facts["events"][kind] + facts["lost"].get(kind, 0) for kind in KINDS},
    }
    return Accounts(counts, lost, outcome)


@contextlib.contextmanager
def _timed(say: Callable[[str], None], what: str) -> Iterator[None]:
    begin = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - begin:.1f} s")


def _of_requests(outcome: Outcome) -> dict[str, int]:
    return {
        "scheduled": outcome.scheduled,
        "rescheduled": 0,
        "cancelled": outcome.cancelled,
        "expired": outcome.expired,
    }


def _of_workers(outcome: Outcome) -> dict[str, int]:
    names = {"expired": "received"}
    return {kind: outcome.counters[names.get(kind, kind)] for kind in KINDS}


def _of_clock(trace: Path) -> dict[str, int]:
    from pyarrow import dataset

    columns = ["time", "last", *KINDS]
    rows = dataset.dataset(trace / COUNTERS_FOLDER, partitioning="hive").to_table(columns=columns)
    last = max(rows.to_pylist(), key=lambda row: (row["last"], row["time"]))
    return {kind: last[kind] for kind in KINDS}


def _rows(trace: Path) -> tuple[dict[str, int], int]:
    """The events that the trace has and those that it says it lost, by kind; and how many it lost
    in all."""
    from pyarrow import dataset

    columns = ["event", "lost_event", "count"]
    events = dataset.dataset(trace / EVENTS_FOLDER, partitioning="hive")
    counts, lost = dict.fromkeys(KINDS, 0), 0
    for batch in events.to_batches(columns=columns):
        grouped = batch_counts(batch)
        for (event, lost_event), count in grouped.items():
            lost += count if event == "lost" else 0
            kind = lost_event if event == "lost" else event
            counts[kind] = counts.get(kind, 0) + count
    return {kind: counts[kind] for kind in KINDS}, lost


def batch_counts(batch: Any) -> dict[tuple[str, str | None], int]:
    import pyarrow

    table = pyarrow.Table.from_batches([batch])
    sums = table.group_by(["event", "lost_event"]).aggregate([("count", "sum")]).to_pylist()
    return {(row["event"], row["lost_event"]): row["count_sum"] for row in sums}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline.roundtrip", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=250_000.0, help="arrivals per second")
    parser.add_argument("--speed", default="1", help="how much faster, or max")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trace-ring", type=int, default=1 << 22, help="small: it overflows")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    facts = machine()
    print("  ".join(f"{key}: {value}" for key, value in facts.items()), flush=True)
    model = workload.Model.constant(rate=options.rate)
    with (
        tempfile.TemporaryDirectory(prefix="wheeld-roundtrip-") as made,
        session.opened("wheeld roundtrip", "local[2]") as spark,
    ):
        accounts = around(
            spark,
            Path(made),
            options.rows,
            model,
            seed=options.seed,
            speed=options.speed,
            workers=options.workers,
            say=lambda text: print(text, flush=True),
            trace_ring=options.trace_ring,
        )
    print(accounts.text())
    return 0 if accounts.equal else 1


if __name__ == "__main__":
    sys.exit(main())
