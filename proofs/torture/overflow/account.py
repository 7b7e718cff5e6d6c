"""The rows that the sink of an overflow must hold, from the commands alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Command = tuple[str, str, int, int, int, bytes | None]
"""op, key, sequence, deadline in microseconds, cookie, payload. Sequences of a key rise."""


def offences(commands: Sequence[Command], sink: Path) -> dict[str, list[Any]]:
    """Rows and commands that should not be, or are missing; by kind."""
    expired, rejected = rows(sink, "expired"), rows(sink, "rejected")
    armed, last = {}, {}
    kept: dict[str, tuple[int, bytes | None]] = defaultdict(lambda: (0, None))
    refused = {(row["key"], row["sequence"]) for row in rejected if "pending" in row["reason"]}
    for op, key, sequence, due_us, cookie, payload in sorted(commands, key=lambda c: c[2]):
        last[key] = sequence
        if op == "schedule":
            kept[key] = (cookie, payload)
        if op != "cancel" and (key, sequence) not in refused:
            armed[key, sequence] = (due_us, *kept[key])
    seen = Counter((row["key"], row["generation"]) for row in expired)
    return {
        "lost": [one for one in armed if one not in seen and last[one[0]] == one[1]],
        "twice": [one for one, count in seen.items() if count > 1],
        "strange": [one for one in seen if one not in armed],
        "early": [row for row in expired if row["fired"] < row["deadline"]],
        "other": [row for row in expired if _differs(row, armed)],
        "rejected twice": [
            one
            for one, count in Counter(
                (row["key"], row["sequence"]) for row in rejected if "pending" in row["reason"]
            ).items()
            if count > 1
        ],
    }


def rows(sink: Path, kind: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    files = sorted((sink / kind).glob("batch=*/*.parquet"))
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def count(sink: Path) -> int:
    return len(rows(sink, "expired"))


def _differs(row: dict[str, Any], armed: dict[tuple[str, int], tuple[Any, ...]]) -> bool:
    """Has it another deadline, cookie or payload than was sent?"""
    sent = armed.get((row["key"], row["generation"]))
    if sent is None:
        return False
    due_us = round(row["deadline"].timestamp() * 1e6)
    return (due_us, row["cookie"], row["payload"]) != sent
