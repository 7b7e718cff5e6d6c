"""The report's questions to DuckDB in one process: what Spark is measured against.

Same buckets, same rules, plain SQL; the answers have to be equal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wheeld_pipeline.report.counts import bins, wheels

_LATE = f"""CASE WHEN lateness_ns IS NULL THEN -1 WHEN lateness_ns < 1000 THEN 0
    ELSE 1 + CAST(floor(log2(lateness_ns / 1000.0::DOUBLE) * {bins.PARTS} + 1e-9) AS INT) END"""
_DELAY = (
    "CASE WHEN delay_ns IS NULL THEN -1 "
    + " ".join(
        f"WHEN delay_ns < {int(bins.delay_bounds(c)[1])} THEN {c}"
        for c in range(len(bins.DELAY_NAMES) - 1)
    )
    + f" ELSE {len(bins.DELAY_NAMES) - 1} END"
)
_CODE = "CASE WHEN event = 'lost' THEN lost_event WHEN periodic THEN 'p-' || event ELSE event END"


class Duck:
    def __init__(self, trace: Path, threads: int, tried: wheels.Candidates, step: int) -> None:
        import duckdb

        self.base = duckdb.connect()
        self.base.execute(f"SET threads = {threads}; SET TimeZone = 'UTC'")
        every = f"{trace}/events/**/*.parquet"
        self.files = f"read_parquet('{every}', hive_partitioning = false)"
        self.tried, self.step = tried, step

    def ask(self, sql: str) -> Any:
        return self.base.execute(sql).df()

    def answers(self) -> dict[str, Any]:
        self.base.execute(
            f"""CREATE TEMP TABLE cube AS SELECT host, daemon, run, worker,
            epoch_us(time) // {self.step * 1_000_000} AS step, {_CODE} AS code,
            {_DELAY} AS delay, {_LATE} AS late, count(*) AS n, sum(count) AS events,
            max(pending) AS pending_max, min(pending) AS pending_min, max(lateness_ns) AS late_max
            FROM {self.files} GROUP BY ALL"""
        )
        ids = self.ask(
            f"""SELECT count(DISTINCT (host, daemon, run, timer_id & 4294967295)) AS fresh
            FROM {self.files} WHERE event = 'scheduled'"""
        )
        return {
            "rows": int(self.ask("SELECT sum(n) AS n FROM cube")["n"][0]),
            "first_uses": int(ids["fresh"][0]),
            "minutes": self._late_by("step"),
            "workers": self._late_by("worker"),
            "delays": self._late_by("delay"),
            "pending": int(self.ask("SELECT max(pending_max) AS p FROM cube")["p"][0]),
            "candidates": self._candidates(),
            "herds": self._herds(),
        }

    def _late_by(self, key: str) -> dict[str, list[float | None]]:
        counts = self.ask(
            f"""SELECT {key} AS key, sum(events) FILTER (code = 'scheduled') AS scheduled,
            sum(events) FILTER (code = 'expired') AS expired,
            sum(events) FILTER (code = 'cancelled') AS cancelled FROM cube GROUP BY ALL"""
        ).fillna(0)
        late = self.ask(
            f"""SELECT {key} AS key, late, sum(n) AS n, max(late_max) AS late_max
            FROM cube WHERE late >= 0 GROUP BY ALL"""
        )
        found: dict[str, list[float | None]] = {
            str(key): [int(a), int(b), int(c)] for key, a, b, c in counts.itertuples(index=False)
        }
        for key, own in late.groupby("key"):
            largest = float(own["late_max"].max())
            found[str(key)] += bins.percentiles(own["late"], own["n"].astype(int), largest)
        return found

    def _candidates(self) -> list[tuple[int, int, int, int]]:
        f = self.tried.finest_us
        self.base.execute(
            f"""CREATE TEMP TABLE ended AS SELECT s, d, CASE WHEN fired THEN {1 << 62}
            ELSE least(e, d - 1) END AS e, fired FROM (
            SELECT epoch_us(scheduled) // {f} AS s, event = 'expired' AS fired,
            (greatest(epoch_us(deadline), epoch_us(scheduled)) + {f - 1}) // {f} AS d,
            epoch_us(time) // {f} AS e FROM {self.files}
            WHERE event IN ('expired', 'cancelled', 'dropped') AND NOT periodic)"""
        )
        self.base.execute(
            """CREATE TEMP TABLE due AS SELECT d AS begun, count(*) AS n FROM ended WHERE fired
            GROUP BY ALL"""
        )
        found = []
        for k in self.tried.ticks:
            self._place(k)
            found += [self._candidate(k, b) for b in self.tried.bits]
        return found

    def _place(self, k: int) -> None:
        """Which beginnings of stretches the timers meet with a tick of 2**k finest ones."""
        low = k + min(self.tried.bits)
        self.base.execute(
            f"""CREATE OR REPLACE TEMP TABLE met AS SELECT m, begun, count(*) AS n FROM (
            SELECT m, (d >> m) << m AS begun, e FROM (SELECT d, e, unnest(range({low},
            CAST(floor(log2(xor(s, d)::DOUBLE)) AS INT) + 1)) AS m FROM (
            SELECT (s >> {k}) << {k} AS s, ((d + {(1 << k) - 1}) >> {k}) << {k} AS d, e
            FROM ended) WHERE d > s))
            WHERE begun <= e GROUP BY ALL"""
        )

    def _candidate(self, k: int, b: int) -> tuple[int, int, int, int]:
        mine = f"m >= {k + b} AND (m - {k}) % {b} = 0 AND ((begun >> m) & {(1 << b) - 1}) != 0"
        cascades = self.ask(f"SELECT coalesce(sum(n), 0) AS n FROM met WHERE {mine}")["n"][0]
        wakes = self.ask(
            f"""SELECT count(*) AS n FROM (SELECT begun >> {k} AS t FROM met WHERE {mine} UNION
            SELECT (begun + {(1 << k) - 1}) >> {k} AS t FROM due)"""
        )["n"][0]
        return k, b, int(wakes), int(cascades)

    def _herds(self) -> list[int]:
        k = self.tried.current_tick
        top = self.ask(
            f"""SELECT (begun + {(1 << k) - 1}) >> {k} AS t, sum(n) AS n FROM due
            GROUP BY ALL ORDER BY n DESC LIMIT 20"""
        )
        tick_us = self.tried.finest_us << k
        ends = ", ".join(str(int(t) * tick_us) for t in top["t"]) or "-1"
        made = self.ask(
            f"""SELECT (epoch_us(deadline) + {tick_us - 1}) // {tick_us} * {tick_us} AS t, worker,
            count(*) AS n FROM {self.files} WHERE event = 'expired' AND t IN ({ends}) GROUP BY
            ALL"""
        )
        return [*(int(n) for n in top["n"]), int(made["n"].sum())]
