/* Calls: what a worker does, each call whole: schedule, cancel, move, poll. Of many at once:
 * batch.h.
 *
 * Here a call is put together from the steps of client.h, room.h and receive.h; a binding adds its
 * language's arguments and errors, and how to wait (wh_waits). `wait`: the call may wait for the
 * clock.
 *
 * Invariants
 *  1. Room comes first: once a timer is armed, cancelled or moved, its submission fits.
 *  2. A call that does not end with WH_CALL_OK has done nothing.
 */
#ifndef WHEELD_CALLS_H
#define WHEELD_CALLS_H

#include "wheeld/worker/payloads.h"

/* A schedule needs: a slot, and room in the ring for `n` submissions. */
static inline enum wh_call wh_client_have_slot(wh_client *c, uint64_t n, bool wait, uint32_t *slot)
{
    enum wh_call found;
    *slot = wh_slabs_take(&c->slabs);
    if (wh_unlikely(*slot == WH_NIL) &&
        (found = wh_client_find_slot(c, 0, wait, slot)) != WH_CALL_OK)
        return found;
    if (wh_unlikely(!wh_client_fits(c, n)))
        return wh_client_wait_room_with(c, *slot, n, wait);
    return WH_CALL_OK;
}

/* Arm a timer in the slot. `due`: its deadline on the base clock. */
static inline uint64_t wh_client_submit(wh_client *c, uint32_t slot, const wh_request *r,
                                        int64_t due)
{
    uint64_t id = wh_client_arm(c, slot, r);
    wh_client_push(c, id);
    wh_count(&c->seg->scheduled, 1);
    wh_client_publish(c, due);
    return id;
}

/* The same with a payload in the heap. */
static wh_seldom enum wh_call wh_call_schedule_heavy(wh_client *c, const wh_request *r, int64_t due,
                                                     bool wait, uint64_t *id)
{
    if (r->payload_size > c->max_payload)
        return WH_CALL_LONG_PAYLOAD;
    for (;;) {
        uint32_t slot;
        wh_request armed = *r;
        enum wh_call found = wh_client_have_slot(c, 1, wait, &slot);
        if (found != WH_CALL_OK)
            return found;
        if (wh_likely(wh_client_place_payload(c, slot, &armed))) {
            *id = wh_client_submit(c, slot, &armed, due);
            return WH_CALL_OK;
        }
        wh_slabs_give(&c->slabs, slot);
        if ((found = wh_client_more_heap(c, r->payload_size, wait)) != WH_CALL_OK)
            return found;
    }
}

static inline enum wh_call wh_call_schedule(wh_client *c, const wh_request *r, int64_t due,
                                            bool wait, uint64_t *id)
{
    uint32_t slot;
    if (wh_client_is_heavy(c, r))
        return wh_call_schedule_heavy(c, r, due, wait, id);
    enum wh_call found = wh_client_have_slot(c, 1, wait, &slot);
    if (wh_likely(found == WH_CALL_OK))
        *id = wh_client_submit(c, slot, r, due);
    return found;
}

/* Get room before the cancel; a timer that has ended needs none. */
static wh_seldom enum wh_call wh_client_room_to_cancel(wh_client *c, uint64_t id, bool wait)
{
    if (!wh_client_is_armed(c, id))
        return WH_CALL_OVER;
    return wh_client_wait_room(c, 1, wait);
}

/* Cancel a timer, of any worker. WH_CALL_OK: it is never delivered. */
static inline enum wh_call wh_call_cancel(wh_client *c, uint64_t id, bool wait)
{
    enum wh_call room;
    if (wh_unlikely(!wh_client_fits(c, 1)) &&
        (room = wh_client_room_to_cancel(c, id, wait)) != WH_CALL_OK)
        return room;
    if (!wh_client_cancel(c, id))
        return WH_CALL_OVER;
    wh_count(&c->seg->cancelled, 1);
    wh_client_publish_lazily(c);
    return WH_CALL_OK;
}

/* The clock of a timer. */
static inline uint32_t wh_client_kind(const wh_client *c, uint64_t id)
{
    uint32_t kind = wh_flags_clock(wh_load_relaxed(&c->slots[wh_id_slot(id)].flags));
    return kind < WH_CLOCK_KINDS ? kind : WH_CLOCK_BASE;
}

/* Must a move be submitted? One to a later time need not be. `interval`: the new period, or 0. */
static inline bool wh_client_tells(const wh_client *c, uint64_t id, int64_t deadline,
                                   int64_t interval)
{
    const wh_slot *s = &c->slots[wh_id_given_slot(id)];
    wh_au64 *state = &c->states[wh_id_given_slot(id)];
    return wh_client_is_armed(c, id) &&
           (deadline < wh_load_relaxed(&s->deadline) ||
            wh_state_is_early(wh_load_acquire(state)) || /* pairs: extend */
            wh_load_relaxed(&s->interval) > 0 || interval);
}

/* Get room for a move to `deadline`, if that needs any. *waited: time has passed. */
static wh_seldom enum wh_call wh_client_room_to_move(wh_client *c, uint64_t id, int64_t deadline,
                                                     int64_t interval, bool wait, bool *waited)
{
    *waited = wh_client_tells(c, id, deadline, interval);
    return *waited ? wh_client_wait_room(c, 1, wait) : WH_CALL_OK;
}

/* Move a timer to `deadline`, which is `rest` from now. The ring then has the submission for
 * the clock, and *earliest is lowered: the caller publishes. */
wh_hot enum wh_call wh_client_move_to(wh_client *c, uint64_t id, uint32_t kind, int64_t deadline,
                                      int64_t interval, int64_t rest, int64_t *earliest)
{
    bool tell;
    if (!wh_client_move(c, id, deadline, interval, &tell))
        return WH_CALL_OVER;
    wh_count(&c->seg->rescheduled, 1);
    if (tell) {
        int64_t due = kind == WH_CLOCK_BASE ? deadline : wh_time_add(wh_client_now(c), rest);
        *earliest = due < *earliest ? due : *earliest;
        wh_client_push(c, wh_id_with(id, WH_OP_RESCHEDULE));
    }
    return WH_CALL_OK;
}

/* The same, to `delay` from the moment there is room. */
wh_hot enum wh_call wh_client_move_by(wh_client *c, uint64_t id, int64_t delay, int64_t interval,
                                      bool wait, int64_t *earliest)
{
    if (wh_unlikely(wh_id_given_slot(id) >= c->capacity))
        return WH_CALL_OVER;
    wh_client_prefetch(c, wh_id_slot(id)); /* while the time is read, which waits for all loads */
    int64_t base = wh_client_now(c);
    uint32_t kind = wh_client_kind(c, id);
    int64_t now = wh_likely(kind == WH_CLOCK_BASE) ? base : wh_client_now_of(c, kind);
    int64_t deadline = wh_time_add(now, delay);
    if (wh_unlikely(!wh_client_fits(c, 1))) {
        bool waited;
        enum wh_call room = wh_client_room_to_move(c, id, deadline, interval, wait, &waited);
        if (room != WH_CALL_OK)
            return room;
        if (waited)
            deadline = wh_time_add(wh_client_now_of(c, kind), delay);
    }
    return wh_client_move_to(c, id, kind, deadline, interval, delay, earliest);
}

/* The same, to `deadline`, ns on the timer's clock. */
static inline enum wh_call wh_client_move_at(wh_client *c, uint64_t id, int64_t deadline, bool wait,
                                             int64_t *earliest)
{
    enum wh_call room;
    bool waited;
    if (wh_id_given_slot(id) >= c->capacity)
        return WH_CALL_OVER;
    if (wh_unlikely(!wh_client_fits(c, 1)) &&
        (room = wh_client_room_to_move(c, id, deadline, 0, wait, &waited)) != WH_CALL_OK)
        return room;
    uint32_t kind = wh_client_kind(c, id);
    int64_t rest = wh_time_sub(deadline, wh_client_now_of(c, kind));
    return wh_client_move_to(c, id, kind, deadline, 0, rest, earliest);
}

static inline enum wh_call wh_call_reschedule(wh_client *c, uint64_t id, int64_t delay, bool wait)
{
    int64_t earliest = INT64_MAX;
    enum wh_call moved = wh_client_move_by(c, id, delay, 0, wait, &earliest);
    if (earliest != INT64_MAX)
        wh_client_publish(c, earliest);
    return moved;
}

/* The same, and from then on each `interval`. */
static inline enum wh_call wh_call_reschedule_every(wh_client *c, uint64_t id, int64_t delay,
                                                    int64_t interval, bool wait)
{
    int64_t earliest = INT64_MAX;
    enum wh_call moved = wh_client_move_by(c, id, delay, interval, wait, &earliest);
    if (moved == WH_CALL_OK)
        wh_client_publish(c, earliest);
    return moved;
}

/* Let a timer be due no earlier than `delay` from now. */
static inline enum wh_call wh_call_extend(wh_client *c, uint64_t id, int64_t delay, bool wait)
{
    bool tell, waited;
    uint64_t index = wh_id_given_slot(id);
    enum wh_call room;
    if (index >= c->capacity)
        return WH_CALL_OVER;
    uint32_t kind = wh_client_kind(c, id);
    int64_t now = wh_client_now_of(c, kind), deadline = wh_time_add(now, delay);
    if (wh_unlikely(!wh_client_fits(c, 1)) &&
        (room = wh_client_room_to_move(c, id, deadline, 0, wait, &waited)) != WH_CALL_OK)
        return room;
    if (!wh_slot_move_if(&c->states[index], &c->slots[index], wh_id_gen(id), deadline,
                         WH_MOVE_LATER, now, &tell))
        return WH_CALL_OVER;
    wh_count(&c->seg->rescheduled, 1);
    if (tell || wh_load_relaxed(&c->slots[index].interval) > 0) { /* a new grid */
        wh_client_push(c, wh_id_with(id, WH_OP_RESCHEDULE));
        wh_client_publish(c, wh_time_add(wh_client_now(c), delay));
    }
    return WH_CALL_OK;
}

/* Pause a timer, of any worker. The clock need not be told: it looks at the old time. */
static inline enum wh_call wh_call_pause(wh_client *c, uint64_t id)
{
    uint64_t index = wh_id_given_slot(id);
    if (index >= c->capacity)
        return WH_CALL_OVER;
    int64_t now = wh_client_now_of(c, wh_client_kind(c, id));
    return wh_slot_pause(&c->states[index], &c->slots[index], wh_id_gen(id), now) ? WH_CALL_OK
                                                                                  : WH_CALL_OVER;
}

/* Begin a call that changes an armed timer, and tells the clock: it has room for that. *kind, *now:
 * the timer's clock, and what it says. */
static inline enum wh_call wh_client_begin(wh_client *c, uint64_t id, bool wait, uint32_t *kind,
                                           int64_t *now)
{
    enum wh_call room;
    if (wh_id_given_slot(id) >= c->capacity || !wh_client_is_armed(c, id))
        return WH_CALL_OVER;
    if (!wh_client_fits(c, 1) && (room = wh_client_wait_room(c, 1, wait)) != WH_CALL_OK)
        return room;
    *kind = wh_client_kind(c, id);
    *now = wh_client_now_of(c, *kind);
    return WH_CALL_OK;
}

/* Tell the clock of a timer's new deadline; `now`: of the timer's clock. */
static inline void wh_client_tell(wh_client *c, uint64_t id, uint32_t kind, int64_t due,
                                  int64_t now)
{
    wh_client_push(c, wh_id_with(id, WH_OP_RESCHEDULE));
    wh_client_publish(
        c, kind == WH_CLOCK_BASE ? due : wh_time_add(wh_client_now(c), wh_time_sub(due, now)));
}

/* Let a paused timer go on. */
static inline enum wh_call wh_call_resume(wh_client *c, uint64_t id, bool wait)
{
    uint64_t index = wh_id_given_slot(id);
    int64_t due, now;
    uint32_t kind;
    enum wh_call begun = wh_client_begin(c, id, wait, &kind, &now);
    if (begun != WH_CALL_OK)
        return begun;
    if (!wh_slot_resume(&c->states[index], &c->slots[index], wh_id_gen(id), now, &due))
        return WH_CALL_OVER;
    wh_client_tell(c, id, kind, due, now);
    return WH_CALL_OK;
}

/* Let a periodic timer be due a period from now, unless it was moved or paused since the tick whose
 * deadline was `ticked`. */
static inline enum wh_call wh_call_follow(wh_client *c, uint64_t id, int64_t ticked, bool wait)
{
    uint64_t index = wh_id_given_slot(id);
    int64_t due, now;
    uint32_t kind;
    enum wh_call begun = wh_client_begin(c, id, wait, &kind, &now);
    if (begun != WH_CALL_OK)
        return begun;
    if (!wh_slot_follow(&c->states[index], &c->slots[index], wh_id_gen(id), ticked, now, &due))
        return WH_CALL_OVER;
    wh_count(&c->seg->rescheduled, 1);
    wh_client_tell(c, id, kind, due, now);
    return WH_CALL_OK;
}

static inline enum wh_call wh_call_reschedule_at(wh_client *c, uint64_t id, int64_t deadline,
                                                 bool wait)
{
    int64_t earliest = INT64_MAX;
    enum wh_call moved = wh_client_move_at(c, id, deadline, wait, &earliest);
    if (earliest != INT64_MAX)
        wh_client_publish(c, earliest);
    return moved;
}

/* Give an event for a group back: it is due again after `delay`. */
static inline enum wh_call wh_call_nack(wh_client *c, uint64_t id, int64_t delay, bool wait)
{
    enum wh_call room;
    if (wh_id_given_slot(id) >= c->capacity)
        return WH_CALL_OVER;
    if (!wh_client_fits(c, 1) && (room = wh_client_wait_room(c, 1, wait)) != WH_CALL_OK)
        return room;
    int64_t now = wh_client_now_of(c, wh_client_kind(c, id));
    if (!wh_client_give_back(c, id, wh_time_add(now, delay)))
        return WH_CALL_OVER;
    wh_client_push(c, wh_id_with(id, WH_OP_RESCHEDULE));
    wh_client_publish(c, wh_time_add(wh_client_now(c), delay));
    return WH_CALL_OK;
}

/* May this worker arm `n` detached timers more? The clock's count lacks what is on its way there,
 * and has what was acknowledged since its last pass. WH_CALL_DETACHED_FULL: not now; a caller that
 * does not wait hears it before a clock that sleeps has looked. */
static wh_apart enum wh_call wh_client_detached_room(wh_client *c, uint64_t n, bool wait)
{
    for (bool waited = false;; waited = true) {
        uint64_t under_way = wh_ring_used(c->sub_tail, c->sub_head);
        uint64_t met = wh_load_relaxed(&c->wheel->detached); /* after sub_head, as it was read */
        if (met + under_way + n <= c->detached_most)
            return WH_CALL_OK;
        if (waited)
            return met + n <= c->detached_most ? WH_CALL_OK : WH_CALL_DETACHED_FULL;
        enum wh_call room = wh_client_wait_room(c, c->sub_size, wait);
        if (room == WH_CALL_OK)
            room = wh_client_await_passes(c, wait);
        if (room != WH_CALL_OK)
            return wait ? room : WH_CALL_DETACHED_FULL;
    }
}

/* -- poll: begin, take, end -------------------------------------------------------------------- */

/* Is there, or may there be, a byte in this worker's FIFO? */
static inline bool wh_client_may_be_rung(const wh_client *c) { return c->wait_seq & 1; }

/* Begin a poll. A byte in the FIFO was for what this poll sees, so it is read first. Returned slots
 * are reclaimed. Returns how many completions there are. */
static inline uint64_t wh_poll_begin(wh_client *c, bool rung, int bell)
{
    wh_client_begin_to_receive(c);
    if (rung) {
        wh_client_awake(c);
        wh_bell_clear(bell);
    }
    uint64_t ready = wh_client_ready(c);
    wh_client_reclaim(c);
    return ready;
}

/* `stay`: be rung from here on, also between polls. False: more events have arrived, and the caller
 * rings its own bell. */
static inline bool wh_poll_end(wh_client *c, uint64_t got, bool stay)
{
    wh_count(&c->seg->received, got);
    if (stay)
        return wh_client_may_sleep(c);
    if (wh_unlikely(got == 0 && wh_client_offered(c)))
        wh_client_may_sleep(c); /* a worker that checks from time to time needs no bell */
    return true;
}

/* Take up to `most` events that are here now. *more: as wh_poll_end(), inverted. Returns how many
 * there were. */
static inline uint64_t wh_call_poll(wh_client *c, int bell, char *events, uint64_t most, bool stay,
                                    bool *more)
{
    wh_poll_begin(c, wh_client_may_be_rung(c), bell);
    uint64_t got = wh_client_receive(c, events, most);
    *more = !wh_poll_end(c, got, stay);
    return got;
}

#define WH_REST_LOOK_NS 200000

/* Under a virtual clock nothing is late: what fell due and waits behind our full ring belongs to
 * this very moment. Is there such a rest? */
static inline bool wh_client_lacks_rest(const wh_client *c)
{
    return c->virtual_clock && c->comp_acked == c->comp_head && wh_client_backlogged(c);
}

/* After a poll: wait until the clock has put the rest into the ring, *came, or has looked and found
 * that there is none. Not for a caller that drives the clock itself. */
static inline enum wh_call wh_call_await_rest(wh_client *c, bool *came)
{
    /* pairs: pass - a pass that begins from here on sees our head; the next one: it is over */
    uint64_t passes = wh_load_acquire(&c->wheel->passes);
    while (!(*came = wh_client_ready(c) != 0)) {
        /* pairs: pass */
        if (!wh_client_lacks_rest(c) || wh_load_acquire(&c->wheel->passes) - passes >= 2) {
            *came = wh_client_ready(c) != 0;
            return WH_CALL_OK;
        }
        wh_client_ring(c);
        enum wh_call dozed = wh_call_after(c->waits->doze(c, WH_REST_LOOK_NS));
        if (dozed != WH_CALL_OK)
            return dozed;
    }
    return WH_CALL_OK;
}

#endif
