/* Records: what an armed timer is, read by any worker while others may change or end it.
 *
 * Idea. The state word tells whether the fields were those of one timer at one moment: it is read
 * before them and once more behind them. A record that does not stand is read again, or its timer
 * has ended. A timer that has fired and keeps its key until the acknowledgement has a record, too.
 */
#ifndef WHEELD_RECORDS_H
#define WHEELD_RECORDS_H

#include "wheeld/worker/keys.h"

typedef struct wh_timer_record {
    uint64_t id, state;
    int64_t deadline, interval; /* on its clock, ns; 0: one-shot */
    uint64_t cookie;
    uint64_t owner; /* its word, or WH_SPLIT: `row` holds the slot */
    uint32_t row;
    uint32_t clock, target;
    uint32_t payload_size, block; /* block: of the heap, or WH_NIL */
    uint32_t key_size; /* 0: it has no key, or that was not wanted; encoded, none is empty */
    char key[WH_LONG_KEY];
} wh_timer_record;

static inline void wh_record_owner(const wh_client *c, wh_timer_record *r, uint32_t slot)
{
    r->owner =
        wh_owner_name(wh_load_acquire(&c->slabs.owners[slot >> WH_SLAB_BITS])); /* pairs: slab */
    r->row = r->owner == WH_SPLIT ? wh_holder_row(wh_load_relaxed(&c->slabs.holders[slot]))
                                  : wh_owner_row(r->owner);
}

static inline void wh_record_key(wh_keys *k, wh_timer_record *r, uint32_t slot)
{
    const char *bytes = wh_key_in(k, slot, &r->key_size);
    if (bytes)
        memcpy(r->key, bytes, r->key_size);
}

/* Read all but the payload, and the key if it is wanted. False: the timer has ended. */
static inline bool wh_record_read(const wh_client *c, wh_keys *k, uint64_t id, bool key,
                                  wh_timer_record *r)
{
    uint64_t slot = wh_id_given_slot(id);
    if (slot >= c->capacity)
        return false;
    wh_slot *s = &c->slots[slot];
    r->id = id;
    r->state = wh_load_acquire(&c->states[slot]); /* pairs: arm, extend */
    if (wh_state_gen(r->state) != wh_id_gen(id) ||
        (wh_state_phase(r->state) != WH_ARMED && !wh_slot_has_key(&c->states[slot], s, id)))
        return false;
    r->deadline = wh_load_acquire(&s->deadline); /* pairs: extend */
    r->interval = wh_interval_ns(wh_load_relaxed(&s->interval));
    r->cookie = wh_load_relaxed(&s->cookie);
    r->target = wh_load_relaxed(&s->target);
    uint32_t size = wh_load_relaxed(&s->payload_size), flags = wh_load_relaxed(&s->flags);
    r->block = WH_NIL;
    if (size == WH_IN_HEAP) {
        r->block = wh_load_relaxed(&c->heap.blocks[slot].block);
        size = wh_heap_size(&c->heap, r->block, id);
    }
    uint32_t most = r->block == WH_NIL ? c->payload_bytes : c->max_payload;
    r->payload_size = size <= most ? size : 0; /* others have overwritten it */
    r->clock = wh_client_kind(c, id);
    wh_record_owner(c, r, (uint32_t)slot);
    if (flags & WH_DETACHED)
        r->row = WH_NIL; /* the wheel's */
    r->key_size = 0;
    if (key && flags & WH_KEYED)
        wh_record_key(k, r, (uint32_t)slot);
    return true;
}

/* Copy the payload to `to`, which has room for payload_size bytes. False: it is gone. */
static inline bool wh_record_payload(const wh_client *c, const wh_timer_record *r, char *to)
{
    uint64_t at = (uint64_t)wh_id_slot(r->id) * c->payload_bytes;
    if (r->block != WH_NIL)
        return r->payload_size == 0 || wh_heap_read(&c->heap, r->block, r->id, to, r->payload_size);
    if (r->payload_size)
        wh_payload_read(to, c->payloads + at, r->payload_size);
    return true;
}

/* Was all that was read of one timer at one moment? */
static inline bool wh_record_stands(const wh_client *c, const wh_timer_record *r)
{
    return wh_load_acquire(&c->states[wh_id_slot(r->id)]) == r->state; /* pairs: payload, extend */
}

#endif
