/* Fire: what to do with a timer whose bucket is due.
 *
 * Invariants
 *  1. Never early: a timer fires only when its own deadline, read in this look, has passed. The
 *     base clock only goes forward, so the time at which the pass began is good enough for it.
 *     Another clock may have been set back since, and the timer armed after that: that clock is
 *     read after the deadline.
 *  2. One winner: ARMED -> FIRED is a compare-and-swap from the very state that was read before
 *     the deadline was, so a cancel or an extension in between makes the clock look again.
 *  3. A periodic timer stays ARMED: its version goes up with each tick, so a cancel either comes
 *     before the tick or ends all later ones. Its next due time follows from its deadline, its
 *     interval and the last due time that fired (link.due), if it was not moved since.
 *  4. A timer with a key fires only while the key's word names it (keys.h). One that is not named
 *     is about to be: its worker has armed it, or has replaced it and cancels it, or the worker's
 *     death ends it. The clock looks again a moment later, and decides nothing. One that was given
 *     back (nack) keeps its key only as long as nobody takes that.
 */
#ifndef WHEELD_FIRE_H
#define WHEELD_FIRE_H

#include "wheeld/clock/deliver.h"

static inline int64_t wh_slot_due(void *context, uint32_t slot)
{
    return wh_base_due(context, wh_timing_of(context, slot));
}

/* The due time when the timer was linked, without reading the slot where possible: a later
 * extension shows when the lowest bucket is due. */
static inline int64_t wh_linked_due(void *context, uint32_t slot)
{
    wh_clock *c = context;
    wh_link *link = &c->wheel.links[slot];
    bool known = wh_stage_of(link) == WH_STAGE_OPEN && link->due != INT64_MIN;
    return known ? link->due : wh_slot_due(context, slot);
}

/* Is it in a bucket, or past the end of time and so nowhere? Else it waits in a worker's backlog,
 * and is looked at when there is room. That is a matter of where it is linked: a stage only tells
 * the next clock. */
static inline bool wh_placed(const wh_clock *c, const wh_link *link)
{
    return link->list < c->wheel.buckets || link->list == WH_NIL;
}

static inline void wh_prefetch_slot(void *context, uint32_t slot)
{
    wh_clock *c = context;
    wh_prefetch_write(&c->states[slot]);
    __builtin_prefetch(&c->slots[slot], 0, 3);
    wh_note_prefetch(c, slot);
}

/* The end of a linked timer whose owner is gone, or whose slot was armed anew without having been
 * given back: then the new generation is not touched. */
static inline void wh_drop(wh_clock *c, uint32_t slot)
{
    wh_link *link = &c->wheel.links[slot];
    bool dropped = wh_slot_cancel(&c->states[slot], link->gen);
    if (dropped)
        wh_count(&c->seg->dropped, 1);
    wh_note_end(c, slot, dropped ? WH_TRACE_DROPPED : WH_TRACE_CANCELLED);
    link->completion = wh_completion_word(WH_STAGE_RECLAIMED, 0, 0);
    wh_detached_end(c, slot);
}

#define WH_UNNAMED_NS 1000000 /* until the next look at a timer that its key's word does not name */

/* Does the word of its key name this timer? */
static wh_seldom bool wh_is_named(wh_clock *c, uint32_t slot, uint32_t gen)
{
    return c->keys.memory == NULL || wh_keys_name(&c->keys, wh_id(gen, slot));
}

/* Has the armed timer fired before and been given back? Then its key may be another timer's by now.
 * Until the clock has linked it again, it is offered by its record. */
static wh_seldom bool wh_was_given_back(const wh_clock *c, uint32_t slot, uint32_t gen)
{
    const wh_link *link = &c->wheel.links[slot];
    const wh_slot *s = &c->slots[slot];
    return link->gen == gen && wh_interval_ns(wh_load_relaxed(&s->interval)) == 0 &&
           (wh_stage_offers(wh_stage_of(link)) ||
            wh_attempts_before(wh_load_relaxed(&s->flags), gen) != 0);
}

/* It is due, and no key names it: has it lost that? Then it is one without a key. */
static wh_seldom bool wh_lost_its_key(wh_clock *c, uint32_t slot)
{
    wh_slot *s = &c->slots[slot];
    if (!wh_was_given_back(c, slot, c->wheel.links[slot].gen))
        return false;
    wh_store_relaxed(&s->flags, (uint16_t)(wh_load_relaxed(&s->flags) & ~WH_KEYED));
    return true;
}

/* Link a timer that is due, but not named, for a moment later. */
static wh_seldom void wh_put_off(wh_clock *c, uint32_t slot, wh_timing t, const wh_peer *owner)
{
    wh_link *link = &c->wheel.links[slot];
    if (wh_stage_of(link) == WH_STAGE_WAIT_TICK)
        wh_wait_over(c, link);
    t.due = wh_time_add(c->now[t.kind], WH_UNNAMED_NS);
    wh_place(c, slot, wh_shard_of(c, owner), t, INT64_MIN);
}

/* One tick of a periodic timer. False: its state changed under the look; look again. */
static inline bool wh_fire_periodic(wh_clock *c, uint32_t slot, uint64_t state, wh_timing t,
                                    uint32_t group, wh_peer *to, wh_peer *owner)
{
    wh_link *link = &c->wheel.links[slot];
    int64_t now = c->now[t.kind];
    if (!wh_peer_open(c, to)) {
        /* later ticks are reported as missed */
        wh_to_backlog(c, to, slot, WH_STAGE_WAIT_TICK, group);
        return true;
    }
    uint64_t missed = ((uint64_t)now - (uint64_t)t.due) / (uint64_t)t.interval;
    /* a record's count ends there: the ticks behind it follow, in records of their own */
    missed = missed < UINT32_MAX ? missed : UINT32_MAX;
    uint64_t before = link->completion;
    wh_undo_note(c, slot);
    link->completion = wh_completion_word(WH_STAGE_TICKED, wh_peer_index(c, to), to->comp_tail);
    wh_note_ticks(c, slot, state);
    if (wh_state_is_moved(state)) { /* while MOVED is set nobody reads a tick by these */
        wh_slot *s = &c->slots[slot];
        wh_store_relaxed(&s->flags, wh_flags_moved(wh_load_relaxed(&s->flags)));
    }
    /* Before the CAS: the moves in its flags are those that this tick was judged by. */
    wh_completion record = wh_record_of(c, slot, WH_EV_TICK, t.due, now, (uint32_t)missed);
    /* pairs: cancel, extend */
    if (!wh_cas_acq_rel(&c->states[slot], &state, wh_state_ticked(state))) {
        link->completion = before;
        wh_note_no_tick(c, slot);
        return false;
    }
    link->due = (int64_t)((uint64_t)t.due + missed * (uint64_t)t.interval);
    wh_put(c, to, &record);
    wh_note_expired(c, slot, &record, to, true);
    wh_place(c, slot, wh_shard_of(c, owner), wh_timing_of(c, slot), INT64_MIN);
    return true;
}

static inline bool wh_fire_once(wh_clock *c, uint32_t slot, uint64_t state, wh_timing t,
                                uint32_t group, wh_peer *to, wh_peer *owner)
{
    wh_link *link = &c->wheel.links[slot];
    bool room = wh_peer_open(c, to);
    uint64_t before = link->completion;
    /* Before the CAS: a clock that dies behind it leaves word of where the record was to go. */
    enum wh_stage stage = room ? wh_sent_stage(c, slot, group, to, owner) : WH_STAGE_WAIT_EXPIRE;
    link->completion = wh_completion_word(stage, wh_peer_index(c, to), to->comp_tail);
    link->due = t.due;
    /* pairs: cancel, fire - else a cancelled timer would be delivered */
    if (!wh_cas_acq_rel(&c->states[slot], &state, wh_state_fired(state))) {
        link->completion = before;
        link->due = INT64_MIN;
        return false;
    }
    if (wh_likely(room))
        wh_put_expired(c, to, slot, stage, group);
    else
        wh_to_backlog(c, to, slot, stage, group);
    return true;
}

/* Is the timer due? `t` was read for this check. */
static inline bool wh_is_due(wh_clock *c, wh_timing t)
{
    if (t.due > c->now[t.kind])
        return false;
    if (wh_likely(t.kind == WH_CLOCK_BASE) || c->read_time == NULL)
        return true;
    c->now[t.kind] = c->read_time(t.kind);
    if (t.due <= c->now[t.kind])
        return true;
    c->now[WH_CLOCK_BASE] = c->read_time(WH_CLOCK_BASE); /* their difference places it */
    return false;
}

/* The wheel's expire function: `slot` is unlinked, its bucket is due. */
static inline void wh_expire(void *context, uint32_t slot)
{
    wh_clock *c = context;
    wh_link *link = &c->wheel.links[slot];
    for (bool done = false; !done;) {
        uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel, extend */
        wh_peer *owner = wh_owner_of(c, slot);
        if (owner == NULL || wh_dies_with(c, slot, owner) || wh_state_gen(state) != link->gen) {
            wh_drop(c, slot);
            return;
        }
        if (wh_state_phase(state) != WH_ARMED) {
            wh_give_back(c, slot, owner);
            return;
        }
        wh_timing t = wh_timing_of(c, slot);
        if (!wh_is_due(c, t)) { /* its deadline was extended, or its clock was set back */
            if (wh_stage_of(link) == WH_STAGE_WAIT_TICK)
                wh_wait_over(c, link);
            wh_place(c, slot, wh_shard_of(c, owner), t, INT64_MIN);
            wh_count(&c->seg->relinked, 1);
            wh_note_moved(c, slot, state);
            return;
        }
        if (wh_unlikely(wh_load_relaxed(&c->slots[slot].flags) & WH_KEYED) &&
            !wh_is_named(c, slot, link->gen) && !wh_lost_its_key(c, slot)) {
            wh_put_off(c, slot, t, owner);
            return;
        }
        uint32_t target = wh_load_relaxed(&c->slots[slot].target), group = wh_group_at(c, target);
        wh_peer *to = wh_route(c, slot, target, group, owner);
        done = t.interval ? wh_fire_periodic(c, slot, state, t, group, to, owner)
                          : wh_fire_once(c, slot, state, t, group, to, owner);
    }
}

#endif
