"""Is all well, what was late and why, what to change: the three sentences that begin a report.

A cause is named only if the trace shows it. The rules, with their numbers, are in docs/report.md.
"""

from __future__ import annotations

from typing import Any, Final

from wheeld_pipeline.report import texts
from wheeld_pipeline.report.analysis import names

EXPECTED_TICKS: Final = 3
LEAST_NS: Final = 2e6
"""p99 is expected within so many ticks, or within this: rounding, and the kernel's wake-up."""
HAND_OUT_NS: Final = 200
"""CPU time of handing out one timer, about: what makes a herd take long."""
SHARE: Final = 0.01
"""A cause counts if it affects at least this share of the timers, which is what p99 is about."""
ALONE: Final = 4
"""A worker is named if its p99 is this many times that of the median worker."""
FULL: Final = 0.8
"""Share of the capacity above which a larger one is advised."""
WELL, LATE, NOTHING = "well", "late", "nothing expired"


def verdict(facts: dict[str, Any], tables: dict[str, Any]) -> dict[str, Any]:
    """Judge a report by its facts and tables.

    Returns
    -------
    dict
        `state` (`well`, `late` or `nothing expired`), `causes` (names, the gravest first), and
        `sentences`: three strings.
    """
    late, limit = facts["lateness_ns"], expected_ns(facts)
    if late["p99"] is None:
        said = "No timer expired: there is no lateness to judge."
        return _verdict(NOTHING, [], said, _account(facts), _change(facts, []))
    p99, most = texts.duration(late["p99"]), texts.duration(late["max"])
    tick = texts.duration(facts["wheel"]["tick_ns"])
    if late["p99"] <= limit:
        first = (
            f"It is well: 99 of 100 timers were handed out at most {p99} after their deadline, "
            f"which a tick of {tick} allows."
        )
        causes = [*_full_rings(tables), *_stalls(facts)]
        seen = " ".join([f"The latest was {most} late.", *(text for _, text, _ in causes)])
        return _verdict(WELL, causes, first, seen, _change(facts, causes))
    first = (
        f"It is late: 1 in 100 timers was handed out more than {p99} after its deadline; with a "
        f"tick of {tick}, at most {texts.duration(limit)} is expected."
    )
    causes = [
        *_overload(facts, limit),
        *_herds(tables, limit),
        *_full_rings(tables),
        *_stalls(facts),
    ]
    causes = causes or [UNKNOWN]
    why = [text for _, text, _ in causes]
    why += [*_worker(tables), *_when(tables, limit)]
    return _verdict(LATE, causes, first, " ".join(why), _change(facts, causes))


def expected_ns(facts: dict[str, Any]) -> float:
    """The lateness that p99 may have on a machine that is well, ns."""
    return max(float(EXPECTED_TICKS * facts["wheel"]["tick_ns"]), LEAST_NS)


Cause = tuple[str, str, str]
"""Name, what was seen, and what to do about it."""


UNKNOWN: Final = (
    "unknown",
    "The trace shows no cause.",
    "Run `wheeld doctor` while it is late: it looks at the machine and at the daemon.",
)


def _verdict(state: str, causes: list[Cause], *sentences: str) -> dict[str, Any]:
    return {"state": state, "causes": [name for name, _, _ in causes], "sentences": list(sentences)}


def _account(facts: dict[str, Any]) -> str:
    made, ended = (texts.whole(facts["events"][name]) for name in ("scheduled", "cancelled"))
    return f"{made} were scheduled, {ended} cancelled."


def _overload(facts: dict[str, Any], limit: float) -> list[Cause]:
    """The kernel woke the clock late, by a good part of the lateness."""
    slept = facts.get("wakes", {}).get("longest_oversleep_ns") or 0
    if slept < max(limit, facts["lateness_ns"]["p99"] / 4):
        return []
    seen = (
        f"The machine was overloaded: the kernel woke the clock up to {texts.duration(slept)} "
        f"later than it had asked for."
    )
    change = (
        "Give the machine less work or more processors, or the clock a processor of its own "
        "(--pin-cpu); another tick would not help."
    )
    return [("overload", seen, change)]


def _herds(tables: dict[str, Any], limit: float) -> list[Cause]:
    """So many timers were due at once that delivering them takes longer than expected."""
    sizes = tables["herd_sizes"]
    total = sizes["timers"].sum()
    large = sizes[sizes["at_most"] * HAND_OUT_NS >= limit]
    if not total or large["timers"].sum() < SHARE * total:
        return []
    makers = tables["herd_makers"]
    named = makers.assign(worker=names.of_workers(makers, tables["workers"])).groupby("worker")
    sums = named["timers"].sum().sort_values(ascending=False)
    by = f", most by {sums.index[0]}" if len(sums) else ""
    seen = (
        f"{texts.percent(large['timers'].sum() / total)} of the timers were due in herds of "
        f"{texts.number(large['at_least'].min())} or more at once{by}."
    )
    whom = sums.index[0] if len(sums) else "those workers"
    return [("herds", seen, f"Spread the deadlines of {whom}: add a little random jitter.")]


def _full_rings(tables: dict[str, Any]) -> list[Cause]:
    """Workers that polled so seldom that their rings were full."""
    found = tables.get("full_rings")
    if found is None or not len(found):
        return []
    named = found.assign(worker=names.of_workers(found, tables["workers"]))
    worst = named.sort_values("rows", ascending=False).iloc[0]["worker"]
    others = f" and {len(named) - 1} more" if len(named) > 1 else ""
    seen = (
        f"The ring of {worst}{others} was full in {texts.whole(named['rows'].sum())} of the "
        f"daemon's samples, one a second: what expired waited until it was polled."
    )
    change = f"Poll more often in {worst}{others}, or in a thread: `timers.dispatching()`."
    return [("rings", seen, change)]


def _stalls(facts: dict[str, Any]) -> list[Cause]:
    """What delayed timers for a while: no clock, or a worker that did not poll."""
    found = []
    if restarts := facts.get("clock_restarts"):
        times = "once" if restarts == 1 else f"{restarts:,} times"
        seen = f"The clock was replaced {times}, and what fell due meanwhile waited for the next."
        found.append(("restarts", seen, "The daemon's log says why its clock ended."))
    if missed := facts.get("missed_ticks"):
        seen = (
            f"{texts.whole(missed)} ticks of periodic timers were skipped, because their workers "
            f"did not poll or no clock ran."
        )
        found.append(("unpolled", seen, "Poll more often, or in a thread: `timers.dispatching()`."))
    return found


def _worker(tables: dict[str, Any]) -> list[str]:
    """Names one worker whose timers were late while others' were not."""
    workers = tables["workers"].assign(worker=names.of_workers(tables["workers"]))
    known = workers[workers["p99"].notna()].sort_values("p99")
    if len(known) < 2 or known["p99"].iloc[-1] < ALONE * known["p99"].iloc[(len(known) - 1) // 2]:
        return []
    worst = known.iloc[-1]
    return [f"Above all those of {worst['worker']}: p99 {texts.duration(worst['p99'])}."]


def _when(tables: dict[str, Any], limit: float) -> list[str]:
    """Names the part of the time in which timers were late."""
    steps = tables["minutes"][tables["minutes"]["p99"].notna()]
    late = steps[steps["p99"] > limit]
    if not len(late) or len(late) == len(steps):
        return []
    worst = late.loc[late["p99"].idxmax(), "time"]
    return [
        f"That was in {len(late)} of {len(steps)} steps of time, worst at {worst:%H:%M:%S} UTC."
    ]


def _change(facts: dict[str, Any], causes: list[Cause]) -> str:
    """What to do."""
    found, capacity = facts["advice"], facts["wheel"]["capacity"]
    said = [change for _, _, change in causes]
    if capacity and facts["pending_max"] > FULL * capacity:
        share = texts.percent(facts["pending_max"] / capacity)
        said.append(f"{share} of the slots were taken: take --capacity {found['capacity']}.")
    if found["worth"] and "overload" not in [name for name, _, _ in causes]:
        said.append(
            f"Another wheel suits this load better: --tick {texts.option(found['tick_us'])} "
            f"--wheel-size {found['wheel_size']}."
        )
    return " ".join(said) or "Leave it as it is."
