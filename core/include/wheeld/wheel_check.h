/* Wheel check: walks everything and holds the wheel against its invariants.
 *
 * Dumb on purpose: no bitmap is trusted, each is compared with the lists. Every walk is bounded by
 * the number of nodes, so a cycle is found and not followed. For tests, fsck and after recovery;
 * it costs O(buckets + linked).
 */
#ifndef WHEELD_WHEEL_CHECK_H
#define WHEELD_WHEEL_CHECK_H

#include <stdio.h>

#include "wheeld/wheel.h"

typedef struct wh_check {
    uint64_t linked;  /* nodes found in buckets */
    uint64_t minimum; /* earliest bucket that holds a node, in ticks, or UINT64_MAX */
    char message[160];
} wh_check;

#define WH_CHECK(check, holds, ...)                                                               \
    do {                                                                                          \
        if (!(holds)) {                                                                           \
            snprintf((check)->message, sizeof (check)->message, __VA_ARGS__);                     \
            return false;                                                                         \
        }                                                                                         \
    } while (0)

/* Walk one list both ways at once. */
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
    uint32_t level = bucket >> w->bits, digit = bucket & ((1u << w->bits) - 1);
    uint32_t shift = level * w->bits, mask = (1u << w->bits) - 1;
    uint64_t word = w->occupancy[level * w->words + (digit >> 6)], count;
    if (!wh_check_list(w, w->capacity, bucket, &count, c))
        return false;
    WH_CHECK(c, (word >> (digit & 63) & 1) == (count != 0),
             "bucket %u: occupancy bit %d, %llu nodes", bucket, (int)(word >> (digit & 63) & 1),
             (unsigned long long)count);
    WH_CHECK(c, (w->summary[level] >> (digit >> 6) & 1) == (word != 0),
             "level %u: summary and word %u differ", level, digit >> 6);
    c->linked += count;
    if (!count || bucket == w->draining)
        return true;
    uint32_t current = (uint32_t)(w->tick >> shift) & mask;
    WH_CHECK(c, level ? digit > current : digit >= current,
             "bucket %u of level %u is behind the current digit %u", digit, level, current);
    uint64_t prefix = shift + w->bits > 63 ? 0 : w->tick >> (shift + w->bits) << (shift + w->bits);
    uint64_t begins = prefix | (uint64_t)digit << shift;
    c->minimum = begins < c->minimum ? begins : c->minimum;
    return true;
}

/* True: the wheel holds; else check->message says what does not. */
static inline bool wh_wheel_check(const wh_wheel *w, wh_check *c)
{
    *c = (wh_check){.minimum = UINT64_MAX};
    for (uint32_t bucket = 0; bucket < w->buckets; bucket++)
        if (!wh_check_bucket(w, bucket, c))
            return false;
    WH_CHECK(c, c->linked == w->linked, "counted %llu linked, the wheel says %llu",
             (unsigned long long)c->linked, (unsigned long long)w->linked);
    wh_next next = wh_wheel_next(w);
    WH_CHECK(c, w->draining != WH_NIL || next.tick == c->minimum,
             "next bucket at tick %llu, brute force finds %llu", (unsigned long long)next.tick,
             (unsigned long long)c->minimum);
    return true;
}

#endif
