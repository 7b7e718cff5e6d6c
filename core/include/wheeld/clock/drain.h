/* Drain: read the submissions of workers.
 *
 * A submission is a hint: "check this slot". The slot's state and its link record alone say what to
 * do, so the order of two workers' submissions does not matter, and a submission may be handled
 * twice.
 *
 *     S2                link it (states.h)
 *     S3                link it again if the deadline is now earlier
 *     S4                nothing: its deadline is read again when there is room
 *     S5                return it; it never touches the wheel
 *     S6                unlink it, return it
 *     S17, S18          link it again; return it
 *     S11               return it: a member is done with it
 *     other generation  nothing: this submission is of an earlier tenant
 *     any other         nothing: it was already handled
 */
#ifndef WHEELD_DRAIN_H
#define WHEELD_DRAIN_H

#include "wheeld/clock/fire.h"

#define WH_DRAIN_AHEAD 8 /* how many slots ahead of the ring are prefetched */

/* A linked timer was moved: link it by its new deadline. */
static inline void wh_relink(wh_clock *c, uint32_t slot, uint64_t state, const wh_peer *owner)
{
    wh_wheel_remove(&c->wheel, slot);
    wh_link_timer(c, slot, wh_shard_of(c, owner));
    wh_note_moved(c, slot, state);
}

/* The clock sees the timer of `state` for the first time: its record is about that timer from here
 * on. */
static inline void wh_first_sight(wh_clock *c, uint32_t slot, uint64_t state)
{
    wh_note_met(c, slot, state);
    wh_link_begin(&c->wheel.links[slot], wh_state_gen(state));
    wh_detached_begin(c, slot);
    wh_note_scheduled(c, slot, state);
}

/* Forget the slot's last timer, which no longer exists. */
static inline void wh_forget(wh_clock *c, uint32_t slot)
{
    wh_note_gone(c, slot);
    c->wheel.links[slot].gen = 0;
}

/* A member has given an event of its group back, and perhaps somebody cancelled it since: S17,
 * S18; or it is done with it. */
static inline void wh_examine_given_back(wh_clock *c, uint32_t slot, uint32_t phase)
{
    if (wh_likely(phase != WH_ARMED && phase != WH_CANCELLED && phase != WH_DONE) ||
        !wh_stage_offers(wh_stage_of(&c->wheel.links[slot])))
        return;
    wh_wheel_remove(&c->wheel, slot);
    wh_deliver_again(c, slot, NULL, wh_owner_of(c, slot));
}

static inline void wh_examine(wh_clock *c, wh_peer *from, uint64_t submission)
{
    uint32_t slot = wh_id_slot(submission), gen = wh_id_gen(submission);
    if (wh_unlikely(!wh_slab_there(c, slot >> WH_SLAB_BITS) || gen == 0)) {
        wh_count(&from->port->offences, 1);
        return;
    }
    wh_link *link = &c->wheel.links[slot];
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel, extend */
    uint32_t phase = wh_state_phase(state);
    if (wh_state_gen(state) != gen)
        return;
    if (link->gen == gen && wh_stage_over(wh_stage_of(link))) {
        wh_examine_given_back(c, slot, phase);
        return;
    }
    wh_peer *owner = wh_owner_of(c, slot);
    if (wh_unlikely(owner == NULL || phase == WH_NEVER || phase == WH_FIRED)) {
        wh_count(&from->port->offences, 1);
        return;
    }
    bool first_sight = link->gen != gen;
    if (first_sight) {
        if (wh_unlikely(link->list != WH_NIL)) { /* armed again before the slot was returned */
            wh_count(&from->port->offences, 1);
            wh_wheel_remove(&c->wheel, slot);
        }
        if (phase == WH_CANCELLED && wh_note_all_lost(c, slot, state)) {
            wh_return(c, slot, owner);
            return;
        }
        wh_first_sight(c, slot, state);
    }
    if (phase == WH_CANCELLED) {
        wh_wheel_remove(&c->wheel, slot);
        wh_give_back(c, slot, owner);
    } else if (first_sight) {
        wh_link_timer(c, slot, wh_shard_of(c, owner));
    } else if (wh_id_kind(submission) == WH_OP_RESCHEDULE && wh_placed(c, link)) {
        wh_relink(c, slot, state, owner);
    }
}

static inline void wh_drain_prefetch(wh_clock *c, wh_peer *peer, uint64_t position)
{
    uint32_t slot = wh_id_slot(wh_load_relaxed(&peer->subs[position & (c->sub_size - 1)]));
    if (slot < c->wheel.capacity) {
        __builtin_prefetch(&c->states[slot], 0, 3);
        __builtin_prefetch(&c->slots[slot], 0, 3);
        wh_prefetch_write(&c->wheel.links[slot]);
        wh_note_prefetch(c, slot);
    }
}

/* Handle up to `budget` submissions of one worker. Returns how many it handled. */
static inline uint32_t wh_drain(wh_clock *c, wh_peer *peer, uint32_t budget)
{
    uint64_t tail = wh_load_seq(&peer->seg->sub_tail); /* pairs: sub-tail, sleep */
    uint64_t count = wh_ring_used(tail, peer->sub_head);
    if (count == 0)
        return 0;
    if (wh_unlikely(count > c->sub_size)) { /* garbage: nothing in the ring can be trusted */
        wh_count(&peer->port->offences, 1);
        peer->sub_head = tail;
        count = 0;
    }
    count = count < budget ? count : budget;
    uint64_t end = peer->sub_head + count;
    for (uint64_t p = peer->sub_head; p != end; p++) {
        if (tail - p > WH_DRAIN_AHEAD)
            wh_drain_prefetch(c, peer, p + WH_DRAIN_AHEAD);
        wh_examine(c, peer, wh_load_relaxed(&peer->subs[p & (c->sub_size - 1)]));
    }
    peer->sub_head = end;
    wh_store_release(&peer->port->sub_head, end); /* pairs: sub-head - the entries may be reused */
    return (uint32_t)count;
}

#endif
