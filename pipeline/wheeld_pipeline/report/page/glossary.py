"""The meaning of each figure of the report, in the page itself."""

from __future__ import annotations

from typing import Final

from wheeld_pipeline.report.analysis import advice
from wheeld_pipeline.report.counts import bins

TERMS: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "lateness",
        "lateness",
        "How long after its deadline the clock handed a timer to its worker; never negative. "
        "It does not include the wake-up of the worker. p99 = 4 ms: 99 of 100 were at most 4 ms "
        "late (nearest rank). Counted in buckets, so percentiles are accurate to "
        f"{bins.LATENESS_ERROR:.1%}; values below 1 µs share one bucket. The maximum is exact.",
    ),
    (
        "delay",
        "delay class",
        "The delay of a timer is the time from when the clock first saw it to its deadline at "
        "that event. Classes are powers of ten.",
    ),
    (
        "timeout-rate",
        "timeout rate, cancel rate",
        "Of the one-shot timers that ended in a step of time: the share that expired, and the "
        "share that was cancelled. Ticks of periodic timers, and timers dropped with a dead "
        "worker, are in neither share.",
    ),
    (
        "pending",
        "pending",
        "Armed timers that the clock knew of, after each event; per step of time the most and "
        "the fewest. With several daemons these are the values of a single one, since each has"
        " its own capacity. A step without events has the values of the step before.",
    ),
    (
        "herd",
        "herd",
        "Many timers due in one tick of the wheel. The clock hands them over one after the "
        "other, so the last ones of a large herd are late, and all the work that they wake "
        "starts at once. Made "
        "by: the worker that scheduled them.",
    ),
    (
        "wake",
        "wake-up",
        "How often the clock slept and woke, because a bucket began or a worker rang. From the"
        " daemon's "
        "counters. Timers per wake-up: expirations handed out, divided by wake-ups.",
    ),
    (
        "reuse",
        "reuse of slots",
        "A timer lives in a slot, and the slot's generation counts its timers, from the same "
        "random number in all slots of a wheel. A first use is a timer of that first "
        "generation. Reused: scheduled timers that were not a first use. Timers per slot: "
        "scheduled timers divided by "
        "first uses. Most used: the uses of the slot with the most. All of these need a trace "
        "that contains the beginning of each run and lost no scheduled timer.",
    ),
    (
        "pool",
        "pool depletion",
        "The share of a step of time for which a memory pool could not serve a request, from "
        "the daemon's counters.",
    ),
    (
        "lost",
        "lost records",
        "Events that found the trace's ring full. The clock counted them instead of waiting; "
        "all other figures lack them.",
    ),
    (
        "rescheduled",
        "rescheduled",
        "How often deadlines of armed timers were changed, to later or earlier.",
    ),
    (
        "replay",
        "replay on other wheels",
        "The wheel's arithmetic is applied to every timer that ended, with other ticks and "
        "sizes: in which bucket it would have been placed, through which buckets it would have"
        " moved, and when it would have been due, with its deadline rounded up to a tick. "
        "Wake-ups in the replay are the ticks at which a nonempty bucket begins or timers are "
        "due; doorbells of workers come in addition. A cascade is one timer moved down "
        "one level. A timer that was extended is replayed as if it had its last deadline from "
        "the start. A trace does not say where ticks begin on the daemon's clock: the replay "
        "assumes whole multiples of the tick.",
    ),
    (
        "rounding",
        "rounding",
        "The time from a timer's deadline to the tick in which it is due: on average about "
        "half a tick. It is part of the lateness.",
    ),
    (
        "work",
        "work",
        f"An estimate to weigh wake-ups against cascades: {advice.WAKE_NS / 1000:g} µs of CPU "
        f"time for a wake-up, {advice.CASCADE_NS / 1000:g} µs for a cascade, as a share of one "
        "core.",
    ),
    (
        "advice",
        "how the advice is found",
        f"Tick: the longest candidate of which at least {advice.TICKS_PER_DELAY} fit into the "
        f"delay of {1 - advice.SHORT_SHARE:.0%} of the timers. Wheel size: the smallest whose "
        f"work is within 5 % of the least with that tick. Capacity: {advice.HEADROOM:g} times "
        "the most that was pending in one daemon.",
    ),
)
