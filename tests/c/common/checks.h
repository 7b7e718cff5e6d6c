/* Checks: what holds of any clock, worker and event, whichever world they are in. */
#ifndef COMMON_CHECKS_H
#define COMMON_CHECKS_H

#include "base.h"

#include "wheeld/loop/wheel_check.h"
#include "wheeld/worker/client.h"

/* Each node stands in the list that it names or in none; `linked` of them are in buckets. */
static inline void check_lists(wh_clock *c, uint32_t lists, uint64_t linked)
{
    wh_wheel *w = &c->wheel;
    wh_check check;
    uint64_t in_lists = linked, count;
    for (uint32_t list = w->buckets; list < lists; list++) {
        CHECK(wh_check_list(w, w->capacity, list, &count, &check), "%s", check.message);
        in_lists += count;
    }
    for (uint32_t slot = 0; slot < w->capacity; slot++)
        in_lists -= wh_slab_there(c, slot >> WH_SLAB_BITS) && w->links[slot].list != WH_NIL;
    CHECK(in_lists == 0, "%lld more nodes in lists than nodes that name one", (long long)in_lists);
}

/* A payload repeats the cookie of its timer. */
static inline void check_payload(const wh_completion *event, uint32_t most)
{
    const char *payload = (const char *)(event + 1);
    CHECK(event->payload_size <= most, "payload of %u bytes", event->payload_size);
    for (uint32_t at = 0; at < event->payload_size; at += 8)
        CHECK(memcmp(payload + at, &event->cookie, 8) == 0, "payload of %llu is another's",
              (ull)event->cookie);
}

/* Is that slot in the worker's own hands? */
static inline bool client_holds(const wh_client *c, uint32_t slot)
{
    const wh_slabs *s = &c->slabs;
    for (uint32_t i = 0; i < s->magazine_size; i++)
        if (s->magazine[i] == slot)
            return true;
    return s->free[slot >> WH_SLAB_BITS] >> (slot & (WH_SLAB_SLOTS - 1)) & 1;
}

#endif
