/* Batch, change: cancel or move many timers at once. The invariants are those of batch.h. */
#ifndef WHEELD_BATCH_CHANGE_H
#define WHEELD_BATCH_CHANGE_H

#include "wheeld/worker/batch.h"

/* won[i]: 1: it is never delivered. */
static inline enum wh_call wh_call_cancel_batch(wh_client *c, const uint64_t *ids, uint8_t *won,
                                                uint64_t n, bool wait)
{
    enum wh_call done = wh_batch_fits(c, n, wait);
    uint64_t cancelled = 0;
    if (done != WH_CALL_OK)
        return done;
    for (uint64_t i = 0; i < n; i++) {
        if (i + WH_BATCH_AHEAD < n && wh_id_given_slot(ids[i + WH_BATCH_AHEAD]) < c->capacity)
            wh_prefetch_write(&c->states[wh_id_given_slot(ids[i + WH_BATCH_AHEAD])]);
        if ((done = wh_client_have_room(c, 1, wait)) != WH_CALL_OK)
            break;
        won[i] = wh_client_cancel(c, ids[i]);
        cancelled += won[i];
        if (i % WH_BATCH_PUBLISH == WH_BATCH_PUBLISH - 1)
            wh_client_publish_lazily(c);
    }
    if (done == WH_CALL_GONE)
        return done;
    wh_count(&c->seg->cancelled, cancelled);
    wh_client_publish_lazily(c);
    return done;
}

/* Move row i: what wh_client_move_by() and wh_client_move_at() do, which it leaves it to if the
 * ring is full. */
wh_hot enum wh_call wh_batch_move(wh_client *c, const wh_batch *b, uint64_t i, bool wait,
                                  wh_times *times, int64_t *earliest)
{
    uint64_t id = b->ids[i];
    int64_t delay = b->delays ? wh_delay_ns(b->delays[i]) : 0;
    if (wh_unlikely(wh_id_given_slot(id) >= c->capacity))
        return WH_CALL_OVER;
    if (wh_unlikely(!wh_client_fits(c, 1))) {
        *times = (wh_times){0}; /* it may wait */
        return b->delays ? wh_client_move_by(c, id, delay, b->interval, wait, earliest)
                         : wh_client_move_at(c, id, b->deadlines[i], wait, earliest);
    }
    uint32_t kind = wh_client_kind(c, id);
    int64_t now = wh_times_of(times, c, kind);
    int64_t deadline = b->delays ? wh_time_add(now, delay) : b->deadlines[i];
    return wh_client_move_to(c, id, kind, deadline, b->interval,
                             b->delays ? delay : wh_time_sub(deadline, now), earliest);
}

/* Move all timers to `delays` from now or to `deadlines`. moved[i] is 0 if the timer has ended. */
static inline enum wh_call wh_call_reschedule_batch(wh_client *c, wh_batch *b, uint8_t *moved,
                                                    bool wait)
{
    int64_t earliest = INT64_MAX;
    wh_times times = {0};
    enum wh_call done = wh_batch_check(c, b);
    if (done != WH_CALL_OK)
        return done;
    if ((done = wh_batch_fits(c, b->n, wait)) != WH_CALL_OK)
        return done;
    for (uint64_t i = 0; i < b->n; i++) {
        b->stopped = i;
        if (i + WH_BATCH_AHEAD < b->n && wh_id_slot(b->ids[i + WH_BATCH_AHEAD]) < c->capacity)
            wh_client_prefetch(c, wh_id_slot(b->ids[i + WH_BATCH_AHEAD]));
        if ((done = wh_batch_move(c, b, i, wait, &times, &earliest)) > WH_CALL_OVER)
            break;
        moved[i] = done == WH_CALL_OK;
        if (i % WH_BATCH_PUBLISH == WH_BATCH_PUBLISH - 1)
            wh_client_publish(c, earliest);
    }
    if (done != WH_CALL_GONE)
        wh_client_publish(c, earliest);
    return done > WH_CALL_OVER ? done : WH_CALL_OK;
}

#endif
