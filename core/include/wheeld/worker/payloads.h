/* Payloads: those without room beside their slot, into the heap (heap.h) and out of it.
 *
 * When the heap has no block, the clock is asked for more memory, as for slots (room.h). A call
 * that waits for the answer holds no slot, or is busy.
 *
 * A payload is copied when its event is received, and freed when the worker's head has passed the
 * record: a worker that dies before that leaves the event with its payload. The slot of an own
 * timer is given back after that, so that what such a worker leaves is found from its slots.
 */
#ifndef WHEELD_PAYLOADS_H
#define WHEELD_PAYLOADS_H

#include "wheeld/worker/room.h"

/* -- into the heap ----------------------------------------------------------------------------- */

/* Has a payload to go there? */
static inline bool wh_client_is_heavy(const wh_client *c, const wh_request *r)
{
    return wh_unlikely(r->payload_size > c->payload_bytes);
}

/* The most bytes that a payload can have. */
static inline uint32_t wh_client_most_payload(const wh_client *c)
{
    return c->payload_bytes > c->max_payload ? c->payload_bytes : c->max_payload;
}

static inline uint32_t wh_client_heap_backed(const wh_client *c)
{
    uint32_t backed = wh_load_acquire(c->heap.backed); /* pairs: heap-backed */
    return backed < c->heap.count ? backed : c->heap.count;
}

/* Ask the clock for the memory of some chunks more. Returns the number of the ask. */
static inline uint32_t wh_client_ask_heap(wh_client *c, uint32_t chunks)
{
    uint64_t asked = wh_load_seq(c->heap_asked), mine; /* pairs: heap-asked */
    uint32_t most = c->heap.count, wanted = wh_client_heap_backed(c) + chunks;
    wanted = wanted < most ? wanted : most;
    do {
        uint32_t others = wh_ask_size(asked) < most ? wh_ask_size(asked) : most;
        mine = wh_ask_word(wh_ask_count(asked) + 1, false, wanted > others ? wanted : others);
    } while (!wh_cas_seq(c->heap_asked, &asked, mine)); /* pairs: heap-asked */
    return (uint32_t)wh_ask_count(mine);
}

static inline bool wh_client_heap_answered(const wh_client *c, uint32_t ask)
{
    uint64_t answered = wh_load_acquire(&c->wheel->heap_answered); /* pairs: heap-asked */
    return (int32_t)((uint32_t)wh_ask_count(answered) - ask) >= 0;
}

/* There was no block for a payload of `size` bytes: wait for more memory. WH_CALL_OK: there is
 * some; try again. */
static wh_seldom enum wh_call wh_client_more_heap(wh_client *c, uint32_t size, bool wait)
{
    uint32_t before = wh_client_heap_backed(c);
    int64_t began = c->waits->now();
    uint64_t passes = wh_load_relaxed(&c->wheel->passes);
    wh_count(&c->seg->fulls, 1);
    c->unanswered = false;
    if (before == c->heap.count)
        return WH_CALL_HEAP_FULL;
    uint32_t ask = wh_client_ask_heap(c, size / WH_CHUNK_DATA + 1);
    int64_t give_up = began + c->patience_ns;
    for (bool answered = false; wh_client_heap_backed(c) == before;) {
        if (answered)
            return WH_CALL_HEAP_FULL;
        wh_client_ring(c);
        int64_t now = c->waits->now();
        if ((answered = wh_client_heap_answered(c, ask)) || now - began < WH_SPIN_ROOM_NS)
            continue;
        if (!wait || (now > give_up && !wh_client_goes_on(c, &passes)) ||
            now - began > WH_ROOM_SECONDS * 1000000000ll) {
            c->unanswered = true;
            return WH_CALL_HEAP_FULL;
        }
        give_up = now > give_up ? now + c->patience_ns : give_up;
        enum wh_call napped = wh_client_nap(c);
        if (napped != WH_CALL_OK)
            return napped;
    }
    return WH_CALL_OK;
}

/* Write the payload of the timer that is armed next in a slot that this worker holds. False: the
 * heap has no room. */
static wh_seldom bool wh_client_write_payload(wh_client *c, uint32_t slot, const wh_request *r)
{
    return wh_heap_write(&c->heap, wh_id(wh_client_next_gen(c, slot), slot), r->payload,
                         r->payload_size);
}

/* The same for a request that goes on without it; nothing, if its payload needs no heap. */
static inline bool wh_client_place_payload(wh_client *c, uint32_t slot, wh_request *r)
{
    if (!wh_client_is_heavy(c, r))
        return true;
    if (!wh_client_write_payload(c, slot, r))
        return false;
    r->payload = NULL;
    r->payload_size = WH_IN_HEAP;
    return true;
}

/* The timer is not armed after all. */
static inline void wh_client_drop_payload(wh_client *c, uint32_t slot, const wh_request *r)
{
    if (wh_unlikely(r->payload_size == WH_IN_HEAP))
        wh_heap_clear(&c->heap, slot);
}

#endif
