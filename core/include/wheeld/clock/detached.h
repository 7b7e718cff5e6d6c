/* Detached: timers that belong to the wheel rather than to the worker that scheduled them.
 *
 * Idea. A detached timer is its worker's while that lives; when it goes, the timer goes to the
 * keeper: a row without a process, which the supervisor makes before the first such timer is armed.
 * The keeper is a member of every group that never reads: its completion ring is always full. So
 * an end for which no member is there waits in the keeper's backlog as an offer, and the first
 * member that comes gets it as it gets what any other member does not read (reoffer.h).
 *
 * Invariants
 *  1. `detached` counts the timers that have a bit set. A bit is set when the clock meets the
 *     timer, and cleared when its slot is returned, or met again: a missed end is mended then.
 *  2. The end of a detached timer never goes to its owner as such: to a member, or to the keeper.
 */
#ifndef WHEELD_DETACHED_H
#define WHEELD_DETACHED_H

#include "wheeld/clock/free_list.h"

static inline bool wh_is_detached(const wh_clock *c, uint32_t slot)
{
    return wh_unlikely(c->keeper != NULL) &&
           (wh_load_relaxed(&c->slots[slot].flags) & WH_DETACHED) != 0;
}

/* Does the timer end with its owner, which is gone? A detached one goes on until the sweep gives it
 * to the keeper. */
static inline bool wh_dies_with(const wh_clock *c, uint32_t slot, const wh_peer *owner)
{
    return wh_unlikely(owner->life == WH_PEER_DYING) && !wh_is_detached(c, slot);
}

/* The worker to which its ends go when there is no receiver, or NULL: to its owner. A timer
 * that keeps its key until the acknowledgement waits for a receiver, too, while its owner is
 * there. */
static inline wh_peer *wh_keeper_of(const wh_clock *c, uint32_t slot, const wh_peer *owner)
{
    if (wh_likely(c->keeper == NULL))
        return NULL;
    uint32_t flags = wh_load_relaxed(&c->slots[slot].flags);
    bool waits = flags & WH_DETACHED || (flags & WH_HELD && owner && owner->life > WH_PEER_DYING);
    return waits ? c->keeper : NULL;
}

/* An event that was dropped is never acknowledged: its timer has its key no longer. */
static inline void wh_end_held(const wh_clock *c, uint32_t slot)
{
    uint64_t state;
    if (wh_likely(c->keeper == NULL || !(wh_load_relaxed(&c->slots[slot].flags) & WH_HELD)))
        return;
    state = wh_load_acquire(&c->states[slot]); /* pairs: fire, offer */
    if (wh_state_phase(state) == WH_FIRED)
        /* pairs: offer - a record of it may be in a ring */
        (void)wh_cas_acq_rel(&c->states[slot], &state,
                             wh_state_of(wh_state_gen(state), 0, WH_DONE));
}

static wh_seldom void wh_detached_set(wh_clock *c, uint32_t slot, bool counts)
{
    uint64_t bit = 1ull << (slot & 63), *word = &c->detached[slot >> 6];
    if (!!(*word & bit) == counts)
        return;
    *word ^= bit;
    wh_count(&c->seg->detached, counts ? 1 : (uint64_t)-1);
}

/* The clock has met the timer. */
static inline void wh_detached_begin(wh_clock *c, uint32_t slot)
{
    if (wh_unlikely(c->detached != NULL))
        wh_detached_set(c, slot, wh_load_relaxed(&c->slots[slot].flags) & WH_DETACHED);
}

/* The timer has ended, and its slot is given back. */
static inline void wh_detached_end(wh_clock *c, uint32_t slot)
{
    if (wh_unlikely(c->detached != NULL))
        wh_detached_set(c, slot, false);
}

/* Let `peer` be the keeper. False: out of memory. */
static inline wh_cold bool wh_clock_keep(wh_clock *c, wh_peer *peer, int64_t keep_ns)
{
    uint32_t capacity = c->wheel.capacity;
    if (c->detached == NULL) {
        c->detached = calloc(capacity / 64 + 1, sizeof *c->detached);
        c->kept_since = calloc(capacity, sizeof *c->kept_since); /* touched as needed */
        wh_store_relaxed(&c->seg->detached, 0);
    }
    if (c->detached == NULL || c->kept_since == NULL || !wh_clock_join(c, peer, UINT64_MAX))
        return false;
    peer->comp_tail = peer->comp_head + c->comp_size; /* full, whatever it is sent */
    peer->life = WH_PEER_ABSENT;
    c->keeper = peer;
    c->keep_ns = keep_ns > 0 ? keep_ns : 1; /* looks come to an end */
    wh_store_relaxed(&c->seg->keeper, wh_peer_index(c, peer) + 1);
    return true;
}

/* The keeper's row is detached: its timers are dropped. */
static inline wh_cold void wh_clock_unkeep(wh_clock *c, const wh_peer *peer)
{
    if (peer != c->keeper)
        return;
    c->keeper = NULL;
    c->keep_until = 0;
    wh_store_relaxed(&c->seg->keeper, 0);
}

/* An end has come to the keeper. */
static wh_seldom void wh_kept_begin(wh_clock *c, uint32_t slot)
{
    c->kept_since[slot] = c->now[WH_CLOCK_BASE];
    if (c->keep_until == 0)
        c->keep_until = wh_time_add(c->now[WH_CLOCK_BASE], c->keep_ns);
}

/* How often the timer was delivered before, for a one-shot timer: its MOVES say so, which another
 * timer's ticks would count. The count does not begin anew: who was given back stays so. */
static inline void wh_count_attempt(wh_clock *c, uint32_t slot)
{
    wh_slot *s = &c->slots[slot];
    uint32_t flags = wh_load_relaxed(&s->flags);
    if (wh_interval_ns(wh_load_relaxed(&s->interval)) == 0 &&
        wh_attempts_before(flags, c->wheel.links[slot].gen) < WH_MOST(FLAGS_MOVES))
        wh_store_relaxed(&s->flags, wh_flags_moved(flags));
}

/* A member has given an end back, and it is armed again: link it. One that is nobody's becomes the
 * keeper's or that member's. The slot is in no list. */
static wh_seldom wh_peer *wh_adopt(wh_clock *c, uint32_t slot)
{
    wh_peer *owner = wh_owner_of(c, slot), *finder;
    uint32_t row = wh_completion_worker(c->wheel.links[slot].completion);
    if (owner || !wh_is_loose(c, slot))
        return owner;
    finder = wh_keeper_of(c, slot, owner);
    if (finder == NULL && row < c->max_workers && c->peers[row].life > WH_PEER_DYING)
        finder = &c->peers[row];
    if (finder)
        wh_free_list_hold(c, slot, finder);
    return finder;
}

#endif
