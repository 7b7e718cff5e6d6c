/* Sizes: how many operations wait in each worker's purgatories, by name, for those who ask the
 * daemon.
 *
 * A worker has WH_SIZES lines behind the shared words, one for each of its purgatories; a purgatory
 * beyond them is not counted. The worker alone writes them, with plain stores; the supervisor reads
 * them, and empties them when it is gone.
 *
 * Invariants
 *  1. `made` is odd while the line is a purgatory's, and never the same for two of them. The name
 *     is there before it is odd, and does not change until it is another number: who finds the same
 *     odd number before and after has read one purgatory's name.
 *  2. The worker does not read what it wrote: which lines it uses it knows (`used`).
 */
#ifndef WHEELD_SIZES_H
#define WHEELD_SIZES_H

#include "wheeld/sharing/watch.h"

typedef struct wh_sizes {
    wh_size *lines; /* ours, WH_SIZES */
    uint32_t used;  /* private: bit per line */
    uint64_t opened; /* private: lines that this worker has ever opened */
} wh_sizes;

static inline wh_size *wh_sizes_of(void *memory, uint32_t rows, uint32_t row)
{
    return (wh_size *)((char *)memory + wh_watch_sizes_off(rows)) + (uint64_t)row * WH_SIZES;
}

static inline void wh_sizes_bind(wh_sizes *s, const wh_watch *w)
{
    *s = (wh_sizes){.lines = wh_sizes_of(w->seg, w->row_count, w->me)};
}

/* A line for a purgatory of that name, cut to what fits. NULL: no line is left. `tenant` is our
 * incarnation. */
static inline wh_size *wh_sizes_open(wh_sizes *s, const char *name, size_t length, uint64_t tenant)
{
    uint32_t i = (uint32_t)__builtin_ctz(~s->used);
    if (i >= WH_SIZES)
        return NULL;
    wh_size *line = &s->lines[i];
    s->used |= 1u << i;
    memset(line->name, 0, sizeof line->name);
    memcpy(line->name, name, length < sizeof line->name ? length : sizeof line->name - 1);
    wh_store_relaxed(&line->delayed, 0);
    wh_store_relaxed(&line->watched, 0);
    /* pairs: size-made */
    wh_store_release(&line->made, wh_made_word(tenant, s->opened++));
    return line;
}

static inline void wh_sizes_show(wh_size *line, uint64_t delayed, uint64_t watched)
{
    wh_store_relaxed(&line->delayed, delayed);
    wh_store_relaxed(&line->watched, watched);
}

static inline void wh_sizes_close(wh_sizes *s, wh_size *line)
{
    wh_store_release(&line->made, 0); /* pairs: size-made */
    s->used &= ~(1u << (line - s->lines));
}

/* The worker of the row is gone. `rows`: wh_watch_rows. */
static inline void wh_sizes_clear(void *memory, uint32_t rows, uint32_t row)
{
    wh_size *lines = wh_sizes_of(memory, rows, row);
    for (uint32_t i = 0; i < WH_SIZES; i++)
        wh_store_release(&lines[i].made, 0); /* pairs: size-made */
}

#endif
