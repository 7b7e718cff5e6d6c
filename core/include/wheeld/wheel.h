/* Wheel: a hierarchical timing wheel as index-linked lists, with bitmaps in place of ticking.
 *
 * Idea. Level k has 2**bits buckets of 2**(bits*k) ticks each. A timer is at the level of the
 * highest digit (base 2**bits) in which its due tick and the current tick differ, in the bucket of
 * that digit. One bit per bucket, one summary word per level: the next non-empty bucket is two
 * counts of trailing zeros, and empty time is jumped over however long it was. When the bucket of
 * an upper level is reached, its timers cascade: they are placed again and land lower.
 *
 *     bits 6, tick 1 ms   level 0    1      2     3        4      5     ...  10
 *     granularity               1ms  64ms   4.1s  4m22s    4.7h   12d        36,000 years
 *
 * Given up: order within one tick is by arrival at the bucket, not by deadline.
 * Source: Varghese and Lauck, Hashed and Hierarchical Timing Wheels, IEEE/ACM ToN 5(6), 1997.
 *
 * Invariants (wh_wheel_check looks at all of them, by walking everything)
 *  1. Levels cover all of a non-negative int64 in ticks, so no due time is out of range.
 *  2. An occupied bucket's digit is above the current tick's digit at its level; at level 0 it may
 *     be equal: those are due in the next pass. The one bucket that is being emptied is exempt.
 *  3. An occupancy bit is set if and only if its bucket's list is not empty; a summary bit if and
 *     only if its occupancy word is not zero.
 *  4. A node is in exactly the list that its `list` names, or in none (WH_NIL).
 *  5. One process writes all this: the clock. Clients map it read-only.
 */
#ifndef WHEELD_WHEEL_H
#define WHEELD_WHEEL_H

#include "wheeld/layout.h"

typedef struct wh_wheel {
    wh_link *links; /* capacity slots, then one sentinel per list */
    uint64_t *summary;
    uint64_t *occupancy;
    uint64_t tick; /* current tick */
    uint64_t linked;
    int64_t tick_ns;
    uint32_t capacity;
    uint32_t bits, levels, words; /* words of occupancy per level */
    uint32_t buckets;
    uint32_t draining; /* bucket of an upper level that is being emptied, or WH_NIL */
    uint8_t level_of[64];
} wh_wheel;

static inline uint32_t wh_levels_for(uint32_t bits) { return (63 + bits - 1) / bits; }
static inline uint32_t wh_words_for(uint32_t bits) { return bits > 6 ? 1u << (bits - 6) : 1; }

static inline void wh_wheel_bind(wh_wheel *w, wh_link *links, uint64_t *summary,
                                 uint64_t *occupancy, uint32_t capacity, uint32_t bits,
                                 int64_t tick_ns)
{
    *w = (wh_wheel){.links = links, .summary = summary, .occupancy = occupancy,
                    .tick_ns = tick_ns, .capacity = capacity, .bits = bits,
                    .levels = wh_levels_for(bits), .words = wh_words_for(bits),
                    .draining = WH_NIL};
    w->buckets = w->levels << bits;
    for (uint32_t bit = 0; bit < 64; bit++)
        w->level_of[bit] = (uint8_t)(bit / bits);
}

/* -- lists: circular, each through its sentinel ------------------------------------------- */

static inline uint32_t wh_sentinel(const wh_wheel *w, uint32_t list) { return w->capacity + list; }

static inline void wh_list_reset(wh_wheel *w, uint32_t list)
{
    uint32_t s = wh_sentinel(w, list);
    w->links[s].next = w->links[s].prev = s;
    w->links[s].list = list;
}

/* First node of the list, or WH_NIL. */
static inline uint32_t wh_list_first(const wh_wheel *w, uint32_t list)
{
    uint32_t s = wh_sentinel(w, list), n = w->links[s].next;
    return n == s ? WH_NIL : n;
}

static inline void wh_list_append(wh_wheel *w, uint32_t list, uint32_t node)
{
    uint32_t s = wh_sentinel(w, list), last = w->links[s].prev;
    w->links[node].next = s;
    w->links[node].prev = last;
    w->links[node].list = list;
    w->links[last].next = node;
    w->links[s].prev = node;
}

/* -- place and take ------------------------------------------------------------------------ */

static inline uint64_t wh_due_tick(const wh_wheel *w, int64_t due_ns)
{
    return due_ns <= 0 ? 0 : (uint64_t)(due_ns - 1) / (uint64_t)w->tick_ns + 1;
}

static inline uint32_t wh_bucket_for(const wh_wheel *w, uint64_t due_tick)
{
    uint64_t differ = due_tick ^ w->tick;
    uint32_t level = differ ? w->level_of[63 - __builtin_clzll(differ)] : 0;
    uint32_t digit = (uint32_t)(due_tick >> (level * w->bits)) & ((1u << w->bits) - 1);
    return level << w->bits | digit;
}

/* Link `node` for `due_ns`; what is due by `now_ns` goes to the next pass. */
static inline void wh_wheel_add(wh_wheel *w, uint32_t node, int64_t due_ns, int64_t now_ns)
{
    uint64_t due = due_ns <= now_ns ? w->tick : wh_due_tick(w, due_ns);
    uint32_t bucket = wh_bucket_for(w, due < w->tick ? w->tick : due);
    uint32_t level = bucket >> w->bits, digit = bucket & ((1u << w->bits) - 1);
    wh_list_append(w, bucket, node);
    w->occupancy[level * w->words + (digit >> 6)] |= 1ull << (digit & 63);
    w->summary[level] |= 1ull << (digit >> 6);
    w->linked++;
}

static inline void wh_wheel_clear_bit(wh_wheel *w, uint32_t bucket)
{
    uint32_t level = bucket >> w->bits, digit = bucket & ((1u << w->bits) - 1);
    uint64_t *word = &w->occupancy[level * w->words + (digit >> 6)];
    *word &= ~(1ull << (digit & 63));
    if (!*word)
        w->summary[level] &= ~(1ull << (digit >> 6));
}

/* Unlink `node` from the bucket or worker list that it is in, if any. */
static inline void wh_wheel_remove(wh_wheel *w, uint32_t node)
{
    wh_link *link = &w->links[node];
    if (link->list == WH_NIL)
        return;
    w->links[link->prev].next = link->next;
    w->links[link->next].prev = link->prev;
    if (link->list < w->buckets) {
        w->linked--;
        if (link->next == link->prev && link->next >= w->capacity)
            wh_wheel_clear_bit(w, link->list); /* it was the last one */
    }
    link->list = WH_NIL;
}

/* -- advance --------------------------------------------------------------------------------- */

typedef struct wh_next {
    uint64_t tick;   /* when the bucket begins; UINT64_MAX: the wheel is empty */
    uint32_t bucket; /* WH_NIL: none */
} wh_next;

/* The next non-empty bucket. Every bucket of a lower level begins before any of a higher one. */
static inline wh_next wh_wheel_next(const wh_wheel *w)
{
    if (w->draining != WH_NIL)
        return (wh_next){w->tick, w->draining};
    for (uint32_t level = 0; level < w->levels; level++) {
        if (!w->summary[level])
            continue;
        uint32_t word = (uint32_t)__builtin_ctzll(w->summary[level]);
        uint32_t digit =
            word << 6 | (uint32_t)__builtin_ctzll(w->occupancy[level * w->words + word]);
        uint32_t shift = level * w->bits, above = shift + w->bits;
        uint64_t prefix = above > 63 ? 0 : w->tick >> above << above;
        return (wh_next){prefix | (uint64_t)digit << shift, level << w->bits | digit};
    }
    return (wh_next){UINT64_MAX, WH_NIL};
}

/* When that bucket begins, ns; INT64_MAX: the wheel is empty. */
static inline int64_t wh_wheel_next_ns(const wh_wheel *w)
{
    uint64_t tick = wh_wheel_next(w).tick;
    return tick > (uint64_t)(INT64_MAX / w->tick_ns) ? INT64_MAX : (int64_t)tick * w->tick_ns;
}

/* Reads a node's due time: what the slot says now, not what the bucket says. */
typedef int64_t (*wh_due_fn)(void *context, uint32_t node);
/* Takes a node whose bucket is due, already unlinked; it may place the node again, later. */
typedef void (*wh_expire_fn)(void *context, uint32_t node);
/* Fetches what `expire` will read of a node that comes soon. */
typedef void (*wh_prefetch_fn)(void *context, uint32_t node);

typedef struct wh_visitor {
    wh_due_fn due;
    wh_expire_fn expire;
    wh_prefetch_fn prefetch;
    void *context;
    uint64_t cascaded; /* nodes moved down a level, counted up */
} wh_visitor;

#define WH_SCOUT_AHEAD 8 /* nodes between the one in hand and the one being fetched */

/* The node after `node` in the list, fetched; the sentinel stays where it is. */
static inline uint32_t wh_scout(const wh_wheel *w, uint32_t node, bool upper, wh_visitor *v)
{
    uint32_t next = node < w->capacity ? w->links[node].next : node;
    if (next < w->capacity && !upper)
        v->prefetch(v->context, next);
    return next;
}

/* Empty one bucket, up to `budget` nodes of it. Returns the budget left. */
static inline uint32_t wh_wheel_empty(wh_wheel *w, uint32_t bucket, uint32_t budget, wh_visitor *v)
{
    bool upper = bucket >> w->bits;
    uint32_t node = wh_list_first(w, bucket), scout = node;
    for (int i = 0; i < WH_SCOUT_AHEAD && scout != WH_NIL; i++)
        scout = wh_scout(w, scout, upper, v);
    for (; budget && node != WH_NIL; budget--, node = wh_list_first(w, bucket)) {
        scout = wh_scout(w, scout, upper, v);
        wh_wheel_remove(w, node);
        if (upper) {
            /* by its own tick, also when that has passed: late timers keep their order */
            wh_wheel_add(w, node, v->due(v->context, node), INT64_MIN);
            v->cascaded++;
        } else {
            v->expire(v->context, node);
        }
    }
    return budget;
}

/* Empty up to `budget` nodes of buckets that begin by `target`, then stand at `target`.
 * Returns the budget left; 0 means that there may be more to do: call again. */
static inline uint32_t wh_wheel_advance(wh_wheel *w, uint64_t target, uint32_t budget,
                                        wh_visitor *v)
{
    while (budget) {
        wh_next next = wh_wheel_next(w);
        if (next.tick > target) {
            if (target > w->tick)
                w->tick = target;
            return budget;
        }
        w->tick = next.tick;
        w->draining = next.bucket >> w->bits ? next.bucket : WH_NIL;
        budget = wh_wheel_empty(w, next.bucket, budget, v);
        if (wh_list_first(w, next.bucket) == WH_NIL)
            w->draining = WH_NIL;
    }
    return 0;
}

#endif
