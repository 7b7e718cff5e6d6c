/* Scout: which nodes stand in a bucket, kept so that they can be fetched before they are met.
 *
 * Idea. The lists of the wheel are links in no memory order: after a while each next node is
 * a cache miss, and the address of the one behind it is known only after the miss. A million
 * timers with random deadlines cost one such miss per cascade and one per firing, and little else.
 * So the code that adds a node to a bucket also notes its number, in blocks of a cache line; the
 * code that empties the bucket reads these blocks some nodes ahead of the list, and prefetches.
 *
 * A note is a hint and nothing more. Notes are private to the clock, no other process reads them,
 * and a new clock begins without any. The lists alone say what is in a bucket.
 *
 * Invariants
 *  1. Nothing follows from a hint but a prefetch, and one look at a link that was fetched.
 *  2. A note is never searched or corrected: nodes that were taken out of the list stay noted. So
 *     that these cannot fill all memory there are blocks for two nodes per slot; a bucket that
 *     finds none loses its notes, and takes no new ones until it was empty.
 *  3. A bucket without nodes has no blocks.
 */
#ifndef WHEELD_SCOUT_H
#define WHEELD_SCOUT_H

#include <stdlib.h>

#include "wheeld/shared/atomics.h"

#define WH_TRAIL_NODES 15 /* nodes of a block */

typedef struct wh_trail_block {
    uint32_t next; /* block */
    uint32_t nodes[WH_TRAIL_NODES];
} wh_trail_block;

/* The notes of one bucket. */
typedef struct wh_trail {
    uint32_t first, last; /* blocks; 0: none, WH_TRAIL_LOST: none, and none are taken */
    uint32_t begin, end;  /* its nodes: from here in the first block, to there in the last one */
} wh_trail;

#define WH_TRAIL_LOST UINT32_MAX

typedef struct wh_scout {
    wh_trail *trails; /* one per bucket; NULL: nothing is written down */
    wh_trail_block *blocks; /* [0] is none */
    uint32_t count, fresh; /* blocks; those from fresh on were never used */
    uint32_t free;         /* the first of those that were, and are not; 0: none */
} wh_scout;

static inline void wh_scout_free(wh_scout *s)
{
    free(s->trails);
    free(s->blocks);
    *s = (wh_scout){0};
}

/* Memory is touched as it is used, and zero at first: whatever is read of it is the number of a
 * node. False: there is none. */
static inline bool wh_scout_bind(wh_scout *s, uint32_t buckets, uint32_t capacity)
{
    *s = (wh_scout){.count = 2 * (capacity / WH_TRAIL_NODES + 1), .fresh = 1};
    s->trails = calloc(buckets, sizeof *s->trails);
    s->blocks = calloc(s->count, sizeof *s->blocks);
    return s->trails && s->blocks;
}

/* Give back all blocks of a bucket, in a constant number of steps. */
static inline void wh_scout_forget(wh_scout *s, wh_trail *t)
{
    if (t->first != 0 && t->first != WH_TRAIL_LOST) {
        s->blocks[t->last].next = s->free;
        s->free = t->first;
    }
    *t = (wh_trail){0};
}

/* The last node of a bucket is gone. */
static inline void wh_scout_emptied(wh_scout *s, uint32_t bucket)
{
    if (s->trails && s->trails[bucket].first)
        wh_scout_forget(s, &s->trails[bucket]);
}

static wh_seldom void wh_scout_lose(wh_scout *s, wh_trail *t)
{
    wh_scout_forget(s, t);
    t->first = WH_TRAIL_LOST;
}

/* Append a block to the bucket. */
static inline bool wh_scout_more(wh_scout *s, wh_trail *t)
{
    uint32_t block = s->free;
    if (block) {
        s->free = s->blocks[block].next;
    } else if (s->fresh < s->count) {
        block = s->fresh++;
    } else {
        wh_scout_lose(s, t);
        return false;
    }
    if (t->first)
        s->blocks[t->last].next = block;
    else
        *t = (wh_trail){.first = block};
    t->last = block;
    t->end = 0;
    return true;
}

/* `node` was appended to the bucket, behind others. */
static inline void wh_scout_note(wh_scout *s, uint32_t bucket, uint32_t node)
{
    if (wh_unlikely(!s->trails))
        return;
    wh_trail *t = &s->trails[bucket];
    if (wh_unlikely(t->first == WH_TRAIL_LOST))
        return;
    if ((t->first && t->end < WH_TRAIL_NODES) || wh_scout_more(s, t))
        s->blocks[t->last].nodes[t->end++] = node;
}

static inline void wh_scout_drop_first(wh_scout *s, wh_trail *t)
{
    uint32_t block = t->first;
    t->first = s->blocks[block].next;
    t->begin = 0;
    s->blocks[block].next = s->free;
    s->free = block;
}

/* Take out the first note. False: there is none. */
static inline bool wh_scout_take(wh_scout *s, uint32_t bucket, uint32_t *node)
{
    wh_trail *t = s->trails ? &s->trails[bucket] : NULL;
    if (!t || t->first == 0 || t->first == WH_TRAIL_LOST)
        return false;
    if (t->begin == WH_TRAIL_NODES && t->first != t->last)
        wh_scout_drop_first(s, t);
    if (t->first == t->last && t->begin == t->end)
        return false;
    *node = s->blocks[t->first].nodes[t->begin++];
    return true;
}

/* A place ahead in a bucket's notes. Should these be given back and others be taken meanwhile, it
 * reads notes of other buckets: hints, too. */
typedef struct wh_scout_at {
    uint32_t block, at;
} wh_scout_at;

static inline wh_scout_at wh_scout_begin(const wh_scout *s, uint32_t bucket)
{
    if (!s->trails || s->trails[bucket].first == WH_TRAIL_LOST)
        return (wh_scout_at){0};
    return (wh_scout_at){s->trails[bucket].first, s->trails[bucket].begin};
}

/* Read the note at `p`, and advance. False: there is none. */
static inline bool wh_scout_ahead(const wh_scout *s, uint32_t bucket, wh_scout_at *p,
                                  uint32_t *node)
{
    if (p->block == 0)
        return false;
    const wh_trail *t = &s->trails[bucket];
    if (p->at == WH_TRAIL_NODES && p->block != t->last)
        *p = (wh_scout_at){s->blocks[p->block].next, 0};
    if (p->at == WH_TRAIL_NODES || (p->block == t->last && p->at >= t->end))
        return false;
    *node = s->blocks[p->block].nodes[p->at++];
    return true;
}

#endif
