/* Prefetch: hints of which nodes stand in a bucket, so that they can be fetched before they are
 * met.
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
#ifndef WHEELD_PREFETCH_H
#define WHEELD_PREFETCH_H

#include <stdlib.h>

#include "wheeld/shared/atomics.h"

#define WH_HINT_NODES 15 /* nodes of a block */

typedef struct wh_hint_block {
    uint32_t next; /* block */
    uint32_t nodes[WH_HINT_NODES];
} wh_hint_block;

/* The notes of one bucket. */
typedef struct wh_hint_list {
    uint32_t first, last; /* blocks; 0: none, WH_HINTS_LOST: none, and none are taken */
    uint32_t begin, end; /* its nodes: from here in the first block, to there in the last one */
} wh_hint_list;

#define WH_HINTS_LOST UINT32_MAX

typedef struct wh_hints {
    wh_hint_list *lists; /* one per bucket; NULL: nothing is written down */
    wh_hint_block *blocks; /* [0] is none */
    uint32_t count, fresh; /* blocks; those from fresh on were never used */
    uint32_t free; /* the first of those that were, and are not; 0: none */
} wh_hints;

static inline void wh_hints_free(wh_hints *s)
{
    free(s->lists);
    free(s->blocks);
    *s = (wh_hints){0};
}

/* Memory is touched as it is used, and zero at first: whatever is read of it is the number of a
 * node. False: there is none. */
static inline bool wh_hints_bind(wh_hints *s, uint32_t buckets, uint32_t capacity)
{
    *s = (wh_hints){.count = 2 * (capacity / WH_HINT_NODES + 1), .fresh = 1};
    s->lists = calloc(buckets, sizeof *s->lists);
    s->blocks = calloc(s->count, sizeof *s->blocks);
    return s->lists && s->blocks;
}

/* Give back all blocks of a bucket, in a constant number of steps. */
static inline void wh_hints_forget(wh_hints *s, wh_hint_list *t)
{
    if (t->first != 0 && t->first != WH_HINTS_LOST) {
        s->blocks[t->last].next = s->free;
        s->free = t->first;
    }
    *t = (wh_hint_list){0};
}

/* The last node of a bucket is gone. */
static inline void wh_hints_emptied(wh_hints *s, uint32_t bucket)
{
    if (s->lists && s->lists[bucket].first)
        wh_hints_forget(s, &s->lists[bucket]);
}

static wh_seldom void wh_hints_lose(wh_hints *s, wh_hint_list *t)
{
    wh_hints_forget(s, t);
    t->first = WH_HINTS_LOST;
}

/* Append a block to the bucket. */
static inline bool wh_hints_more(wh_hints *s, wh_hint_list *t)
{
    uint32_t block = s->free;
    if (block) {
        s->free = s->blocks[block].next;
    } else if (s->fresh < s->count) {
        block = s->fresh++;
    } else {
        wh_hints_lose(s, t);
        return false;
    }
    if (t->first)
        s->blocks[t->last].next = block;
    else
        *t = (wh_hint_list){.first = block};
    t->last = block;
    t->end = 0;
    return true;
}

/* `node` was appended to the bucket, behind others. */
static inline void wh_hints_note(wh_hints *s, uint32_t bucket, uint32_t node)
{
    if (wh_unlikely(!s->lists))
        return;
    wh_hint_list *t = &s->lists[bucket];
    if (wh_unlikely(t->first == WH_HINTS_LOST))
        return;
    if ((t->first && t->end < WH_HINT_NODES) || wh_hints_more(s, t))
        s->blocks[t->last].nodes[t->end++] = node;
}

static inline void wh_hints_drop_first(wh_hints *s, wh_hint_list *t)
{
    uint32_t block = t->first;
    t->first = s->blocks[block].next;
    t->begin = 0;
    s->blocks[block].next = s->free;
    s->free = block;
}

/* Take out the first note. False: there is none. */
static inline bool wh_hints_take(wh_hints *s, uint32_t bucket, uint32_t *node)
{
    wh_hint_list *t = s->lists ? &s->lists[bucket] : NULL;
    if (!t || t->first == 0 || t->first == WH_HINTS_LOST)
        return false;
    if (t->begin == WH_HINT_NODES && t->first != t->last)
        wh_hints_drop_first(s, t);
    if (t->first == t->last && t->begin == t->end)
        return false;
    *node = s->blocks[t->first].nodes[t->begin++];
    return true;
}

/* A place ahead in a bucket's notes. Should these be given back and others be taken meanwhile, it
 * reads notes of other buckets: hints, too. */
typedef struct wh_hint_at {
    uint32_t block, at;
} wh_hint_at;

static inline wh_hint_at wh_hints_begin(const wh_hints *s, uint32_t bucket)
{
    if (!s->lists || s->lists[bucket].first == WH_HINTS_LOST)
        return (wh_hint_at){0};
    return (wh_hint_at){s->lists[bucket].first, s->lists[bucket].begin};
}

/* Read the note at `p`, and advance. False: there is none. */
static inline bool wh_hints_ahead(const wh_hints *s, uint32_t bucket, wh_hint_at *p, uint32_t *node)
{
    if (p->block == 0)
        return false;
    const wh_hint_list *t = &s->lists[bucket];
    if (p->at == WH_HINT_NODES && p->block != t->last)
        *p = (wh_hint_at){s->blocks[p->block].next, 0};
    if (p->at == WH_HINT_NODES || (p->block == t->last && p->at >= t->end))
        return false;
    *node = s->blocks[p->block].nodes[p->at++];
    return true;
}

#endif
