/* Wheel check: walks everything and holds the wheel against its invariants.
 *
 * Dumb on purpose: no bitmap is trusted, each is compared with the lists. Every walk is bounded by
 * the number of nodes, so a cycle is found and not followed. For tests; it costs
 * O(buckets + linked).
 */
#ifndef WHEELD_WHEEL_CHECK_H
#define WHEELD_WHEEL_CHECK_H

#include <stdio.h>

#include "wheeld/shared/wheel.h"

typedef struct wh_check {
    uint64_t linked;  /* nodes found in buckets */
    uint64_t in_shard; /* of those, in the shard in hand */
    uint64_t minimum; /* earliest bucket of that shard that holds a node, in ticks, or UINT64_MAX */
    char message[160];
} wh_check;

#define WH_CHECK(check, holds, ...)                                                                \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            snprintf((check)->message, sizeof(check)->message, __VA_ARGS__);                       \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

/* Walk one list in both directions at once. */
static inline bool wh_check_list(const wh_wheel *w, uint32_t nodes, uint32_t list, uint64_t *count,
                                 wh_check *c)
{
    uint32_t s = wh_sentinel(w, list), prev = s, node = w->links[s].next;
    for (*count = 0; node != s; (*count)++) {
        WH_CHECK(c, node < w->capacity, "list %u: node %u is no slot", list, node);
        WH_CHECK(c, w->links[node].list == list, "node %u says list %u, is in %u", node,
                 w->links[node].list, list);
        WH_CHECK(c, w->links[node].prev == prev, "node %u: prev %u, came from %u", node,
                 w->links[node].prev, prev);
        WH_CHECK(c, *count < nodes, "list %u: cycle", list);
        prev = node;
        node = w->links[node].next;
    }
    WH_CHECK(c, w->links[s].prev == prev, "list %u: last is %u, sentinel says %u", list, prev,
             w->links[s].prev);
    return true;
}

static inline bool wh_check_bucket(const wh_wheel *w, uint32_t bucket, wh_check *c)
{
    uint32_t mask = (1u << w->bits) - 1, levels = (1u << (w->shard_bits - w->bits)) - 1;
    uint32_t row = bucket >> w->bits, level = row & levels, digit = bucket & mask;
    uint32_t shift = level * w->bits;
    const wh_shard *shard = &w->shards[bucket >> w->shard_bits];
    uint64_t word = w->occupancy[row * w->words + (digit >> 6)], count;
    if (!wh_check_list(w, w->capacity, bucket, &count, c))
        return false;
    WH_CHECK(c, (word >> (digit & 63) & 1) == (count != 0),
             "bucket %u: occupancy bit %d, %llu nodes", bucket, (int)(word >> (digit & 63) & 1),
             (unsigned long long)count);
    WH_CHECK(c, (w->summary[row] >> (digit >> 6) & 1) == (word != 0),
             "level %u: summary and word %u differ", level, digit >> 6);
    c->linked += count;
    c->in_shard += count;
    if (!count || bucket == shard->draining)
        return true;
    WH_CHECK(c, level < w->levels, "bucket %u: a level of no time", bucket);
    uint32_t current = (uint32_t)(shard->tick >> shift) & mask;
    WH_CHECK(c, level ? digit > current : digit >= current,
             "bucket %u of level %u is behind the current digit %u", digit, level, current);
    uint32_t above = shift + w->bits;
    uint64_t prefix = above > 63 ? 0 : shard->tick >> above << above;
    uint64_t begins = prefix | (uint64_t)digit << shift;
    c->minimum = begins < c->minimum ? begins : c->minimum;
    return true;
}

static inline bool wh_check_shard(const wh_wheel *w, uint32_t shard, wh_check *c)
{
    const wh_shard *l = &w->shards[shard];
    uint32_t first = shard << w->shard_bits;
    c->in_shard = 0;
    c->minimum = UINT64_MAX;
    for (uint32_t bucket = 0; bucket >> w->shard_bits == 0; bucket++)
        if (!wh_check_bucket(w, first | bucket, c))
            return false;
    WH_CHECK(c, c->in_shard == l->linked, "shard %u: counted %llu linked, it says %llu", shard,
             (unsigned long long)c->in_shard, (unsigned long long)l->linked);
    WH_CHECK(c, l->linked == 0 || shard < w->shards_used, "shard %u is used and not looked at",
             shard);
    WH_CHECK(c, l->tick <= w->tick, "shard %u is at %llu, ahead of the wheel at %llu", shard,
             (unsigned long long)l->tick, (unsigned long long)w->tick);
    wh_next next = wh_shard_next(w, shard);
    WH_CHECK(c, l->draining != WH_NIL || next.tick == c->minimum,
             "shard %u: next bucket at tick %llu, brute force finds %llu", shard,
             (unsigned long long)next.tick, (unsigned long long)c->minimum);
    WH_CHECK(c, l->linked == 0 || wh_wheel_next(w).tick <= next.tick,
             "shard %u is due before what comes next", shard);
    return true;
}

/* True: the wheel is consistent; else check->message says what is wrong. */
static inline wh_cold bool wh_wheel_check(const wh_wheel *w, wh_check *c)
{
    *c = (wh_check){0};
    for (uint32_t shard = 0; shard < w->shard_count; shard++)
        if (!wh_check_shard(w, shard, c))
            return false;
    WH_CHECK(c, c->linked == wh_wheel_linked(w), "counted %llu linked, the shards say %llu",
             (unsigned long long)c->linked, (unsigned long long)wh_wheel_linked(w));
    return true;
}

#endif
