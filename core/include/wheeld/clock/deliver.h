/* Deliver: completions to their receivers, slots back to their owners, the loans in between, and
 * the backlogs of full rings.
 *
 * Invariants
 *  1. link.completion names the position before the record is written there, and the record is
 *     written before the tail that covers it is published: so after a crash of the clock a
 *     position below the tail is out, any other is not.
 *  2. A full ring delays no other worker: events wait in that worker's backlog (a list), returns in
 *     a queue of its own, and keep their slots. Both follow from the slots after a crash.
 *  3. The slot of an expiration that another worker than its owner reads is on loan until that
 *     worker's head has passed the record, or it is done with the offer; only then does the owner
 *     get it back. A tick is no loan. A slot of a split slab is on loan to its owner, too. A loan
 *     outlives its owner: then it is nobody's (free_list.h), and the clock gets it back.
 */
#ifndef WHEELD_DELIVER_H
#define WHEELD_DELIVER_H

#include "wheeld/clock/offer.h"

/* The record that a worker gets of a timer: with the fields of its slot that its receiver gets. */
static inline wh_completion wh_record_of(const wh_clock *c, uint32_t slot, enum wh_event event,
                                         int64_t due, int64_t fired, uint32_t missed)
{
    const wh_slot *s = &c->slots[slot];
    return (wh_completion){.id = wh_id_with(wh_id(c->wheel.links[slot].gen, slot), event),
                           .cookie = wh_load_relaxed(&s->cookie),
                           .deadline = due,
                           .fired = fired,
                           .missed = missed,
                           .payload_size = wh_load_relaxed(&s->payload_size),
                           .flags = wh_load_relaxed(&s->flags)};
}

/* Count how late a record is, for the wheel and for its receiver. An event that is offered to
 * another member counts once more, and so does one that a dead clock had not published. */
static inline void wh_count_lateness(const wh_clock *c, wh_peer *peer, const wh_completion *record)
{
    int64_t late = wh_time_sub(record->fired, record->deadline);
    uint64_t value = late > 0 ? (uint64_t)late : 0;
    uint32_t bucket = wh_histogram_bucket(value);
    wh_histogram_put(&c->histograms[WH_COUNTS_LATENESS], bucket, value, 1);
    wh_histogram_put(peer->lateness, bucket, value, 1);
}

/* Count for the receiver of a one-shot timer how long ago it was scheduled. */
static inline void wh_count_to_fire(const wh_clock *c, wh_peer *peer, uint32_t slot, int64_t fired)
{
    int64_t interval = wh_load_relaxed(&c->slots[slot].interval);
    if (wh_likely(interval < 0))
        wh_histogram_add(peer->to_fire, wh_time_add(fired, interval), 1);
}

static inline void wh_put(const wh_clock *c, wh_peer *peer, const wh_completion *record)
{
    peer->comps[peer->comp_tail & (c->comp_size - 1)] = *record;
    peer->comp_tail++;
    peer->news = WH_NEWS_WAKES;
    wh_count(&peer->port->fired, 1);
    wh_count(&c->seg->fired, 1);
    wh_count_lateness(c, peer, record);
}

/* Publish new records to a worker, and wake it if it waits for events. */
static inline void wh_publish(const wh_clock *c, wh_peer *peer)
{
    /* pairs: comp-tail, worker-wait - seq_cst: the worker sets wait_seq and then looks at the tail;
     * with less, both could miss the other and the worker would sleep on a full ring */
    wh_store_seq(&peer->port->comp_tail, peer->comp_tail);
    wh_store_release(&peer->port->ret_tail, peer->ret_tail); /* pairs: ret-tail */
    enum wh_news news = peer->news;
    peer->news = WH_NEWS_NONE;
    if (news != WH_NEWS_WAKES)
        return;
    uint64_t waiting = wh_load_seq(&peer->seg->wait_seq); /* pairs: worker-wait */
    if (waiting & 1 && waiting != peer->rung) {
        peer->rung = waiting;
        wh_bell_ring(peer->bell);
        wh_count(&c->seg->bells, 1);
    }
}

/* Publish all news to the workers. */
static inline void wh_publish_all(wh_clock *c)
{
    for (uint32_t i = 0; i < c->peers_used; i++)
        if (c->peers[i].life && c->peers[i].news)
            wh_publish(c, &c->peers[i]);
    if (c->undo_used)
        wh_store_relaxed(&c->seg->undo_used, c->undo_used = 0);
}

/* Save what a tick is going to overwrite: link.due, unless it is of an earlier grid. */
static inline void wh_undo_note(wh_clock *c, uint32_t slot)
{
    if (wh_unlikely(c->undo_used == WH_UNDO_ENTRIES))
        wh_publish_all(c);
    const wh_link *link = &c->wheel.links[slot];
    c->undo[c->undo_used] = (wh_undo){.slot = slot, .gen = link->gen, .due = wh_last_due(c, slot)};
    wh_step();
    wh_store_relaxed(&c->seg->undo_used, ++c->undo_used);
    wh_step();
}

static inline void wh_to_backlog(wh_clock *c, wh_peer *peer, uint32_t slot, enum wh_stage stage,
                                 uint32_t group)
{
    c->wheel.links[slot].completion = wh_completion_word(stage, wh_peer_index(c, peer), 0);
    wh_list_append(&c->wheel, wh_backlog_list(c, peer), slot);
    if (wh_unlikely(peer == c->keeper))
        wh_kept_begin(c, slot);
    if (wh_is_offer(group, peer))
        wh_offer_note(c, slot, group, peer);
    peer->behind = true;
    /* pairs: backlog - seq_cst: the worker moves its head and then looks at this word */
    wh_store_seq(&peer->port->backlog, 1);
}

/* A return that finds no room. Its link is not needed for a list, so a queue of bare indices can be
 * prefetched along: emptying it costs no chain of cache misses. */
static inline void wh_to_returns(wh_clock *c, wh_peer *owner, uint32_t slot)
{
    c->wheel.links[slot].completion =
        wh_completion_word(WH_STAGE_WAIT_RETURN, wh_peer_index(c, owner), 0);
    wh_free_list_ended(c, slot);
    owner->returns[owner->returns_tail++ % c->wheel.capacity] = slot;
    /* pairs: backlog - as for the list */
    wh_store_seq(&owner->port->backlog, 1);
}

static inline bool wh_peer_return_room(const wh_clock *c, wh_peer *peer)
{
    if (wh_likely(wh_ring_room(peer->ret_tail, peer->ret_head, c->ret_size)))
        return true;
    peer->ret_head = wh_load_acquire(&peer->seg->ret_head); /* pairs: ret-head */
    return wh_ring_room(peer->ret_tail, peer->ret_head, c->ret_size) != 0;
}

static inline void wh_put_returned(wh_clock *c, wh_peer *owner, uint32_t slot)
{
    c->wheel.links[slot].completion =
        wh_completion_word(WH_STAGE_RETURNED, wh_peer_index(c, owner), owner->ret_tail);
    if (wh_unlikely(wh_is_split(c, slot >> WH_SLAB_BITS)))
        wh_free_list_hand(c, slot, owner);
    wh_store_relaxed(&owner->rets[owner->ret_tail & (c->ret_size - 1)], slot);
    owner->ret_tail++;
    if (owner->news == WH_NEWS_NONE)
        owner->news = WH_NEWS_QUIET;
    wh_free_list_ended(c, slot);
    wh_count(&owner->port->returned, 1);
    wh_count(&c->seg->returned, 1);
}

/* Return a slot to its worker, now or when there is room. */
static inline void wh_return_to(wh_clock *c, wh_peer *owner, uint32_t slot)
{
    if (wh_unlikely(!wh_peer_return_room(c, owner)))
        wh_to_returns(c, owner, slot);
    else
        wh_put_returned(c, owner, slot);
}

/* Return a slot to its owner, or to the clock if its slab is split. The slot is in no list. */
static inline void wh_return(wh_clock *c, uint32_t slot, wh_peer *owner)
{
    wh_end_payload(c, slot);
    wh_detached_end(c, slot);
    if (wh_unlikely(wh_is_split(c, slot >> WH_SLAB_BITS)))
        wh_free_list_put(c, slot);
    else if (owner == NULL || owner->life == WH_PEER_DYING)
        c->wheel.links[slot].completion = wh_completion_word(WH_STAGE_RECLAIMED, 0, 0);
    else
        wh_return_to(c, owner, slot);
}

/* Has its worker not yet read the record that link.completion names? */
static inline bool wh_unread(wh_clock *c, const wh_link *link)
{
    uint32_t worker = wh_stage_worker(link);
    if (worker >= c->max_workers || !c->peers[worker].life)
        return false;
    wh_peer *peer = &c->peers[worker];
    peer->comp_head = wh_load_acquire(&peer->seg->comp_head); /* pairs: comp-head */
    return !wh_pos_before(wh_completion_position(link->completion), peer->comp_head);
}

/* A tick no longer waits in a backlog: the stage names a position that is out, so no undo is of
 * it. */
static inline void wh_wait_over(const wh_clock *c, wh_link *link)
{
    uint32_t reader = wh_stage_worker(link);
    link->completion = wh_completion_word(WH_STAGE_TICKED, reader, c->peers[reader].comp_tail - 1);
}

/* The end of a cancelled timer, which is in no list. Its unread ticks keep nothing: a reader looks
 * at the state after it has copied one (receive.h, invariant 2). */
static inline void wh_give_back(wh_clock *c, uint32_t slot, wh_peer *owner)
{
    wh_note_end(c, slot, WH_TRACE_CANCELLED);
    wh_return(c, slot, owner);
}

/* When a timer fell due that waited for room, or that a member of its group did not read. Virtual
 * time has gone on from bucket to bucket since, each at its own time; how long the reader took is
 * no lateness there. */
static inline int64_t wh_fell_due(const wh_clock *c, int64_t due, int64_t now)
{
    int64_t tick = c->wheel.tick_ns, over = due % tick;
    int64_t rest = over > 0 ? tick - over : 0;
    return c->seg->virtual_clock && rest <= wh_time_sub(now, due) ? due + rest : now;
}

/* May an event go into `peer`'s ring now? It must not overtake those that already wait. */
static inline bool wh_peer_open(const wh_clock *c, wh_peer *peer)
{
    return wh_likely(!peer->behind) && wh_peer_room(c, peer);
}

/* The stage of a fired timer that goes to `to`. */
static inline enum wh_stage wh_sent_stage(const wh_clock *c, uint32_t slot, uint32_t group,
                                          const wh_peer *to, const wh_peer *owner)
{
    if (wh_unlikely(wh_is_offer(group, to)))
        return WH_STAGE_OFFERED;
    return wh_ends_with(c, slot, to, owner) ? WH_STAGE_EXPIRED : WH_STAGE_LENT;
}

/* Put a timer that has fired into `peer`'s ring, which has room. */
static inline void wh_put_expired(wh_clock *c, wh_peer *peer, uint32_t slot, enum wh_stage stage,
                                  uint32_t group)
{
    wh_link *link = &c->wheel.links[slot];
    uint32_t kind = wh_flags_clock(wh_load_relaxed(&c->slots[slot].flags));
    int64_t now = c->now[kind < WH_CLOCK_KINDS ? kind : 0];
    uint64_t place = wh_completion_word(stage, wh_peer_index(c, peer), peer->comp_tail);
    /* A timer that fires now already has its place. */
    bool waited = wh_stage_offers(wh_stage_of(link)) && link->completion != place;
    enum wh_event event = WH_EV_EXPIRED;
    link->completion = place;
    if (stage != WH_STAGE_EXPIRED) {
        wh_list_append(&c->wheel, wh_lent_list(c, peer), slot);
        event = stage == WH_STAGE_LENT ? WH_EV_LENT : WH_EV_OFFER;
    } else {
        wh_free_list_ended(c, slot);
    }
    if (wh_unlikely(event == WH_EV_OFFER))
        wh_offer_note(c, slot, group, peer);
    int64_t fired = wh_unlikely(waited) ? wh_fell_due(c, link->due, now) : now;
    wh_completion record = wh_record_of(c, slot, event, link->due, fired, 0);
    wh_put(c, peer, &record);
    wh_count_to_fire(c, peer, slot, fired);
    wh_note_expired(c, slot, &record, peer, false);
}

/* Deliver a fired timer that is in no list: now, or when there is room. */
static inline void wh_deliver_fired(wh_clock *c, uint32_t slot, uint32_t group, wh_peer *to,
                                    wh_peer *owner)
{
    bool loose = wh_is_loose(c, slot);
    if (to == NULL || (owner == NULL && !loose) || (to == owner && owner->life == WH_PEER_DYING)) {
        wh_note_end(c, slot, WH_TRACE_DROPPED);
        wh_end_payload(c, slot);
        wh_detached_end(c, slot);
        wh_end_held(c, slot);
        c->wheel.links[slot].completion = wh_completion_word(WH_STAGE_RECLAIMED, 0, 0);
        wh_count(&c->seg->dropped, 1);
        if (loose)
            wh_free_list_put(c, slot);
    } else if (wh_peer_open(c, to)) {
        wh_put_expired(c, to, slot, wh_sent_stage(c, slot, group, to, owner), group);
    } else {
        wh_to_backlog(c, to, slot, WH_STAGE_WAIT_EXPIRE, group);
    }
}

/* Leave an offer to the worker that has it in hand, wherever its head is. It may hold it for longer
 * than what stands behind it, so it leaves the list of loans: the others are returned meanwhile. */
static inline void wh_leave_to(wh_clock *c, uint32_t slot, wh_peer *taker)
{
    c->wheel.links[slot].completion =
        wh_completion_word(WH_STAGE_OFFERED, wh_peer_index(c, taker), taker->comp_tail - 1);
    wh_list_append(&c->wheel, wh_hand_list(c, taker), slot);
}

/* A member gave the event back (nack): it is armed again, and is linked. The slot is in no list. */
static wh_seldom void wh_rearm(wh_clock *c, uint32_t slot)
{
    wh_link *link = &c->wheel.links[slot];
    wh_peer *owner = wh_adopt(c, slot);
    if (owner == NULL || wh_dies_with(c, slot, owner)) {
        if (wh_slot_cancel(&c->states[slot], link->gen))
            wh_count(&c->seg->dropped, 1);
        wh_note_end(c, slot, WH_TRACE_DROPPED);
        wh_return(c, slot, owner);
        return;
    }
    wh_count_attempt(c, slot);
    link->due = INT64_MIN;
    wh_step();
    link->completion = 0;
    wh_link_timer(c, slot, wh_shard_of(c, owner));
}

/* An event that is FIRED again is due when it was: its last taker has left the time there by which
 * it would be done, or to which it was giving it back. The next one may store its own meanwhile. */
static inline void wh_unbind(wh_clock *c, uint32_t slot)
{
    wh_slot *s = &c->slots[slot];
    uint64_t due = (uint64_t)c->wheel.links[slot].due, until, rest;
    do {
        until = (uint64_t)wh_load_relaxed(&s->deadline);
        rest = wh_load_acquire((wh_au64 *)s + 1); /* pairs: extend */
        /* pairs: offer - last: what was read is not the next taker's */
        uint64_t state = wh_load_acquire(&c->states[slot]);
        if (until == due || wh_state_phase(state) != WH_FIRED)
            return;
        /* pairs: extend */
    } while (!wh_cas_both(s, &until, &rest, due, rest));
}

/* The event is the worker's no longer that had taken it: let it be free, or done if `phase` says
 * so. False: that worker was quicker. */
static inline bool wh_untake(wh_clock *c, uint32_t slot, uint64_t state, enum wh_phase phase)
{
    wh_slot *s = &c->slots[slot];
    uint32_t flags = wh_load_relaxed(&s->flags);
    wh_count_attempt(c, slot); /* first: the next taker reads it */
    /* pairs: offer - a taker given up on is done with it, or finds it is not its own */
    if (!wh_cas_acq_rel(&c->states[slot], &state, wh_state_of(wh_state_gen(state), 0, phase))) {
        wh_store_relaxed(&s->flags, (uint16_t)flags);
        return false;
    }
    wh_unbind(c, slot);
    return true;
}

/* Deliver an event that was on its way and is in no list: to `to`, or to the receiver that it has
 * now. It may be an offer that a worker, alive or dead, has taken in the meantime. */
static inline void wh_deliver_again(wh_clock *c, uint32_t slot, wh_peer *to, wh_peer *owner)
{
    uint32_t group = wh_group_of(c, slot);
    for (;;) {
        uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: fire, offer */
        uint32_t phase = wh_state_phase(state);
        if (wh_unlikely(phase == WH_TAKEN)) {
            wh_peer *taker = wh_taker_peer(c, state);
            if (taker) {
                wh_leave_to(c, slot, taker);
                return;
            }
            wh_untake(c, slot, state, WH_FIRED);
            continue;
        }
        if (wh_unlikely(phase == WH_ARMED)) {
            wh_rearm(c, slot);
            return;
        }
        if (phase != WH_FIRED) {
            wh_return(c, slot, owner);
            return;
        }
        if (to == NULL)
            to = wh_route_again(c, slot, owner);
        if (!wh_offer_turns(c, slot, group, state, to))
            continue;
        if (wh_stage_of(&c->wheel.links[slot]) == WH_STAGE_OFFERED)
            wh_count(&c->seg->fired, (uint64_t)-1); /* it is counted once */
        wh_deliver_fired(c, slot, group, to, owner);
        return;
    }
}

#endif
