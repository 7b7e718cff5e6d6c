/* Reoffer: events that members of a group leave unread go to members that wait.
 *
 * When. A member that finds nothing rings if its group's bit in `offered` is set: a busy member may
 * then have something unread. The clock sets the bit when no waiting member can take an event, and
 * clears it when the group's queue is empty: so no member is woken for nothing, and idle groups
 * wake none. A member that was woken has some time to read (WH_OFFER_PATIENCE_NS); after that the
 * event goes to another waiting member, as this one may be stopped, or busy with other descriptors
 * than the one it waits on.
 *
 *     member                             clock
 *     receives = 1, once   (seq_cst)     offered |= group           (seq_cst)
 *     wait_seq = odd       (seq_cst)     any that receives ?        (seq_cst)
 *     offered & groups ?   (seq_cst)     of these, one with odd wait_seq ?  (seq_cst)
 *        ring the doorbell                  it gets its share
 *
 * The oldest offers go first, a share at a time; a member that is done comes for more.
 *
 * Nobody reads what waits with the keeper, or in the ring of a worker that is kept for a successor.
 * That goes to members that wait, or else to busy ones: a member that always finds something never
 * rings.
 */
#ifndef WHEELD_REOFFER_H
#define WHEELD_REOFFER_H

#include "wheeld/clock/backlog.h"

#define WH_OFFER_SHARE 16  /* most offers that one member gets at once */
#define WH_OFFER_LOOKS 512 /* of a queue, per pass */

/* Its share. Nobody else may have read what waits with the keeper, so one member alone gets as much
 * as a pass looks at. */
static inline uint32_t wh_offer_share(const wh_clock *c, const wh_roster *roster,
                                      const wh_peer *holder)
{
    return holder == c->keeper && roster->waiting == 1 ? WH_OFFER_LOOKS : WH_OFFER_SHARE;
}

/* Does the offer that the queue names still wait for a taker? The sweep of a dead worker handles
 * the offers that it took. */
static inline bool wh_offer_waits(const wh_clock *c, uint32_t slot, uint32_t group)
{
    const wh_link *link = &c->wheel.links[slot];
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel, fire, offer */
    enum wh_stage stage = wh_stage_of(link);
    bool fired = wh_stage_offers(stage);
    return wh_state_gen(state) == link->gen && wh_group_of(c, slot) == group &&
           link->list != WH_NIL &&
           (fired ? wh_state_phase(state) == WH_FIRED
                  : stage == WH_STAGE_WAIT_TICK && wh_state_phase(state) == WH_ARMED);
}

/* The next member that waits with nothing on the way, or NULL. */
static inline wh_peer *wh_roster_idle(wh_clock *c, uint32_t group)
{
    wh_roster *roster = &c->rosters[group];
    if (roster->looked != wh_load_relaxed(&c->seg->passes) + 1)
        wh_roster_look(c, group);
    while (roster->served < roster->waiting) {
        wh_peer *peer = wh_roster_at(c, group, roster->served++);
        if (peer && wh_peer_waits(peer) && wh_peer_room(c, peer))
            return peer;
    }
    return NULL;
}

/* The same when no such is left; but first who comes from here on is told to ring. */
static inline wh_peer *wh_roster_idle_at_last(wh_clock *c, uint32_t group)
{
    wh_peer *peer = wh_roster_idle(c, group);
    if (peer || c->offered >> group & 1)
        return peer;
    wh_store_seq(&c->seg->offered, c->offered |= 1ull << group); /* pairs: offered */
    wh_roster_look(c, group);
    return wh_roster_idle(c, group);
}

/* A member that is busy, with room in its ring; or NULL. */
static inline wh_peer *wh_roster_busy(wh_clock *c, uint32_t group)
{
    wh_peer *peer = wh_roster_next(c, group);
    return peer && wh_is_member(peer, 1ull << group) ? peer : NULL;
}

/* Give `to` what another member has not taken. */
static inline void wh_offer_move(wh_clock *c, uint32_t slot, wh_peer *to)
{
    bool tick = wh_stage_of(&c->wheel.links[slot]) == WH_STAGE_WAIT_TICK;
    wh_wheel_remove(&c->wheel, slot);
    wh_queue_remove(c, slot);
    if (tick)
        wh_expire(c, slot);
    else
        wh_deliver_again(c, slot, to, wh_owner_of(c, slot));
}

static inline void wh_reoffer_end(wh_clock *c, uint32_t group)
{
    c->offering &= ~(1ull << group);
    c->rosters[group].look_at = 0;
    if (c->offered >> group & 1)
        wh_store_seq(&c->seg->offered, c->offered &= ~(1ull << group)); /* pairs: offered */
}

/* Check a group's queue; `late`: also what members were woken for. True: there is more. */
static inline bool wh_reoffer(wh_clock *c, uint32_t group, bool late)
{
    wh_roster *roster = &c->rosters[group];
    wh_peer *to = NULL;
    bool idle = false; /* `to` waits for an event */
    uint32_t given = 0, last = wh_queue_last(c, group), slot;
    int64_t next = wh_time_add(c->now[WH_CLOCK_BASE], WH_OFFER_PATIENCE_NS);
    bool over = false;
    for (uint32_t looks = 0; !over && (slot = wh_queue_first(c, group)) != WH_NIL; looks++) {
        if (looks == WH_OFFER_LOOKS)
            return true;
        over = slot == last;
        if (!wh_offer_waits(c, slot, group)) {
            wh_queue_remove(c, slot);
            continue;
        }
        const wh_peer *holder = &c->peers[wh_stage_worker(&c->wheel.links[slot])];
        if (!late && wh_peer_sleeps(holder))
            break;
        bool read = holder->life == WH_PEER_PRESENT; /* sooner or later, where it is */
        if (to == NULL || given++ >= wh_offer_share(c, roster, holder) || (read && !idle)) {
            given = 1;
            to = wh_roster_idle_at_last(c, group);
            idle = to != NULL;
            if (!idle && !read)
                to = wh_roster_busy(c, group);
            if (to == NULL) {
                next = 0; /* a member that is done rings */
                break;
            }
        }
        if (to == holder) { /* it waits although it has an event */
            to->news = WH_NEWS_WAKES;
            to = NULL;
            over = false;
            continue;
        }
        wh_offer_move(c, slot, to);
    }
    if (wh_queue_first(c, group) == WH_NIL)
        wh_reoffer_end(c, group);
    else if (late || roster->look_at == 0)
        roster->look_at = next;
    return false;
}

/* Once per pass. True: there is more to do at once. */
static inline bool wh_reoffer_all(wh_clock *c)
{
    bool more = false;
    for (uint64_t rest = c->offering; rest; rest &= rest - 1) {
        uint32_t group = (uint32_t)__builtin_ctzll(rest);
        wh_roster *roster = &c->rosters[group];
        bool late = roster->look_at && c->now[WH_CLOCK_BASE] >= roster->look_at;
        if (late || roster->recheck || c->offered >> group & 1)
            more |= wh_reoffer(c, group, late);
        roster->recheck = false;
    }
    return more;
}

/* When the clock has to check again though nothing is due, ns; INT64_MAX: never. */
static inline int64_t wh_reoffer_next_ns(const wh_clock *c)
{
    int64_t next = INT64_MAX;
    for (uint64_t rest = c->offering; rest; rest &= rest - 1) {
        int64_t at = c->rosters[__builtin_ctzll(rest)].look_at;
        next = at && at < next ? at : next;
    }
    return next;
}

/* The next pass handles what a worker that left has not read. */
static inline void wh_reoffer_left(wh_clock *c, const wh_peer *peer)
{
    for (uint64_t rest = peer->groups & c->offering; rest; rest &= rest - 1)
        c->rosters[__builtin_ctzll(rest)].recheck = true;
}

#endif
