"""How often does a check have operations of another worker asked that wait under other keys?

    python -m bench.purgatory.looks

Both workers are in this process: what is counted depends on hashes alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import wheeld
import wheeld_client
from bench.result import Options, Result, Row, show

CHECKS = 10_000


class Asked(wheeld_client.DelayedOperation):
    """Counts how often any of them is asked."""

    __slots__ = ()
    times = 0

    def try_complete(self) -> bool:
        """It never completes."""
        Asked.times += 1
        return False


def _others(
    checks: wheeld_client.Purgatory, looks: wheeld_client.Timers, offset: int, at_once: int
) -> float:
    """Operations under other keys that are asked, for each of CHECKS checks."""
    Asked.times = 0
    for number in range(CHECKS):
        checks.check_and_complete(("key", offset + number))
        if (number + 1) % at_once == 0:
            looks.dispatch(0)
    return Asked.times / CHECKS


def looks(waiting: int) -> Row:
    """With so many that wait, each under a key of its own."""
    with (
        wheeld.embedded(capacity=1 << 21) as name,
        wheeld_client.connect(name) as timers,
        wheeld_client.connect(name) as other,
    ):
        checks = wheeld_client.Purgatory(timers, "bench")
        waits = wheeld_client.Purgatory(other, "bench")
        for number in range(waiting):
            waits.try_complete_else_watch(Asked(None), [("key", number)])
        row: Row = {"waiting": waiting}
        for at_once in (1, 1000, CHECKS):
            row[f"{at_once} at once"] = _others(checks, other, 0, at_once) - 1
        row["of unwatched keys"] = _others(checks, other, waiting, 1)
        waits.shutdown()
        checks.shutdown()
        return row


def run(options: Options, say: Callable[[str], None]) -> Result:
    """Per check, with few and with many that wait."""
    say("purgatory: looks in vain")
    sizes = [CHECKS] if options.quick else [CHECKS, 100_000, 1_000_000]
    return Result("purgatory: operations asked in vain, per check", [looks(size) for size in sizes])


if __name__ == "__main__":
    print(show(run(Options(quick="--quick" in sys.argv), print)))
