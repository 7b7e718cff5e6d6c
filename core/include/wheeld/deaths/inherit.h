/* Inherit: a dead worker's slabs go to its successor or to members of its groups.
 *
 * Idea. Each slot tells its condition: armed; ended and on its way; or ended and received, that is,
 * held by the dead worker. Armed timers stay where they are linked, unless their slot says an
 * earlier time: then the worker died before it submitted the move. Otherwise only the owner word of
 * their slab changes. Events that were on their way to the dead worker go to the heir. Slots that
 * it held are returned to the heir through the return ring, as if cancelled, so an heir needs no
 * other message.
 *
 * A private timer has a callback, a future or an operation of the dead process: an heir cannot use
 * it, so it ends here. Its slot is handed over like one that the dead worker held.
 *
 * A successor of the same name ("keep") takes over row, incarnation and rings: it is its own heir.
 * Until it comes no slab is in hand: all are parked, and idle slots of split ones go to stock.
 *
 * Invariants
 *  1. A slot is handed to exactly one heir, even if the clock dies on the way: before the owner
 *     word changes, every slot that the dead worker held is marked HANDED, and recovery continues
 *     from there. A record that names another worker than the owner was given back by that worker,
 *     unless it is unread.
 *  2. Expirations that the dead worker had not read are delivered; ticks of periodic timers that it
 *     had not read are not delivered again to another worker: the timer continues.
 *  3. No armed timer is linked for a later time than its slot says, whatever its owner was doing
 *     when it died: so an heir that moves it only needs to compare with the slot.
 *  4. No private timer is left when the owner word changes, or when the slab is ready for a
 *     successor: an unread one in the ring that the successor takes over is made a tick of a timer
 *     that has ended.
 */
#ifndef WHEELD_INHERIT_H
#define WHEELD_INHERIT_H

#include "wheeld/clock/drain.h"
#include "wheeld/clock/backlog.h"

/* Was the slot, which is not armed, in `from`'s hands: is its end taken up? If that end names
 * another worker, this one took it up and gave the slab back, for `from` to claim. */
static inline bool wh_in_hands(const wh_clock *c, const wh_link *link, const wh_peer *from)
{
    uint64_t position = wh_completion_position(link->completion);
    bool theirs = wh_stage_worker(link) == wh_peer_index(c, from);
    switch (wh_stage_of(link)) {
    case WH_STAGE_OPEN:
        return link->gen == 0; /* never used */
    case WH_STAGE_EXPIRED:
        return !theirs || wh_pos_before(position, from->comp_head);
    case WH_STAGE_RETURNED:
        return !theirs || wh_pos_before(position, from->ret_head);
    case WH_STAGE_OFFERED:
        return false;
    default:
        return wh_stage_of(link) >= WH_STAGE_RECLAIMED;
    }
}

static inline void wh_count_dropped(wh_clock *c, wh_peer *peer)
{
    wh_count(&c->seg->dropped, 1);
    wh_count(&peer->line->dropped, 1);
}

/* Has it fired, but not been read by `from`? Then it no longer blocks the slab. */
static inline bool wh_mute_fired(wh_clock *c, uint32_t slot, wh_peer *from)
{
    wh_link *link = &c->wheel.links[slot];
    uint64_t position = wh_completion_position(link->completion);
    if (wh_stage_worker(link) != wh_peer_index(c, from))
        return false;
    if (wh_stage_of(link) == WH_STAGE_EXPIRED && !wh_pos_before(position, from->comp_head)) {
        from->comps[position & (c->comp_size - 1)].id =
            wh_id_with(wh_id(link->gen, slot), WH_EV_TICK);
        wh_step();
        return true;
    }
    return wh_stage_of(link) == WH_STAGE_WAIT_EXPIRE;
}

/* Invariant 4. */
static inline void wh_end_private(wh_clock *c, uint32_t slot, wh_peer *from)
{
    wh_link *link = &c->wheel.links[slot];
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel, fire */
    uint32_t gen = wh_state_gen(state);
    if (!(wh_load_relaxed(&c->slots[slot].flags) & WH_PRIVATE))
        return;
    bool armed = wh_slot_cancel(&c->states[slot], gen);
    bool fired = !armed && wh_state_phase(state) == WH_FIRED && link->gen == gen;
    if (!armed && !(fired && wh_mute_fired(c, slot, from)))
        return;
    wh_count_dropped(c, from);
    if (armed)
        wh_note_reclaimed(c, slot, gen, true);
    if (fired)
        wh_note_end(c, slot, WH_TRACE_DROPPED); /* if none is recorded yet */
    wh_wheel_remove(&c->wheel, slot);
    link->completion = wh_completion_word(WH_STAGE_HANDED, 0, 0);
    wh_step();
    link->gen = gen;
}

/* Invariant 1, before the slot changes hands. */
static inline void wh_mark_in_hands(wh_clock *c, uint32_t slot, const wh_peer *from)
{
    wh_link *link = &c->wheel.links[slot];
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel, fire */
    if (wh_state_phase(state) != WH_ARMED && wh_state_gen(state) == link->gen &&
        wh_in_hands(c, link, from))
        link->completion = wh_completion_word(WH_STAGE_HANDED, 0, 0);
}

/* Invariant 3. The link of a periodic timer, or of one on another clock, does not have the time for
 * which it is linked. */
static inline void wh_inherit_armed(wh_clock *c, uint32_t slot, uint64_t state, const wh_peer *heir)
{
    const wh_link *link = &c->wheel.links[slot];
    wh_timing t = wh_timing_of(c, slot);
    bool known = t.kind == WH_CLOCK_BASE && t.interval == 0;
    if (!wh_placed(c, link) || (known && t.due >= link->due))
        return;
    wh_wheel_remove(&c->wheel, slot);
    wh_link_timer(c, slot, wh_lane_of(c, heir));
    wh_note_moved(c, slot, state);
}

/* Timers of this generation that have not ended. */
static inline void wh_inherit_open(wh_clock *c, uint32_t slot, uint64_t state, bool moves,
                                   const wh_peer *heir)
{
    if (wh_state_phase(state) != WH_ARMED) {
        wh_wheel_remove(&c->wheel, slot);
        /* cancelled; or never used */
        wh_give_back(c, slot, wh_owner_of(c, slot));
    } else if (moves && wh_stage_of(&c->wheel.links[slot]) == WH_STAGE_WAIT_TICK) {
        wh_wheel_remove(&c->wheel, slot);
        wh_expire(c, slot);
    } else {
        wh_inherit_armed(c, slot, state, heir);
    }
}

/* Hand over one slot of a slab that was `from`'s and is now `heir`'s. */
static inline wh_cold void wh_inherit(wh_clock *c, uint32_t slot, const wh_peer *from,
                                      wh_peer *heir)
{
    wh_link *link = &c->wheel.links[slot];
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel, fire */
    enum wh_stage stage = wh_stage_of(link);
    bool theirs = wh_stage_worker(link) == wh_peer_index(c, from), moves = from != heir;
    if (link->gen != wh_state_gen(state)) { /* armed, perhaps cancelled too, and never submitted */
        wh_wheel_remove(&c->wheel, slot);
        wh_first_sight(c, slot, state);
        if (wh_state_phase(state) == WH_ARMED)
            wh_link_timer(c, slot, wh_lane_of(c, heir));
        else
            wh_give_back(c, slot, wh_owner_of(c, slot));
    } else if (!wh_stage_over(stage)) {
        wh_inherit_open(c, slot, state, moves && theirs, heir);
    } else if (wh_in_hands(c, link, from)) {
        if (moves || wh_is_split(c, slot >> WH_SLAB_BITS))
            wh_return(c, slot, wh_owner_of(c, slot));
        else
            /* its next generation: no other worker arms it before this one is returned */
            wh_return_to(c, heir, slot);
    } else if (moves && theirs && (stage == WH_STAGE_WAIT_EXPIRE || stage == WH_STAGE_EXPIRED)) {
        wh_wheel_remove(&c->wheel, slot);
        wh_deliver_again(c, slot, NULL, heir);
    } else if ((moves || wh_is_split(c, slot >> WH_SLAB_BITS)) &&
               (stage == WH_STAGE_WAIT_RETURN || stage == WH_STAGE_RETURNED)) {
        wh_return(c, slot, wh_owner_of(c, slot));
    }
}

static inline void wh_look_at_heads(wh_peer *from)
{
    from->comp_head = wh_load_acquire(&from->seg->comp_head); /* pairs: comp-head */
    from->ret_head = wh_load_acquire(&from->seg->ret_head); /* pairs: ret-head */
}

/* Give a slab to another worker: as a whole, or, if its return ring may name slots of it that were
 * taken over in former times, slot by slot. */
static inline void wh_bequeath(wh_clock *c, uint32_t slab, wh_peer *heir)
{
    uint64_t word = wh_owner_word(wh_peer_index(c, heir), heir->incarnation) | WH_PARKED;
    uint64_t ret_head = wh_load_acquire(&heir->seg->ret_head); /* pairs: ret-head */
    if ((int64_t)(heir->stale_until - ret_head) > 0) {
        for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
            wh_stock_hold(c, slab << WH_SLAB_BITS | i, heir);
        word = WH_SPLIT;
        wh_stock_split(c, slab);
    }
    /* pairs: slab - the heir learns of a slot of it only after this */
    wh_store_release(&c->owners[slab], word);
}

/* Hand one of `from`'s slabs to `heir`, which may be itself. */
static inline void wh_inherit_slab(wh_clock *c, uint32_t slab, wh_peer *from, wh_peer *heir)
{
    wh_look_at_heads(from);
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
        wh_end_private(c, slab << WH_SLAB_BITS | i, from);
    if (heir != from) {
        for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
            wh_mark_in_hands(c, slab << WH_SLAB_BITS | i, from);
        wh_bequeath(c, slab, heir);
    }
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
        wh_inherit(c, slab << WH_SLAB_BITS | i, from, heir);
    if (heir == from) { /* a worker that is short of slots may take the idle ones */
        uint64_t word = wh_load_acquire(&c->owners[slab]); /* pairs: slab */
        (void)wh_cas_acq_rel(&c->owners[slab], &word, word | WH_PARKED); /* pairs: slab */
        wh_stock_ended(c, slab << WH_SLAB_BITS);
    }
    wh_count(&c->seg->inherited, WH_SLAB_SLOTS);
}

/* The same for one slot of a split slab. */
static inline void wh_inherit_slot(wh_clock *c, uint32_t slot, wh_peer *from, wh_peer *heir)
{
    wh_look_at_heads(from);
    if (heir != from) {
        wh_mark_in_hands(c, slot, from);
        wh_step();
        wh_stock_hold(c, slot, heir);
        wh_step();
    } else {
        heir->stale_until = heir->ret_tail; /* what it did not take up goes to stock */
    }
    wh_inherit(c, slot, from, heir);
    wh_count(&c->seg->inherited, 1);
}

#endif
