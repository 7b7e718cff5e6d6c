/* Times: the clocks, read once for many timers; and what a worker counts of the events it receives:
 * from the firing to its poll. From schedule to firing the clock counts (deliver.h), which has the
 * slot at hand. */
#ifndef WHEELD_TIMES_H
#define WHEELD_TIMES_H

#include <string.h>

#include "wheeld/worker/client.h"

/* The times of the clocks, each read at its first use. */
typedef struct wh_times {
    bool known[WH_CLOCK_KINDS];
    int64_t now[WH_CLOCK_KINDS];
} wh_times;

static inline int64_t wh_times_of(wh_times *t, const wh_client *c, uint32_t kind)
{
    if (wh_unlikely(!t->known[kind])) {
        t->known[kind] = true;
        t->now[kind] = wh_client_now_of(c, kind);
    }
    return t->now[kind];
}

/* State of one receiving call, until its end. */
typedef struct wh_look {
    wh_times clocks; /* when it receives */
    /* Events in a row that fired at one time, as those of one pass do: counted together. */
    uint64_t times;
    int64_t fired;
    uint32_t kind; /* the clock of `fired` */
} wh_look;

/* Count the events of the look, at the latest when the call ends. */
static inline void wh_client_counted(wh_client *c, wh_look *look)
{
    if (look->times == 0)
        return;
    uint32_t kind = wh_likely(look->kind < WH_CLOCK_KINDS) ? look->kind : WH_CLOCK_BASE;
    int64_t wait = wh_time_sub(wh_times_of(&look->clocks, c, kind), look->fired);
    wh_histogram_add(&c->histograms[WH_COUNTS_TO_POLL], wait, look->times);
    look->times = 0;
}

/* Count the event at `event`; `flags` are its record's. */
static inline void wh_client_note(wh_client *c, const char *event, uint32_t flags, wh_look *look)
{
    int64_t fired;
    uint32_t kind = wh_flags_clock(flags);
    memcpy(&fired, event + offsetof(wh_completion, fired), sizeof fired);
    if (wh_unlikely(fired != look->fired || kind != look->kind)) {
        wh_client_counted(c, look);
        look->fired = fired;
        look->kind = kind;
    }
    look->times++;
}

#endif
