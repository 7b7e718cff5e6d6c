/* Room: a slot to arm, and a place in the submission ring; and the waits for either.
 *
 * Room comes from the clock: it drains the ring, and gives slots back. A call that may `wait`
 * sleeps for it, a moment if the clock is busy, some seconds while the supervisor replaces it. A
 * call that may not wait looks for some microseconds, as long as a clock that is awake needs. Then
 * it is refused, has done nothing, and has rung the clock: when its caller tries again there is
 * room, unless the clock does not run or nothing comes free.
 *
 * A wait (wh_waits) lets other threads run, and they may end this worker: after WH_CALL_GONE none
 * of its memory is ours, least of all what the call held.
 */
#ifndef WHEELD_ROOM_H
#define WHEELD_ROOM_H

#include "wheeld/worker/receive.h"

#define WH_ROOM_SECONDS 5 /* for the clock, perhaps a new one, to drain the submission ring */
#define WH_SPIN_ROOM_NS 10000 /* before the first nap: a clock that is awake needs no longer */
#define WH_UNDO_NS 20000000 /* how long an undone call waits for room to tell the clock */
#define WH_AWAIT_BACKLOG_NS 50000 /* how long the clock may take to refill the return ring */

/* How a call of a worker ends. */
enum wh_call {
    WH_CALL_OK = 0,
    WH_CALL_OVER, /* the timer has fired or was cancelled: nothing to cancel or to move */
    WH_CALL_TAKEN, /* of a key: the timer that has it stays */
    WH_CALL_KEY_HELD, /* of a key: its timer has fired, and keeps it until the acknowledgement */
    WH_CALL_BAD_DELAY, /* of a batch: in row `stopped` */
    WH_CALL_BAD_OFFSETS, /* the same */
    WH_CALL_LONG_PAYLOAD, /* the same; or of one timer */
    WH_CALL_HEAP_FULL, /* the heap has no room for a payload */
    WH_CALL_DETACHED_FULL, /* as many detached timers are pending as may be */
    WH_CALL_WHEEL_FULL, /* no slot is free, or not `short_of` of them */
    WH_CALL_OVER_QUOTA, /* it holds as many slots as a worker may */
    WH_CALL_RING_FULL, /* it may not wait, and the ring lacks room for `short_of` */
    WH_CALL_RING_TOO_SMALL, /* the same, and it never will */
    WH_CALL_NOT_DRAINED, /* the clock has not drained the ring for WH_ROOM_SECONDS */
    WH_CALL_NO_MEMORY,
    WH_CALL_KEYS_FULL, /* both sets of the key are full of keys in use, or /dev/shm is */
    WH_CALL_STOPPED, /* the nap said so */
    WH_CALL_GONE, /* the worker has left during a nap */
};

static inline enum wh_call wh_call_after(enum wh_nap nap)
{
    return nap == WH_NAP_OVER ? WH_CALL_OK : nap == WH_NAP_STOPPED ? WH_CALL_STOPPED : WH_CALL_GONE;
}

/* Let other threads run. */
static inline enum wh_call wh_client_nap(wh_client *c) { return wh_call_after(c->waits->nap(c)); }

/* -- a place in the ring ----------------------------------------------------------------------- */

/* Wait until the ring has room for `n` more submissions. */
static wh_seldom enum wh_call wh_client_wait_room(wh_client *c, uint64_t n, bool wait)
{
    int64_t began = c->waits->now();
    wh_client_publish_lazily(c);
    wh_client_ring(c);
    while (!wh_client_fits(c, n)) {
        enum wh_call napped;
        if (c->waits->now() - began < WH_SPIN_ROOM_NS)
            continue;
        if (!wait) {
            c->short_of = n;
            return n > c->sub_size ? WH_CALL_RING_TOO_SMALL : WH_CALL_RING_FULL;
        }
        if ((napped = wh_client_nap(c)) != WH_CALL_OK)
            return napped;
        wh_client_publish_lazily(c);
        wh_client_ring(c);
        if (c->waits->now() - began > WH_ROOM_SECONDS * 1000000000ll)
            return WH_CALL_NOT_DRAINED;
    }
    return WH_CALL_OK;
}

/* The same at the start of a call, which has not checked yet. */
static inline enum wh_call wh_client_have_room(wh_client *c, uint64_t n, bool wait)
{
    return wh_likely(wh_client_fits(c, n)) ? WH_CALL_OK : wh_client_wait_room(c, n, wait);
}

/* Cancel a timer that a failing call has armed, and tell the clock, which may have linked it. If
 * there is no room for that until `give_up`, the slot comes back when the timer falls due, or with
 * the next clock. */
static inline void wh_client_take_back(wh_client *c, uint64_t id, int64_t give_up)
{
    while (wh_client_have_room(c, 1, false) != WH_CALL_OK && c->waits->now() < give_up)
        ;
    if (!wh_slot_cancel(&c->states[wh_id_slot(id)], wh_id_gen(id)))
        return;
    if (wh_heap_used(&c->heap))
        wh_client_free_payload(c, id);
    wh_count(&c->seg->cancelled, 1);
    if (wh_client_fits(c, 1))
        wh_client_push(c, wh_id_with(id, WH_OP_CANCEL));
}

/* -- a slot ------------------------------------------------------------------------------------ */

/* Slots of ours are behind our return ring, which was emptied just now: the clock refills it in
 * microseconds. Better than to claim ever more slabs. */
static inline void wh_client_await_backlog(wh_client *c)
{
    int64_t give_up = c->waits->now() + WH_AWAIT_BACKLOG_NS;
    wh_client_ring(c);
    while (wh_client_backlogged(c) && !wh_client_returns_ready(c))
        if (c->waits->now() > give_up)
            return;
}

/* Does a clock still make passes? It answers when it has looked at all slabs, a few in each pass,
 * and has taken more memory if there is any: the patience is for a clock that makes no progress. */
static inline bool wh_client_goes_on(const wh_client *c, uint64_t *passes)
{
    uint64_t before = *passes;
    *passes = wh_load_relaxed(&c->wheel->passes);
    return *passes != before;
}

/* Wait for two passes: the second one begins after this call. A clock that makes none for as long
 * as a worker is patient is not waited for. */
static wh_seldom enum wh_call wh_client_await_passes(wh_client *c, bool wait)
{
    int64_t give_up = c->waits->now() + (wait ? c->patience_ns : WH_SPIN_ROOM_NS);
    uint64_t passes = wh_load_acquire(&c->wheel->passes); /* pairs: pass */
    /* pairs: pass */
    while (c->waits->now() < give_up && /* bounded by that */
           wh_load_acquire(&c->wheel->passes) - passes < 2) {
        wh_client_ring(c);
        enum wh_call napped = wait ? wh_client_nap(c) : WH_CALL_OK;
        if (napped != WH_CALL_OK)
            return napped;
    }
    return WH_CALL_OK;
}

/* Wait for the clock's answer. *came: something came into the return ring; else there was an
 * answer, or none in time. */
static inline enum wh_call wh_client_await_answer(wh_client *c, bool *came)
{
    int64_t began = c->waits->now(), give_up = began + c->patience_ns;
    uint64_t passes = wh_load_relaxed(&c->wheel->passes);
    for (;;) {
        bool answered = wh_client_answered(c);
        if ((*came = wh_client_returns_ready(c) != 0))
            return WH_CALL_OK;
        wh_client_ring(c);
        if (answered)
            return WH_CALL_OK;
        int64_t now = c->waits->now();
        if (now > give_up) {
            if (!wh_client_goes_on(c, &passes) || now - began > WH_ROOM_SECONDS * 1000000000ll) {
                wh_client_ask(c, 0, false); /* no more */
                return WH_CALL_OK;
            }
            give_up = now + c->patience_ns;
        }
        enum wh_call napped = wh_client_nap(c);
        if (napped != WH_CALL_OK)
            return napped;
    }
}

/* A slot from those that were returned. WH_NIL: none was, or whole slabs that went back to all
 * workers. */
static inline uint32_t wh_client_returned_slot(wh_client *c)
{
    wh_client_reclaim(c);
    return wh_slabs_take(&c->slabs);
}

static inline uint32_t wh_client_claimed_slot(wh_client *c)
{
    if (!wh_client_claim(c) &&
        !(wh_quota_needs_home(&c->quota, &c->slabs, c->waits->now()) && wh_client_claim_home(c)))
        return WH_NIL;
    c->quota.held += WH_SLAB_SLOTS;
    return wh_slabs_take(&c->slabs);
}

/* How many slots to ask for when one is needed: more each time, so that asking costs little per
 * slot. */
static inline uint64_t wh_client_ask_size(wh_client *c)
{
    uint32_t share = c->capacity / (8 * c->wheel->max_workers);
    uint32_t most = share < WH_MAGAZINE ? WH_MAGAZINE : share < 4096 ? share : 4096;
    uint32_t size = c->ask_size < WH_MAGAZINE ? WH_MAGAZINE : c->ask_size;
    c->ask_size = 2 * size < most ? 2 * size : most;
    return wh_quota_cut(&c->quota, size);
}

/* There is no slot at all: ask the clock for all slots of a batch, or, if `batch` is 0, for some,
 * of which one suffices. The clock first handles all workers' submissions, and then looks for their
 * idle slots. A call that may not wait ends here, and its next try gets the slots that the clock
 * finds. */
static inline void wh_client_ask_for(wh_client *c, uint64_t batch)
{
    uint64_t n = batch ? batch : wh_client_ask_size(c);
    wh_client_ask(c, n, batch != 0);
    c->quota.held += n;
}

/* Ask the clock, and wait for its answer. */
static inline enum wh_call wh_client_await_slot(wh_client *c, uint64_t batch, uint32_t *slot)
{
    for (bool came = true; *slot == WH_NIL && came;) {
        wh_client_ask_for(c, batch);
        enum wh_call napped = wh_client_await_answer(c, &came);
        if (napped != WH_CALL_OK)
            return napped;
        wh_client_populate(c);
        /* what came may have been taken over meanwhile */
        if ((*slot = wh_client_returned_slot(c)) == WH_NIL)
            *slot = wh_client_claimed_slot(c);
    }
    return WH_CALL_OK;
}

/* Find a slot when none is ready; `batch`: how many are needed, or 0. */
static wh_seldom enum wh_call wh_client_find_slot(wh_client *c, uint64_t batch, bool wait,
                                                  uint32_t *slot)
{
    enum wh_call found;
    c->short_of = batch;
    *slot = wh_client_returned_slot(c);
    if (*slot == WH_NIL && wait && wh_client_backlogged(c)) {
        wh_client_await_backlog(c);
        *slot = wh_client_returned_slot(c);
    }
    if (*slot == WH_NIL &&
        !wh_quota_allows(&c->quota, &c->slabs, batch ? batch : 1, c->waits->now())) {
        wh_count(&c->seg->fulls, 1);
        return WH_CALL_OVER_QUOTA;
    }
    if (*slot == WH_NIL)
        *slot = wh_client_claimed_slot(c);
    if (*slot == WH_NIL && wait) {
        if ((found = wh_client_await_slot(c, batch, slot)) != WH_CALL_OK)
            return found;
        c->unanswered = !wh_client_answered(c);
        c->refused = *slot == WH_NIL && !c->unanswered;
    } else if (*slot == WH_NIL) {
        bool answered = wh_client_answered(c);
        c->unanswered = !(answered && c->refused);
        if (answered) /* else it is asked already */
            wh_client_ask_for(c, batch);
        wh_client_ring(c);
        c->refused = true;
    }
    if (*slot != WH_NIL)
        return WH_CALL_OK;
    wh_count(&c->seg->fulls, 1);
    return WH_CALL_WHEEL_FULL;
}

/* As wh_client_wait_room(), for a call that has a slot in hand, which goes back if it fails. No
 * slab is parked meanwhile. */
static wh_seldom enum wh_call wh_client_wait_room_with(wh_client *c, uint32_t slot, uint64_t n,
                                                       bool wait)
{
    c->slabs.busy++;
    enum wh_call room = wh_client_wait_room(c, n, wait);
    if (room == WH_CALL_GONE)
        return room;
    c->slabs.busy--;
    if (room != WH_CALL_OK)
        wh_slabs_give(&c->slabs, slot);
    return room;
}

#endif
