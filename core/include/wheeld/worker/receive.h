/* Receive: events out of the completion ring, slots back to the worker.
 *
 * Invariants
 *  1. Completions are consumed in order, and copied before the head passes them.
 *  2. EXPIRED for an own slot returns the slot, and so does an entry of the return ring. A tick
 *     returns nothing, and its slot is not kept while it is read: it is an event only if its timer
 *     is still armed when all of it is copied, and was not moved since. So a cancel or a move that
 *     won is never followed by an event from before, and a payload is never another timer's.
 *  3. An offer is an event of the worker that takes it first; all others skip it (slot.h,
 *     invariant 4). It is done when it is copied, or when it is acknowledged, before the head
 *     passes its record.
 *  4. Returns have a ring of their own: a worker that is slow to poll still gets back the slots of
 *     what it cancelled.
 *  5. Events may be held: they are copied, but the shared head does not pass them and their slots
 *     are not returned until they are acknowledged. So the successor of a worker that dies in
 *     between finds the same events, in the same order, with their payloads.
 *  6. An offer with a claimed cookie stays in hand when it was received, and its record does not:
 *     the head passes it. It is done when it is acknowledged, by itself. So does an offer that is
 *     held while half a ring of others is acknowledged. A worker that holds a whole ring
 *     receives nothing until it acknowledges one.
 *  7. Others that share the wheel can write both rings. A record is copied once, and accepted only
 *     if it is possible: the end of a timer that has fired, in an own slot unless it was lent; as a
 *     return, an own slot without a timer. Otherwise it is skipped, and counted.
 */
#ifndef WHEELD_RECEIVE_H
#define WHEELD_RECEIVE_H

#include "wheeld/worker/times.h"
#include "wheeld/sharing/watch.h"

/* One received expiration: a wh_completion whose id has no kind and which has no flags, then the
 * payload's bytes. */
static inline uint32_t wh_event_bytes(const wh_client *c)
{
    return (uint32_t)sizeof(wh_completion) + c->payload_bytes;
}

/* A worker becomes a member with its first receive: the master of a preforking server never does,
 * for example. */
static inline void wh_client_begin_to_receive(wh_client *c)
{
    if (wh_likely(c->receives))
        return;
    c->receives = true;
    /* pairs: receives, offered - before it says that it waits: the clock counts it by then */
    wh_store_seq(&c->seg->receives, 1);
}

static inline uint64_t wh_client_ready(const wh_client *c)
{
    /* pairs: comp-tail, worker-wait */
    return wh_ring_used(wh_load_seq(&c->port->comp_tail), c->comp_head);
}

/* Are more events waiting behind the full ring? */
static inline bool wh_client_backlogged(const wh_client *c)
{
    return wh_load_seq(&c->port->backlog) != 0; /* pairs: backlog */
}

/* Was the timer of a tick, whose record had these flags, neither cancelled nor moved since? */
static inline bool wh_tick_stands(const wh_client *c, uint64_t id, uint32_t flags)
{
    uint32_t slot = wh_id_slot(id), now = wh_load_relaxed(&c->slots[slot].flags);
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: cancel, extend */
    return wh_state_gen(state) == wh_id_gen(id) && wh_state_phase(state) == WH_ARMED &&
           !wh_state_is_moved(state) && WH_GET(FLAGS_MOVES, now ^ flags) == 0;
}

/* Whether a record can be true. */
enum wh_belief {
    WH_ABSURD = 0,
    WH_GIVES_BACK = 1, /* the end of an own timer: its slot is returned */
    WH_GIVES_NOTHING = 2
};

/* Is it, as it should be, about the end of a timer that has fired? */
static inline bool wh_client_has_fired(const wh_client *c, uint64_t id)
{
    uint64_t state = wh_load_acquire(&c->states[wh_id_slot(id)]); /* pairs: fire */
    return wh_state_gen(state) == wh_id_gen(id) && wh_state_phase(state) == WH_FIRED;
}

/* A slot of a split slab returns to the clock when its end was read. The states of ticks and offers
 * are checked when they are copied. */
static wh_seldom enum wh_belief wh_client_judge_fully(const wh_client *c, uint64_t id)
{
    uint32_t kind = wh_id_kind(id), slot = wh_id_slot(id);
    if (slot >= c->capacity ||
        ((kind == WH_EV_EXPIRED || kind == WH_EV_LENT) && !wh_client_has_fired(c, id)))
        return WH_ABSURD;
    return kind != WH_EV_EXPIRED || wh_slabs_own(&c->slabs, slot) ? WH_GIVES_NOTHING : WH_ABSURD;
}

/* Is the slot's slab ours? */
static inline bool wh_client_names_us(const wh_client *c, uint32_t slot)
{
    /* pairs: slab */
    uint64_t word = wh_load_acquire(&c->slabs.owners[slot >> WH_SLAB_BITS]);
    return wh_owner_name(word) == c->me;
}

/* How to handle a record with that id. */
static inline enum wh_belief wh_client_judge(wh_client *c, uint64_t id)
{
    if (wh_likely(wh_id_kind(id) == WH_EV_EXPIRED && wh_id_slot(id) < c->capacity) &&
        wh_likely(wh_client_has_fired(c, id)) && wh_likely(wh_client_names_us(c, wh_id_slot(id))))
        return WH_GIVES_BACK;
    enum wh_belief belief = wh_client_judge_fully(c, id);
    if (belief == WH_ABSURD)
        wh_count(&c->seg->disbelieved, 1);
    return belief;
}

#define WH_RECORDS_AHEAD 8 /* how many states ahead are prefetched */

/* The id of the record at `position` of those before `end`. It is read once: what was judged is
 * what is used. */
static inline uint64_t wh_client_id_at(const wh_client *c, uint64_t position, uint64_t end)
{
    uint64_t mask = c->comp_size - 1;
    if (wh_likely(end - position > WH_RECORDS_AHEAD))
        wh_prefetch(&c->states[wh_id_slot(c->comps[(position + WH_RECORDS_AHEAD) & mask].id)]);
    return wh_load_relaxed((const wh_au64 *)&c->comps[position & mask].id);
}

static inline uint32_t wh_client_flags_at(const wh_client *c, uint64_t position)
{
    return c->comps[position & (c->comp_size - 1)].flags;
}

_Static_assert(offsetof(wh_completion, flags) ==
                   offsetof(wh_completion, payload_size) + sizeof(uint16_t),
               "users read payload_size as 32 bits: wheeld_core/views/structs.py");

/* The event of a record, without the payload; the payload's used bytes. Its flags are cleared. */
static inline uint32_t wh_client_head(const wh_client *c, const wh_completion *record, uint64_t id,
                                      char *event)
{
    __typeof__((wh_completion){0}.payload_size) size; /* as wide as the field */
    memcpy(event, record, sizeof *record);
    id = wh_id(wh_id_gen(id), wh_id_slot(id));
    memcpy(event + offsetof(wh_completion, id), &id, sizeof id);
    memcpy(&size, event + offsetof(wh_completion, payload_size), sizeof size);
    size = size < c->payload_bytes ? size : (__typeof__(size))c->payload_bytes;
    memcpy(event + offsetof(wh_completion, payload_size), &size, sizeof size);
    memset(event + offsetof(wh_completion, flags), 0, sizeof record->flags);
    return size;
}

/* The claim on a timer for a group that this worker has taken, or NULL. */
static wh_seldom const wh_claim *wh_client_claim_on(const wh_client *c, uint64_t id)
{
    uint64_t cookie = wh_load_relaxed(&c->slots[wh_id_slot(id)].cookie);
    for (uint32_t i = 0; i < c->claim_count; i++)
        if (c->claims[i].cookie == cookie)
            return &c->claims[i];
    return NULL;
}

/* Take an offer, for as long as it may be held; *due: when it was due. Until the bound is stored,
 * the clock sees the deadline that the timer had, and waits. */
static wh_seldom bool wh_client_take_offer(const wh_client *c, uint64_t id, int64_t *due)
{
    wh_slot *s = &c->slots[wh_id_slot(id)];
    if (!wh_offer_take(&c->states[wh_id_slot(id)], wh_id_gen(id), wh_taker(c->me)))
        return false;
    *due = wh_load_relaxed(&s->deadline);
    const wh_claim *claim = c->claim_count ? wh_client_claim_on(c, id) : NULL;
    int64_t visibility = claim && !c->visibility ? claim->visibility : c->visibility;
    if (visibility)
        wh_store_relaxed(&s->deadline, wh_time_add(wh_client_now(c), visibility));
    return true;
}

/* Does the event, which was just received, stay in hand? */
static inline bool wh_client_keeps(const wh_client *c, uint64_t id)
{
    return wh_unlikely(c->claim_count != 0) && wh_id_kind(id) == WH_EV_OFFER &&
           wh_client_claim_on(c, id) != NULL;
}

/* The record of a taken offer may be from before the event was given back: let the event say when
 * it was due this time. */
static wh_seldom void wh_client_renew(const wh_client *c, const wh_completion *record, uint64_t id,
                                      int64_t due, char *event)
{
    uint32_t flags = wh_load_relaxed(&c->slots[wh_id_slot(id)].flags);
    if (wh_likely(WH_GET(FLAGS_MOVES, flags ^ record->flags) == 0))
        return;
    memcpy(event + offsetof(wh_completion, deadline), &due, sizeof due);
    if (record->fired < due) /* when exactly, only the record says that the clock wrote since */
        memcpy(event + offsetof(wh_completion, fired), &due, sizeof due);
}

/* Copy one completion whose slot may already have another tenant. True: it is an event, now at
 * `event`. */
static wh_seldom bool wh_client_copy_shared(const wh_client *c, const wh_completion *record,
                                            uint64_t id, char *event)
{
    uint32_t slot = wh_id_slot(id), size;
    char *payload = c->payloads + (uint64_t)slot * c->payload_bytes;
    int64_t due;
    bool offered = wh_id_kind(id) == WH_EV_OFFER;
    if (offered && !wh_client_take_offer(c, id, &due))
        return false;
    size = wh_client_head(c, record, id, event);
    if (offered)
        wh_client_renew(c, record, id, due, event);
    event += sizeof *record;
    wh_payload_read(event, payload, size);
    memset(event + size, 0, c->payload_bytes - size);
    return offered || wh_tick_stands(c, id, record->flags);
}

/* Copy one plausible completion. True: it is an event, now at `event`. */
static inline bool wh_client_copy(const wh_client *c, uint64_t position, uint64_t id, char *event)
{
    const wh_completion *record = &c->comps[position & (c->comp_size - 1)];
    uint32_t kind = wh_id_kind(id), slot = wh_id_slot(id);
    if (wh_unlikely(kind == WH_EV_TICK || kind == WH_EV_OFFER))
        return wh_client_copy_shared(c, record, id, event);
    uint32_t size = wh_client_head(c, record, id, event);
    if (c->payload_bytes) {
        event += sizeof *record;
        memcpy(event, c->payloads + (uint64_t)slot * c->payload_bytes, size);
        memset(event + size, 0, c->payload_bytes - size);
    }
    return true;
}

/* -- events whose payload is in the heap (payloads.h) ------------------------------------------ */

/* Have a place in `received` for one more. False: there is no memory. */
static wh_seldom bool wh_client_may_receive(wh_client *c)
{
    if (c->received_count + c->held_payloads < c->received_room)
        return true;
    uint32_t room = c->received_room ? 2 * c->received_room : 64;
    wh_received *more = malloc(room * sizeof *more);
    if (more == NULL)
        return false;
    if (c->received_count)
        memcpy(more, c->received, c->received_count * sizeof *more);
    free(c->received);
    c->received = more;
    c->received_room = room;
    return true;
}

/* Is the payload of the record in the heap? */
static inline bool wh_client_is_apart(const wh_client *c, uint64_t position)
{
    return wh_unlikely(c->comps[position & (c->comp_size - 1)].payload_size == WH_IN_HEAP);
}

/* Copy one plausible completion. True: it is an event, now at `event`. A payload that is not there
 * was overwritten by others: then the record is taken for one without. */
static wh_seldom bool wh_client_copy_apart(wh_client *c, uint64_t position, uint64_t id,
                                           char *event)
{
    const wh_completion *record = &c->comps[position & (c->comp_size - 1)];
    uint32_t kind = wh_id_kind(id), slot = wh_id_slot(id), flags = record->flags;
    uint64_t timer = wh_id(wh_id_gen(id), slot);
    uint32_t block = wh_load_relaxed(&c->heap.blocks[slot].block);
    uint32_t size = wh_heap_size(&c->heap, block, timer);
    char *room = NULL;
    if (kind == WH_EV_TICK && !wh_tick_stands(c, id, flags))
        return false;
    bool there = size <= c->max_payload;
    if (!wh_client_may_receive(c) ||
        (there && c->sink && !(room = c->sink->room(c, timer, size)))) {
        c->stuck = true;
        return false;
    }
    if (!there) {
        wh_count(&c->seg->disbelieved, 1);
        return wh_client_copy(c, position, id, event);
    }
    int64_t due;
    if (kind == WH_EV_OFFER && !wh_client_take_offer(c, id, &due))
        return false;
    there = room != NULL && wh_heap_read(&c->heap, block, timer, room, size);
    (void)wh_client_head(c, record, id, event);
    if (kind == WH_EV_OFFER)
        wh_client_renew(c, record, id, due, event);
    size = there ? size : 0;
    memcpy(event + offsetof(wh_completion, payload_size), &size, sizeof size);
    memset(event + sizeof *record, 0, c->payload_bytes);
    if (kind == WH_EV_TICK && !wh_tick_stands(c, id, flags))
        return false;
    if (there)
        c->sink->keep(c, timer, size);
    return true;
}

/* The payload of this event, not a tick, is to be freed once the head has passed its record; and
 * then its slot is given back. */
static wh_seldom bool wh_client_settle_apart(wh_client *c, uint64_t id, enum wh_belief belief)
{
    uint32_t slot = wh_id_slot(id), block = wh_load_relaxed(&c->heap.blocks[slot].block);
    if (wh_id_kind(id) == WH_EV_TICK)
        return true;
    if (wh_id_kind(id) == WH_EV_OFFER &&
        !wh_offer_done(&c->states[slot], wh_id_gen(id), wh_taker(c->me)))
        return false;
    c->received[c->received_count++] =
        (wh_received){wh_id(wh_id_gen(id), slot), block, belief == WH_GIVES_BACK ? slot : WH_NIL};
    return true;
}

/* The head has passed these records. */
static wh_seldom void wh_client_free_received(wh_client *c)
{
    for (uint32_t i = 0; i < c->received_count; i++) {
        const wh_received *one = &c->received[i];
        wh_heap_free(&c->heap, one->block, one->id);
        if (one->slot != WH_NIL)
            wh_slabs_give(&c->slabs, one->slot);
    }
    c->received_count = 0;
}

/* It is done with a held offer. The clock hears of it, and need not wait for what stands before it
 * in a list; where the ring has no room, the clock finds it in turn. */
static inline void wh_client_say_done(wh_client *c, uint64_t id)
{
    if (wh_client_fits(c, 1)) {
        wh_client_push(c, wh_id_with(wh_id(wh_id_gen(id), wh_id_slot(id)), WH_OP_CANCEL));
        wh_client_publish_lazily(c);
    }
}

/* Finish an event: take back an own slot, mark an offer as done. False: it is no longer an
 * event. */
static inline bool wh_client_settle(wh_client *c, uint64_t id, enum wh_belief belief)
{
    uint32_t slot = wh_id_slot(id);
    if (wh_likely(belief == WH_GIVES_BACK))
        wh_slabs_give(&c->slabs, slot);
    else if (wh_id_kind(id) == WH_EV_OFFER)
        return wh_offer_done(&c->states[slot], wh_id_gen(id), wh_taker(c->me));
    return true;
}

/* Its slot still has the key, until the event is finished. */
static inline void wh_client_keyed(wh_client *c, uint64_t id, uint32_t flags)
{
    if (wh_unlikely(flags & WH_KEYED) && c->keyed != NULL)
        c->keyed(c, wh_id(wh_id_gen(id), wh_id_slot(id)));
}

/* A held event for a group was perhaps delivered before. Its record may be from an earlier time:
 * the slot says how often. */
static inline void wh_client_again(wh_client *c, uint64_t id)
{
    if (wh_likely(wh_id_kind(id) != WH_EV_OFFER) || c->again == NULL)
        return;
    uint32_t flags = wh_load_relaxed(&c->slots[wh_id_slot(id)].flags);
    uint32_t before = wh_attempts_before(flags, wh_id_gen(id));
    if (wh_unlikely(before))
        c->again(c, wh_id(wh_id_gen(id), wh_id_slot(id)), before);
}

/* The same with a payload in the heap. */
static wh_seldom bool wh_client_take_apart(wh_client *c, uint64_t position, uint64_t id,
                                           enum wh_belief belief, char *event, wh_look *look)
{
    uint32_t flags = wh_client_flags_at(c, position);
    if (belief == WH_ABSURD || !wh_client_copy_apart(c, position, id, event))
        return false;
    wh_client_keyed(c, id, flags);
    if (!wh_client_keeps(c, id) && !wh_client_settle_apart(c, id, belief))
        return false;
    wh_client_note(c, event, flags, look);
    return true;
}

/* Consume the completion at `position`, of id `id`. True: it is an event, now at `event`. */
static inline bool wh_client_take(wh_client *c, uint64_t position, uint64_t id, char *event,
                                  wh_look *look)
{
    enum wh_belief belief = wh_client_judge(c, id);
    uint32_t flags = wh_client_flags_at(c, position);
    if (wh_client_is_apart(c, position))
        return wh_client_take_apart(c, position, id, belief, event, look);
    if (wh_unlikely(belief == WH_ABSURD) || !wh_client_copy(c, position, id, event))
        return false;
    wh_client_keyed(c, id, flags);
    if (!wh_client_keeps(c, id) && !wh_client_settle(c, id, belief))
        return false;
    wh_client_note(c, event, flags, look);
    return true;
}

/* Let the clock reuse what stands before comp_head. */
static inline void wh_client_pass(wh_client *c)
{
    c->comp_acked = c->comp_head;
    /* pairs: comp-head, backlog - seq_cst: either the clock sees the room, or we see its flag */
    wh_store_seq(&c->seg->comp_head, c->comp_head);
    if (wh_unlikely(c->received_count != 0))
        wh_client_free_received(c);
    if (wh_unlikely(wh_client_backlogged(c)))
        wh_client_ring(c);
}

/* A caller that keeps events for later gets the ids and flags of ticks, to ask wh_tick_stands()
 * once more when it hands them out. */
typedef void wh_note_tick(void *context, uint64_t id, uint32_t flags);

/* Consume completions until `most` events stand at `events` or none is left. Returns how many do.
 * Nothing is held. `note`: called for each tick, or NULL. */
static inline uint64_t wh_client_receive_noting(wh_client *c, char *events, uint64_t most,
                                                wh_note_tick *note, void *context)
{
    uint64_t ready = wh_client_ready(c), got = 0;
    uint64_t end = c->comp_head + ready, p = c->comp_head;
    uint32_t bytes = wh_event_bytes(c);
    wh_look look = {0};
    c->stuck = false;
    for (; p != end && got < most; p++) {
        uint64_t id = wh_client_id_at(c, p, end);
        bool is_event = wh_client_take(c, p, id, events + got * bytes, &look);
        if (wh_unlikely(c->stuck))
            break;
        got += is_event;
        if (note && is_event && wh_id_kind(id) == WH_EV_TICK)
            note(context, wh_id(wh_id_gen(id), wh_id_slot(id)), wh_client_flags_at(c, p));
    }
    c->comp_head = p;
    wh_client_counted(c, &look);
    wh_client_pass(c);
    return got;
}

static inline uint64_t wh_client_receive(wh_client *c, char *events, uint64_t most)
{
    return wh_client_receive_noting(c, events, most, NULL, NULL);
}

/* The same, but what is read stays in the ring until acknowledged. */
static inline uint64_t wh_client_hold(wh_client *c, char *events, uint64_t most)
{
    uint64_t end = c->comp_head + wh_client_ready(c), got = 0;
    uint32_t bytes = wh_event_bytes(c);
    wh_look look = {0};
    c->stuck = false;
    for (; c->comp_head != end && got < most; c->comp_head++) {
        uint64_t id = wh_client_id_at(c, c->comp_head, end);
        char *event = events + got * bytes;
        bool apart = wh_client_is_apart(c, c->comp_head);
        if (wh_client_judge(c, id) == WH_ABSURD ||
            !(apart ? wh_client_copy_apart(c, c->comp_head, id, event)
                    : wh_client_copy(c, c->comp_head, id, event))) {
            if (wh_unlikely(c->stuck))
                break;
            continue;
        }
        wh_client_keyed(c, id, wh_client_flags_at(c, c->comp_head));
        wh_client_again(c, id);
        c->held_payloads += apart;
        wh_client_note(c, event, wh_client_flags_at(c, c->comp_head), &look);
        got++;
    }
    wh_client_counted(c, &look);
    return got;
}

/* -- events for a group that are held, one by one ---------------------------------------------- */

/* Is it in this worker's hands? Then nobody else changes it, but the clock if it is held for too
 * long. */
static inline bool wh_client_has_taken(const wh_client *c, uint64_t id)
{
    uint64_t state = wh_load_acquire(&c->states[wh_id_slot(id)]); /* pairs: offer */
    return state == wh_state_of(wh_id_gen(id), wh_taker(c->me), WH_TAKEN);
}

/* How many events are held: in the ring, at most, and beside it. */
static inline uint64_t wh_client_held(wh_client *c)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < c->stowed_count; i++)
        if (wh_client_has_taken(c, c->stowed[i]))
            c->stowed[left++] = c->stowed[i];
    c->stowed_count = left;
    return c->comp_head - c->comp_acked + left;
}

/* Remember a held event for a group apart from its record. False: out of memory. */
static wh_seldom bool wh_client_stow(wh_client *c, uint64_t id)
{
    if (c->stowed_count == c->stowed_room) {
        (void)wh_client_held(c); /* which forgets those that are over */
        if (2 * c->stowed_count >= c->stowed_room) {
            uint32_t room = c->stowed_room ? 2 * c->stowed_room : 64;
            uint64_t *more = realloc(c->stowed, room * sizeof *more);
            if (more == NULL)
                return false;
            c->stowed = more;
            c->stowed_room = room;
        }
    }
    c->stowed[c->stowed_count++] = wh_id(wh_id_gen(id), wh_id_slot(id));
    return true;
}

/* Let the shared head pass what is no longer held: events for a group that were acknowledged, given
 * back or taken away, and ticks, which nobody waits for. The record of one that is held may be
 * passed, too: if this worker dies, the clock offers it again. The head passes it when half of
 * the ring stands behind it, so that an event that is held for long keeps no other away. */
static inline void wh_client_pass_over(wh_client *c)
{
    uint64_t p = c->comp_acked;
    for (; p != c->comp_head; p++) {
        uint64_t id = wh_client_id_at(c, p, c->comp_head);
        uint32_t kind = wh_id_kind(id);
        if (kind != WH_EV_TICK && !(kind == WH_EV_OFFER && wh_id_slot(id) < c->capacity))
            break;
        if (kind == WH_EV_OFFER && wh_client_has_taken(c, id) &&
            (c->comp_head - p <= c->comp_size / 2 || !wh_client_stow(c, id)))
            break;
        if (wh_client_is_apart(c, p) && c->held_payloads)
            c->held_payloads--;
    }
    if (p == c->comp_acked)
        return;
    c->comp_acked = p;
    wh_store_seq(&c->seg->comp_head, p); /* pairs: comp-head, backlog */
    if (wh_unlikely(wh_client_backlogged(c)))
        wh_client_ring(c);
}

/* Acknowledge one event for a group. False: it is not in this worker's hands. */
static inline bool wh_client_acknowledge_one(wh_client *c, uint64_t id)
{
    uint64_t slot = wh_id_given_slot(id);
    if (slot >= c->capacity || !wh_client_has_taken(c, id))
        return false;
    bool apart = wh_load_relaxed(&c->slots[slot].payload_size) == WH_IN_HEAP;
    uint32_t block = apart ? wh_load_relaxed(&c->heap.blocks[slot].block) : 0;
    if (!wh_offer_done(&c->states[slot], wh_id_gen(id), wh_taker(c->me)))
        return false;
    if (apart) /* the clock does if this worker dies here */
        wh_heap_free(&c->heap, block, id);
    wh_client_pass_over(c);
    wh_client_say_done(c, id);
    return true;
}

/* Acknowledge what is held: take back its slots, and give its places in the ring to the clock. */
static inline void wh_client_acknowledge(wh_client *c)
{
    while (c->stowed_count)
        (void)wh_client_acknowledge_one(c, c->stowed[--c->stowed_count]);
    for (uint64_t p = c->comp_acked; p != c->comp_head; p++) {
        uint64_t id = wh_client_id_at(c, p, c->comp_head);
        enum wh_belief belief = wh_client_judge(c, id);
        if (belief == WH_ABSURD)
            continue;
        bool apart = wh_client_is_apart(c, p) && c->received_count < c->received_room;
        bool done = apart ? wh_client_settle_apart(c, id, belief) : wh_client_settle(c, id, belief);
        if (done && wh_id_kind(id) == WH_EV_OFFER)
            wh_client_say_done(c, id);
    }
    c->held_payloads = 0;
    wh_client_pass(c);
}

/* Give one event for a group back: it is armed again, for `deadline` on its clock, and the caller
 * submits the change. It keeps its key only as long as nobody else takes that. False: it is not in
 * this worker's hands. */
static inline bool wh_client_give_back(wh_client *c, uint64_t id, int64_t deadline)
{
    uint64_t index = wh_id_given_slot(id);
    if (index >= c->capacity)
        return false;
    wh_au64 *words = (wh_au64 *)&c->slots[index];
    uint64_t state = wh_state_of(wh_id_gen(id), wh_taker(c->me), WH_TAKEN), due, rest;
    do {
        due = wh_load_acquire(&words[0]);  /* pairs: extend */
        rest = wh_load_acquire(&words[1]); /* pairs: extend */
        if (!wh_client_has_taken(c, id)) /* last: what was read is not the next tenant's */
            return false;
        /* pairs: extend - the clock that takes it away this moment changes these words, too */
    } while (!wh_cas_both(&c->slots[index], &due, &rest, (uint64_t)deadline, rest));
    /* pairs: offer, arm - the deadline comes first */
    if (!wh_cas_acq_rel(&c->states[index], &state, wh_state(wh_id_gen(id), WH_ARMED)))
        return false;
    wh_client_pass_over(c);
    return true;
}

static inline uint64_t wh_client_returns_ready(const wh_client *c)
{
    return wh_ring_used(wh_load_acquire(&c->port->ret_tail), c->ret_head); /* pairs: ret-tail */
}

/* Is it a slot, and has it no timer? */
static inline bool wh_client_is_spent(const wh_client *c, uint32_t slot)
{
    return wh_likely(slot < c->capacity) &&
           wh_state_phase(wh_load_relaxed(&c->states[slot])) != WH_ARMED;
}

/* Take back the slots that the clock returned. */
static inline void wh_client_reclaim(wh_client *c)
{
    uint64_t ready = wh_client_returns_ready(c);
    if (ready == 0)
        return;
    c->refused = false;
    for (; ready; ready--, c->ret_head++) {
        uint32_t slot = wh_load_relaxed(&c->rets[c->ret_head & (c->ret_size - 1)]);
        if (wh_unlikely(!wh_client_is_spent(c, slot)))
            wh_count(&c->seg->disbelieved, 1);
        else if (wh_likely(wh_client_names_us(c, slot)))
            wh_slabs_give(&c->slabs, slot);
        else if (wh_client_owns(c, slot) &&
                 wh_load_relaxed(&c->slabs.holders[slot]) == wh_holder_word(c->worker, c->ret_head))
            /* else it was taken over before this entry was read */
            wh_slabs_handed(&c->slabs, slot);
    }
    wh_store_seq(&c->seg->ret_head, c->ret_head); /* pairs: ret-head, backlog */
    if (wh_unlikely(wh_client_backlogged(c)))
        wh_client_ring(c);
}

/* Claim a slab. Entries of the return ring about it are old: read them, and ignore them. */
static inline bool wh_client_claim(wh_client *c)
{
    if (!wh_slabs_claim(&c->slabs))
        return false;
    c->refused = false;
    wh_client_reclaim(c);
    return true;
}

/* The same for this worker's own slab, if needed (quota.h:wh_quota_needs_home). */
static inline bool wh_client_claim_home(wh_client *c)
{
    if (!wh_slabs_claim_this(&c->slabs, c->slabs.home))
        return false;
    wh_client_reclaim(c);
    return true;
}

static inline void wh_client_say_wait(wh_client *c, uint64_t wait_seq)
{
    c->wait_seq = wait_seq;
    wh_store_seq(&c->seg->wait_seq, wait_seq); /* pairs: worker-wait */
    /* pairs: watch-tenant - a worker that was given up must not speak for its row's next one */
    if (c->watched && wh_load_acquire(&c->watched->tenant) == wh_owner_incarnation(c->me))
        wh_watch_say_wait(c->watched, wait_seq);
}

/* Do other workers hold events that this one may take, too? */
static inline bool wh_client_offered(const wh_client *c)
{
    uint64_t groups = wh_load_relaxed(&c->port->groups);
    return wh_unlikely(groups != 0) &&
           wh_load_seq(&c->wheel->offered) & groups; /* pairs: offered */
}

/* Before the worker sleeps on its FIFO: announce it, then check once more. True: sleep. */
static inline bool wh_client_may_sleep(wh_client *c)
{
    wh_client_say_wait(c, c->wait_seq + (c->wait_seq & 1 ? 2 : 1)); /* odd, and not answered yet */
    if (wh_client_ready(c) != 0)
        return false;
    if (wh_unlikely(wh_client_offered(c)))
        wh_client_ring(c);
    return true;
}

/* When a worker that is about to sleep should look whether the clock has heard its bell, ns of
 * CLOCK_MONOTONIC; INT64_MAX: it has, or the supervisor was told of this bell. A clock that is
 * awake is the supervisor's to watch. */
static inline int64_t wh_client_unheard_at(const wh_client *c)
{
    if (wh_load_seq(&c->wheel->sleep_seq) != c->rung_seq || /* pairs: bell-once */
        wh_load_seq(&c->wheel->sleep_until) == INT64_MIN || /* pairs: sleep */
        c->alarmed_at >= c->rung_at)
        return INT64_MAX;
    int64_t unheard = c->rung_at + WH_UNHEARD_NS, again = c->alarmed_at + WH_ALARM_EVERY_NS;
    return unheard > again ? unheard : again;
}

static inline void wh_client_awake(wh_client *c)
{
    wh_client_say_wait(c, c->wait_seq + (c->wait_seq & 1));
}

#endif
