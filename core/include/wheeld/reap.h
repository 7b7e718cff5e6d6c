/* Reap: what a dead (or departed) worker leaves.
 *
 * Its submissions are drained first, like anyone's. Then its slabs are swept: armed timers are
 * dropped, and each slab goes back when nothing of it is on loan any more. What others had sent to
 * it and it did not read goes to their owners. The sweep does a bounded piece per pass.
 */
#ifndef WHEELD_REAP_H
#define WHEELD_REAP_H

#include "wheeld/settle.h"

#define WH_REAP_SLABS 64 /* slabs looked at per pass: a quarter of a millisecond of misses */

/* End one slot of a dead owner. False: it is on loan still. */
static inline bool wh_reclaim(wh_clock *c, wh_peer *peer, uint32_t slot)
{
    wh_link *link = &c->wheel.links[slot];
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel */
    uint32_t gen = wh_state_gen(state);
    bool lent = link->gen == gen && wh_stage_of(link) == WH_STAGE_LENT && wh_unread(c, link);
    wh_peer *reader = &c->peers[wh_stage_worker(link)];
    if (lent && !reader->dying) { /* two that die together must not wait for each other */
        reader->wanted = true;
        /* pairs: backlog - the reader rings after it has read */
        wh_store_seq(&reader->line->backlog, 1);
        return false;
    }
    if (wh_slot_cancel(&c->states[slot], gen)) {
        wh_count(&c->seg->dropped, 1);
        wh_count(&peer->line->dropped, 1);
    }
    wh_wheel_remove(&c->wheel, slot);
    link->gen = gen;
    link->completion = wh_completion_word(WH_STAGE_RECLAIMED, 0, 0);
    return true;
}

/* What waits in the dead worker's ring and backlog, and belongs to others, goes to its owners. */
static inline void wh_reap_lists(wh_clock *c, wh_peer *peer)
{
    uint32_t lists[2] = {wh_lent_list(c, peer), wh_backlog_list(c, peer)}, slot;
    for (int i = 0; i < 2; i++)
        while ((slot = wh_list_first(&c->wheel, lists[i])) != WH_NIL) {
            wh_link *link = &c->wheel.links[slot];
            wh_peer *owner = wh_owner_of(c, slot);
            uint32_t phase = wh_state_phase(wh_load_acquire(&c->states[slot])); /* pairs: cancel, fire */
            bool read = wh_stage_of(link) == WH_STAGE_LENT && !wh_unread(c, link);
            bool tick = wh_stage_of(link) == WH_STAGE_WAIT_TICK;
            wh_wheel_remove(&c->wheel, slot);
            if (tick)
                wh_expire(c, slot);
            else if (phase == WH_FIRED && !read)
                wh_deliver_fired(c, slot, owner, owner);
            else
                wh_return(c, slot);
        }
}

/* One piece of the work. True: the worker is gone, its slabs are free. */
static inline bool wh_reap(wh_clock *c, wh_peer *peer)
{
    uint64_t mine = wh_owner_word(wh_peer_index(c, peer), peer->incarnation);
    uint32_t slabs = c->wheel.capacity >> WH_SLAB_BITS;
    uint32_t end = peer->reap_slab + WH_REAP_SLABS < slabs ? peer->reap_slab + WH_REAP_SLABS : slabs;
    for (uint32_t slab = peer->reap_slab; slab < end; slab++) {
        if (wh_load_acquire(&c->owners[slab]) != mine) /* pairs: slab */
            continue;
        bool held = false;
        for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
            held |= !wh_reclaim(c, peer, slab << WH_SLAB_BITS | i);
        if (!held)
            wh_store_release(&c->owners[slab], 0); /* pairs: slab - all of it is settled */
        peer->reap_held |= held;
    }
    peer->reap_slab = end;
    if (end < slabs)
        return false;
    peer->reap_slab = 0;
    if (peer->reap_held)
        return peer->reap_held = false;
    wh_reap_lists(c, peer);
    free(peer->returns);
    peer->returns = NULL;
    peer->attached = false;
    wh_store_relaxed(&peer->line->incarnation, 0);
    return true;
}

#endif
