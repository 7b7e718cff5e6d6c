/* Settle: deliver what had to wait for a worker to read: loans to return, backlogs, queued returns.
 *
 * The worker shows that it has read by moving its head; it rings only if `backlog` is set in its
 * line. Otherwise the next pass, whenever it comes, is soon enough.
 *
 * Each call does a bounded piece of each of the three, so that none of them delays another. Events
 * that wait go before new ones: as long as a backlog is not empty, `behind` sends new events to its
 * end.
 */
#ifndef WHEELD_SETTLE_H
#define WHEELD_SETTLE_H

#include "wheeld/clock/fire.h"

#define WH_SETTLE_PUBLISH 256
#define WH_SETTLE_IN_HAND 8 /* looks per pass at what a worker has in hand */

/* Is the loan still unread? One that was taken leaves this list (wh_leave_to). */
static inline bool wh_loan_stands(wh_clock *c, uint32_t slot)
{
    const wh_link *link = &c->wheel.links[slot];
    /* loaded before the state: whatever it takes of what stands before its head is taken by then */
    bool unread = wh_unread(c, link);
    if (wh_likely(wh_stage_of(link) != WH_STAGE_OFFERED))
        return unread;
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: offer */
    return wh_state_phase(state) == WH_FIRED && unread;
}

/* Return what `peer` has read of other workers' timers, and leave to its taker what was taken;
 * loans are in ring order. Returns how many it settled. */
static inline uint32_t wh_settle_loans(wh_clock *c, wh_peer *peer, uint32_t budget)
{
    uint32_t list = wh_lent_list(c, peer), slot, count;
    for (count = 0; count < budget; count++) {
        slot = wh_list_first(&c->wheel, list);
        if (slot == WH_NIL || wh_loan_stands(c, slot))
            return count;
        wh_wheel_remove(&c->wheel, slot);
        if (wh_unlikely(wh_stage_of(&c->wheel.links[slot]) == WH_STAGE_OFFERED))
            wh_deliver_again(c, slot, NULL, wh_owner_of(c, slot));
        else
            wh_return(c, slot, wh_owner_of(c, slot));
    }
    return count;
}

/* Of what `peer` has in hand, return what it is done with. As a rule it says so itself (drain.h),
 * but not if its ring was full. Of those that it still has, some are passed by, in turn. Returns
 * how many it returned. */
static inline uint32_t wh_settle_in_hand(wh_clock *c, wh_peer *peer, uint32_t budget)
{
    uint32_t list = wh_hand_list(c, peer), count = 0, passed = 0, slot;
    uint32_t last = c->wheel.links[wh_sentinel(&c->wheel, list)].prev;
    while (count < budget && passed < WH_SETTLE_IN_HAND) {
        slot = wh_list_first(&c->wheel, list);
        if (wh_likely(slot == WH_NIL))
            break;
        uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: offer */
        wh_wheel_remove(&c->wheel, slot);
        if (wh_has_taken(c, state, peer)) {
            wh_list_append(&c->wheel, list, slot);
            passed++;
        } else {
            wh_deliver_again(c, slot, NULL, wh_owner_of(c, slot));
            count++;
        }
        if (slot == last)
            break;
    }
    return count;
}

/* Put the first of `peer`'s backlog, already unlinked, into its ring, which has room. */
static inline void wh_settle_one(wh_clock *c, wh_peer *peer, uint32_t slot)
{
    wh_link *link = &c->wheel.links[slot];
    if (wh_stage_of(link) == WH_STAGE_WAIT_EXPIRE)
        wh_deliver_again(c, slot, peer, wh_owner_of(c, slot));
    else
        wh_expire(c, slot); /* a waiting tick; or it was cancelled meanwhile */
}

/* Slots that wait to be returned. A worker that is short of slots waits for just this, so what is
 * there is published on the way. An entry is a hint: the slot may have been reassigned since.
 * Returns how many it looked at. */
static inline uint32_t wh_settle_returns(wh_clock *c, wh_peer *peer, uint32_t budget)
{
    uint32_t capacity = c->wheel.capacity, count = 0;
    uint64_t waits = wh_completion_word(WH_STAGE_WAIT_RETURN, wh_peer_index(c, peer), 0);
    for (uint64_t i = peer->returns_head; i != peer->returns_tail && count < budget; i++, count++) {
        if (!wh_peer_return_room(c, peer))
            return count;
        wh_prefetch_write(&c->wheel.links[peer->returns[(i + 8) % capacity] % capacity]);
        if (wh_likely(c->wheel.links[peer->returns[i % capacity]].completion == waits))
            wh_put_returned(c, peer, peer->returns[i % capacity]);
        peer->returns_head = i + 1;
        if (i % WH_SETTLE_PUBLISH == 0)
            wh_publish(c, peer);
    }
    return count;
}

/* Deliver events that waited for room. Returns how many it delivered. */
static inline uint32_t wh_settle_backlog(wh_clock *c, wh_peer *peer, uint32_t budget)
{
    uint32_t list = wh_backlog_list(c, peer), slot = WH_NIL, count;
    peer->behind = false;
    for (count = 0; (slot = wh_list_first(&c->wheel, list)) != WH_NIL; count++) {
        if (count == budget || !wh_peer_room(c, peer))
            break;
        wh_wheel_remove(&c->wheel, slot);
        wh_settle_one(c, peer, slot);
    }
    peer->behind = slot != WH_NIL;
    return count;
}

/* Do one piece, up to `budget` of each kind, and add the amount to *done. True: there may be more
 * to do at once. A dying worker gets nothing more; the reaper handles its waiting events. */
static inline bool wh_settle(wh_clock *c, wh_peer *peer, uint32_t budget, uint32_t *done)
{
    uint32_t loans = wh_settle_loans(c, peer, budget), events = 0, returns = 0;
    uint32_t taken = wh_settle_in_hand(c, peer, budget);
    if (peer->life == WH_PEER_DYING) {
        peer->returns_head = peer->returns_tail;
    } else if (wh_load_relaxed(&peer->port->backlog)) {
        events = wh_settle_backlog(c, peer, budget);
        returns = wh_settle_returns(c, peer, budget);
        if (!peer->behind && peer->returns_head == peer->returns_tail)
            wh_store_relaxed(&peer->port->backlog, 0);
    }
    *done += loans + taken + events + returns;
    return loans == budget || taken == budget || events == budget || returns == budget;
}

/* Has the worker moved a head since, so that settling would make progress? */
static inline bool wh_can_settle(wh_clock *c, wh_peer *peer)
{
    uint64_t comp_head = wh_load_seq(&peer->seg->comp_head); /* pairs: backlog, comp-head */
    uint64_t ret_head = wh_load_seq(&peer->seg->ret_head); /* pairs: backlog, ret-head */
    uint32_t lent = wh_list_first(&c->wheel, wh_lent_list(c, peer));
    if (lent != WH_NIL && !wh_loan_stands(c, lent))
        return true;
    if (peer->life == WH_PEER_DYING)
        return false;
    bool events = wh_list_first(&c->wheel, wh_backlog_list(c, peer)) != WH_NIL;
    bool returns = peer->returns_head != peer->returns_tail;
    return (events && wh_ring_room(peer->comp_tail, comp_head, c->comp_size)) ||
           (returns && wh_ring_room(peer->ret_tail, ret_head, c->ret_size));
}

#endif
