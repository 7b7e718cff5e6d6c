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

#endif
