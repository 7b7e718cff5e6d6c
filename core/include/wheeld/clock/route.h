/* Route: chooses the receiver of an expiration. Decided when the timer fires.
 *
 * To its owner; to the worker that it names, or its owner when that one is gone; to a member of the
 * group that it names: those that wait for events, once; then all in turn, while there is room.
 *
 * Invariant: for each group that it has an event for, a pass looks at a row once, and finds it full
 * once. So a million events for a group cost the same whatever its members do.
 */
#ifndef WHEELD_ROUTE_H
#define WHEELD_ROUTE_H

#include "wheeld/clock/detached.h"

static inline bool wh_peer_room(const wh_clock *c, wh_peer *peer)
{
    if (wh_likely(wh_ring_room(peer->comp_tail, peer->comp_head, c->comp_size)))
        return true;
    /* pairs: comp-head - the worker has copied what its head has passed */
    peer->comp_head = wh_load_acquire(&peer->seg->comp_head);
    return wh_ring_room(peer->comp_tail, peer->comp_head, c->comp_size) != 0;
}

/* Is it waiting for an event, with none on the way? */
static inline bool wh_peer_waits(const wh_peer *peer)
{
    uint64_t waiting = wh_load_seq(&peer->seg->wait_seq); /* pairs: offered */
    return waiting & 1 && waiting != peer->rung && peer->news != WH_NEWS_WAKES;
}

static inline bool wh_has_joined(const wh_peer *peer, uint64_t groups)
{
    return peer->life == WH_PEER_PRESENT && (peer->groups & groups) != 0;
}

/* A worker that has never received may never do so: it becomes a member with its first receive. */
static inline bool wh_is_member(const wh_peer *peer, uint64_t groups)
{
    /* pairs: receives, offered - seq_cst: read after the clock said what it offers, else a
     * first-time member could sleep unrung while it does not count */
    return wh_has_joined(peer, groups) && wh_load_seq(&peer->seg->receives) != 0;
}

/* Gather the members of `group`, or all that have joined it, beginning with the member whose turn
 * it is; waiting members come first. */
static inline void wh_roster_gather(wh_clock *c, uint32_t group, bool members)
{
    wh_roster *roster = &c->rosters[group];
    uint32_t row = roster->turn < c->peers_used ? roster->turn : 0, all = 0, waiting = 0;
    for (uint32_t looked = 0; looked < c->peers_used; looked++) {
        wh_peer *peer = &c->peers[row];
        if (members ? wh_is_member(peer, 1ull << group) : wh_has_joined(peer, 1ull << group)) {
            c->peers[all].roster[group] = c->peers[waiting].roster[group];
            if (wh_peer_waits(peer))
                c->peers[waiting++].roster[group] = (uint16_t)row;
            else
                c->peers[all].roster[group] = (uint16_t)row;
            all++;
        }
        row = row + 1 < c->peers_used ? row + 1 : 0;
    }
    roster->all = roster->open = all;
    roster->waiting = roster->next = waiting;
    roster->served = 0;
}

/* Find the members of `group`. With none there, those that have joined: the first member that comes
 * takes what they do not read (reoffer.h). */
static inline void wh_roster_look(wh_clock *c, uint32_t group)
{
    wh_roster_gather(c, group, true);
    if (wh_unlikely(c->rosters[group].all == 0))
        wh_roster_gather(c, group, false);
    c->rosters[group].looked = wh_load_relaxed(&c->seg->passes) + 1;
}

/* The peer in place `i` of the roster, if still attached; else NULL. */
static inline wh_peer *wh_roster_at(wh_clock *c, uint32_t group, uint32_t i)
{
    wh_peer *peer = &c->peers[c->peers[i].roster[group]];
    return wh_has_joined(peer, 1ull << group) ? peer : NULL;
}

/* First each one that waits, once; then all that have room, in turn. One without room is skipped
 * for the rest of the pass. */
static inline wh_peer *wh_roster_next(wh_clock *c, uint32_t group)
{
    wh_roster *roster = &c->rosters[group];
    wh_peer *peer;
    while (roster->served < roster->waiting)
        if ((peer = wh_roster_at(c, group, roster->served++)) && wh_peer_room(c, peer))
            return peer;
    while (roster->open) {
        roster->next = roster->next < roster->open ? roster->next : 0;
        if ((peer = wh_roster_at(c, group, roster->next)) && wh_peer_room(c, peer)) {
            roster->next++;
            return peer;
        }
        uint16_t *at = &c->peers[roster->next].roster[group], row = *at;
        *at = c->peers[--roster->open].roster[group];
        c->peers[roster->open].roster[group] = row;
    }
    return NULL;
}

/* A living member of `group`, or NULL. */
static wh_seldom wh_peer *wh_group_member(wh_clock *c, uint32_t group)
{
    wh_roster *roster = &c->rosters[group];
    if (roster->looked != wh_load_relaxed(&c->seg->passes) + 1)
        wh_roster_look(c, group);
    wh_peer *found = wh_roster_next(c, group);
    for (uint32_t i = 0; i < roster->all && !found; i++) /* all are full */
        found = wh_roster_at(c, group, roster->next++ % roster->all);
    if (found)
        roster->turn = wh_peer_index(c, found) + 1;
    return found;
}

/* The group that a target word is for, or WH_GROUPS: none, or its number has another name than the
 * sender found. */
static inline uint32_t wh_group_at(const wh_clock *c, uint32_t target)
{
    if (wh_likely(wh_target_worker(target) != WH_TARGET_GROUP))
        return WH_GROUPS;
    uint32_t group = wh_target_number(target);
    if (c->groups == NULL)
        return group;
    uint32_t used = wh_load_acquire(&c->groups[group].used); /* pairs: group */
    return wh_group_uses(used) == wh_target_uses(target) ? group : WH_GROUPS;
}

/* The group that a timer is for, or WH_GROUPS. */
static inline uint32_t wh_group_of(const wh_clock *c, uint32_t slot)
{
    return wh_group_at(c, wh_load_relaxed(&c->slots[slot].target));
}

/* The worker that a target word is for, as one of `group` if it is below WH_GROUPS. When the target
 * is gone: the timer's owner, or the keeper if it is detached. */
static inline wh_peer *wh_route(wh_clock *c, uint32_t slot, uint32_t target, uint32_t group,
                                wh_peer *owner)
{
    if (wh_likely(target == 0))
        return owner;
    wh_peer *peer = NULL;
    uint32_t row = wh_target_worker(target) - 1;
    if (group < WH_GROUPS) {
        peer = wh_group_member(c, group);
    } else if (row < c->max_workers) {
        peer = &c->peers[row];
        if (peer->life <= WH_PEER_DYING || wh_target_word(row, peer->incarnation) != target)
            peer = NULL;
    }
    if (peer || (peer = wh_keeper_of(c, slot, owner)))
        return peer;
    wh_count(&c->seg->redirected, 1);
    return owner;
}

/* The same for a timer, by what its slot says now. */
static inline wh_peer *wh_route_of(wh_clock *c, uint32_t slot, wh_peer *owner)
{
    uint32_t target = wh_load_relaxed(&c->slots[slot].target);
    return wh_route(c, slot, target, wh_group_at(c, target), owner);
}

#endif
