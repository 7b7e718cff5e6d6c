/* Settle: what waits for a worker to read: loans that came back, backlogs that found room.
 *
 * The worker says so by moving its head; it rings only if `backlog` is set in its line. Otherwise
 * the next pass, whenever it comes, is soon enough.
 */
#ifndef WHEELD_SETTLE_H
#define WHEELD_SETTLE_H

#include "wheeld/fire.h"

/* Return what `peer` has read of other workers' timers. Loans stand in the order of the ring. */
static inline void wh_settle_loans(wh_clock *c, wh_peer *peer)
{
    uint32_t list = wh_lent_list(c, peer), slot;
    while ((slot = wh_list_first(&c->wheel, list)) != WH_NIL) {
        if (wh_unread(c, &c->wheel.links[slot]))
            return;
        wh_wheel_remove(&c->wheel, slot);
        wh_return(c, slot);
    }
    peer->wanted = false; /* nothing of anyone's is on loan to it */
}

/* The first of `peer`'s backlog, already unlinked, goes into its ring, which has room. */
static inline void wh_settle_one(wh_clock *c, wh_peer *peer, uint32_t slot)
{
    wh_link *link = &c->wheel.links[slot];
    switch (wh_stage_of(link)) {
    case WH_STAGE_WAIT_EXPIRE:
        wh_deliver_fired(c, slot, peer, wh_owner_of(c, slot));
        break;
    case WH_STAGE_WAIT_TICK:
        wh_expire(c, slot);
        break;
    default:
        wh_return(c, slot);
    }
}

static inline void wh_settle_backlog(wh_clock *c, wh_peer *peer)
{
    uint32_t list = wh_backlog_list(c, peer), slot;
    while ((slot = wh_list_first(&c->wheel, list)) != WH_NIL && wh_peer_room(c, peer)) {
        wh_wheel_remove(&c->wheel, slot);
        wh_settle_one(c, peer, slot);
    }
    if (slot == WH_NIL && !peer->wanted)
        wh_store_relaxed(&peer->line->backlog, 0);
}

static inline void wh_settle(wh_clock *c, wh_peer *peer)
{
    wh_settle_loans(c, peer);
    if (wh_load_relaxed(&peer->line->backlog))
        wh_settle_backlog(c, peer);
}

#endif
