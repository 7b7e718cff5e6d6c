/* Unclaimed: ends of timers that no living receiver deals with. Each look at them is bounded.
 *
 * The keeper. An end for which no member comes within `keep_ns` is dropped, unless it waits for
 * ever.
 *
 * A member that hangs. It says for how long it holds an event at most: its `visibility`; and for
 * each event that it takes it stores the time by which it will be done, in the deadline of the
 * slot, which nobody needs before the timer is armed again. An event that is held for longer goes
 * to another member.
 */
#ifndef WHEELD_UNCLAIMED_H
#define WHEELD_UNCLAIMED_H

#include "wheeld/clock/backlog.h"

#define WH_UNCLAIMED_LOOKS 512 /* ends looked at per pass, of the keeper and of each worker */

/* Has the keeper's first end waited for long enough? One that waits for ever, or that a member has
 * in hand, goes behind the others. *next: when to look again. */
static inline bool wh_kept_is_over(wh_clock *c, uint32_t slot, int64_t *next)
{
    uint32_t flags = wh_load_relaxed(&c->slots[slot].flags);
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: fire, offer */
    bool waits = wh_state_phase(state) == WH_FIRED || wh_state_phase(state) == WH_ARMED;
    *next = wh_time_add(c->kept_since[slot], c->keep_ns);
    if (waits && (flags & WH_LASTING) != WH_LASTING)
        return *next <= c->now[WH_CLOCK_BASE];
    *next = INT64_MIN;
    return false;
}

/* Drop it. False: a member was quicker. */
static inline bool wh_drop_kept(wh_clock *c, uint32_t slot)
{
    wh_link *link = &c->wheel.links[slot];
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: fire, offer */
    bool dropped = wh_state_phase(state) == WH_FIRED
                       ? wh_cas_acq_rel(&c->states[slot], &state, /* pairs: offer */
                                        wh_state_of(wh_state_gen(state), 0, WH_DONE))
                       : wh_slot_cancel(&c->states[slot], link->gen);
    if (!dropped)
        return false;
    wh_count(&c->seg->dropped, 1);
    wh_count(&c->keeper->port->dropped, 1);
    wh_note_end(c, slot, WH_TRACE_DROPPED);
    wh_wheel_remove(&c->wheel, slot);
    wh_return(c, slot, wh_owner_of(c, slot));
    return true;
}

/* Drop what waited for too long. True: there is more to look at. */
static wh_seldom bool wh_look_at_kept(wh_clock *c)
{
    uint32_t list = wh_backlog_list(c, c->keeper), slot;
    for (uint32_t looks = 0; looks < WH_UNCLAIMED_LOOKS; looks++) {
        int64_t next;
        slot = wh_list_first(&c->wheel, list);
        if (slot == WH_NIL || slot == c->kept_turned) {
            c->kept_turned = WH_NIL;
            c->keep_until = 0;
            return false;
        }
        if (wh_kept_is_over(c, slot, &next) && wh_drop_kept(c, slot))
            continue;
        if (next > c->now[WH_CLOCK_BASE]) {
            c->kept_turned = WH_NIL;
            c->keep_until = next;
            return false;
        }
        c->kept_turned = c->kept_turned == WH_NIL ? slot : c->kept_turned;
        wh_wheel_remove(&c->wheel, slot);
        wh_list_append(&c->wheel, list, slot);
    }
    return true;
}

/* Give what the worker has had for too long to another. */
static wh_seldom void wh_look_at_held(wh_clock *c, wh_peer *peer, int64_t bound)
{
    uint32_t list = wh_lent_list(c, peer), end = wh_sentinel(&c->wheel, list), next;
    int64_t now = c->now[WH_CLOCK_BASE], soonest = wh_time_add(now, bound);
    c->looks_at_held = true;
    if (peer->held_look > now)
        return;
    uint32_t slot = c->wheel.links[end].next;
    for (uint32_t looks = 0; slot != end && looks < WH_UNCLAIMED_LOOKS; looks++, slot = next) {
        next = c->wheel.links[slot].next;
        uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: fire, offer */
        wh_slot *s = &c->slots[slot];
        uint64_t until = (uint64_t)wh_load_relaxed(&s->deadline);
        uint64_t rest = wh_load_relaxed((wh_au64 *)s + 1), due = (uint64_t)c->wheel.links[slot].due;
        if (wh_state_phase(state) != WH_TAKEN || wh_taker_peer(c, state) != peer || until == due)
            continue;
        if ((int64_t)until > now) {
            soonest = (int64_t)until < soonest ? (int64_t)until : soonest;
            continue;
        }
        /* pairs: extend - a worker that gives it back this moment has changed its deadline */
        if (!wh_cas_both(s, &until, &rest, due, rest) || !wh_untake(c, slot, state, WH_FIRED))
            continue;
        wh_wheel_remove(&c->wheel, slot);
        wh_deliver_again(c, slot, NULL, wh_owner_of(c, slot));
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
            wh_list_first(&c->wheel, wh_lent_list(c, peer)) == WH_NIL)
            continue;
        next = peer->held_look < next ? peer->held_look : next;
    }
    return next;
}

#endif
