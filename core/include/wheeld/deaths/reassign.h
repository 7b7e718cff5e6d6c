/* Reassign: a dead worker's slabs go to a successor, of the same name or a member of its groups.
 *
 * Idea. Each slot tells its condition: armed; ended and on its way; or ended and received, that is,
 * held by the dead worker. Armed timers stay where they are linked, unless their slot says an
 * earlier time: then the worker died before it submitted the move. Otherwise only the owner word of
 * their slab changes. Events that were on their way to the dead worker go to the successor. Slots
 * that it held are returned to the successor through the return ring, as if cancelled, so a
 * successor needs no other message.
 *
 * A private timer has a callback, a future or an operation of the dead process: a successor cannot
 * use it, so it ends here. Its slot is handed over like one that the dead worker held.
 *
 * The successor of a kept worker ("keep") takes over its row, incarnation and rings: the clock
 * hands the slabs from the row to itself. Until it comes no slab is in hand: all are parked, and
 * idle slots of split ones go to the free list.
 *
 * Invariants
 *  1. A slot is handed to exactly one successor, even if the clock dies on the way: before the
 *     owner word changes, every slot that the dead worker held is marked HANDED, and recovery
 *     continues from there. A record that names another worker than the owner was given back by
 *     that worker, unless it is unread.
 *  2. Expirations that the dead worker had not read are delivered; ticks of periodic timers that it
 *     had not read are not delivered again to another worker: the timer continues.
 *  3. No armed timer is linked for a later time than its slot says, whatever its owner was doing
 *     when it died: so a successor that moves it only needs to compare with the slot.
 *  4. No private timer is left when the owner word changes, or when the slab is ready for a
 *     successor: an unread one in the ring that the successor takes over is made a tick of a timer
 *     that has ended. Nor is one left that was armed for a key and not named by its word (keys.h).
 */
#ifndef WHEELD_REASSIGN_H
#define WHEELD_REASSIGN_H

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
    wh_count(&peer->port->dropped, 1);
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
    uint32_t gen = wh_state_gen(state), flags = wh_load_relaxed(&c->slots[slot].flags);
    if (flags & WH_DETACHED)
        flags &= ~(uint32_t)WH_PRIVATE; /* there the bit says that its end waits for ever */
    bool unnamed = flags & WH_KEYED && wh_state_phase(state) == WH_ARMED &&
                   !wh_is_named(c, slot, gen) && !wh_was_given_back(c, slot, gen);
    if (!(flags & WH_PRIVATE) && !unnamed)
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
static inline void wh_reassign_armed(wh_clock *c, uint32_t slot, uint64_t state,
                                     const wh_peer *successor)
{
    const wh_link *link = &c->wheel.links[slot];
    wh_timing t = wh_timing_of(c, slot);
    bool known = t.kind == WH_CLOCK_BASE && t.interval == 0;
    if (!wh_placed(c, link) || (known && t.due >= link->due))
        return;
    wh_wheel_remove(&c->wheel, slot);
    wh_link_timer(c, slot, wh_shard_of(c, successor));
    wh_note_moved(c, slot, state);
}

/* Timers of this generation that have not ended. */
static inline void wh_reassign_open(wh_clock *c, uint32_t slot, uint64_t state, bool moves,
                                    const wh_peer *successor)
{
    if (wh_state_phase(state) != WH_ARMED) {
        wh_wheel_remove(&c->wheel, slot);
        wh_clear_payload(c, slot);
        /* cancelled; or never used */
        wh_give_back(c, slot, wh_owner_of(c, slot));
    } else if (moves && wh_stage_of(&c->wheel.links[slot]) == WH_STAGE_WAIT_TICK) {
        wh_wheel_remove(&c->wheel, slot);
        wh_expire(c, slot);
    } else {
        wh_reassign_armed(c, slot, state, successor);
    }
}

/* Hand over one slot of a slab that was `from`'s and is now `successor`'s. */
static inline wh_cold void wh_reassign(wh_clock *c, uint32_t slot, const wh_peer *from,
                                       wh_peer *successor)
{
    wh_link *link = &c->wheel.links[slot];
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel, fire */
    enum wh_stage stage = wh_stage_of(link);
    bool theirs = wh_stage_worker(link) == wh_peer_index(c, from), moves = from != successor;
    if (link->gen != wh_state_gen(state)) { /* armed, perhaps cancelled too, and never submitted */
        wh_wheel_remove(&c->wheel, slot);
        wh_first_sight(c, slot, state);
        if (wh_state_phase(state) == WH_ARMED)
            wh_link_timer(c, slot, wh_shard_of(c, successor));
        else
            wh_give_back(c, slot, wh_owner_of(c, slot));
    } else if (!wh_stage_over(stage)) {
        wh_reassign_open(c, slot, state, moves && theirs, successor);
    } else if (wh_in_hands(c, link, from)) {
        wh_clear_payload(c, slot);
        wh_return(c, slot, wh_owner_of(c, slot));
    } else if (moves && theirs && (stage == WH_STAGE_WAIT_EXPIRE || stage == WH_STAGE_EXPIRED)) {
        wh_wheel_remove(&c->wheel, slot);
        wh_deliver_again(c, slot, NULL, successor);
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
static inline void wh_give_slab(wh_clock *c, uint32_t slab, wh_peer *successor)
{
    uint64_t word = wh_owner_word(wh_peer_index(c, successor), successor->incarnation) | WH_PARKED;
    uint64_t ret_head = wh_load_acquire(&successor->seg->ret_head); /* pairs: ret-head */
    if ((int64_t)(successor->stale_until - ret_head) > 0) {
        for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
            wh_free_list_hold(c, slab << WH_SLAB_BITS | i, successor);
        word = WH_SPLIT;
        wh_free_list_split(c, slab);
    }
    /* pairs: slab - the successor learns of a slot of it only after this */
    wh_store_release(&c->owners[slab], word);
}

/* Hand one of `from`'s slabs to `successor`, which may be itself. */
static inline void wh_reassign_slab(wh_clock *c, uint32_t slab, wh_peer *from, wh_peer *successor)
{
    wh_look_at_heads(from);
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
        wh_end_private(c, slab << WH_SLAB_BITS | i, from);
    if (successor != from) {
        for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
            wh_mark_in_hands(c, slab << WH_SLAB_BITS | i, from);
        wh_give_slab(c, slab, successor);
    }
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
        wh_reassign(c, slab << WH_SLAB_BITS | i, from, successor);
    if (successor == from) { /* a worker that is short of slots may take the idle ones */
        uint64_t word = wh_load_acquire(&c->owners[slab]); /* pairs: slab */
        (void)wh_cas_acq_rel(&c->owners[slab], &word, word | WH_PARKED); /* pairs: slab */
        wh_free_list_ended(c, slab << WH_SLAB_BITS);
    }
    wh_count(&c->seg->inherited, WH_SLAB_SLOTS);
}

/* The same for one slot of a split slab. */
static inline void wh_reassign_slot(wh_clock *c, uint32_t slot, wh_peer *from, wh_peer *successor)
{
    wh_look_at_heads(from);
    wh_end_private(c, slot, from);
    if (successor != from) {
        wh_mark_in_hands(c, slot, from);
        wh_step();
        wh_free_list_hold(c, slot, successor);
        wh_step();
    } else {
        successor->stale_until =
            successor->ret_tail; /* what it did not take up goes to the free list */
    }
    wh_reassign(c, slot, from, successor);
    wh_count(&c->seg->inherited, 1);
}

#endif
