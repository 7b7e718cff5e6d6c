/* Quota: how many slots one worker may hold, so that it cannot take the wheel from the others.
 *
 * The worker enforces it on itself, before it takes more: it is for greedy workers, not for hostile
 * ones. It holds all slots of its slabs and its own ones of split slabs: pending, unread or free.
 * It does not know their exact number, as the clock takes idle ones away: `held` is never too
 * small, and is counted again when it matters.
 */
#ifndef WHEELD_QUOTA_H
#define WHEELD_QUOTA_H

#include "wheeld/worker/slabs.h"

/* ns between two counts, for each slab: reading one takes one or two */
#define WH_QUOTA_PAUSE_NS 20

typedef struct wh_quota {
    uint64_t most; /* 0: any number */
    uint64_t held;
    int64_t next_count; /* not before, ns */
} wh_quota;

/* Count the slots of this worker now, by reading each slab. */
static inline uint64_t wh_quota_count(const wh_slabs *s)
{
    uint64_t held = 0;
    for (uint32_t slab = 0; slab < s->count; slab++) {
        uint64_t word = wh_load_relaxed(&s->owners[slab]);
        held += wh_owner_name(word) == s->me ? WH_SLAB_SLOTS : 0;
        for (uint32_t i = 0; word == WH_SPLIT && i < WH_SLAB_SLOTS; i++)
            held += wh_slabs_own(s, slab << WH_SLAB_BITS | i);
    }
    return held;
}

/* Count anew; but a worker that is refused again and again does so once in a while. `now`: of a
 * clock that runs, ns. */
static inline void wh_quota_recount(wh_quota *q, const wh_slabs *s, int64_t now)
{
    if (now < q->next_count)
        return;
    q->held = wh_quota_count(s);
    q->next_count = now + WH_QUOTA_PAUSE_NS * (int64_t)s->count;
}

/* Is this worker's own slab (its home) free, and does the worker hold less than a slab? */
static inline bool wh_quota_needs_home(wh_quota *q, const wh_slabs *s, int64_t now)
{
    if (s->home == WH_NIL || wh_load_relaxed(&s->owners[s->home]))
        return false;
    if (q->held >= WH_SLAB_SLOTS)
        wh_quota_recount(q, s, now);
    return q->held < WH_SLAB_SLOTS;
}

/* May we take `n` more? */
static inline bool wh_quota_allows(wh_quota *q, const wh_slabs *s, uint64_t n, int64_t now)
{
    if (wh_likely(q->most == 0 || q->held + n <= q->most))
        return true;
    wh_quota_recount(q, s, now);
    return q->held + n <= q->most;
}

/* How many of `n` slots it may take, but at least one. */
static inline uint64_t wh_quota_cut(const wh_quota *q, uint64_t n)
{
    uint64_t left = q->most > q->held ? q->most - q->held : 1;
    return q->most && n > left ? left : n;
}

#endif
