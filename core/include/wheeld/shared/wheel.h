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
 * Shards. A bucket is emptied in pieces, and whatever comes after it waits for the last one: a
 * worker with a million timers in one tick, or in a bucket that cascades, would keep all others
 * waiting. So each worker has a wheel of its own, a shard, with buckets, bitmaps and a current
 * tick. The shards are worked on in turn; one that is crowded falls behind by itself. With very
 * many workers several have one shard (geometry.h).
 *
 * Given up: order within one tick is by arrival at the bucket, not by deadline; order between
 * workers, when they are late.
 * Source: Varghese and Lauck, Hashed and Hierarchical Timing Wheels, IEEE/ACM ToN 5(6), 1997.
 *
 * Invariants (wh_wheel_check looks at all of them, by walking everything)
 *  1. Levels cover all of a non-negative int64 in ticks, so no due time is out of range.
 *  2. An occupied bucket's digit is above the digit of its shard's current tick at its level; at
 *     level 0 it may be equal: those are due in the next pass. The one bucket that is being emptied
 *     is exempt.
 *  3. An occupancy bit is set if and only if its bucket's list is not empty; a summary bit if and
 *     only if its occupancy word is not zero.
 *  4. A node is in exactly the list that its `list` names, or in none (WH_NIL). The list names the
 *     shard: the node stays in it if its slot gets another owner meanwhile.
 *  5. No shard is ahead of the wheel's tick. A shard that is behind has nodes; an empty one takes
 *     the wheel's tick with its first node.
 *  6. One process writes all this: the clock. Clients map it read-only.
 */
#ifndef WHEELD_WHEEL_H
#define WHEELD_WHEEL_H

#include "wheeld/shared/layout.h"
#include "wheeld/shared/prefetch.h"

typedef struct wh_parts {
    wh_link *links; /* capacity slots, then one sentinel per list */
    wh_shard *shards;
    uint64_t *summary, *occupancy; /* of all shards, one after another */
} wh_parts;

typedef struct wh_wheel {
    wh_link *links;
    wh_shard *shards;
    uint64_t *summary;
    uint64_t *occupancy;
    uint64_t tick; /* the current tick of shards that are not behind */
    int64_t tick_ns;
    uint32_t capacity;
    uint32_t bits, levels, words; /* words of occupancy per level */
    uint32_t shard_bits;           /* log2 of the lists of one shard */
    uint32_t shard_count, shards_used; /* a power of two; those from shards_used on are empty */
    uint32_t turn;                   /* the shard to work on next */
    uint32_t buckets;                /* of all shards */
    uint8_t level_of[64];
    wh_hints hints; /* the clock's own; else it is empty */
} wh_wheel;

static inline uint32_t wh_levels_for(uint32_t bits) { return (63 + bits - 1) / bits; }
static inline uint32_t wh_words_for(uint32_t bits) { return bits > 6 ? 1u << (bits - 6) : 1; }

/* A shard has room for a power of two of levels, so that a list's number splits into shard, level,
 * digit. */
static inline uint32_t wh_shard_bits(uint32_t bits)
{
    return bits + 32 - (uint32_t)__builtin_clz(wh_levels_for(bits) - 1);
}

static inline void wh_wheel_bind(wh_wheel *w, wh_parts parts, uint32_t capacity, uint32_t shards,
                                 uint32_t bits, int64_t tick_ns)
{
    *w = (wh_wheel){.links = parts.links,
                    .shards = parts.shards,
                    .summary = parts.summary,
                    .occupancy = parts.occupancy,
                    .tick_ns = tick_ns,
                    .capacity = capacity,
                    .bits = bits,
                    .levels = wh_levels_for(bits),
                    .words = wh_words_for(bits),
                    .shard_bits = wh_shard_bits(bits),
                    .shard_count = shards,
                    .shards_used = shards};
    w->buckets = shards << w->shard_bits;
    while (w->shards_used && w->shards[w->shards_used - 1].linked == 0)
        w->shards_used--;
    for (uint32_t bit = 0; bit < 64; bit++)
        w->level_of[bit] = (uint8_t)(bit / bits);
}

/* Make it empty, at `tick`. The caller resets the nodes, which are in no list. */
static inline void wh_wheel_reset(wh_wheel *w, uint64_t tick)
{
    uint32_t levels = w->buckets >> w->bits;
    for (uint32_t level = 0; level < levels; level++)
        w->summary[level] = 0;
    for (uint32_t word = 0; word < levels * w->words; word++)
        w->occupancy[word] = 0;
    for (uint32_t shard = 0; shard < w->shard_count; shard++)
        w->shards[shard] = (wh_shard){.tick = tick, .draining = WH_NIL};
    w->tick = tick;
    w->shards_used = 0;
    for (uint32_t bucket = 0; w->hints.lists && bucket < w->buckets; bucket++)
        wh_hints_emptied(&w->hints, bucket);
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

static inline uint32_t wh_bucket_for(const wh_wheel *w, uint32_t shard, uint64_t due_tick)
{
    uint64_t differ = due_tick ^ w->shards[shard].tick;
    uint32_t level = differ ? w->level_of[63 - __builtin_clzll(differ)] : 0;
    uint32_t digit = (uint32_t)(due_tick >> (level * w->bits)) & ((1u << w->bits) - 1);
    return shard << w->shard_bits | level << w->bits | digit;
}

/* Link `node` for `due_ns`; what is due by `now_ns` goes to the next pass. */
static inline void wh_wheel_add(wh_wheel *w, uint32_t shard, uint32_t node, int64_t due_ns,
                                int64_t now_ns)
{
    wh_shard *l = &w->shards[shard];
    if (wh_unlikely(l->linked == 0)) {
        l->tick = l->tick < w->tick ? w->tick : l->tick;
        w->shards_used = shard < w->shards_used ? w->shards_used : shard + 1;
    }
    uint64_t due = due_ns <= now_ns ? l->tick : wh_due_tick(w, due_ns);
    uint32_t bucket = wh_bucket_for(w, shard, due < l->tick ? l->tick : due);
    uint32_t level = bucket >> w->bits, digit = bucket & ((1u << w->bits) - 1);
    if (w->occupancy[level * w->words + (digit >> 6)] >> (digit & 63) & 1)
        wh_hints_note(&w->hints, bucket, node); /* behind others */
    wh_list_append(w, bucket, node);
    w->occupancy[level * w->words + (digit >> 6)] |= 1ull << (digit & 63);
    w->summary[level] |= 1ull << (digit >> 6);
    l->linked++;
}

static inline void wh_wheel_clear_bit(wh_wheel *w, uint32_t bucket)
{
    uint32_t level = bucket >> w->bits, digit = bucket & ((1u << w->bits) - 1);
    uint64_t *word = &w->occupancy[level * w->words + (digit >> 6)];
    *word &= ~(1ull << (digit & 63));
    if (!*word)
        w->summary[level] &= ~(1ull << (digit >> 6));
    wh_hints_emptied(&w->hints, bucket);
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
        w->shards[link->list >> w->shard_bits].linked--;
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

/* The next non-empty bucket of a shard. Every bucket of a lower level begins before any of a higher
 * one. */
static inline wh_next wh_shard_next(const wh_wheel *w, uint32_t shard)
{
    const wh_shard *l = &w->shards[shard];
    /* its first level among those of all shards */
    uint32_t base = shard << (w->shard_bits - w->bits);
    if (l->draining != WH_NIL)
        return (wh_next){l->tick, l->draining};
    for (uint32_t level = 0; level < w->levels; level++) {
        if (!w->summary[base + level])
            continue;
        uint32_t word = (uint32_t)__builtin_ctzll(w->summary[base + level]);
        uint32_t digit =
            word << 6 | (uint32_t)__builtin_ctzll(w->occupancy[(base + level) * w->words + word]);
        uint32_t shift = level * w->bits, above = shift + w->bits;
        uint64_t prefix = above > 63 ? 0 : l->tick >> above << above;
        return (wh_next){prefix | (uint64_t)digit << shift, (base + level) << w->bits | digit};
    }
    return (wh_next){UINT64_MAX, WH_NIL};
}

/* The first of all shards. */
static inline wh_next wh_wheel_next(const wh_wheel *w)
{
    wh_next first = {UINT64_MAX, WH_NIL};
    for (uint32_t shard = 0; shard < w->shards_used; shard++) {
        wh_next next = w->shards[shard].linked ? wh_shard_next(w, shard) : first;
        first = next.tick < first.tick ? next : first;
    }
    return first;
}

static inline uint64_t wh_wheel_linked(const wh_wheel *w)
{
    uint64_t linked = 0;
    for (uint32_t shard = 0; shard < w->shards_used; shard++)
        linked += w->shards[shard].linked;
    return linked;
}

/* ns; INT64_MAX: past the end of time. */
static inline int64_t wh_tick_time(const wh_wheel *w, uint64_t tick)
{
    return tick > (uint64_t)(INT64_MAX / w->tick_ns) ? INT64_MAX : (int64_t)tick * w->tick_ns;
}

/* When that bucket begins, ns; INT64_MAX: the wheel is empty. */
static inline int64_t wh_wheel_next_ns(const wh_wheel *w)
{
    return wh_tick_time(w, wh_wheel_next(w).tick);
}

/* Reads a node's due time from its slot, not from its bucket. */
typedef int64_t (*wh_due_fn)(void *context, uint32_t node);
/* Gets a node whose bucket is due, already unlinked; may link it again, later. */
typedef void (*wh_expire_fn)(void *context, uint32_t node);
/* Prefetches the data that `expire` will read of a node, besides its link. */
typedef void (*wh_prefetch_fn)(void *context, uint32_t node);

typedef struct wh_visitor {
    wh_due_fn due;
    wh_expire_fn expire;
    wh_prefetch_fn prefetch;
    void *context;
    uint64_t cascaded; /* incremented for each node moved down a level */
} wh_visitor;

#define WH_PREFETCH_AHEAD 12 /* notes between the current node and the one being prefetched */
#define WH_PREFETCH_STALE 8  /* notes of nodes that are gone, per node */

/* Prefetch the next node that is noted. */
static inline void wh_prefetch_next(const wh_wheel *w, uint32_t bucket, bool upper,
                                    wh_hint_at *ahead, wh_visitor *v)
{
    uint32_t node;
    if (!wh_hints_ahead(&w->hints, bucket, ahead, &node))
        return;
    wh_prefetch_write(&w->links[node]);
    if (!upper)
        v->prefetch(v->context, node);
}

/* Before each node: fetch another one, and one more for each note that turns out to be of a node
 * that has gone. */
static inline void wh_prefetch_on(wh_wheel *w, uint32_t bucket, bool upper, wh_hint_at *ahead,
                                  wh_visitor *v)
{
    uint32_t node;
    for (int stale = 0; stale < WH_PREFETCH_STALE; stale++) {
        wh_prefetch_next(w, bucket, upper, ahead, v);
        if (!wh_hints_take(&w->hints, bucket, &node) || w->links[node].list == bucket)
            return;
    }
}

static inline bool wh_is_upper(const wh_wheel *w, uint32_t bucket)
{
    return (bucket & ((1u << w->shard_bits) - 1)) >> w->bits;
}

/* Empty one bucket, up to `budget` nodes of it. Returns the budget left. */
static inline uint32_t wh_wheel_empty(wh_wheel *w, uint32_t bucket, uint32_t budget, wh_visitor *v)
{
    uint32_t shard = bucket >> w->shard_bits;
    bool upper = wh_is_upper(w, bucket);
    wh_hint_at ahead = wh_hints_begin(&w->hints, bucket);
    for (int i = 0; i < WH_PREFETCH_AHEAD; i++)
        wh_prefetch_next(w, bucket, upper, &ahead, v);
    uint32_t node = wh_list_first(w, bucket);
    for (; budget && node != WH_NIL; budget--, node = wh_list_first(w, bucket)) {
        wh_prefetch_on(w, bucket, upper, &ahead, v);
        wh_wheel_remove(w, node);
        if (upper) {
            /* by its own tick, also when that has passed: late timers keep their order */
            wh_wheel_add(w, shard, node, v->due(v->context, node), INT64_MIN);
            v->cascaded++;
        } else {
            v->expire(v->context, node);
        }
    }
    return budget;
}

/* Empty up to `budget` nodes of a shard's buckets that begin by `target`, then stand at `target`.
 * Returns the budget left; 0 means that there may be more to do: call again. */
static inline uint32_t wh_shard_advance(wh_wheel *w, uint32_t shard, uint64_t target,
                                        uint32_t budget, wh_visitor *v)
{
    wh_shard *l = &w->shards[shard];
    while (budget) {
        wh_next next = wh_shard_next(w, shard);
        if (next.tick > target) {
            if (target > l->tick)
                l->tick = target;
            return budget;
        }
        l->tick = next.tick;
        l->draining = wh_is_upper(w, next.bucket) ? next.bucket : WH_NIL;
        budget = wh_wheel_empty(w, next.bucket, budget, v);
        if (wh_list_first(w, next.bucket) == WH_NIL)
            l->draining = WH_NIL;
    }
    return 0;
}

#define WH_SHARD_BUDGET 256 /* nodes of one shard before the next one's turn */

/* The same for all shards in turn, from where the last call stopped. */
static inline uint32_t wh_wheel_advance(wh_wheel *w, uint64_t target, uint32_t budget,
                                        wh_visitor *v)
{
    bool crowded = true;
    while (crowded && budget) {
        crowded = false;
        for (uint32_t looked = 0; looked < w->shards_used && budget; looked++) {
            uint32_t shard = w->turn < w->shards_used ? w->turn : 0;
            w->turn = shard + 1;
            if (w->shards[shard].linked == 0)
                continue;
            uint32_t share = budget < WH_SHARD_BUDGET ? budget : WH_SHARD_BUDGET;
            uint32_t left = wh_shard_advance(w, shard, target, share, v);
            budget -= share - left;
            crowded |= left == 0;
        }
    }
    w->tick = target > w->tick ? target : w->tick;
    return budget;
}

#endif
