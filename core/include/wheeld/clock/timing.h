/* Timing: when a timer is due, on its own clock and on the base clock. */
#ifndef WHEELD_TIMING_H
#define WHEELD_TIMING_H

#include "wheeld/clock/clock.h"

/* The last due time that fired, of the grid that a periodic timer is on; INT64_MIN: none. */
static inline int64_t wh_last_due(const wh_clock *c, uint32_t slot)
{
    return wh_state_is_moved(wh_load_relaxed(&c->states[slot])) ? INT64_MIN
                                                                : c->wheel.links[slot].due;
}

typedef struct wh_timing {
    int64_t due;      /* on the timer's own clock */
    int64_t interval; /* 0: one-shot */
    uint32_t kind;
} wh_timing;

static inline wh_timing wh_timing_of(wh_clock *c, uint32_t slot)
{
    wh_slot *s = &c->slots[slot];
    int64_t deadline = wh_load_relaxed(&s->deadline);
    int64_t interval = wh_interval_ns(wh_load_relaxed(&s->interval));
    uint32_t kind = wh_flags_clock(wh_load_relaxed(&s->flags));
    wh_timing t = {deadline, interval, kind < WH_CLOCK_KINDS ? kind : 0};
    if (t.interval)
        t.due = wh_periodic_due(deadline, t.interval, wh_last_due(c, slot));
    return t;
}

/* The same instant on the base clock, by the clocks' present difference. */
static inline int64_t wh_base_due(wh_clock *c, wh_timing t)
{
    if (wh_likely(t.kind == WH_CLOCK_BASE))
        return t.due;
    return wh_time_add(t.due, wh_time_sub(c->now[WH_CLOCK_BASE], c->now[t.kind]));
}

/* Put a timer into its bucket; what is due by `now_ns` goes to the next pass. */
static inline void wh_place(wh_clock *c, uint32_t slot, uint32_t shard, wh_timing t, int64_t now_ns)
{
    if (wh_likely(t.kind == WH_CLOCK_BASE && t.interval == 0))
        c->wheel.links[slot].due = t.due; /* so that cascades do not need to read the slot */
    else if (t.interval) {
        if (wh_state_is_moved(wh_load_relaxed(&c->states[slot])))
            c->wheel.links[slot].due = INT64_MIN; /* of another grid, or of the one-shot it was */
        if (t.due == INT64_MAX)
            return; /* its next tick is past the end of time: armed, but not in the wheel */
    }
    wh_wheel_add(&c->wheel, shard, slot, wh_base_due(c, t), now_ns);
}

static inline void wh_link_timer(wh_clock *c, uint32_t slot, uint32_t shard)
{
    wh_place(c, slot, shard, wh_timing_of(c, slot), c->now[WH_CLOCK_BASE]);
}

#endif
