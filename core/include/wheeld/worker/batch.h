/* Batch: schedule many timers at once.
 *
 * Invariants
 *  1. A batch that may not wait is done completely or not at all.
 *  2. A schedule is done completely or not at all; cancels and moves are each done by themselves.
 *  3. A wait lets others at the caller's arrays: what was checked before is checked again.
 */
#ifndef WHEELD_BATCH_H
#define WHEELD_BATCH_H

#include <float.h>
#include <math.h>

#include "wheeld/worker/calls.h"

#define WH_BATCH_PUBLISH 1024 /* published in parts: the clock starts before all is written */
#define WH_BATCH_PIECE 64     /* check for room in the ring for this many at once */
#define WH_BATCH_AHEAD 12     /* how many slots ahead are prefetched */

#define WH_MOST_SECONDS 9200000000ll
/* 2**63 ns are 292 years; later deadlines are set to that. */
static inline int64_t wh_delay_ns(double seconds)
{
    return seconds < (double)WH_MOST_SECONDS ? (int64_t)(seconds * 1e9) : INT64_MAX;
}

/* Timers to arm or to move, one per row; `n` in every array. Other fields are those of the
 * request. */
typedef struct wh_batch {
    uint64_t n;
    uint64_t *ids; /* out; holds the claimed slots meanwhile. For a move: in, never written */
    const double *delays; /* s from now; or NULL: */
    const int64_t *deadlines; /* ns, on the clock of the request, or of the timer that is moved */
    int64_t interval; /* of a move by delays: the new period of all; 0: each as it is */
    const uint64_t *cookies; /* or NULL */
    const char *payloads; /* all in a row, or NULL */
    uint64_t width; /* of each payload; or: */
    const int64_t *offsets; /* n + 1 offsets in `bytes`: where each begins, and the last one ends */
    int64_t bytes;
    uint64_t stopped; /* the row that was refused */
} wh_batch;

/* The payload of row i. */
static inline enum wh_call wh_batch_payload(const wh_client *c, const wh_batch *b, uint64_t i,
                                            wh_request *r)
{
    int64_t from = b->offsets[i], to = b->offsets[i + 1];
    if (from < 0 || to < from || to > b->bytes)
        return WH_CALL_BAD_OFFSETS;
    if ((uint64_t)(to - from) > wh_client_most_payload(c))
        return WH_CALL_LONG_PAYLOAD;
    r->payload = b->payloads + from;
    r->payload_size = (uint32_t)(to - from);
    return WH_CALL_OK;
}

static inline enum wh_call wh_batch_check_row(const wh_client *c, const wh_batch *b, uint64_t i)
{
    wh_request unused;
    if (b->delays ? !(b->delays[i] >= 0) || isinf(b->delays[i]) : b->deadlines[i] < 0)
        return WH_CALL_BAD_DELAY;
    return b->offsets ? wh_batch_payload(c, b, i, &unused) : WH_CALL_OK;
}

/* Is each delay a number that is neither negative nor infinite? Without a branch per row, so that
 * the compiler can compare several at once. */
wh_hot bool wh_batch_delays_good(const double *delays, uint64_t n)
{
    uint64_t good = 0;
    for (uint64_t i = 0; i < n; i++)
        good += delays[i] >= 0 && delays[i] <= DBL_MAX; /* neither, if it is no number */
    return good == n;
}

/* Check that each row can be done; nothing is done yet. */
static inline enum wh_call wh_batch_check(const wh_client *c, wh_batch *b)
{
    if (wh_likely(b->delays && !b->offsets && wh_batch_delays_good(b->delays, b->n)))
        return WH_CALL_OK;
    for (uint64_t i = 0; i < b->n; i++) {
        enum wh_call checked = wh_batch_check_row(c, b, i);
        if (wh_unlikely(checked != WH_CALL_OK)) {
            b->stopped = i;
            return checked;
        }
    }
    return WH_CALL_OK;
}

/* Does the ring have room for a whole batch that may not wait? */
static inline enum wh_call wh_batch_fits(wh_client *c, uint64_t n, bool wait)
{
    return wait ? WH_CALL_OK : wh_client_have_room(c, n, false);
}

/* -- schedule ---------------------------------------------------------------------------------- */

static inline void wh_batch_give(wh_client *c, const uint64_t *slots, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        wh_slabs_give(&c->slabs, (uint32_t)slots[i]);
}

/* Claim `n` slots, or none. */
static inline enum wh_call wh_batch_claim(wh_client *c, uint64_t *slots, uint64_t n, bool wait)
{
    for (uint64_t i = 0;;) {
        uint32_t slot;
        i += wh_slabs_take_many(&c->slabs, slots + i, n - i);
        if (i == n)
            return WH_CALL_OK;
        enum wh_call found = wh_client_find_slot(c, n - i, wait, &slot);
        if (found != WH_CALL_OK) {
            if (found != WH_CALL_GONE)
                wh_batch_give(c, slots, i);
            return found;
        }
        slots[i++] = slot;
    }
}

/* The bytes of the payload of the row that was refused. */
static inline uint32_t wh_batch_size(const wh_batch *b)
{
    return (uint32_t)(b->offsets ? b->offsets[b->stopped + 1] - b->offsets[b->stopped]
                                 : (int64_t)b->width);
}

/* Arm the rows from b->stopped to `end`, for which the ring has room, or to the first one that
 * cannot be. `now`: on the request's clock, `base` on the base clock. Values that all rows share
 * stay in registers: nothing here keeps the address of `r`. */
wh_hot enum wh_call wh_batch_arm_some(wh_client *c, wh_batch *b, wh_request r, int64_t now,
                                      int64_t base, uint64_t end, bool at, int64_t *earliest)
{
    const wh_batch rows = *b; /* in registers: nothing that is stored here can change it */
    uint64_t *ids = b->ids, i = b->stopped, began = i;
    enum wh_call armed = WH_CALL_OK;
    int64_t first = *earliest;
    for (; i < end; i++) {
        uint64_t id = ids[i];
        if (i + WH_BATCH_AHEAD < rows.n)
            wh_client_prefetch(c, (uint32_t)ids[i + WH_BATCH_AHEAD]);
        if (wh_unlikely(rows.offsets != NULL)) {
            wh_request one;
            if ((armed = wh_batch_payload(c, &rows, i, &one)) != WH_CALL_OK)
                break;
            r.payload = one.payload;
            r.payload_size = one.payload_size;
        } else if (rows.payloads) {
            r.payload = rows.payloads + i * rows.width;
            r.payload_size = (uint32_t)rows.width;
        }
        if (wh_client_is_heavy(c, &r)) {
            wh_request heavy = r;
            if (!wh_client_place_payload(c, (uint32_t)id, &heavy)) {
                armed = WH_CALL_HEAP_FULL;
                break;
            }
            r.payload = heavy.payload;
            r.payload_size = heavy.payload_size;
        }
        r.deadline = at ? rows.deadlines[i] : wh_time_add(now, wh_delay_ns(rows.delays[i]));
        if (rows.cookies)
            r.cookie = rows.cookies[i];
        ids[i] = id = wh_client_arm(c, (uint32_t)id, &r);
        wh_client_push(c, id);
        int64_t due = at ? wh_time_add(base, wh_time_sub(r.deadline, now)) : r.deadline;
        first = due < first ? due : first;
    }
    wh_count(&c->seg->scheduled, i - began);
    b->stopped = i;
    *earliest = first;
    return armed;
}

/* Arm all rows, or only b->stopped of them if something prevents the rest. */
wh_hot enum wh_call wh_batch_arm(wh_client *c, wh_batch *b, wh_request r, bool wait, bool at)
{
    uint32_t kind = wh_flags_clock(r.flags);
    int64_t earliest = INT64_MAX, now = wh_client_now_of(c, kind);
    int64_t base = kind == WH_CLOCK_BASE ? now : wh_client_now(c);
    wh_request_made(&r, now);
    enum wh_call armed = WH_CALL_OK;
    for (b->stopped = 0; armed == WH_CALL_OK && b->stopped < b->n;) {
        uint64_t rest = b->n - b->stopped, piece = rest < WH_BATCH_PIECE ? rest : WH_BATCH_PIECE;
        uint64_t end = b->stopped + piece;
        armed = wh_client_have_room(c, piece, wait);
        if (armed == WH_CALL_GONE)
            return armed;
        if (armed == WH_CALL_OK)
            armed = wh_batch_arm_some(c, b, r, now, base, end, at, &earliest);
        if (wh_unlikely(armed == WH_CALL_HEAP_FULL)) {
            wh_client_publish(c, earliest);
            if ((armed = wh_client_more_heap(c, wh_batch_size(b), wait)) == WH_CALL_GONE)
                return armed;
        }
        if (end % WH_BATCH_PUBLISH == 0)
            wh_client_publish(c, earliest);
    }
    wh_client_publish(c, earliest);
    return armed;
}

/* Undo a batch: cancel what is armed, give back the other slots. */
static wh_seldom void wh_batch_undo(wh_client *c, const wh_batch *b)
{
    int64_t give_up = c->waits->now() + WH_UNDO_NS;
    for (uint64_t i = 0; i < b->stopped; i++)
        wh_client_take_back(c, b->ids[i], give_up);
    wh_client_publish_lazily(c);
    wh_batch_give(c, b->ids + b->stopped, b->n - b->stopped);
}

/* Schedule all rows or none. Meanwhile none of its slabs is parked. */
static inline enum wh_call wh_call_schedule_batch(wh_client *c, wh_batch *b, const wh_request *r,
                                                  bool wait)
{
    enum wh_call done = wh_batch_check(c, b);
    if (done != WH_CALL_OK || (done = wh_batch_fits(c, b->n, wait)) != WH_CALL_OK)
        return done;
    c->slabs.busy++;
    if ((done = wh_batch_claim(c, b->ids, b->n, wait)) == WH_CALL_OK) {
        done =
            b->deadlines ? wh_batch_arm(c, b, *r, wait, true) : wh_batch_arm(c, b, *r, wait, false);
        if (done != WH_CALL_OK && done != WH_CALL_GONE)
            wh_batch_undo(c, b);
    }
    if (done == WH_CALL_GONE)
        return done;
    c->slabs.busy--;
    wh_slabs_park(&c->slabs);
    return done;
}

#endif
