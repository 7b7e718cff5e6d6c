/* Clock check: compares every armed timer with where it is linked, by a walk over all slots.
 *
 * Once every submission has been handled, an armed timer of a worker that stays
 *  1. was seen: its link record is of its generation;
 *  2. is in a bucket that begins no later than its slot says it is due; or is periodic and past the
 *     end of time; or waits in a backlog, as its stage then says; and is nowhere else.
 *
 * The fields are read from the slots, so a timer that was moved but not linked again is found,
 * whoever forgot it. Timers on the wall clock are left out unless time is virtual: their place
 * changes while that clock is adjusted. For tests; it costs O(capacity).
 */
#ifndef WHEELD_CLOCK_CHECK_H
#define WHEELD_CLOCK_CHECK_H

#include "wheeld/loop/pass.h"
#include "wheeld/loop/wheel_check.h"

/* The tick in which the clock will handle `bucket`. */
static inline uint64_t wh_check_begins(const wh_wheel *w, uint32_t bucket)
{
    uint64_t tick = w->shards[bucket >> w->shard_bits].tick;
    uint32_t level = (bucket & ((1u << w->shard_bits) - 1)) >> w->bits;
    uint32_t digit = bucket & ((1u << w->bits) - 1), shift = level * w->bits;
    uint64_t above = shift + w->bits > 63 ? 0 : tick >> (shift + w->bits) << (shift + w->bits);
    uint64_t begins = above | (uint64_t)digit << shift;
    return begins > tick ? begins : tick;
}

static inline bool wh_check_armed(wh_clock *c, uint32_t slot, wh_check *check)
{
    const wh_link *link = &c->wheel.links[slot];
    uint32_t gen = wh_state_gen(wh_load_relaxed(&c->states[slot]));
    bool waits = wh_stage_of(link) == WH_STAGE_WAIT_TICK;
    WH_CHECK(check, link->gen == gen, "slot %u: armed with generation %u, met with %u", slot, gen,
             link->gen);
    WH_CHECK(check, waits != wh_placed(c, link), "slot %u: stage %u, in list %u", slot,
             (unsigned)wh_stage_of(link), link->list);
    wh_timing t = wh_timing_of(c, slot);
    if (waits || (t.kind != WH_CLOCK_BASE && !c->seg->virtual_clock))
        return true;
    if (link->list == WH_NIL) {
        WH_CHECK(check, t.interval && t.due == INT64_MAX, "slot %u: armed, and nowhere", slot);
        return true;
    }
    uint64_t due = wh_due_tick(&c->wheel, wh_base_due(c, t));
    uint64_t begins = wh_check_begins(&c->wheel, link->list);
    uint64_t now = c->wheel.shards[link->list >> c->wheel.shard_bits].tick;
    WH_CHECK(check, begins <= due || begins == now,
             "slot %u: due in tick %llu, linked for %llu, it is %llu", slot,
             (unsigned long long)due, (unsigned long long)begins, (unsigned long long)now);
    return true;
}

/* Has every submission been handled, and every timer been placed by the clocks' present
 * difference? */
static inline bool wh_check_quiet(const wh_clock *c)
{
    for (uint32_t i = 0; i < c->peers_used; i++)
        if (c->peers[i].life && !wh_drained(&c->peers[i]))
            return false;
    return c->relink_slot >= c->wheel.capacity;
}

/* True: the wheel is consistent, and so is each timer in it; else check->message says what is
 * wrong. */
static inline wh_cold bool wh_clock_check(wh_clock *c, wh_check *check)
{
    if (!wh_wheel_check(&c->wheel, check))
        return false;
    uint32_t end = wh_check_quiet(c) ? c->wheel.capacity : 0;
    for (uint32_t slot = 0; slot < end; slot++) {
        const wh_peer *owner = wh_owner_of(c, slot);
        if (owner == NULL || owner->leave)
            slot |= WH_SLAB_SLOTS - 1; /* no owner, or its sweep is incomplete */
        else if (wh_state_phase(wh_load_relaxed(&c->states[slot])) == WH_ARMED &&
                 !wh_check_armed(c, slot, check))
            return false;
    }
    return true;
}

#endif
