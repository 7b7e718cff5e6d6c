/* Times: what a worker counts of the events it receives: from schedule to firing, from firing to
 * poll.
 *
 * When a timer was scheduled stands nowhere in the shared memory: 8 bytes more per slot would be
 * another cache line for each call. The worker notes it in memory of its own; so it counts what it
 * scheduled and received itself, and no predecessor's timers.
 */
#ifndef WHEELD_TIMES_H
#define WHEELD_TIMES_H

#include <string.h>

#include "wheeld/worker/client.h"

/* The times at which one call receives, each read when the first event needs it. */
typedef struct wh_look {
    bool known[WH_CLOCK_KINDS];
    int64_t now[WH_CLOCK_KINDS];
} wh_look;

static inline int64_t wh_look_now(const wh_client *c, wh_look *look, uint32_t kind)
{
    if (wh_unlikely(!look->known[kind])) {
        look->known[kind] = true;
        look->now[kind] = wh_client_now_of(c, kind);
    }
    return look->now[kind];
}

static inline void wh_client_counts(wh_client *c, enum wh_worker_histogram which, int64_t value)
{
    wh_histogram_add(&c->histograms[which], value > 0 ? (uint64_t)value : 0);
}

/* Count the event at `event`, which a record of that id gave. */
static inline void wh_client_note(wh_client *c, uint64_t id, const char *event, wh_look *look)
{
    uint32_t slot = wh_id_slot(id), kind;
    uint64_t begun = wh_likely(c->begun != NULL) ? c->begun[slot] : 0;
    int64_t fired;
    memcpy(&fired, event + offsetof(wh_completion, fired), sizeof fired);
    if (wh_likely(begun && wh_begun_is_of(begun, wh_id_gen(id)))) {
        kind = wh_begun_kind(begun);
        if (wh_likely(wh_id_kind(id) != WH_EV_TICK)) {
            wh_client_counts(c, WH_COUNTS_TO_FIRE, wh_begun_since(begun, fired));
            c->begun[slot] = 0;
        }
    } else {
        kind = wh_load_relaxed(&c->slots[slot].flags) & 3;
    }
    kind = wh_likely(kind < WH_CLOCK_KINDS) ? kind : WH_CLOCK_BASE;
    wh_client_counts(c, WH_COUNTS_TO_POLL, wh_time_sub(wh_look_now(c, look, kind), fired));
}

#endif
