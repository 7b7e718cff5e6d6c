"""The account of a load: each acknowledged record is in the log once, and each group read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kio.records.readers import read_batch
from rich.table import Table

from examples.broker import batches
from examples.broker.settings import Settings

if TYPE_CHECKING:
    from examples.broker.load.program import Program

NAMED: Final = 10
"""Faults that are listed; all are counted."""


@dataclass
class Faults:
    """Faults by kind, and the first few of them in words."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, kind: str, text: str) -> None:
        """Count one."""
        self.counts[kind] += 1
        if len(self.examples) < NAMED:
            self.examples.append(f"{kind}: {text}")


def account(
    own: Settings,
    producers: list[Program],
    consumers: dict[str, list[Program]],
    hung: list[str],
) -> dict[str, Any]:
    """Check what clients were told against the log of a broker that has ended."""
    faults = Faults()
    for name in hung:
        faults.add("hung", name)
    log = read_log(own)
    values = Counter(log.values())
    told = [line for one in producers for line in one.lines]
    for one in producers:
        if one.process.returncode:
            faults.add("producer failed", f"{one.library}: exit code {one.process.returncode}")
    for partition, offset, value in told:
        if values[value] != 1:
            kind = "record doubled" if values[value] else "record lost"
            faults.add(kind, f"{value!r} is in the log {values[value]} times")
        elif offset >= 0 and log.get((partition, offset)) != value:
            faults.add("record misplaced", f"{value!r} is not at {partition}, {offset}")
    wanted = {line[2] for line in told}
    groups = {
        name: check_group(name, group, log, wanted, faults) for name, group in consumers.items()
    }
    return {
        "acknowledged": {one.library: len(one.lines) for one in producers},
        "records": len(log),
        "groups": groups,
        "replica_bytes": check_replicas(own, faults),
        "faults": dict(faults.counts),
        "examples": faults.examples,
        "exact": not faults.counts,
    }


def check_group(
    name: str,
    group: list[Program],
    log: dict[tuple[int, int], bytes],
    wanted: set[bytes],
    faults: Faults,
) -> dict[str, int]:
    """All that was acknowledged was read, once, as it is in the log, and in its order.

    Records whose commit failed may have been read once more. A group of kcat commits after it has
    read, so what it had not committed when a member's session ended is read again.
    """
    seen: Counter[tuple[int, int]] = Counter()
    for number, one in enumerate(group):
        last: dict[int, int] = {}
        for partition, offset, value in one.lines:
            where = f"group {name}, consumer {number}: {partition}, {offset}"
            if log.get((partition, offset)) != value:
                faults.add("read wrongly", where)
            if offset < last.get(partition, -1) and not seen[partition, offset]:
                faults.add("read out of order", f"{where} after {last[partition]}")
            seen[partition, offset] += 1
            last[partition] = offset
    again = sum(count - 1 for count in seen.values())
    if again and name != "kcat":
        faults.add("read again", f"group {name}: {again} records")
    unsure = {line[:2] for one in group for line in one.unsure}
    missing = wanted - {log[place] for place in unsure | seen.keys() if place in log}
    for value in sorted(missing):
        faults.add("not read", f"group {name}: {value!r}")
    return {"read": len(unsure | seen.keys()), "again": again, "missing": len(missing)}


def read_log(own: Settings) -> dict[tuple[int, int], bytes]:
    """All records, by partition and offset, of a topic without compressed batches."""
    found = {}
    for log in Path(own.directory).glob("logs/*/*/log"):
        for _, part in batches.split(log.read_bytes()):
            batch, _ = read_batch(part.toreadonly(), 0)
            for record in batch.records:
                found[int(log.parent.name), record.offset] = record.value or b""
    return found


def check_replicas(own: Settings, faults: Faults) -> int:
    """Compare the followers' files with the leader's; returns how many bytes were compared."""
    size = 0
    for log, copy in replicas(own):
        size += copy.stat().st_size
        if copy.read_bytes() != log.read_bytes():
            faults.add("replica differs", str(copy))
    return size


def replicas(own: Settings) -> Iterator[tuple[Path, Path]]:
    """Each of the leader's logs, with each follower's copy."""
    base = Path(own.directory)
    for log in sorted(base.glob("logs/*/*/log")):
        for node in range(1, own.followers + 1):
            yield log, base / f"replica-{node}" / log.relative_to(base / "logs")


def table(found: dict[str, Any]) -> Table:
    """The account, for people."""
    shown = Table(title="exact" if found["exact"] else "NOT exact", title_style="bold")
    for heading in ("client", "acknowledged", "read by its group", "again", "missing"):
        shown.add_column(heading, justify="left" if heading == "client" else "right")
    for name, group in found["groups"].items():
        figures = (found["acknowledged"].get(name, 0), group["read"], group["again"])
        shown.add_row(name, *map(str, figures), str(group["missing"]))
    killed = ", ".join(f"{count} {role}" for role, count in found["killed"].items())
    compared = f"{found['replica_bytes']} bytes of replicas compared"
    shown.caption = (
        f"{found['records']} records in the log, {compared}; "
        f"killed: {killed or 'nothing'}; {found['seconds']} s"
    )
    return shown
