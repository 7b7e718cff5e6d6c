/* Unclaimed: ends of timers that no living receiver deals with. Each look at them is bounded.
 *
 * The keeper. An end for which no member is there after `keep_ns` is dropped, unless it waits for
 * ever.
 *
 * A member that hangs. It says for how long it holds an event at most: its `visibility`; and for
 * each event that it takes it stores the time by which it will be done, in the deadline of the
 * slot, which nobody needs before the timer is armed again. An event that is held for longer goes
 * to another member.
 */
#ifndef WHEELD_UNCLAIMED_H
#define WHEELD_UNCLAIMED_H

#include "wheeld/clock/reoffer.h"

#define WH_UNCLAIMED_LOOKS 512 /* ends looked at per pass, of the keeper and of each worker */
#define WH_HELD_RESTS 16 /* looks per bound, where a worker has more in hand than that */

/* Is a member of its group there, which has been too busy to ask for it? */
static wh_seldom bool wh_has_member(wh_clock *c, uint32_t slot)
{
    uint32_t group = wh_group_of(c, slot);
    const wh_peer *member = group < WH_GROUPS ? wh_group_member(c, group) : NULL;
    return member && wh_is_member(member, 1ull << group);
}

/* An end has been with the keeper for long enough. An end that a member has or had in hand, by an
 * earlier record of it, or could have, goes its way; an end that waits for ever goes behind the
 * others; any other is dropped. */
static inline void wh_end_kept(wh_clock *c, uint32_t slot)
{
    wh_link *link = &c->wheel.links[slot];
    bool tick = wh_stage_of(link) == WH_STAGE_WAIT_TICK;
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: fire, offer */
    if ((!tick && wh_state_phase(state) != WH_FIRED) || wh_has_member(c, slot)) {
        wh_offer_move(c, slot, NULL);
        return;
    }
    if ((wh_load_relaxed(&c->slots[slot].flags) & WH_LASTING) == WH_LASTING) {
        wh_wheel_remove(&c->wheel, slot);
        wh_list_append(&c->wheel, wh_backlog_list(c, c->keeper), slot);
        wh_kept_begin(c, slot);
        return;
    }
    bool dropped = tick ? wh_slot_cancel(&c->states[slot], link->gen)
                        : wh_cas_acq_rel(&c->states[slot], &state, /* pairs: offer */
                                         wh_state_of(wh_state_gen(state), 0, WH_DONE));
    if (dropped) {
        wh_count(&c->seg->dropped, 1);
        wh_count(&c->keeper->port->dropped, 1);
        wh_note_end(c, slot, WH_TRACE_DROPPED);
    } else if (!tick) {
        return; /* a member was quicker: look again */
    }
    wh_wheel_remove(&c->wheel, slot);
    wh_give_back(c, slot, wh_owner_of(c, slot));
}

/* Look at what has waited for too long; the ends stand in the order in which they came. True: there
 * is more to look at. */
static wh_seldom bool wh_look_at_kept(wh_clock *c)
{
    uint32_t list = wh_backlog_list(c, c->keeper), slot;
    c->keep_until = 0;
    for (uint32_t looks = 0; (slot = wh_list_first(&c->wheel, list)) != WH_NIL; looks++) {
        c->keep_until = wh_time_add(c->kept_since[slot], c->keep_ns);
        if (c->keep_until > c->now[WH_CLOCK_BASE])
            return false;
        if (looks == WH_UNCLAIMED_LOOKS)
            return true;
        wh_end_kept(c, slot);
        c->keep_until = 0;
    }
    return false;
}

static inline void wh_least(int64_t *least, int64_t value)
{
    *least = value < *least ? value : *least;
}

/* Has the worker had the event for too long? Then another member gets it, or it is returned if the
 * worker is done with it. False: it stays where it is, and *soonest says until when, if it may. */
static wh_seldom bool wh_end_visibility(wh_clock *c, wh_peer *peer, uint32_t slot, int64_t *soonest)
{
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: fire, offer */
    int64_t until = wh_load_relaxed(&c->slots[slot].deadline);
    if (!wh_has_taken(c, state, peer) || until == c->wheel.links[slot].due)
        return false;
    if (until > c->now[WH_CLOCK_BASE]) {
        wh_least(soonest, until);
        return false;
    }
    if (!wh_untake(c, slot, state, WH_FIRED)) /* it is done with it, or gives it back */
        return false;
    wh_wheel_remove(&c->wheel, slot);
    wh_deliver_again(c, slot, NULL, wh_owner_of(c, slot));
    return true;
}

/* Give what the worker has had for too long to another. It has taken what is in hand, and the first
 * of the loans. */
static wh_seldom void wh_look_at_held(wh_clock *c, wh_peer *peer, int64_t bound)
{
    uint32_t lent = wh_lent_list(c, peer), end = wh_sentinel(&c->wheel, lent), next, slot;
    uint32_t hand = wh_hand_list(c, peer), last = c->wheel.links[wh_sentinel(&c->wheel, hand)].prev;
    int64_t now = c->now[WH_CLOCK_BASE], soonest = wh_time_add(now, bound);
    c->looks_at_held = true;
    if (peer->held_look > now && wh_time_sub(peer->held_look, now) <= bound)
        return; /* else it has begun to hold events for less long */
    slot = c->wheel.links[end].next;
    for (uint32_t looks = 0; slot != end && looks < WH_UNCLAIMED_LOOKS; looks++, slot = next) {
        next = c->wheel.links[slot].next;
        (void)wh_end_visibility(c, peer, slot, &soonest);
    }
    for (uint32_t looks = 0; (slot = wh_list_first(&c->wheel, hand)) != WH_NIL; looks++) {
        if (looks == WH_UNCLAIMED_LOOKS) { /* the rest has come to the front */
            wh_least(&soonest, wh_time_add(now, bound / WH_HELD_RESTS + 1));
            break;
        }
        if (!wh_end_visibility(c, peer, slot, &soonest)) {
            wh_wheel_remove(&c->wheel, slot);
            wh_list_append(&c->wheel, hand, slot);
        }
        if (slot == last)
            break;
    }
    peer->held_look = soonest;
}

/* When to look at either again, ns; INT64_MAX: never. */
static inline int64_t wh_unclaimed_next_ns(const wh_clock *c)
{
    int64_t next = c->keep_until ? c->keep_until : INT64_MAX;
    for (uint32_t i = 0; c->looks_at_held && i < c->peers_used; i++) {
        const wh_peer *peer = &c->peers[i];
        if (peer->life != WH_PEER_PRESENT || wh_load_relaxed(&peer->seg->visibility) == 0 ||
            (wh_list_first(&c->wheel, wh_lent_list(c, peer)) == WH_NIL &&
             wh_list_first(&c->wheel, wh_hand_list(c, peer)) == WH_NIL))
            continue;
        next = peer->held_look < next ? peer->held_look : next;
    }
    return next;
}

#endif
