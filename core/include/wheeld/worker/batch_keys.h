/* Batch, keys: schedule many timers under keys at once, or cancel many by key.
 *
 * A schedule looks at all keys first, and takes slots for all before it arms one. It arms those
 * whose keys are free, and then does what the conflict says with the others.
 *
 * Invariants
 *  1. With WH_KEY_RAISE a key that has a pending timer at the look stops the batch before anything
 *     is done.
 *  2. If a batch fails, it cancels the timers that it has armed under free keys. A timer that has
 *     replaced another one stays: its key has just that one.
 *  3. The other invariants are those of batch.h.
 */
#ifndef WHEELD_BATCH_KEYS_H
#define WHEELD_BATCH_KEYS_H

#include "wheeld/worker/batch_change.h"
#include "wheeld/worker/keys.h"

#define WH_KEYS_AHEAD 6 /* how many keys ahead the places are prefetched */

/* NEW: it is free, and has no place. */
enum wh_key_row_state { WH_ROW_KEY_FREE, WH_ROW_KEY_NEW, WH_ROW_KEY_TAKEN, WH_ROW_KEY_CLAIMED };

/* The keys of a batch, a row each. */
typedef struct wh_key_rows {
    wh_key *keys;
    uint8_t *states; /* wh_key_row_state; written */
    uint64_t n;
    enum wh_conflict conflict;
} wh_key_rows;

/* Hash the keys for this wheel. */
static inline void wh_keys_hash(const wh_client *c, wh_key_rows *rows)
{
    for (uint64_t i = 0; i < rows->n; i++)
        rows->keys[i] = wh_key_of(rows->keys[i].bytes, rows->keys[i].size, c->wheel->head.token);
}

/* Have the places of a later key fetched. */
static inline void wh_keys_ahead(const wh_keys *k, const wh_key_rows *rows, uint64_t i)
{
    if (i + WH_KEYS_AHEAD < rows->n)
        wh_words_prefetch(k, &rows->keys[i + WH_KEYS_AHEAD].word);
}

/* Which keys have pending timers? *stopped: the row at which it ends; *free: how many have none. */
static inline enum wh_call wh_keys_look(wh_keys *k, wh_key_rows *rows, uint64_t *stopped,
                                        uint64_t *id, uint64_t *free_keys)
{
    *free_keys = 0;
    for (uint64_t i = 0; i < rows->n; i++) {
        *stopped = i;
        if (!wh_words_there(k, &rows->keys[i].word))
            return WH_CALL_KEYS_FULL;
        uint64_t last;
        wh_keys_ahead(k, rows, i);
        *id = wh_key_look(k, &rows->keys[i], true, &last);
        if (*id && rows->conflict == WH_KEY_RAISE)
            return WH_CALL_TAKEN;
        rows->states[i] = *id ? WH_ROW_KEY_TAKEN : last ? WH_ROW_KEY_FREE : WH_ROW_KEY_NEW;
        *free_keys += *id == 0;
    }
    return WH_CALL_OK;
}

/* Make the request of row i. */
static inline enum wh_call wh_key_row_request(const wh_client *c, const wh_batch *b, uint64_t i,
                                              int64_t now, wh_request *r)
{
    r->deadline = b->delays ? wh_time_add(now, wh_delay_ns(b->delays[i])) : b->deadlines[i];
    if (b->cookies)
        r->cookie = b->cookies[i];
    if (b->offsets)
        return wh_batch_payload(c, b, i, r);
    if (b->payloads) {
        r->payload = b->payloads + i * b->width;
        r->payload_size = (uint32_t)b->width;
    }
    return WH_CALL_OK;
}

/* Schedule the rows whose keys were taken at the look, or those that were not. The ids go to
 * b->ids. */
static inline enum wh_call wh_keys_arm(wh_client *c, wh_keys *k, wh_batch *b, wh_key_rows *rows,
                                       bool taken, wh_request r, bool wait, int64_t *earliest)
{
    int64_t now = wh_client_now_of(c, wh_flags_clock(r.flags));
    wh_request_made(&r, now);
    r.flags |= WH_KEYED;
    for (uint64_t i = 0; i < b->n; i++) {
        uint8_t state = rows->states[i];
        if (state == WH_ROW_KEY_CLAIMED || taken != (state == WH_ROW_KEY_TAKEN))
            continue;
        b->stopped = i;
        wh_keys_ahead(k, rows, i);
        enum wh_call call = wh_key_row_request(c, b, i, now, &r);
        if (call == WH_CALL_OK)
            call = wh_key_schedule(c, k, &rows->keys[i],
                                   taken                     ? WH_KEY_UNSEEN
                                   : state == WH_ROW_KEY_NEW ? WH_KEY_ABSENT
                                                             : WH_KEY_ENDED,
                                   &r, wh_time_sub(r.deadline, now), rows->conflict, wait,
                                   &b->ids[i], earliest);
        if (call == WH_CALL_OK && !taken)
            rows->states[i] = WH_ROW_KEY_CLAIMED;
        else if (call != WH_CALL_OK && (call != WH_CALL_TAKEN || rows->conflict == WH_KEY_RAISE))
            return call;
        if (i % WH_BATCH_PUBLISH == WH_BATCH_PUBLISH - 1)
            wh_client_publish(c, *earliest);
    }
    return WH_CALL_OK;
}

static wh_seldom void wh_keys_undo(wh_client *c, const wh_batch *b, const wh_key_rows *rows)
{
    int64_t give_up = c->waits->now() + WH_UNDO_NS;
    for (uint64_t i = 0; i < b->n; i++)
        if (rows->states[i] == WH_ROW_KEY_CLAIMED)
            wh_client_take_back(c, b->ids[i], give_up);
    wh_client_publish_lazily(c);
}

/* Have that many slots at hand. `ids`: room for as many. */
static inline enum wh_call wh_keys_take_slots(wh_client *c, uint64_t *ids, uint64_t n, bool wait)
{
    enum wh_call claimed = wh_batch_claim(c, ids, n, wait);
    if (claimed == WH_CALL_OK)
        wh_batch_give(c, ids, n);
    return claimed;
}

/* Schedule all rows under their keys. WH_CALL_TAKEN: row b->stopped has a pending timer, *id. */
static inline enum wh_call wh_call_schedule_keys(wh_client *c, wh_keys *k, wh_batch *b,
                                                 wh_key_rows *rows, const wh_request *r, bool wait,
                                                 uint64_t *id)
{
    int64_t earliest = INT64_MAX;
    uint64_t free_keys, each = rows->conflict == WH_KEY_REPLACE ? 2 : 1;
    enum wh_call done = wh_batch_check(c, b);
    if (done != WH_CALL_OK || (done = wh_batch_fits(c, each * b->n, wait)) != WH_CALL_OK)
        return done;
    wh_keys_hash(c, rows);
    if ((done = wh_keys_look(k, rows, &b->stopped, id, &free_keys)) != WH_CALL_OK)
        return done;
    uint64_t fresh = each == 2 ? b->n : free_keys;
    if (wh_unlikely(r->flags & WH_DETACHED) &&
        (done = wh_client_detached_room(c, fresh, wait)) != WH_CALL_OK)
        return done;
    c->slabs.busy++;
    done = wh_keys_take_slots(c, b->ids, fresh, wait);
    if (done == WH_CALL_OK)
        done = wh_keys_arm(c, k, b, rows, false, *r, wait, &earliest);
    if (done == WH_CALL_OK && free_keys < b->n)
        done = wh_keys_arm(c, k, b, rows, true, *r, wait, &earliest);
    if (done == WH_CALL_GONE)
        return done;
    if (earliest != INT64_MAX)
        wh_client_publish(c, earliest);
    else
        wh_client_publish_lazily(c);
    if (done != WH_CALL_OK) {
        *id = b->ids[b->stopped];
        wh_keys_undo(c, b, rows);
    }
    c->slabs.busy--;
    wh_slabs_park(&c->slabs);
    return done;
}

/* won[i]: 1: the timer of key i is never delivered; its id goes to ids[i]. */
static inline enum wh_call wh_call_cancel_keys(wh_client *c, wh_keys *k, wh_key_rows *rows,
                                               uint64_t *ids, uint8_t *won, bool wait,
                                               uint64_t *stopped)
{
    enum wh_call done = wh_batch_fits(c, rows->n, wait);
    if (done != WH_CALL_OK)
        return done;
    wh_keys_hash(c, rows);
    for (*stopped = 0; *stopped < rows->n; ++*stopped)
        if (!wh_words_there(k, &rows->keys[*stopped].word))
            return WH_CALL_KEYS_FULL;
    for (uint64_t i = 0; i < rows->n; i++) {
        wh_keys_ahead(k, rows, i);
        done = wh_call_cancel_key(c, k, &rows->keys[i], wait, &ids[i]);
        if (done > WH_CALL_OVER)
            return done;
        won[i] = done == WH_CALL_OK;
    }
    return WH_CALL_OK;
}

#endif
