"""The overflow's account in Prometheus' format, in a file for the node exporter's textfile
collector."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from wheeld_pipeline.overflow.batch.task import COUNTS

_GAUGES: Final = {
    "pending": "Timers that have not ended.",
    "remembered": "Keys in the columns, including ended ones.",
    "in_wheel": "Timers held by a daemon.",
    "seconds": "Duration of the last batch of the shard.",
}


def write(file: Path, facts: dict[str, Any]) -> None:
    """Replace the file; `facts` as `Account.facts` returns them."""
    draft = file.with_name(f".{file.name}.part")
    draft.write_text("".join(f"{line}\n" for line in lines(facts)), encoding="utf-8")
    os.replace(draft, file)


def lines(facts: dict[str, Any]) -> Iterator[str]:
    """Prometheus' text format; counts are those since the start of the command."""
    yield from _family("batches_total", "counter", "Batches that are decided.")
    yield f"wheeld_overflow_batches_total {facts['batches']}"
    for name, what in _GAUGES.items():
        yield from _family(name, "gauge", what)
        for shard in facts["shards"]:
            yield f'wheeld_overflow_{name}{{shard="{shard["shard"]}"}} {shard[name]}'
    yield from _family("timers_total", "counter", "The outcomes of timers and commands.")
    for shard in facts["shards"]:
        for name in COUNTS:
            labels = f'shard="{shard["shard"]}",what="{name}"'
            yield f"wheeld_overflow_timers_total{{{labels}}} {shard[name]}"
    yield from _family("commands_total", "counter", "Rows of commands in finished batches.")
    yield f"wheeld_overflow_commands_total {facts['commands']}"
    yield from _family("spark_seconds", "gauge", "Spark's parts of its last finished batch.")
    for part, seconds in facts["spark_seconds"].items():
        yield f'wheeld_overflow_spark_seconds{{part="{part}"}} {seconds}'
    yield from _family("trouble", "gauge", "1: the shard's daemon cannot be reached.")
    for shard in facts["shards"]:
        yield f'wheeld_overflow_trouble{{shard="{shard["shard"]}"}} {int(bool(shard["trouble"]))}'
    if facts["lateness_us"] is not None:
        yield from _family("lateness_seconds", "gauge", "Of the last batch that had expirations.")
        for name, late_us in facts["lateness_us"].items():
            yield f'wheeld_overflow_lateness_seconds{{of="{name}"}} {late_us / 1e6}'


def _family(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP wheeld_overflow_{name} {what}"
    yield f"# TYPE wheeld_overflow_{name} {kind}"
