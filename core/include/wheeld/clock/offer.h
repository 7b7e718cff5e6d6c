/* Offer: an expiration for a group, which its members may take from each other.
 *
 * Idea. The record in a member's ring is an offer: the state word decides who takes it (slot.h,
 * invariant 4). So the clock may offer it again, to another member, whenever it likes: a member
 * that comes late passes the record over. An event that is offered, or waits behind a full ring,
 * stands in its group's queue until the clock finds that it was taken (reoffer.h).
 *
 *     state    link                       means
 *     FIRED    offered (M, position)      in M's ring; also in others', if it was offered before
 *     FIRED    expiration waits (M)       behind M's full ring; likewise
 *     TAKEN T  either                     in T's hands: until T is done, or gone
 *     DONE     either                     its slot is to be returned
 *
 * Invariants
 *  1. Every event for a group that is FIRED or waits for a tick, and is offered or waiting, is in
 * that group's queue. The queue may also name events that were taken meanwhile.
 *  2. An offered event is in the list of loans of the worker that link.completion names, to whom it
 *     was offered last; or in the list of what that worker has in hand. There it delays no loan.
 *  3. The queue is private: recovery rebuilds it.
 */
#ifndef WHEELD_OFFER_H
#define WHEELD_OFFER_H

#include "wheeld/clock/route.h"

/* a member that was woken for an offer has taken it by then; else others get it */
#define WH_OFFER_PATIENCE_NS 10000000

/* Is an expiration that goes to `to` an offer? An owner that gets it as its group has no member
 * keeps it. */
static inline bool wh_is_offer(uint32_t group, const wh_peer *to)
{
    return wh_unlikely(group < WH_GROUPS) && to->life && (to->groups >> group & 1);
}

/* The worker that has taken an offer, if attached; else NULL. */
static inline wh_peer *wh_taker_peer(const wh_clock *c, uint64_t state)
{
    uint32_t taker = wh_state_taker(state), row = wh_taker_row(taker);
    if (row >= c->max_workers)
        return NULL;
    wh_peer *peer = &c->peers[row];
    bool there =
        peer->life == WH_PEER_PRESENT && taker == wh_taker(wh_owner_word(row, peer->incarnation));
    return there ? peer : NULL;
}

/* Has `peer` taken the offer, and is not done with it? */
static inline bool wh_has_taken(const wh_clock *c, uint64_t state, const wh_peer *peer)
{
    return wh_state_phase(state) == WH_TAKEN && wh_taker_peer(c, state) == peer;
}

/* The receiver of an event that no living member can take: a member kept for its successor, or
 * NULL. The keeper has none that goes with its owner, as the last of the group. */
static inline wh_peer *wh_group_kept(wh_clock *c, uint32_t slot, uint32_t group,
                                     const wh_peer *owner)
{
    bool goes = owner && owner->life == WH_PEER_DYING && owner->groups >> group & 1 &&
                !wh_is_detached(c, slot);
    for (uint32_t row = 0; row < c->peers_used; row++) {
        wh_peer *peer = &c->peers[row];
        if (peer->life > WH_PEER_DYING && peer->groups >> group & 1 && !(goes && peer == c->keeper))
            return peer;
    }
    return NULL;
}

/* Where an expiration goes that is already on its way. */
static inline wh_peer *wh_route_again(wh_clock *c, uint32_t slot, wh_peer *owner)
{
    uint32_t group = wh_group_of(c, slot);
    wh_peer *to = NULL;
    if (owner == NULL && !wh_is_loose(c, slot))
        return NULL;
    if (group < WH_GROUPS && (to = wh_group_member(c, group)) == NULL)
        to = wh_group_kept(c, slot, group, owner);
    return to ? to : wh_route_of(c, slot, owner);
}

/* Before an expiration that is FIRED goes to `to`: it is an offer, or no earlier record of it
 * still counts. False: it was taken. */
static inline bool wh_offer_turns(wh_clock *c, uint32_t slot, uint32_t group, uint64_t state,
                                  const wh_peer *to)
{
    bool open = to != NULL && wh_is_offer(group, to);
    if (wh_likely(group >= WH_GROUPS) || open == (wh_state_taker(state) != WH_CLOSED))
        return true;
    /* pairs: offer - else a worker that finds an earlier record would take what is no longer
     * offered */
    return wh_cas_acq_rel(&c->states[slot], &state,
                          wh_state_of(wh_state_gen(state), open ? 0 : WH_CLOSED, WH_FIRED));
}

/* -- the queues -------------------------------------------------------------------------------- */

static inline void wh_queue_remove(wh_clock *c, uint32_t slot)
{
    wh_place_in *at = &c->queue[slot];
    if (at->next == 0)
        return;
    c->queue[at->prev - 1].next = at->next;
    c->queue[at->next - 1].prev = at->prev;
    *at = (wh_place_in){0, 0};
}

static inline void wh_queue_append(wh_clock *c, uint32_t group, uint32_t slot)
{
    uint32_t end = c->wheel.capacity + group, last = c->queue[end].prev;
    c->queue[slot] = (wh_place_in){.prev = last, .next = end + 1};
    c->queue[last - 1].next = c->queue[end].prev = slot + 1;
}

/* The first and the last of a group's queue, or WH_NIL. */
static inline uint32_t wh_queue_first(const wh_clock *c, uint32_t group)
{
    uint32_t first = c->queue[c->wheel.capacity + group].next - 1;
    return first < c->wheel.capacity ? first : WH_NIL;
}
static inline uint32_t wh_queue_last(const wh_clock *c, uint32_t group)
{
    uint32_t last = c->queue[c->wheel.capacity + group].prev - 1;
    return last < c->wheel.capacity ? last : WH_NIL;
}

/* Does it sleep, as far as the clock can know? Then it was rung for what it has, or is going to
 * be. */
static inline bool wh_peer_sleeps(const wh_peer *peer)
{
    return peer->life == WH_PEER_PRESENT && wh_load_relaxed(&peer->seg->wait_seq) & 1;
}

static inline void wh_look_by(wh_roster *roster, int64_t when_ns)
{
    roster->look_at = roster->look_at && roster->look_at < when_ns ? roster->look_at : when_ns;
}

/* `slot`, for a group, goes to `to`: into its ring, or to what waits behind it. */
static wh_seldom void wh_offer_note(wh_clock *c, uint32_t slot, uint32_t group, const wh_peer *to)
{
    if (group >= WH_GROUPS || c->queue == NULL)
        return; /* no worker has joined one */
    wh_roster *roster = &c->rosters[group];
    wh_queue_remove(c, slot);
    wh_queue_append(c, group, slot);
    c->offering |= 1ull << group;
    if (wh_peer_sleeps(to))
        wh_look_by(roster, wh_time_add(c->now[WH_CLOCK_BASE], WH_OFFER_PATIENCE_NS));
    else
        roster->recheck = true;
}

#endif
