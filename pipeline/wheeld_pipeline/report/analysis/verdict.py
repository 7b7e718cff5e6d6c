"""The three sentences that begin a report: whether all is well, what was late and why, and what to
change.

A cause is named only if the trace shows it, and only if it explains a good part of the lateness;
it says how much. The rules, with their numbers, are in docs/report.md.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from wheeld_pipeline.report import texts
from wheeld_pipeline.report.analysis import names

EXPECTED_TICKS: Final = 3
LEAST_NS: Final = 2e6
"""p99 is expected within so many ticks, or within this: rounding, and the kernel's wake-up."""
HAND_OUT_NS: Final = 200
"""Approximate CPU time of handing out one timer, which makes herds slow."""
SHARE: Final = 0.01
"""A cause counts if it affects at least this share of the timers, the share that p99 leaves out."""
EXPLAINS: Final = 0.25
"""A cause of lateness explains at least this part of p99."""
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
            f"All is well: 99 of 100 timers were handed out at most {p99} after their deadline,"
            f" as expected with a tick of {tick}."
        )
        causes = [*_full_rings(tables), *_stalls(facts)]
        seen = " ".join([f"The latest was {most} late.", *(cause.seen for cause in causes)])
        return _verdict(WELL, causes, first, seen, _change(facts, causes))
    first = (
        f"Timers are late: 1 in 100 was handed out more than {p99} after its deadline; with a "
        f"tick of {tick}, at most {texts.duration(limit)} is expected."
    )
    least = EXPLAINS * late["p99"]
    found = [*_overload(facts), *_herds(tables, max(limit, least)), *_full_rings(tables)]
    causes = sorted(
        (cause for cause in found if cause.explains >= least), key=lambda cause: -cause.explains
    )
    why = [
        f"{cause.seen} That explains up to {texts.duration(cause.explains)} of the {p99}."
        for cause in causes
    ]
    stalls = _stalls(facts)
    why += [f"{cause.seen} The trace does not show how late that made timers." for cause in stalls]
    causes += stalls
    if not causes:
        causes, why = [UNKNOWN], [UNKNOWN.seen]
    why += [*_worker(tables), *_when(tables, limit)]
    return _verdict(LATE, causes, first, " ".join(why), _change(facts, causes))


def expected_ns(facts: dict[str, Any]) -> float:
    return max(float(EXPECTED_TICKS * facts["wheel"]["tick_ns"]), LEAST_NS)


class Cause(NamedTuple):
    name: str
    seen: str
    change: str
    explains: float = 0.0
    """How late it can have made a timer, ns; 0: unknown."""


UNKNOWN: Final = Cause(
    "unknown",
    "The trace shows no cause that explains it.",
    "Run `wheeld doctor` while timers are late: it checks the machine and the daemon.",
)


def _verdict(state: str, causes: list[Cause], *sentences: str) -> dict[str, Any]:
    return {
        "state": state,
        "causes": [cause.name for cause in causes],
        "sentences": list(sentences),
    }


def _account(facts: dict[str, Any]) -> str:
    made, ended = (texts.whole(facts["events"][name]) for name in ("scheduled", "cancelled"))
    return f"{made} were scheduled, {ended} cancelled."


def _overload(facts: dict[str, Any]) -> list[Cause]:
    """Cause: the kernel woke the clock late, or the clock waited for a processor."""
    wakes = facts.get("wakes", {})
    slept, waited = wakes.get("longest_oversleep_ns") or 0, wakes.get("most_run_delay_ns") or 0
    if slept >= waited:
        seen = (
            f"the kernel woke the clock up to {texts.duration(slept)} later than it had asked for."
        )
    else:
        seen = (
            f"the clock was ready to run and waited for a processor for {texts.duration(waited)} "
            f"from one of the daemon's samples to the next, usually a second."
        )
    change = (
        "Give the machine less work or more processors, or the clock a processor of its own "
        "(--pin-cpu); another tick would not help."
    )
    return [Cause("overload", f"The machine was overloaded: {seen}", change, max(slept, waited))]


def _herds(tables: dict[str, Any], least_ns: float) -> list[Cause]:
    """Cause: herds, many timers due at once, which take long to deliver."""
    sizes = tables["herd_sizes"]
    total, size = sizes["timers"].sum(), sizes["timers"] / sizes["ticks"]
    large = size * HAND_OUT_NS >= least_ns
    if not total or sizes["timers"][large].sum() < SHARE * total:
        return []
    makers = tables["herd_makers"]
    named = makers.assign(worker=names.of_workers(makers, tables["workers"])).groupby("worker")
    sums = named["timers"].sum().sort_values(ascending=False)
    by = f", most by {sums.index[0]}" if len(sums) else ""
    seen = (
        f"{texts.percent(sizes['timers'][large].sum() / total)} of the timers were due in herds of "
        f"about {texts.number(size[large].min())} or more at once{by}."
    )
    whom = sums.index[0] if len(sums) else "those workers"
    change = f"Spread the deadlines of {whom}: add a little random jitter."
    return [Cause("herds", seen, change, float(size.max()) * HAND_OUT_NS)]


def _full_rings(tables: dict[str, Any]) -> list[Cause]:
    """Cause: workers polled so rarely that their rings were full."""
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
    change = (
        f"Poll more often, above all in {worst}{others}, or in a thread: `timers.dispatching()`."
    )
    # their own timers show what it made of them
    workers = tables["workers"].assign(worker=names.of_workers(tables["workers"]))
    own = workers.loc[workers["worker"].isin(named["worker"]), "p99"].max()
    return [Cause("rings", seen, change, 0.0 if own != own else float(own))]


def _stalls(facts: dict[str, Any]) -> list[Cause]:
    """Temporary causes: no clock, or a worker that did not poll."""
    found = []
    if restarts := facts.get("clock_restarts"):
        times = "once" if restarts == 1 else f"{restarts:,} times"
        seen = f"The clock was replaced {times}; timers due in between waited for the next one."
        found.append(Cause("restarts", seen, "The daemon's log says why its clock ended."))
    if missed := facts.get("missed_ticks"):
        seen = (
            f"{texts.whole(missed)} ticks of periodic timers were skipped, because their workers "
            f"did not poll or no clock ran."
        )
        change = "Poll more often, or in a thread: `timers.dispatching()`."
        found.append(Cause("unpolled", seen, change))
    return found


def _worker(tables: dict[str, Any]) -> list[str]:
    """Names one worker whose timers were late while the timers of others were not."""
    workers = tables["workers"].assign(worker=names.of_workers(tables["workers"]))
    known = workers[workers["p99"].notna()].sort_values("p99")
    if len(known) < 2 or known["p99"].iloc[-1] < ALONE * known["p99"].iloc[(len(known) - 1) // 2]:
        return []
    worst = known.iloc[-1]
    return [f"Above all those of {worst['worker']}: p99 {texts.duration(worst['p99'])}."]


def _when(tables: dict[str, Any], limit: float) -> list[str]:
    """Names the steps of time in which timers were late."""
    steps = tables["minutes"][tables["minutes"]["p99"].notna()]
    late = steps[steps["p99"] > limit]
    if not len(late) or len(late) == len(steps):
        return []
    worst = late.loc[late["p99"].idxmax(), "time"]
    return [
        f"This affected {len(late)} of {len(steps)} steps of time, most of all {worst:%H:%M:%S}"
        " UTC."
    ]


def _change(facts: dict[str, Any], causes: list[Cause]) -> str:
    found, capacity = facts["advice"], facts["wheel"]["capacity"]
    named = [cause.name for cause in causes]
    said = [
        cause.change
        for cause in causes
        if cause.name != "unpolled" or "rings" not in named  # whose advice says the same, and more
    ]
    if capacity and facts["pending_max"] > FULL * capacity:
        share = texts.percent(facts["pending_max"] / capacity)
        said.append(f"{share} of the slots were in use: use --capacity {found['capacity']}.")
    if found["worth"] and "overload" not in named:
        said.append(
            f"Another wheel suits this load better: --tick {texts.option(found['tick_us'])} "
            f"--wheel-size {found['wheel_size']}."
        )
    return " ".join(said) or "Leave it as it is."
