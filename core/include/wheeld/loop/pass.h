/* Pass: one turn of the clock's loop, and the hand-off between it and its sleep.
 *
 * A pass does a bounded piece of everything, about a millisecond of work at most; it says whether
 * there is more. No list is walked to its end because it is long, and no worker's work waits for
 * the end of another's: each pass begins with the row at which the budget of the last one ended.
 * The clock sleeps only when there is nothing left to do, by the protocol below. Time comes in as
 * an argument, so that a virtual clock and a test drive the very code that runs in production.
 *
 *     worker                                   clock
 *     sub_tail = t + 1            (seq_cst)    sleep_until = next bucket        (seq_cst)
 *     deadline < sleep_until ?    (seq_cst)    any sub_tail != sub_head ?       (seq_cst)
 *        ring the doorbell                        awake again
 *                                              ppoll(doorbell, until next bucket)
 *
 * Whichever of the two stores comes first in the single order of seq_cst operations, the other
 * side's load sees it: a near deadline is never slept over.
 */
#ifndef WHEELD_PASS_H
#define WHEELD_PASS_H

#include "wheeld/clock/drain.h"
#include "wheeld/clock/exact.h"
#include "wheeld/deaths/reap.h"
#include "wheeld/deaths/unclaimed.h"
#include "wheeld/clock/reoffer.h"
#include "wheeld/clock/grant.h"

/* Per pass. */
/* submissions of one worker, and of each kind of what waits for it */
#define WH_ROW_BUDGET 2048
#define WH_ROWS_BUDGET 4096    /* of all workers together */
#define WH_ROW_LEAST 32        /* of one worker once that is spent */
/* timers moved or fired, beside two for each submission: a new timer is moved once and fired once,
 * as a rule */
#define WH_ADVANCE_BUDGET 2048
#define WH_RELINK_LOOKS 8192   /* slots examined per pass after a step of the wall clock */
#define WH_RELINK_BUDGET 1024  /* and timers placed anew */

/* Place the wall clock's timers again after it was set. */
static inline wh_cold void wh_relink_some(wh_clock *c)
{
    uint32_t placed = 0;
    for (uint32_t looked = 0; looked < WH_RELINK_LOOKS && placed < WH_RELINK_BUDGET; looked++) {
        uint32_t slot = c->relink_slot;
        if (slot == c->wheel.capacity)
            return;
        if (!wh_slab_there(c, slot >> WH_SLAB_BITS)) {
            c->relink_slot = c->shared_slabs << WH_SLAB_BITS;
            continue;
        }
        c->relink_slot++;
        if (c->wheel.links[slot].list >= c->wheel.buckets)
            continue;
        if (wh_flags_clock(wh_load_relaxed(&c->slots[slot].flags)) == WH_CLOCK_BASE)
            continue;
        uint32_t shard = c->wheel.links[slot].list >> c->wheel.shard_bits;
        wh_wheel_remove(&c->wheel, slot);
        wh_link_timer(c, slot, shard);
        placed++;
    }
}

static inline bool wh_drained(wh_peer *peer)
{
    return wh_load_seq(&peer->seg->sub_tail) == peer->sub_head; /* pairs: sub-tail, sleep */
}

static inline void wh_mirror(wh_clock *c)
{
    uint64_t tick = c->wheel.tick, linked = 0;
    for (uint32_t shard = 0; shard < c->wheel.shards_used; shard++) {
        const wh_shard *l = &c->wheel.shards[shard];
        linked += l->linked;
        tick = l->linked && l->tick < tick ? l->tick : tick;
    }
    wh_store_relaxed(&c->seg->tick, tick);
    wh_store_relaxed(&c->seg->linked, linked);
    wh_store_relaxed(&c->seg->stock, c->free_list.slots);
    wh_store_relaxed(&c->seg->split, c->free_list.slabs_split);
}

/* How much of the pass's work is done. */
typedef struct wh_work {
    uint32_t left;    /* of WH_ROWS_BUDGET */
    uint32_t drained; /* submissions */
    uint32_t reaped;  /* a worker whose sweep is complete, or WH_NIL */
    bool asking;      /* a worker is short of slots */
    bool swept;       /* a piece of a sweep was done */
    bool more;        /* there is more to do at once */
} wh_work;

/* One worker's part of a pass. */
static inline void wh_serve(wh_clock *c, wh_peer *peer, wh_work *work)
{
    uint32_t share = work->left < WH_ROW_BUDGET ? work->left : WH_ROW_BUDGET, done = 0;
    if (wh_unlikely(share < WH_ROW_LEAST))
        share = WH_ROW_LEAST;
    work->more |= wh_settle(c, peer, share, &done);
    int64_t bound = (int64_t)wh_load_relaxed(&peer->seg->visibility);
    if (wh_unlikely(bound > 0))
        wh_look_at_held(c, peer, bound);
    uint32_t met = wh_drain(c, peer, share);
    work->more |= met == share;
    work->drained += met;
    work->asking |= wh_asks(peer);
    done += met;
    work->left -= done < work->left ? done : work->left;
    if (wh_likely(!peer->leave) || !wh_drained(peer))
        return;
    if (work->swept) {
        work->more = true;
        return;
    }
    work->swept = true;
    if (wh_reap(c, peer))
        work->reaped = wh_peer_index(c, peer);
    else
        work->more = true;
}

/* All workers', each once. */
static inline void wh_serve_all(wh_clock *c, wh_work *work)
{
    uint32_t row = c->turn < c->peers_used ? c->turn : 0;
    for (uint32_t served = 0; served < c->peers_used; served++) {
        bool open = work->left > 0;
        if (c->peers[row].life)
            wh_serve(c, &c->peers[row], work);
        row = row + 1 < c->peers_used ? row + 1 : 0;
        if (open && work->left == 0)
            /* from here on each gets the least in this pass; this one is first in the next */
            c->turn = row;
    }
}

/* Slots for workers that ask, once all their submissions were handled. True: there is more to
 * do. */
static inline wh_cold bool wh_grant_all(wh_clock *c)
{
    bool more = false;
    for (uint32_t i = 0; i < c->peers_used; i++) {
        wh_peer *peer = &c->peers[i];
        if (peer->life && wh_asks(peer))
            more |= !wh_drained(peer) || wh_grant(c, peer);
    }
    return more;
}

/* How much one pass did. An offer that goes to another member was fired before: `fired` may be
 * negative. */
static inline void wh_count_batches(const wh_clock *c, uint64_t drained, uint64_t fired)
{
    if (drained)
        wh_clock_counts(c, WH_COUNTS_DRAINED, (int64_t)drained);
    if ((int64_t)fired > 0)
        wh_clock_counts(c, WH_COUNTS_FIRED, (int64_t)fired);
}

/* One pass at the times in c->now. Sets *reaped to a worker whose sweep is complete (it is detached
 * now, or kept), else to WH_NIL.
 * True: there is more to do at once. */
static inline bool wh_pass(wh_clock *c, uint32_t *reaped)
{
    wh_work work = {.left = WH_ROWS_BUDGET, .reaped = WH_NIL};
    uint64_t fired = wh_load_relaxed(&c->seg->fired);
    /* pairs: pass - a worker that sees this pass sees what the last one published */
    wh_store_release(&c->seg->passes, wh_load_relaxed(&c->seg->passes) + 1);
    if (c->relink_slot < c->wheel.capacity)
        wh_relink_some(c);
    wh_serve_all(c, &work);
    if (wh_unlikely(work.asking))
        work.more |= wh_grant_all(c);
    if (wh_unlikely(c->backed < c->back_until))
        work.more |= wh_back_some(c) && c->backed < c->back_until;
    if (wh_heap_used(&c->heap) || wh_heap_asks(c))
        wh_grant_heap(c);
    uint64_t target = (uint64_t)(c->now[WH_CLOCK_BASE] / c->wheel.tick_ns);
    wh_visitor visitor = {wh_linked_due, wh_expire, wh_prefetch_slot, c, 0};
    uint32_t budget = WH_ADVANCE_BUDGET + 2 * work.drained;
    work.more |= wh_wheel_advance(&c->wheel, target, budget, &visitor) == 0;
    wh_count(&c->seg->cascaded, visitor.cascaded);
    if (c->exact && !work.more)
        wh_fire_exactly(c, target);
    if (wh_unlikely(c->keep_until) && c->keep_until <= c->now[WH_CLOCK_BASE])
        work.more |= wh_look_at_kept(c);
    if (wh_unlikely(c->offering))
        work.more |= wh_reoffer_all(c);
    if (wh_unlikely(c->trace.untold))
        wh_trace_tell(&c->trace, c->now[WH_CLOCK_BASE]);
    wh_publish_all(c);
    wh_mirror(c);
    wh_count_batches(c, work.drained, wh_load_relaxed(&c->seg->fired) - fired);
    *reaped = work.reaped;
    return work.more || c->relink_slot < c->wheel.capacity;
}

/* When the clock has something to do without being rung, ns; INT64_MAX: never. */
static inline int64_t wh_next_ns(wh_clock *c)
{
    int64_t timers = wh_timers_next_ns(c), again = wh_reoffer_next_ns(c);
    int64_t unclaimed = wh_unclaimed_next_ns(c);
    again = unclaimed < again ? unclaimed : again;
    return timers < again ? timers : again;
}

/* Announce until when the clock will sleep, in whole ticks, then check whether it may. */
static inline bool wh_may_sleep(wh_clock *c, int64_t until_ns)
{
    /* A deadline in the tick in which it wakes can wait for that: no need to ring for it. */
    int64_t tick_before = (int64_t)wh_due_tick(&c->wheel, until_ns) - 1;
    int64_t ring_below = until_ns == INT64_MAX ? INT64_MAX : tick_before * c->wheel.tick_ns + 1;
    wh_store_seq(&c->seg->sleep_until, ring_below); /* pairs: sleep */
    for (uint32_t i = 0; i < c->peers_used; i++) {
        wh_peer *peer = &c->peers[i];
        if (!peer->life)
            continue;
        if (!wh_drained(peer) || wh_asks(peer))
            return false;
        if (wh_load_relaxed(&peer->port->backlog) && wh_can_settle(c, peer))
            return false;
    }
    return !wh_heap_asks(c);
}

/* Called after the FIFO was emptied, and before the rings are looked at. */
static inline void wh_awake(wh_clock *c)
{
    wh_store_seq(&c->seg->sleep_until, INT64_MIN); /* pairs: sleep */
    /* pairs: bell-once - a worker that rang in this sleep need not ring again until it ended */
    wh_store_seq(&c->seg->sleep_seq, wh_load_relaxed(&c->seg->sleep_seq) + 1);
}

/* Do passes at the times in c->now until nothing is left to do, or a worker was reaped. */
static inline void wh_pass_all(wh_clock *c, uint32_t *reaped)
{
    while (wh_pass(c, reaped) && *reaped == WH_NIL)
        ;
}

/* Virtual time: advance to `target_ns` bucket by bucket, each at its own time. */
static inline void wh_advance_virtual(wh_clock *c, int64_t target_ns, uint32_t *reaped)
{
    int64_t now = c->now[WH_CLOCK_BASE], next;
    wh_pass_all(c, reaped);
    while (*reaped == WH_NIL && (next = wh_wheel_next_ns(&c->wheel)) <= target_ns &&
           now < target_ns) {
        now = next > now ? next : now;
        for (int kind = 0; kind < WH_CLOCK_KINDS; kind++)
            c->now[kind] = now;
        wh_store_release(&c->seg->virtual_now, now); /* pairs: virtual-now */
        wh_pass_all(c, reaped);
    }
    if (*reaped != WH_NIL)
        return;
    for (int kind = 0; kind < WH_CLOCK_KINDS; kind++)
        c->now[kind] = target_ns;
    wh_store_release(&c->seg->virtual_now, target_ns); /* pairs: virtual-now */
    wh_pass_all(c, reaped);
}

#endif
