"""The account of a load: one answer per request, each record in the log once, groups that agree."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from examples.broker import settings
from examples.broker.client import Client, Counts
from examples.broker.load import Load
from examples.broker.records import Record
from examples.broker.settings import Key
from examples.broker.storage import Partition
from examples.broker.workload import Joined, Produced, Results, value

REPLICATED_SECONDS: Final = 60.0
"""How long the followers may take to catch up when the load is over."""
NAMED: Final = 5
"""Faults that are named; all are counted."""


@dataclass
class Faults:
    """What is wrong, by kind, and the first few of them in words."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, kind: str, text: str) -> None:
        """Count one."""
        self.counts[kind] += 1
        if len(self.examples) < NAMED:
            self.examples.append(f"{kind}: {text}")


async def read_all(client: Client) -> tuple[dict[Key, list[Record]], list[str]]:
    """All records of a broker, and the partitions of which some are not replicated in time."""
    give_up = time.monotonic() + REPLICATED_SECONDS
    while True:
        partitions = (await client.status())["partitions"]
        behind = [one for one in partitions if one["high_watermark"] < one["log_end"]]
        if not behind or time.monotonic() > give_up:
            break
        await asyncio.sleep(0.05)
    logs: dict[Key, list[Record]] = {}
    for one in partitions:
        key = one["topic"], one["partition"]
        found = logs[key] = []
        while len(found) < one["high_watermark"]:
            (part,) = await client.fetch({key: len(found)}, max_bytes=1 << 20)
            found += part.records
    return logs, [f"{one['topic']}-{one['partition']}" for one in behind]


def check_log(
    logs: dict[Key, list[Record]], produced: list[Produced], value_bytes: int, faults: Faults
) -> int:
    """Compare the log with what producers were told, record by record.

    Returns
    -------
    int
        How many of its records are of these producers; others' are not looked at.
    """
    ours = {one.producer for one in produced}
    told = {(one.topic, one.partition, one.producer, one.sequence): one for one in produced}
    if len(told) != len(produced):
        faults.add("record doubled", "a sequence was answered twice")
    seen: Counter[tuple[str, int, int, int]] = Counter()
    for (topic, partition), found in logs.items():
        for offset, record in enumerate(found):
            if record.producer not in ours:
                continue
            name = (topic, partition, record.producer, record.sequence)
            seen[name] += 1
            where = f"{topic}-{partition} offset {offset}"
            if record.value != value(
                record.producer, topic, partition, record.sequence, value_bytes
            ):
                faults.add("record damaged", where)
            if name not in told:
                faults.add("record not answered", where)
            elif seen[name] == 1 and told[name].offset != offset:
                faults.add("record misplaced", f"{where}, its answer said {told[name].offset}")
            elif seen[name] > 1:
                faults.add("record doubled", where)
    for name in told.keys() - seen.keys():
        faults.add("record missing", f"{name[0]}-{name[1]} sequence {name[3]}")
    return sum(seen.values())


def check_groups(joined: list[Joined], size: int, faults: Faults) -> int:
    """Check that all who are told of a generation are told the same; returns how many there are."""
    generations: dict[tuple[str, int], list[Joined]] = {}
    for one in joined:
        generations.setdefault((one.group, one.generation), []).append(one)
    for (group, number), told in generations.items():
        where = f"group {group}, generation {number}"
        if len({one.members for one in told}) > 1 or len(told[0].members) != size:
            faults.add("group differs", where)
        if len({one.member for one in told}) != len(told):
            faults.add("member twice", where)
        if any(one.member not in one.members for one in told):
            faults.add("member not in its group", where)
    return len(generations)


def check_replicas(own: settings.Settings, faults: Faults) -> int:
    """Compare the followers' logs with the leader's, byte by byte; returns how many bytes."""
    size = 0
    leader = own.open_logs()
    for number in range(own.followers):
        for key, copy in own.open_replica(number).items():
            log = leader[key]
            if copy.log_end != log.log_end or _all_bytes(copy) != _all_bytes(log):
                faults.add("replica differs", f"follower {number}, {key[0]}-{key[1]}")
            size += copy.size(0, copy.log_end)
            copy.close()
    for log in leader.values():
        log.close()
    return size


def _all_bytes(log: Partition) -> bytes:
    end = log.size(0, log.log_end)
    return (Path(log.directory) / "records").read_bytes()[:end]


async def account(load: Load) -> dict[str, Any]:
    """Account for a load that has run.

    Returns
    -------
    dict
        For people by `report.text`, for programs as JSON. "exact" is the verdict.
    """
    results, counts, faults = load.results, load.counts, Faults()
    async with Client(load.host, load.port) as client:
        logs, behind = await read_all(client)
    for name in behind:
        faults.add("not replicated", name)
    records = check_log(logs, results.produced, load.plan.value_bytes, faults)
    generations = check_groups(results.joined, load.plan.group_size, faults)
    for text in results.bad_fetches:
        faults.add("fetch wrong", text)
    return figures(results, counts, faults) | {"records": records, "generations": generations}


def figures(results: Results, counts: Counts, faults: Faults) -> dict[str, Any]:
    """The account in numbers; it is exact if each request has one answer and nothing is wrong."""
    lost = sum(results.lost.values())
    errors = _errors(results)
    unaccounted = results.sent - results.answered() - lost
    return {
        "sent": results.sent,
        "answered": results.answered(),
        "timed_out": sum(n for (_, error), n in results.answers.items() if error == "timed-out"),
        "errors": errors,
        "lost": lost,
        "doubled": counts.strays,
        "unaccounted": unaccounted,
        "resent": counts.resent,
        "broken": counts.broken,
        "kinds": _kinds(results),
        "fetched_records": results.fetched_records,
        "faults": dict(faults.counts),
        "examples": faults.examples,
        "exact": not (lost or counts.strays or unaccounted or errors or faults.counts),
    }


def add_replicas(found: dict[str, Any], own: settings.Settings) -> None:
    """Add the comparison of the followers' files; the broker must have stopped."""
    faults = Faults()
    found["replica_bytes"] = check_replicas(own, faults)
    found["faults"] |= faults.counts
    found["examples"] += faults.examples
    found["exact"] = found["exact"] and not faults.counts


def _errors(results: Results) -> dict[str, int]:
    found: Counter[str] = Counter()
    for (_, error), count in results.answers.items():
        if error not in ("ok", "timed-out"):
            found[error] += count
    return dict(found)


def _kinds(results: Results) -> dict[str, dict[str, Any]]:
    """Per kind of request: answers by outcome, and how long they took, ms."""
    found: dict[str, dict[str, Any]] = {}
    for kind, times in sorted(results.latencies.items()):
        ordered = sorted(times)
        outcomes = {error: n for (name, error), n in results.answers.items() if name == kind}
        found[kind] = {
            **outcomes,
            "p50_ms": round(1000 * ordered[len(ordered) // 2], 2),
            "p99_ms": round(1000 * ordered[len(ordered) * 99 // 100], 2),
        }
    return found
