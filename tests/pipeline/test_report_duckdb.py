"""Every figure of a report, asked again of the raw files of recorded traces, with DuckDB.

Two daemons of different ticks record into one trace: one has a trace ring so small that events are
lost, each has a worker that dies, periodic timers, and timers that are armed to the end.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import oracle
import pandas as pd
import pytest

import wheeld
from wheeld_client import connect
from wheeld_pipeline.report import Report, of_trace

WHEEL = "host, daemon, run"
GROWING = ("wakes", "bells", "passes", "fired", "relinked", "cascaded", "scheduled",
           "rescheduled", "cancelled", "expired", "ended", "lost", "run_delay_ns")  # fmt: skip
KINDS = ("scheduled", "rescheduled", "cancelled", "expired", "ticks", "dropped", "lost")
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
ROUGHLY = 0.0223  # a bucket of lateness
POOL = 1 << 20
NOTHING = pd.DataFrame({"depleted_ns": [], "depleted_share": []})


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded") / "trace"
    with ExitStack() as stack:
        for name, more in (("one", {"pools": [f"p={POOL}"]}),
                           ("two", {"tick": "4ms", "trace_ring": 1024})):  # fmt: skip
            options: dict[str, Any] = {"capacity": 8192, "virtual_clock": True, "name": name}
            where = stack.enter_context(wheeld.embedded(trace=str(root), **options, **more))
            _load(where)
    return root


def _load(where: str) -> None:
    dying = os.fork()
    if not dying:
        connect(where, worker="dies").schedule_many([5.0] * 50)
        os._exit(0)
    os.waitpid(dying, 0)
    with connect(where, worker="w0") as one, connect(where, worker="w1") as two:
        ids = one.schedule_many([0.001 * (i % 300) for i in range(2000)])
        two.schedule_many([30.0] * 40)
        two.schedule(0.5, interval=0.5)
        one.cancel_many(ids[::3])
        for moved in ids[1:150:3]:
            one.reschedule(moved, 2.0)
        for step in range(6):
            wheeld.advance(where, 1)
            one.schedule_many([0.02 * (i + 1) for i in range(10 * step)])
            for timers in (one, two):
                while len(timers.poll(0)):
                    pass
            time.sleep(0.25)  # a second in all, so that there are rows of counters within


WINDOWS = {"whole": (None, None), "window": (500_000, 5_900_000)}


class Asked:
    """DuckDB over the rows of a part of a trace."""

    def __init__(self, trace: Path, since: int | None, until: int | None) -> None:
        self.base = duckdb.connect()
        self.base.execute("SET TimeZone = 'UTC'; SET threads = 1")
        inside = f"t >= {since or 0} AND t < {until or 1 << 62}"
        grown = ", ".join(f"{n} - lag({n}, 1, 0) OVER life AS d_{n}" for n in GROWING)
        options = "hive_partitioning = false, filename = true, file_row_number = true"
        files = {kind: f"read_parquet('{trace}/{kind}/**/*.parquet', {options})"
                 for kind in ("events", "counters")}  # fmt: skip
        self.base.execute(
            f"""CREATE TABLE e AS SELECT *, CASE WHEN periodic AND event = 'expired' THEN 'ticks'
            ELSE event END AS kind, t // 1000000 AS step FROM (SELECT *, epoch_us(time) AS t
            FROM {files["events"]}) WHERE {inside};
            CREATE TABLE c AS SELECT *, t // 1000000 AS step FROM (SELECT *, {grown},
            t - lag(t) OVER life AS passed, clock_epoch - lag(clock_epoch, 1, 1) OVER life AS again,
            wake_late_ns > lag(wake_late_ns, 1, 0) OVER life AS later FROM (SELECT *, epoch_us(time)
            AS t FROM {files["counters"]}) WINDOW life AS (PARTITION BY {WHEEL} ORDER BY t, last))
            WHERE {inside}"""
        )

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.base.execute(sql).fetchall()
        return found

    def row(self, sql: str) -> tuple[Any, ...]:
        return self.rows(sql)[0]

    def one(self, sql: str) -> Any:
        return self.row(sql)[0]

    def events(self) -> list[dict[str, Any]]:
        """As the oracle takes them."""
        cursor = self.base.execute(
            """SELECT * REPLACE (t AS time, epoch_us(scheduled) AS scheduled,
            epoch_us(deadline) AS deadline) FROM e WHERE event != 'lost'"""
        )
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@pytest.fixture(scope="module", params=list(WINDOWS))
def both(trace: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Report, Asked]]:
    since, until = WINDOWS[request.param]
    period = [None if at is None else datetime.fromtimestamp(at / 1e6, UTC)
              for at in (since, until)]  # fmt: skip
    asked = Asked(trace, since, until)
    yield of_trace(None, trace, lambda _: None, *period), asked
    asked.base.close()


def lateness(asked: Asked, key: str, where: str = "true") -> dict[Any, dict[str, float]]:
    """By nearest rank, of the values themselves."""
    ranks = ", ".join(f"list_sort(l)[greatest(ceil({s} * len(l) - 1e-9), 1)::INT]"
                      for s in SHARES.values())  # fmt: skip
    rows = asked.rows(
        f"""SELECT k, {ranks}, list_max(l) FROM (SELECT {key} AS k, list(lateness_ns) AS l FROM e
        WHERE lateness_ns IS NOT NULL AND {where} GROUP BY ALL)"""
    )
    return {key: dict(zip((*SHARES, "max"), found, strict=True)) for key, *found in rows}


def check_lateness(found: Any, expected: dict[str, float] | None) -> None:
    if expected is None:
        assert all(found[name] is None or found[name] != found[name] for name in (*SHARES, "max"))
        return
    assert found["max"] == expected["max"]
    for name in SHARES:
        # Below 1 us all is one bucket, and no percentile is above the maximum.
        assert found[name] == pytest.approx(max(expected[name], 0), rel=ROUGHLY, abs=501)


def check_lines(table: Any, asked: Asked, key: str, where: str = "true") -> None:
    """Counts, rates and lateness of each line, by its `k`."""
    counts: dict[Any, Counter[str]] = defaultdict(Counter)
    for k, kind, n in asked.rows(
        f"SELECT {key} AS k, kind, sum(count)::BIGINT FROM e WHERE {where} GROUP BY ALL"
    ):
        counts[k][kind] = n
    late = lateness(asked, key, where)
    lines = {line["k"]: line for line in table.to_dict("records")}
    assert set(counts) <= set(lines)
    for k, line in lines.items():
        assert {kind: line[kind] for kind in KINDS} == {kind: counts[k][kind] for kind in KINDS}
        check_rates(line, counts[k])
        check_lateness(line, late.get(k))


def check_rates(found: Any, counts: Counter[str]) -> None:
    ended = counts["expired"] + counts["cancelled"]
    for name, kind in (("timeout_rate", "expired"), ("cancel_rate", "cancelled")):
        if ended:
            assert found[name] == pytest.approx(counts[kind] / ended)
        else:
            assert found[name] is None or found[name] != found[name]


def test_the_trace_has_all_that_is_asked_for(trace: Path) -> None:
    asked = Asked(trace, None, None)
    assert asked.row("SELECT count(DISTINCT run), count(DISTINCT worker) FROM e") == (2, 3)
    assert asked.one("SELECT sum(count) FROM e WHERE event = 'lost'") > 500
    assert asked.one("SELECT count(*) FROM e WHERE event = 'dropped' AND worker = 'dies'") >= 50


def test_facts_of_events(both: tuple[Report, Asked]) -> None:
    report, asked = both
    facts = report.facts
    counts = Counter(dict(asked.rows("SELECT kind, sum(count)::BIGINT FROM e GROUP BY ALL")))
    assert facts["events"] == {kind: counts[kind] for kind in KINDS}
    check_rates(facts, counts)
    assert facts["lost"] == dict(
        asked.rows("SELECT lost_event, sum(count)::BIGINT FROM e WHERE kind = 'lost' GROUP BY ALL")
    )
    first, last, rows = asked.row("SELECT min(t), max(t), count(*) FROM e")
    assert [datetime.fromisoformat(facts[n]).timestamp() for n in ("from", "to")] == pytest.approx(
        [first / 1e6, last / 1e6], abs=1e-3
    )
    assert facts["seconds"] == pytest.approx((last - first) / 1e6)
    assert facts["rows"] == rows
    for name in ("host", "daemon", "run"):
        assert facts[f"{name}s"] == sorted(
            row[0] for row in asked.rows(f"SELECT DISTINCT {name} FROM e")
        )
    assert facts["workers"] == asked.one(
        f"SELECT count(DISTINCT ({WHEEL}, worker)) FROM e WHERE worker IS NOT NULL"
    )
    check_lateness(facts["lateness_ns"], lateness(asked, "1").get(1))
    assert (facts["found"], facts["missed_ticks"]) == asked.row(
        "SELECT count(*) FILTER (found), sum(missed) FROM e"
    )


def test_what_is_pending(both: tuple[Report, Asked], trace: Path) -> None:
    """Of each wheel, as its capacity is; at the end by the clock's own count, whatever was lost."""
    report, asked = both
    facts, minutes = report.facts, report.tables["minutes"]
    own: dict[Any, dict[int, tuple[int, int]]] = defaultdict(dict)
    for run, step, most, least in asked.rows(
        "SELECT run, step, max(pending), min(pending) FROM e GROUP BY ALL"
    ):
        own[run][step] = (most, least)
    steps = [int(moment.timestamp()) for moment in minutes["time"]]
    assert facts["step_seconds"] == 1
    assert steps == [*range(steps[0], steps[-1] + 1)]
    for step, most, least in zip(
        steps, minutes["pending_max"], minutes["pending_min"], strict=True
    ):
        known = [seen[max(s for s in seen if s <= step)] for seen in own.values()
                 if min(seen) <= step <= max(seen)]  # fmt: skip
        assert (most, least) == (max(a for a, _ in known), min(b for _, b in known))
    assert facts["pending_max"] == asked.one("SELECT max(pending) FROM e")
    last = asked.rows(
        f"SELECT last(pending ORDER BY t, filename, file_row_number) FROM e GROUP BY {WHEEL}"
    )
    assert facts["open"] == sum(row[0] for row in last)
    if facts.get("complete"):
        assert facts["open"] == 0  # all of them went with their workers


def test_what_slots_say(both: tuple[Report, Asked]) -> None:
    """The trace lost some that were scheduled, so nothing is known; test_report_daemon.py counts
    them in one that has all."""
    assert set(both[0].facts["slots"].values()) == {None}


def test_facts_of_counters(both: tuple[Report, Asked]) -> None:
    report, asked = both
    facts = report.facts
    if not asked.one("SELECT count(*) FROM c"):
        assert facts.keys().isdisjoint({"wakes", "daemon_account", "complete"})
        return
    wakes = report.tables["wakes"]
    names = [name for name in GROWING if name != "run_delay_ns"]
    sums = ", ".join(f"sum(d_{name})::BIGINT" for name in names)
    steps = asked.rows(f"SELECT step, {sums} FROM c GROUP BY ALL ORDER BY step")
    found = [(int(line["time"].timestamp()), *(line[n] for n in names))
             for line in wakes.to_dict("records")]  # fmt: skip
    assert found == steps
    total = dict(zip(names, asked.row(f"SELECT {sums} FROM c"), strict=True))
    account = ("scheduled", "rescheduled", "cancelled", "expired", "ended", "lost")
    assert facts["daemon_account"] == {name: total[name] for name in account}
    seconds, before = asked.row(
        f"""SELECT sum(b - a) / 1e6, sum(w) FROM (SELECT max(t) AS b, min(t) AS a,
        arg_min(d_wakes, t) AS w FROM (FROM c ORDER BY t, last) GROUP BY {WHEEL})"""
    )
    longest, delay = asked.row(
        """SELECT coalesce(max(wake_late_ns) FILTER (later), 0), max(d_run_delay_ns) FROM c"""
    )
    assert facts["wakes"] == {
        "total": total["wakes"],
        "per_second": pytest.approx((total["wakes"] - before) / float(seconds))
        if seconds
        else None,
        "timers_per_wake": pytest.approx(total["fired"] / total["wakes"]),
        "longest_oversleep_ns": longest,
        "most_run_delay_ns": delay,
    }
    peaks = asked.row(
        """SELECT max(a), max(b) FROM (SELECT sum(d_scheduled / greatest(passed / 1e6, 1)) AS a,
        sum(d_expired / greatest(passed / 1e6, 1)) AS b FROM c WHERE passed IS NOT NULL
        GROUP BY step)"""
    )
    assert [facts["peak_per_second"][n] for n in ("scheduled", "expired")] == pytest.approx(peaks)
    assert facts["clock_restarts"] == asked.one("SELECT sum(again) FROM c")
    assert facts["complete"] is asked.one(
        f"SELECT bool_and(ended) FROM (SELECT bool_or(last) AS ended FROM c GROUP BY {WHEEL})"
    )
    assert facts["wheel"]["capacity"] == asked.one("SELECT max(capacity) FROM c")
    full = asked.rows("SELECT daemon, w, count(*) FROM (SELECT daemon, unnest(full_rings) AS w "
                      "FROM c) GROUP BY ALL ORDER BY ALL")  # fmt: skip
    assert report.tables["full_rings"][["daemon", "worker", "rows"]].to_numpy().tolist() == [
        list(row) for row in full
    ]


def test_pools(both: tuple[Report, Asked]) -> None:
    report, asked = both
    steps = asked.rows(
        f"""SELECT name, step, max(size), max(used), sum(grown) FROM (SELECT step, t, p.name AS
        name, p.size AS size, p.used AS used, p.depleted_ns - lag(p.depleted_ns, 1, 0) OVER
        (PARTITION BY {WHEEL}, p.name ORDER BY t, last) AS grown FROM (SELECT *, unnest(pools) AS p
        FROM c)) GROUP BY ALL ORDER BY ALL"""
    )
    found = report.tables.get("pools", NOTHING)
    assert [(line["pool"], int(line["time"].timestamp()), line["size"], line["used"],
             line["depleted_ns"]) for line in found.to_dict("records")] == steps  # fmt: skip
    assert (found["depleted_share"] == (found["depleted_ns"] / 1e9).clip(upper=1)).all()


def test_lines_by_time_worker_and_delay(both: tuple[Report, Asked]) -> None:
    report, asked = both
    minutes = report.tables["minutes"]
    keys = [int(moment.timestamp()) for moment in minutes["time"]]
    check_lines(minutes.assign(k=keys), asked, "step")
    workers = report.tables["workers"]
    keys = [*zip(workers["run"], workers["worker"], strict=True)]
    check_lines(workers.assign(k=keys), asked, "(run, worker)", "worker IS NOT NULL")
    delays = report.tables["delays"]
    power = "greatest(5, floor(log10(greatest(delay_ns, 1)) + 1e-12)::INT)"
    lows = [0 if low == 0 else round(low) for low in delays["from_ns"]]
    keys = [max(5, len(str(low)) - 1) for low in lows]
    assert [oracle.delay_name(low) for low in lows] == delays["delay"].tolist()
    check_lines(delays.assign(k=keys), asked, power, "delay_ns IS NOT NULL")


def test_the_histogram_of_lateness(both: tuple[Report, Asked]) -> None:
    report, asked = both
    table = report.tables["lateness"]
    for low, high, timers in table.itertuples(index=False):
        first = -1e18 if low == 500 else low * (1 - 1e-12)
        assert timers == asked.one(
            f"SELECT count(*) FROM e WHERE lateness_ns >= {first} "
            f"AND lateness_ns < {high * (1 - 1e-12)}"
        )
    assert table["timers"].sum() == asked.one("SELECT count(lateness_ns) FROM e")


def test_other_wheels_and_advice(both: tuple[Report, Asked]) -> None:
    report, asked = both
    facts, options = report.facts, report.tables["candidates"]
    events = asked.events()
    scheduled = sum(each["event"] == "scheduled" for each in events)
    finest = options["tick_us"].min()
    for line in options.to_dict("records")[::5]:
        wheel = oracle.replayed(events, line["tick_us"], int(line["wheel_size"]).bit_length() - 1)
        assert (line["wakes"], line["cascades"]) == (len(wheel.wakes), wheel.cascades), line
        assert line["wakes_per_s"] == pytest.approx(line["wakes"] / facts["seconds"])
        assert line["cascades_per_timer"] == pytest.approx(line["cascades"] / max(scheduled, 1))
        work = line["wakes"] * 5_000 + line["cascades"] * 100
        assert line["cpu_percent"] == pytest.approx(work / (facts["seconds"] * 1e9) * 100)
        due = [max(e["deadline"], e["scheduled"]) for e in events if e["event"] == "expired"]
        grown = [-at % line["tick_us"] for at in due]
        mean = sum(grown) / len(grown)
        assert line["rounding_us"] == pytest.approx(mean, abs=finest / 2 + 1)
    waits = sorted(e["delay_ns"] for e in events if e["event"] == "scheduled")
    advice = facts["advice"]
    if waits:
        short = oracle.nearest_rank(waits, 0.1)
        assert advice["short_delay_ns"] == pytest.approx(short, rel=ROUGHLY)
        short = advice["short_delay_ns"]
        fitting = [tick for tick in options["tick_us"] if tick * 20 <= short / 1000]
        assert advice["tick_fits"] == bool(fitting)
        assert advice["tick_us"] == (max(fitting) if fitting else options["tick_us"].min())
    most = asked.one("SELECT max(pending) FROM e")
    assert 1.5 * most <= advice["capacity"] <= max(1.65 * most, 1000)
    sizes = options[options["tick_us"] == advice["tick_us"]]
    near = sizes[sizes["cpu_percent"] <= 1.05 * sizes["cpu_percent"].min()]
    assert advice["wheel_size"] == near["wheel_size"].min()
    (current,) = options[options["current"]].to_dict("records")
    busiest = asked.rows(
        """SELECT tick_ns, wheel_size, sum(w) AS w FROM (SELECT tick_ns, wheel_size, max(wakes) AS w
        FROM c GROUP BY tick_ns, wheel_size, run) GROUP BY ALL ORDER BY w DESC"""
    )
    chosen = (current["tick_us"] * 1000, current["wheel_size"])
    assert not busiest or (*chosen, busiest[0][2]) in busiest
    saves = (
        current["cpu_percent"] - sizes.set_index("wheel_size")["cpu_percent"][advice["wheel_size"]]
    )
    assert advice["saves_percent"] == pytest.approx(saves)
    assert advice["worth"] == (current["tick_us"] > advice["tick_us"] or saves >= 1)


def test_herds(both: tuple[Report, Asked]) -> None:
    report, asked = both
    tick_us = int(report.facts["wheel"]["tick_ns"]) // 1000
    end = f"(greatest(epoch_us(deadline), epoch_us(scheduled)) + {tick_us - 1}) // {tick_us}"
    asked.base.execute(
        f"""CREATE OR REPLACE TABLE fired AS SELECT *, {end} * {tick_us} AS due FROM e
        WHERE event = 'expired'"""
    )
    sizes = asked.rows(f"SELECT count(*) FROM fired GROUP BY {WHEEL}, due ORDER BY 1 DESC")
    found = report.tables["herds"]
    assert found["timers"].tolist() == [n for (n,) in sizes if n > 1][:20]
    for line in found.to_dict("records"):
        assert line["timers"] == asked.one(
            f"SELECT max(n) FROM (SELECT count(*) AS n FROM fired WHERE due = {line['tick_end_us']}"
            f" GROUP BY {WHEEL} HAVING n = {line['timers']})"
        )
    made = report.tables["herd_makers"]
    assert made["timers"].sum() == found["timers"].sum()
    for line in made.to_dict("records"):
        assert (line["timers"], line["periodic"], line["delay_min_ns"], line["delay_max_ns"],
                line["late_max_ns"], line["scheduled_from"].timestamp() * 1e6,
                line["scheduled_to"].timestamp() * 1e6) == asked.row(
            f"""SELECT count(*), sum(periodic::INT), min(delay_ns), max(delay_ns),
            max(lateness_ns), min(epoch_us(scheduled)), max(epoch_us(scheduled)) FROM fired
            WHERE run = '{line["run"]}' AND worker = '{line["worker"]}'
            AND due = {line["tick_end_us"]}"""
        )  # fmt: skip
    powers: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for (n,) in sizes:
        powers[n.bit_length() - 1][0] += 1
        powers[n.bit_length() - 1][1] += n
    assert report.tables["herd_sizes"].to_numpy().tolist() == [
        [1 << p, (2 << p) - 1, *powers[p]] for p in sorted(powers)
    ]
