/* Exact: few timers fire at their deadlines, not when their tick is over.
 *
 * The timers of a bucket are due at different times of its tick, and fire together when the tick is
 * over: half a tick late at the median. Where they are few, reading their deadlines costs less than
 * the wake-up that they need in any case. So the clock sleeps until the last of them is due, not
 * until the tick is over, and then fires them all. Many timers stand close together, the last of
 * them near the end of the tick: firing them exactly would gain nothing.
 *
 * Invariants
 *  1. The timers of a tick that are armed before it begins cost one wake-up, however many there
 * are.
 *  2. No timer fires later for it, and none early: wh_expire() looks at each deadline.
 *  3. The search is bounded: it looks at WH_FEW timers of each shard.
 */
#ifndef WHEELD_EXACT_H
#define WHEELD_EXACT_H

#include "wheeld/clock/fire.h"

#define WH_FEW 4 /* the last of this many is due after 4/5 of the tick, on average */

/* When that bucket can be emptied: when its few timers are all due, or when its tick is over. On
 * the base clock, ns. *few: how many they are. */
static inline int64_t wh_ripe_ns(wh_clock *c, wh_next next, uint32_t *few)
{
    int64_t end = wh_tick_time(&c->wheel, next.tick), ripe = end - c->wheel.tick_ns;
    uint32_t node = c->wheel.links[wh_sentinel(&c->wheel, next.bucket)].next;
    for (*few = 0; node < c->wheel.capacity; node = c->wheel.links[node].next) {
        int64_t due = wh_linked_due(c, node);
        if (due > end || ++*few > WH_FEW) /* an upper bucket, whose timers cascade; or many */
            return end;
        ripe = due > ripe ? due : ripe;
    }
    return ripe;
}

/* When the clock has to wake for its timers, on the base clock, ns; INT64_MAX: never. All shards
 * whose next bucket is of the same tick wait for the last of them. */
static inline int64_t wh_timers_next_ns(wh_clock *c)
{
    if (!c->exact)
        return wh_wheel_next_ns(&c->wheel);
    uint64_t tick = UINT64_MAX;
    int64_t ripe = INT64_MAX;
    for (uint32_t shard = 0; shard < c->wheel.shards_used; shard++) {
        if (c->wheel.shards[shard].linked == 0)
            continue;
        wh_next next = wh_shard_next(&c->wheel, shard);
        if (next.tick > tick || wh_tick_time(&c->wheel, next.tick) == INT64_MAX)
            continue;
        uint32_t few;
        int64_t last = wh_ripe_ns(c, next, &few);
        ripe = next.tick < tick || last > ripe ? last : ripe;
        tick = next.tick;
    }
    return ripe;
}

/* The wheel stands at `tick`, and has nothing due there: fire what the next tick has, shard by
 * shard, where all of it is due. A timer that is linked again meanwhile goes to the end of its
 * bucket. */
static inline void wh_fire_exactly(wh_clock *c, uint64_t tick)
{
    for (uint32_t shard = 0; shard < c->wheel.shards_used; shard++) {
        if (c->wheel.shards[shard].linked == 0)
            continue;
        wh_next next = wh_shard_next(&c->wheel, shard);
        uint32_t few;
        if (next.tick != tick + 1 || wh_ripe_ns(c, next, &few) > c->now[WH_CLOCK_BASE])
            continue;
        for (; few; few--) {
            uint32_t node = wh_list_first(&c->wheel, next.bucket);
            wh_wheel_remove(&c->wheel, node);
            wh_expire(c, node);
        }
    }
}

#endif
