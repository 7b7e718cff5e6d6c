"""What became of all requests, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WORDS: Final = {
    "unscheduled": "never scheduled",
    "lost": "neither cancelled nor delivered",
    "doubled": "ended more than once",
    "strangers": "delivered to a worker that had not scheduled it",
    "early": "fired before the deadline",
    "fired_early": "fired before the deadline",
    "deadline_wrong": "delivered with another deadline than was asked for",
    "payload_wrong": "delivered with other bytes than were scheduled",
    "left_pending": "still counted as pending at the end",
    "miscounted": "differ between the account and the workers' own counters",
}
"""What breaks a promise of the daemon."""


def faults_of(account: object) -> dict[str, int]:
    """Which counts of an account break a promise, and are not 0."""
    return {name: count for name in WORDS if (count := getattr(account, name, 0))}


def verdict_lines(faults: Mapping[str, int]) -> list[str]:
    """One line for each fault, or one that says that there is none."""
    if not faults:
        return ["OK: every request ended exactly once, none early, every payload intact"]
    return [f"FAILED: {count:,} {WORDS[name]} ({name})" for name, count in faults.items()]


def percentile_row(
    name: str, values: Mapping[str, float] | None, meaning: str, width: int, nothing: str
) -> str:
    """Percentiles in ms in one line; `nothing` when there are none."""
    if values is None:
        return f"{name:<{width}} {nothing}"
    text = "  ".join(f"{point} {value:.3f}" for point, value in values.items())
    return f"{name:<{width}} {text} ms  ({meaning})"
