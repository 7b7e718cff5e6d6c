"""Pending timers as table, JSON and CSV: the command `inspect`."""

from __future__ import annotations

import csv
import json
import sys
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from wheeld.metrics.pending import COLUMNS

FORMATS: Final = ("table", "json", "csv")


def print_timers(timers: list[dict[str, Any]], format: str, payloads: bool = False) -> None:
    columns = [*COLUMNS, *(["payload", "payload_hex"] if payloads else [])]
    if format == "json":
        print(json.dumps(timers, indent=1))
    elif format == "csv":
        writer = csv.DictWriter(sys.stdout, columns)
        writer.writeheader()
        writer.writerows(timers)
    else:
        table = Table(*columns, title=f"{len(timers)} pending timers, soonest first")
        for timer in timers:
            values = (timer[column] for column in columns)
            table.add_row(*("" if value is None else str(value) for value in values))
        Console(markup=False, emoji=False).print(table)
