"""The sweep: each contender at rising target rates, until it no longer keeps up.

A round measures a contender first with all requests at once (an infinite target rate), then at
targets around what it reached then, up to the first that it misses; then twice between the last
two. A run in which more or fewer requests expired than were drawn to expire, by more than one
percentage point, has failed, all at once or at a target: it reached its rate by completing late.
Saturation is the highest target that was achieved to 95 %. Rounds of all contenders alternate;
a number is the median over rounds, a ratio the median of the ratios of the same round.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from bench.purgatory.designs.contenders import CONTENDERS
from bench.purgatory.measure import EXCESS, Point, judged, measure, middle
from bench.purgatory.workload import CASES
from bench.result import Options, Result, Row, Target

GRID = [round(10 ** (4 + step / 10), -2) for step in range(31)]
"""Target rates: ten per decade, from 10,000 per second."""
COARSE = 3
"""Below saturation, one of so many is measured."""
FIRST = 0.8
"""The first target, as a share of the rate at an infinite one."""
REFINED = 2
"""So many targets between the highest achieved and the lowest missed."""
ACHIEVED = 0.95
FLAT_OUT = math.inf
PROBE = 50_000


@dataclass(frozen=True)
class Effort:
    """How long it may take.

    Attributes
    ----------
    seconds : float
        What a run should last; it decides how many requests it has.
    rounds : int
    main : tuple of str
        Contenders that are in all rounds: the first has the whole curve, the others its upper end.
    once : tuple of str
        Contenders of the first round only.
    requests : int or None
        So many in each run, whatever it lasts.
    targets : int or None
        The first so many of the grid and nothing else: no saturation.
    """

    seconds: float
    rounds: int
    main: tuple[str, ...]
    once: tuple[str, ...] = ()
    requests: int | None = None
    targets: int | None = None

    def contenders(self, number: int) -> tuple[str, ...]:
        """Those of a round."""
        return self.main + self.once if number == 0 else self.main


MAIN = ("wheel", "old")
OTHERS = tuple(name for name in CONTENDERS if name not in MAIN)
EFFORTS = {
    "quick": Effort(0.1, 1, MAIN, ("nothing",), requests=2_000, targets=1),
    "brief": Effort(1.0, 3, MAIN, ("lazy heap", "nothing")),
    "normal": Effort(3.0, 3, MAIN, OTHERS),
    "full": Effort(0.0, 1, MAIN, OTHERS, requests=1_000_000),
}

FLAT_OUT_COLUMNS = {
    "all at once/s": ("achieved", 1),
    "CPU s/M": ("cpu_per_million", 1),
    "clock s/M": ("helper_per_million", 1),
    "GC s/M": ("gc_per_million", 1),
    "peak MB": ("peak_mb", 1),
    "expired %": ("expired", 100),
    "drawn %": ("drawn", 100),
}
"""Of the summary: what it is called in a row, and a factor."""

Key = tuple[str, str, int]
"""Contender, case, processes."""


@dataclass
class Sweep:
    """What was measured so far."""

    effort: Effort
    say: Callable[[str], None]
    samples: dict[tuple[str, str, int, float], list[Row]] = field(
        default_factory=lambda: defaultdict(list)
    )
    saturations: dict[Key, list[float]] = field(default_factory=lambda: defaultdict(list))

    def _requests(self, rate: float) -> int:
        return self.effort.requests or max(2_000, int(rate * self.effort.seconds))

    def _one(self, key: Key, rate: float, expected: float, seed: int) -> Row:
        """One run."""
        contender, case, processes = key
        point = Point(contender, case, rate, self._requests(min(rate, expected)), processes)
        row = {"requests": point.requests, **judged(measure(point, seed))}
        self.samples[(*key, rate)].append(row)
        target = "all at once" if rate == FLAT_OUT else f"{rate:,.0f}/s"
        self.say(
            f"{contender}, {case}, {processes} processes, {target}: "
            + (row["failed"] or f"{row['achieved']:,.0f}/s, {row['cpu_per_million']:.2f} s CPU/M")
        )
        return row

    def _saturation(self, key: Key, capacity: float, seed: int) -> float:
        """Look for it around `capacity`."""

        def achieves(rate: float) -> bool:
            row = self._one(key, rate, rate, seed)
            return row["failed"] is None and bool(row["achieved"] >= ACHIEVED * rate)

        at = max((n for n, rate in enumerate(GRID) if rate <= FIRST * capacity), default=0)
        if achieves(GRID[at]):
            while achieves(GRID[at + 1]):
                at += 1
        else:
            at -= 1
            while at >= 0 and not achieves(GRID[at]):
                at -= 1
            if at < 0:
                return 0.0
        best, missed = GRID[at], GRID[at + 1]
        for _ in range(REFINED):
            between = round(math.sqrt(best * missed), -2)
            if achieves(between):
                best = between
            else:
                missed = between
        return best

    def round(self, key: Key, number: int, seed: int) -> None:
        """Measure one contender once."""
        known = [row["achieved"] for row in self.samples.get((*key, FLAT_OUT), ())]
        expected = max(known, default=0.0)
        if not expected and self.effort.requests is None:
            probe = Point(key[0], key[1], FLAT_OUT, PROBE, key[2])
            expected = measure(probe, seed)["achieved"] or GRID[0]
        capacity = self._one(key, FLAT_OUT, expected, seed)["achieved"] or expected or GRID[0]
        if self.effort.targets is not None:
            for rate in GRID[: self.effort.targets]:
                self._one(key, rate, rate, seed)
            return
        best = self._saturation(key, capacity, seed)
        self.saturations[key].append(best)
        if number == 0:
            for rate in GRID[::COARSE]:
                if rate < best and (*key, rate) not in self.samples:
                    self._one(key, rate, rate, seed)

    def run(self, cores: int) -> None:
        """All rounds, with one process and with one per core."""
        for number in range(self.effort.rounds):
            for case in CASES:
                seed = 1000 * (number + 1)
                for contender in self.effort.contenders(number):
                    self.round((contender, case, 1), number, seed)
        if cores > 1:
            for case in CASES:
                for contender in self.effort.main:
                    self.round((contender, case, cores), 0, 5000)

    def rows(self) -> list[Row]:
        """Medians, one row for each contender, case, number of processes and target."""
        return [
            {
                "contender": contender,
                "case": case,
                "processes": processes,
                "target": None if rate == FLAT_OUT else rate,
                "runs": len(samples),
                **middle(samples),
            }
            for (contender, case, processes, rate), samples in sorted(
                self.samples.items(), key=lambda item: item[0]
            )
        ]

    def summary(self) -> list[Row]:
        """One row for each contender, case and number of processes: saturation, and flat out.
        Without numbers where the runs flat out do not count."""
        found = []
        for row in self.rows():
            if row["target"] is not None:
                continue
            key = (row["contender"], row["case"], row["processes"])
            reached = self.saturations.get(key)
            about: Row = dict(zip(("contender", "case", "processes"), key, strict=True))
            about["saturation/s"] = median(reached) if reached else None
            for column, (name, factor) in FLAT_OUT_COLUMNS.items():
                about[column] = None if row["failed"] else factor * row[name]
            found.append({**about, "runs": row["runs"]})
        order = self.effort.contenders(0)
        found.sort(key=lambda row: (row["processes"], row["case"], order.index(row["contender"])))
        return found

    def ratio(self, case: str, rival: str) -> float:
        """The wheel's saturation over the rival's, one process."""
        ours, theirs = self.saturations["wheel", case, 1], self.saturations[rival, case, 1]
        return median(a / b if b else math.nan for a, b in zip(ours, theirs, strict=False))

    def targets(self) -> list[Target]:
        """What was promised."""
        return [
            Target(f"saturation / the old design's, {case}-timeout case, one process",
                   self.ratio(case, "old"), 3, at_least=True, unit="x")
            for case in CASES
        ]  # fmt: skip

    def result(self) -> Result:
        """The summary, with the targets if both sides of the ratio were measured."""
        notes = [
            f"saturation: the highest target achieved to {ACHIEVED:.0%} (steps of about 6 %), with",
            f"as many expired as drawn, within {EXCESS:.0%};",
            "all other columns: all requests at once (-: no run counts);",
            "nothing: the harness's own share",
        ]
        result = Result("purgatory: Kafka's experiment", self.summary(), notes=notes)
        if set(MAIN) <= set(self.effort.main) and self.effort.targets is None:
            result.targets = self.targets()
        return result

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "rows": self.rows(),
            "summary": self.summary(),
            "saturations": [
                {"contender": key[0], "case": key[1], "processes": key[2], "rounds": values}
                for key, values in self.saturations.items()
            ],
        }


def run(options: Options, say: Callable[[str], None]) -> Result:
    """Only what the targets need: wheel and old design, one process."""
    effort = EFFORTS["quick" if options.quick else "brief"]
    sweep = Sweep(replace(effort, once=(), rounds=min(effort.rounds, options.rounds)), say)
    sweep.run(cores=1)
    return sweep.result()
