/* Route: to whom an expiration goes. Decided when the timer fires.
 *
 * To its owner; to the worker that it names, or its owner when that one is gone; to a member of the
 * group that it names: one that waits for events first, else the next in turn with room in its ring.
 */
#ifndef WHEELD_ROUTE_H
#define WHEELD_ROUTE_H

#include "wheeld/events.h"

static inline bool wh_peer_room(const wh_clock *c, wh_peer *peer)
{
    if (wh_likely(wh_ring_room(peer->comp_tail, peer->comp_head, c->comp_size)))
        return true;
    /* pairs: comp-head - the worker has copied what its head has passed */
    peer->comp_head = wh_load_acquire(&peer->seg->comp_head);
    return wh_ring_room(peer->comp_tail, peer->comp_head, c->comp_size) != 0;
}

/* Does it wait for an event, and has none coming yet? */
static inline bool wh_peer_waits(const wh_peer *peer)
{
    uint64_t waiting = wh_load_relaxed(&peer->seg->wait_seq);
    return waiting & 1 && waiting != peer->rung && !peer->notify;
}

static inline bool wh_is_member(const wh_peer *peer, uint64_t groups)
{
    return peer->attached && !peer->absent && (peer->groups & groups) != 0;
}

/* A living member of one of `groups`, or NULL. Looks at every row once. */
static inline wh_peer *wh_group_member(wh_clock *c, uint64_t groups, uint32_t *turn)
{
    wh_peer *found = NULL, *with_room = NULL;
    uint32_t row = *turn < c->peers_used ? *turn : 0;
    for (uint32_t looked = 0; looked < c->peers_used; looked++) {
        wh_peer *peer = &c->peers[row];
        row = row + 1 < c->peers_used ? row + 1 : 0;
        if (!wh_is_member(peer, groups))
            continue;
        found = found ? found : peer;
        if (!wh_peer_room(c, peer))
            continue;
        with_room = with_room ? with_room : peer;
        if (!wh_peer_waits(peer))
            continue;
        with_room = peer;
        break;
    }
    found = with_room ? with_room : found;
    if (found)
        *turn = wh_peer_index(c, found) + 1;
    return found;
}

/* The target of a timer, or its owner when the target is gone. */
static inline wh_peer *wh_route(wh_clock *c, uint32_t slot, wh_peer *owner)
{
    uint32_t target = wh_load_relaxed(&c->slots[slot].target);
    if (wh_likely(target == 0))
        return owner;
    wh_peer *peer = NULL;
    if ((target & 0xfff) == WH_TARGET_GROUP) {
        uint32_t group = target >> 12 & (WH_GROUPS - 1);
        peer = wh_group_member(c, 1ull << group, &c->group_next[group]);
    } else if ((target & 0xfff) - 1 < c->max_workers) {
        peer = &c->peers[(target & 0xfff) - 1];
        if (!peer->attached || peer->dying || (peer->incarnation & 0xfffff) != target >> 12)
            peer = NULL;
    }
    if (peer)
        return peer;
    wh_count(&c->seg->redirected, 1);
    return owner;
}

#endif
