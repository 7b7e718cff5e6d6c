/* Reap: clear up after a worker that has died or departed.
 *
 * Its submissions are drained first, as anyone's. Then all slabs are swept, by its policy:
 *
 *     drop     armed timers are dropped, or go to the keeper if they are detached; the slab is
 *              free, or, while others have some of its slots to read, split: these are nobody's
 *              then (free_list.h), and no reader is waited for
 *     keep     the slab stays, its slots are handed to the successor to come (reassign.h)
 *     reroute  the slab goes to a living member of its groups; with none left, it is kept
 *
 * In other workers' slabs it may have cancelled a timer and died before it submitted the cancel, or
 * have taken a key from a timer and died before it cancelled that.
 * Unread events that others had sent to it go where they would go now; if it is kept, they stay.
 * Each pass does a bounded piece of this, for one worker. A sweep may start again at any time, as
 * it does under a new clock.
 */
#ifndef WHEELD_REAP_H
#define WHEELD_REAP_H

#include "wheeld/deaths/reassign.h"
#include "wheeld/clock/reoffer.h"

/* Per pass: a quarter of a millisecond of misses. */
#define WH_REAP_SLABS 64 /* slabs looked at */
#define WH_REAP_OWN 16   /* of those, its own slabs, whose slots are each ended or handed over */
#define WH_REAP_LISTED 1024 /* of events that waited for it, or were lent to it */

/* Is the slot's record still to be read by another worker that may read it? */
static inline bool wh_on_loan(wh_clock *c, const wh_link *link, const wh_peer *owner)
{
    const wh_peer *reader = &c->peers[wh_stage_worker(link)];
    if (reader == owner || reader->life <= WH_PEER_DYING)
        return false;
    return wh_stage_of(link) == WH_STAGE_WAIT_EXPIRE || wh_stage_of(link) == WH_STAGE_OFFERED ||
           (wh_stage_of(link) == WH_STAGE_LENT && wh_unread(c, link));
}

/* Settle a group's expiration before its slot goes: it may be done, or taken by a member
 * that is gone, or be offered to one while another lives; then that one gets it. */
static inline void wh_reclaim_offer(wh_clock *c, uint32_t slot, wh_peer *owner)
{
    const wh_link *link = &c->wheel.links[slot];
    const wh_peer *reader = &c->peers[wh_stage_worker(link)];
    uint32_t group = wh_group_of(c, slot);
    if (group >= WH_GROUPS || !wh_stage_offers(wh_stage_of(link)))
        return;
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: fire, offer */
    bool there = reader != owner && reader->life > WH_PEER_DYING &&
                 (reader->life == WH_PEER_PRESENT || wh_group_member(c, group) == NULL) &&
                 (reader != c->keeper || wh_is_detached(c, slot));
    if ((wh_state_phase(state) == WH_FIRED && there) || wh_state_phase(state) == WH_ARMED)
        return;
    wh_wheel_remove(&c->wheel, slot);
    wh_deliver_again(c, slot, NULL, owner);
}

/* Has it fired, with the record still unread? */
static inline bool wh_unread_end(wh_clock *c, uint32_t slot)
{
    const wh_link *link = &c->wheel.links[slot];
    enum wh_stage stage = wh_stage_of(link);
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: fire */
    return wh_state_phase(state) == WH_FIRED &&
           (stage == WH_STAGE_WAIT_EXPIRE ||
            ((stage == WH_STAGE_EXPIRED || stage == WH_STAGE_LENT) && wh_unread(c, link)));
}

/* Nothing is left of the slot's timer, and its slab's next owner may have the slot. */
static inline void wh_reclaimed(wh_clock *c, uint32_t slot, uint32_t gen)
{
    wh_link *link = &c->wheel.links[slot];
    wh_note_end(c, slot, WH_TRACE_DROPPED); /* if none is recorded yet */
    wh_wheel_remove(&c->wheel, slot);
    wh_clear_payload(c, slot);
    wh_detached_end(c, slot);
    wh_end_held(c, slot);
    link->completion = wh_completion_word(WH_STAGE_RECLAIMED, 0, 0);
    wh_step();
    link->gen = gen;
}

/* Is it a detached timer that goes to the keeper, as its worker goes? One with a key that does not
 * name it is no timer any more, or not yet (wh_end_private), but if it was given back. */
static inline bool wh_goes_to_keeper(wh_clock *c, const wh_peer *peer, uint32_t slot,
                                     uint64_t state)
{
    if (wh_likely(!wh_is_detached(c, slot)) || peer == c->keeper)
        return false;
    uint32_t gen = wh_state_gen(state);
    return wh_state_phase(state) == WH_ARMED &&
           (!(wh_load_relaxed(&c->slots[slot].flags) & WH_KEYED) || wh_is_named(c, slot, gen) ||
            wh_was_given_back(c, slot, gen));
}

/* Is it the end of a detached timer, which a member has or may take, and may give back? Then it is
 * armed again, and the keeper's once its slot is nobody's (wh_adopt). */
static inline bool wh_may_come_back(const wh_clock *c, const wh_peer *peer, uint32_t slot,
                                    uint64_t state)
{
    enum wh_phase phase = wh_state_phase(state);
    return (phase == WH_FIRED || phase == WH_TAKEN) && peer != c->keeper && wh_is_detached(c, slot);
}

/* End one slot of a dead owner, by the state that said that it is not the keeper's: who gives it
 * back changes that. False: it is still on loan. */
static inline bool wh_reclaim(wh_clock *c, wh_peer *peer, uint32_t slot, uint64_t state)
{
    wh_link *link = &c->wheel.links[slot];
    uint32_t gen = wh_state_gen(state);
    bool stays = wh_may_come_back(c, peer, slot, state);
    bool dropped = !stays && wh_slot_cancel(&c->states[slot], gen);
    if (dropped)
        wh_count_dropped(c, peer);
    wh_note_reclaimed(c, slot, gen, dropped);
    if (link->gen == gen && !wh_stage_over(wh_stage_of(link))) {
        wh_wheel_remove(&c->wheel, slot);
        wh_give_back(c, slot, wh_owner_of(c, slot));
    }
    if (link->gen == gen)
        wh_reclaim_offer(c, slot, peer);
    if (link->gen == gen && wh_on_loan(c, link, peer))
        return false;
    if (stays && wh_state_phase(wh_load_acquire(&c->states[slot])) == WH_ARMED) /* pairs: offer */
        return false;
    if (link->gen == gen && wh_unread_end(c, slot))
        wh_count_dropped(c, peer);
    wh_reclaimed(c, slot, gen);
    return true;
}

/* Handle what others did to timers of other workers' slabs and may not have submitted: cancels, and
 * moves to earlier. If they live, their later submission finds that done. */
static inline void wh_sweep_changed(wh_clock *c, uint32_t slab)
{
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++) {
        uint32_t slot = slab << WH_SLAB_BITS | i;
        wh_link *link = &c->wheel.links[slot];
        uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: cancel, extend */
        if (wh_state_gen(state) != link->gen || wh_stage_over(wh_stage_of(link)))
            continue;
        if (wh_state_phase(state) == WH_CANCELLED) {
            wh_wheel_remove(&c->wheel, slot);
            wh_give_back(c, slot, wh_owner_of(c, slot));
        } else if (wh_state_phase(state) == WH_ARMED && wh_state_is_early(state) &&
                   wh_owner_of(c, slot) != NULL && wh_placed(c, link)) {
            wh_relink(c, slot, state, wh_owner_of(c, slot));
        }
    }
}

/* Give group expirations that the dead worker had taken, but not finished, to another member. */
static inline void wh_sweep_taken(wh_clock *c, const wh_peer *peer, uint32_t slab)
{
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++) {
        uint32_t slot = slab << WH_SLAB_BITS | i;
        const wh_link *link = &c->wheel.links[slot];
        uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: offer */
        uint32_t taker = wh_taker(wh_owner_word(wh_peer_index(c, peer), peer->incarnation));
        if (wh_state_phase(state) != WH_TAKEN || wh_state_gen(state) != link->gen ||
            wh_state_taker(state) != taker || !wh_stage_offers(wh_stage_of(link)))
            continue;
        wh_wheel_remove(&c->wheel, slot);
        wh_deliver_again(c, slot, NULL, wh_owner_of(c, slot));
    }
}

/* Reclaim one of the dead worker's slabs. Slots on loan are nobody's from then on, and detached
 * timers the keeper's. */
static inline void wh_reclaim_slab(wh_clock *c, wh_peer *peer, uint32_t slab)
{
    uint64_t lent = 0, kept = 0;
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++) {
        uint32_t slot = slab << WH_SLAB_BITS | i;
        uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel, fire, offer */
        if (wh_goes_to_keeper(c, peer, slot, state))
            kept |= 1ull << i;
        else
            lent |= (uint64_t)!wh_reclaim(c, peer, slot, state) << i;
    }
    if ((lent | kept) == 0) {
        wh_free_slab(c, slab);
        return;
    }
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++) {
        uint32_t slot = slab << WH_SLAB_BITS | i;
        wh_store_relaxed(&c->free_list.holders[slot], lent >> i & 1 ? WH_HOLDER_NOBODY : 0);
        if (kept >> i & 1)
            wh_free_list_hold(c, slot, c->keeper);
    }
    wh_free_list_split(c, slab);
    wh_store_release(&c->owners[slab], WH_SPLIT); /* pairs: slab - with its holders */
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++) {
        if (kept >> i & 1)
            wh_reassign(c, slab << WH_SLAB_BITS | i, peer, c->keeper);
        else if (!(lent >> i & 1))
            wh_free_list_put(c, slab << WH_SLAB_BITS | i);
    }
}

/* A slot of another worker that waited in the dead one's backlog, or was lent to it. */
static inline void wh_reap_listed(wh_clock *c, uint32_t slot)
{
    wh_link *link = &c->wheel.links[slot];
    wh_peer *owner = wh_owner_of(c, slot);
    bool read = wh_stage_of(link) == WH_STAGE_LENT && !wh_unread(c, link);
    bool tick = wh_stage_of(link) == WH_STAGE_WAIT_TICK;
    wh_wheel_remove(&c->wheel, slot);
    if (tick)
        wh_expire(c, slot);
    else if (read)
        wh_return(c, slot, owner);
    else
        wh_deliver_again(c, slot, NULL, owner);
}

/* Give what waits in the dead worker's ring and backlog to its owners. It is dying, so nothing is
 * added to these lists any more. False: there is more. */
static inline bool wh_reap_lists(wh_clock *c, wh_peer *peer)
{
    uint32_t lists[3] = {wh_lent_list(c, peer), wh_hand_list(c, peer), wh_backlog_list(c, peer)};
    uint32_t budget = WH_REAP_LISTED, slot;
    for (int i = 0; i < 3; i++)
        for (; (slot = wh_list_first(&c->wheel, lists[i])) != WH_NIL; budget--) {
            if (budget == 0)
                return false;
            wh_reap_listed(c, slot);
        }
    return true;
}

/* A slot without a living holder: its owner word was overwritten, or it was in the free list when a
 * clock died. */
static inline void wh_end_orphan(wh_clock *c, uint32_t slot)
{
    uint32_t gen = wh_state_gen(wh_load_acquire(&c->states[slot])); /* pairs: arm, cancel */
    bool dropped = wh_slot_cancel(&c->states[slot], gen);
    if (dropped)
        wh_count(&c->seg->dropped, 1);
    wh_note_reclaimed(c, slot, gen, dropped);
    wh_reclaimed(c, slot, gen);
}

/* A slab whose owner word names no worker: it was overwritten. */
static inline void wh_free_orphan(wh_clock *c, uint32_t slab)
{
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
        wh_end_orphan(c, slab << WH_SLAB_BITS | i);
    wh_free_slab(c, slab);
}

/* Is no other worker attached? Then no slot of a slab without a valid owner word is held. */
static inline bool wh_is_last(const wh_clock *c, const wh_peer *peer)
{
    for (uint32_t i = 0; i < c->peers_used; i++)
        if (c->peers[i].life && &c->peers[i] != peer)
            return false;
    return true;
}

/* The member that gets the next slab, in turn; with none left, `peer` itself is to be kept. */
static inline wh_peer *wh_successor(wh_clock *c, wh_peer *peer)
{
    for (uint32_t looked = 0; looked < c->peers_used; looked++) {
        wh_peer *successor = &c->peers[peer->next_successor++ % c->peers_used];
        if (wh_is_member(successor, peer->groups))
            return successor;
    }
    return peer;
}

/* The successor of the timers that it does not drop. */
static inline wh_peer *wh_successor_of(wh_clock *c, wh_peer *peer)
{
    wh_peer *successor = peer->leave == WH_LEAVE_REROUTE ? wh_successor(c, peer) : peer;
    if (successor == peer)
        peer->leave = WH_LEAVE_KEEP;
    return successor;
}

/* Sweep what it holds of a split slab; `last`: what nobody holds and nobody is to read, too. */
static inline void wh_reap_split(wh_clock *c, wh_peer *peer, uint32_t slab, bool last)
{
    wh_peer *successor = NULL;
    for (uint32_t i = 0; i < WH_SLAB_SLOTS && wh_is_split(c, slab); i++) {
        uint32_t slot = slab << WH_SLAB_BITS | i;
        uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel, fire, offer */
        const wh_peer *holder = wh_holder_of(c, slot);
        if (holder == NULL && last && wh_load_relaxed(&c->free_list.holders[slot]) &&
            !(wh_is_loose(c, slot) && c->wheel.links[slot].list != WH_NIL)) {
            wh_end_orphan(c, slot);
            wh_free_list_put(c, slot);
        } else if (holder == peer && peer->leave != WH_LEAVE_DROP) {
            successor = successor ? successor : wh_successor_of(c, peer);
            wh_reassign_slot(c, slot, peer, successor);
        } else if (holder == peer && wh_goes_to_keeper(c, peer, slot, state)) {
            wh_reassign_slot(c, slot, peer, c->keeper);
        } else if (holder == peer && !wh_reclaim(c, peer, slot, state)) {
            wh_store_relaxed(&c->free_list.holders[slot], WH_HOLDER_NOBODY);
        } else if (wh_holder_of(c, slot) == peer) { /* its end may already have returned it */
            wh_free_list_put(c, slot);
        }
    }
}

/* Finish its sweep: it no longer owns anything, or everything is ready for a successor. False:
 * something is left. */
static inline bool wh_reap_end(wh_clock *c, wh_peer *peer)
{
    if (wh_heap_used(&c->heap)) {
        wh_heap_bury(&c->heap, wh_peer_index(c, peer));
        /* pairs: freed - its chunks may look fuller than they are */
        wh_fetch_add_seq(c->freed, 1);
    }
    if (peer->leave != WH_LEAVE_KEEP) {
        peer->life = WH_PEER_DYING;
        if (!wh_reap_lists(c, peer))
            return false;
        peer->news = WH_NEWS_QUIET;
        wh_publish(c, peer); /* its row's next tenant begins behind all positions that links name */
        free(peer->returns);
        peer->returns = NULL;
        peer->life = WH_PEER_GONE;
        wh_store_relaxed(&peer->port->incarnation, 0);
        /* pairs: freed - for a slab that it gave back and did not count */
        wh_fetch_add_seq(c->freed, 1);
    } else {
        peer->life = WH_PEER_ABSENT;
    }
    peer->leave = WH_STAYS;
    peer->reap_slab = 0;
    wh_reoffer_left(c, peer);
    return true;
}

/* The dead worker has ended a timer to take its key: let the word name the timer that was to get
 * it. The worker still touches the place, so that is not emptied. */
static wh_seldom void wh_reap_replacer(wh_clock *c, const wh_peer *peer, uint64_t id)
{
    uint64_t by = wh_load_relaxed(&peer->seg->replacer);
    uint64_t state = wh_load_acquire(&c->states[wh_id_slot(id)]); /* pairs: cancel */
    if (wh_state_gen(state) != wh_id_gen(id) || wh_state_phase(state) != WH_CANCELLED ||
        !(wh_load_relaxed(&c->slots[wh_id_slot(id)].flags) & WH_HELD) ||
        wh_id_given_slot(by) >= c->wheel.capacity || c->keys.memory == NULL ||
        !wh_slab_there(c, wh_id_slot(by) >> WH_SLAB_BITS) || !wh_keys_pending(&c->keys, by) ||
        !(wh_load_relaxed(&c->slots[wh_id_slot(by)].flags) & WH_KEYED))
        return;
    uint32_t place = wh_load_relaxed((wh_au32 *)&c->keys.rooms[wh_id_slot(id)].place);
    /* pairs: word-value - unless another worker has found the key free */
    (void)wh_cas_seq(wh_words_value(&c->keys, place), &id, by);
}

/* End the timer from which the dead worker has taken a key. The sweep of its slab gives it back. */
static inline void wh_reap_replaced(wh_clock *c, const wh_peer *peer)
{
    uint64_t id = wh_load_seq(&peer->seg->replacing); /* pairs: replace */
    uint32_t slot = wh_id_slot(id), gen = wh_id_gen(id);
    if (wh_likely(id == 0) || !wh_slab_there(c, slot >> WH_SLAB_BITS) ||
        !(wh_load_relaxed(&c->slots[slot].flags) & WH_KEYED))
        return;
    if (wh_is_named(c, slot, gen))
        wh_reap_replacer(c, peer, id);
    else
        (void)wh_slot_cancel(&c->states[slot], gen);
}

/* Sweep some slabs from where the last call stopped. True: they were the last ones. */
static inline bool wh_reap_slabs(wh_clock *c, wh_peer *peer)
{
    if (peer->reap_slab == 0)
        wh_reap_replaced(c, peer);
    uint64_t mine = wh_owner_word(wh_peer_index(c, peer), peer->incarnation);
    uint32_t slabs = c->wheel.capacity >> WH_SLAB_BITS, own = 0;
    bool last = wh_is_last(c, peer);
    for (uint32_t looked = 0; looked < WH_REAP_SLABS && own < WH_REAP_OWN; looked++) {
        uint32_t slab = peer->reap_slab;
        if (slab == slabs)
            return true;
        if (!wh_slab_there(c, slab)) {
            peer->reap_slab = c->shared_slabs;
            continue;
        }
        uint64_t owner = wh_load_acquire(&c->owners[slab]); /* pairs: slab */
        if (wh_unlikely(c->queue != NULL) && owner != 0)
            wh_sweep_taken(c, peer, slab);
        if (wh_unlikely(wh_is_split(c, slab))) {
            wh_reap_split(c, peer, slab, last);
            wh_sweep_changed(c, slab);
            own++;
        } else if (wh_owner_name(owner) == mine) {
            if (peer->leave == WH_LEAVE_DROP)
                wh_reclaim_slab(c, peer, slab);
            else
                wh_reassign_slab(c, slab, peer, wh_successor_of(c, peer));
            own++;
        } else if (owner != 0 && last && wh_owner_of(c, slab << WH_SLAB_BITS) == NULL) {
            wh_free_orphan(c, slab);
            own++;
        } else if (owner != 0) {
            wh_sweep_changed(c, slab);
        }
        peer->reap_slab++;
    }
    return peer->reap_slab == slabs;
}

/* Do a part of the work. True: the worker is gone and its slabs are free; or it is kept. */
static inline wh_cold bool wh_reap(wh_clock *c, wh_peer *peer)
{
    return wh_reap_slabs(c, peer) && wh_reap_end(c, peer);
}

#endif
