/* Watch: which workers watch which keys, so that a check in one process reaches the others.
 *
 * Idea. Keys are hashed into 65,536 buckets. The directory has for each bucket a bit per worker
 * that watches one of its keys. The worker that made a condition true marks the key in the row of
 * each such worker, and rings the doorbells of sleeping ones. A mark is a few bits of one word: one
 * of them says which bucket, the others which of its keys, so that hardly ever another key has all
 * of them (key_hash.h). Marks coalesce; a spurious mark costs one extra check.
 *
 *     watcher                                   checker
 *     sets its bit in the directory (or)        makes the condition true
 *     looks at the condition                    looks at the directory, after a full barrier
 *                                               sets the mark, then its bit of `any` (or)
 *     any = 0, marks = 0 (exchange)             looks whether the watcher sleeps: bell
 *     looks at the condition
 *
 * Either the checker sees the bit, or the watcher sees the condition.
 *
 * Invariants
 *  1. Bottom up: a mark is set before `any`, `any` before the look at wait_seq; taken up top down.
 *     Each step is done, or seen to be done, by every checker: one that was killed in between has
 *     not done it for the next. All bits of a mark are set in one step.
 *  2. A bit of the directory is set before its worker looks at the condition for the last time
 *     before it waits, and cleared only when it watches no key of the bucket. Bits too many harm
 *     nobody.
 *  3. Wait-free: no loop depends on another process.
 *  4. One thread of each worker at a time is in here, except in wh_watch_ready; the GIL ensures it.
 *  5. Clients can write all of it, the head too: the supervisor believes only what the size
 *     confirms.
 *  6. A note of the key stands in its worker's row from before the condition changes until all are
 *     marked and rung for. So of a worker that dies in between the supervisor finds what it has to
 *     mark, and it empties the row only when it has rung, too: the next supervisor does it again.
 */
#ifndef WHEELD_WATCH_H
#define WHEELD_WATCH_H

#include <stdlib.h>

#include "wheeld/shared/geometry.h"

typedef struct wh_watch {
    wh_watch_seg *seg;
    wh_watchers *directory;
    wh_watch_row *rows, *mine;
    uint32_t *keys; /* private: keys that we watch, per bucket */
    uint32_t row_count, words, me;
    uint32_t noted;   /* private: one bit per note in use */
    uint64_t unnoted; /* private: changes under way for which there is no note */
} wh_watch;

static inline uint32_t wh_words_of_rows(uint32_t rows) { return (rows + 63) / 64; }

static inline uint64_t wh_watch_rows_off(uint32_t rows)
{
    uint64_t directory = (uint64_t)WH_BUCKETS * wh_words_of_rows(rows) * sizeof(wh_watchers);
    return wh_align(sizeof(wh_watch_seg), WH_LINE) + wh_align(directory, WH_LINE);
}

/* The sizes of sizes.h follow the rows. */
static inline uint64_t wh_watch_sizes_off(uint32_t rows)
{
    return wh_watch_rows_off(rows) + (uint64_t)rows * sizeof(wh_watch_row);
}

static inline uint64_t wh_watch_bytes(uint32_t rows)
{
    return wh_align(wh_watch_sizes_off(rows) + (uint64_t)rows * WH_SIZES * sizeof(wh_size), 4096);
}

/* Fill a zeroed segment of wh_watch_bytes. */
static inline void wh_watch_create(void *memory, uint32_t rows, uint64_t token)
{
    wh_watch_seg *seg = memory;
    seg->directory_off = wh_align(sizeof(wh_watch_seg), WH_LINE);
    seg->rows_off = wh_watch_rows_off(rows);
    seg->row_count = rows;
    seg->words = wh_words_of_rows(rows);
    seg->sizes_off = wh_watch_sizes_off(rows);
    wh_head_publish(&seg->head, WH_KIND_WATCH, wh_watch_bytes(rows), token);
}

/* A number from a header that others can write: read once, so that the value checked is the value
 * used. */
static inline uint32_t wh_head_number(const uint32_t *number)
{
    return wh_load_relaxed((wh_au32 *)number);
}

/* The number of rows in a segment of this size; 0: its header is damaged. */
static inline uint32_t wh_watch_rows(const void *memory, uint64_t bytes)
{
    uint32_t rows = wh_head_number(&((const wh_watch_seg *)memory)->row_count);
    return rows <= WH_MAX_WORKERS && wh_watch_bytes(rows) == bytes ? rows : 0;
}

static inline void wh_watch_map(wh_watch *w, void *memory, uint32_t rows, uint32_t me)
{
    uint64_t directory_off = wh_align(sizeof(wh_watch_seg), WH_LINE);
    *w = (wh_watch){.seg = memory,
                    .directory = (wh_watchers *)((char *)memory + directory_off),
                    .rows = (wh_watch_row *)((char *)memory + wh_watch_rows_off(rows)),
                    .row_count = rows,
                    .words = wh_words_of_rows(rows),
                    .me = me};
    w->mine = &w->rows[me];
}

/* Bind a worker's row; `rows` as wh_watch_rows found. False: no memory. */
static inline bool wh_watch_bind(wh_watch *w, void *memory, uint32_t rows, uint32_t me)
{
    wh_watch_map(w, memory, rows, me);
    w->keys = calloc(WH_BUCKETS, sizeof *w->keys);
    return w->keys != NULL;
}

static inline wh_au64 *wh_watch_word(const wh_watch *w, uint32_t bucket, uint32_t row)
{
    return &w->directory[(uint64_t)bucket * w->words + row / 64].workers;
}

/* -- the watcher ------------------------------------------------------------------------------- */

/* Watch one more key of this bucket. Check the condition after this. */
static inline void wh_watch_add(wh_watch *w, uint32_t bucket)
{
    if (w->keys[bucket]++ != 0)
        return;
    wh_au64 *word = wh_watch_word(w, bucket, w->me);
    wh_fetch_or_seq(word, 1ull << w->me % 64); /* pairs: watch-directory */
    /* pairs: watch-directory - on arm64 the bit may be stored after a later, plain load of the
     * condition; not after this one and what follows it */
    (void)wh_load_seq(word);
}

/* Watch one key less of this bucket. */
static inline void wh_watch_remove(wh_watch *w, uint32_t bucket)
{
    if (--w->keys[bucket] == 0)
        /* pairs: watch-directory */
        wh_fetch_and_seq(wh_watch_word(w, bucket, w->me), ~(1ull << w->me % 64));
}

/* Is something marked for us? */
static inline bool wh_watch_ready(const wh_watch *w)
{
    return wh_load_seq(&w->mine->any) != 0; /* pairs: watch-any */
}

/* Odd before the worker sleeps on its FIFO, even after it woke. Call wh_watch_ready after this. */
static inline void wh_watch_say_wait(wh_watch_row *mine, uint64_t wait_seq)
{
    wh_store_seq(&mine->wait_seq, wait_seq); /* pairs: watch-wait */
}

/* Begin to collect marks: bit n stands for the words from 64 * n on. 0: there are none. */
static inline uint64_t wh_watch_drain(wh_watch *w)
{
    if (!wh_watch_ready(w))
        return 0;
    /* pairs: watch-any - before the marks: invariant 1 */
    uint64_t parts = wh_exchange_seq(&w->mine->any, 0);
    wh_count(&w->mine->drains, 1);
    return parts;
}

/* Take the marks of the 16 buckets from 16 * i on (wh_hash_is_marked). Check the condition after
 * this. */
static inline uint64_t wh_watch_take(wh_watch *w, uint32_t i)
{
    if (wh_load_seq(&w->mine->dirty[i]) == 0) /* pairs: watch-dirty */
        return 0;
    uint64_t marks = wh_exchange_seq(&w->mine->dirty[i], 0); /* pairs: watch-dirty */
    /* pairs: watch-dirty - on arm64 the zero may be stored after a later, plain load of the
     * condition: a checker that still sees its mark leaves it at that, and we saw the
     * condition of before */
    (void)wh_load_seq(&w->mine->dirty[i]);
    return marks;
}

/* -- the checker ------------------------------------------------------------------------------- */

/* Call before reading the directory: it makes the caller's condition visible, however it was
 * stored. */
static inline void wh_watch_barrier(wh_watch *w)
{
    /* pairs: watch-directory - a read-modify-write is the full barrier here */
    wh_fetch_add_seq(&w->mine->checks, 1);
}

/* Other workers that watch the bucket: word `i` of their bits. */
static inline uint64_t wh_watch_others(const wh_watch *w, uint32_t bucket, uint32_t i)
{
    /* pairs: watch-directory */
    uint64_t found = wh_load_seq(&w->directory[(uint64_t)bucket * w->words + i].workers);
    if (i == w->me / 64)
        found &= ~(1ull << w->me % 64);
    uint32_t rest = w->row_count - 64 * i; /* clients can write there: mask rows beyond the table */
    return rest < 64 ? found & ((1ull << rest) - 1) : found;
}

/* Set these marks in a word of the worker in `row`. Returns its wait_seq: odd, and it wants a
 * bell. */
static inline uint64_t wh_watch_mark_word(wh_watch *w, uint32_t row, uint32_t i, uint64_t mark)
{
    wh_watch_row *theirs = &w->rows[row];
    uint64_t part = 1ull << i / 64;
    /* Invariant 1: bits that are set are not set again, but each step is checked. */
    if ((wh_load_seq(&theirs->dirty[i]) & mark) != mark) /* pairs: watch-dirty */
        wh_fetch_or_seq(&theirs->dirty[i], mark); /* pairs: watch-dirty */
    if (!(wh_load_seq(&theirs->any) & part)) /* pairs: watch-any */
        wh_fetch_or_seq(&theirs->any, part); /* pairs: watch-any */
    wh_count(&w->mine->signals, 1);
    return wh_load_seq(&theirs->wait_seq); /* pairs: watch-wait */
}

/* Mark the key of that hash for the worker in `row`. */
static inline uint64_t wh_watch_mark(wh_watch *w, uint32_t row, uint64_t hash)
{
    return wh_watch_mark_word(w, row, wh_hash_mark_word(hash), wh_hash_mark(hash));
}

/* -- changes under way ------------------------------------------------------------------------- */

/* Before conditions change whose keys have no note each: all are to be checked, by us or, if we
 * die, by the supervisor. Returns what wh_watch_done takes. */
static inline uint32_t wh_watch_change_everything(wh_watch *w)
{
    /* pairs: watch-note - the conditions change after it, in the order that a kill leaves */
    wh_store_release(&w->mine->everything, ++w->unnoted);
    wh_step();
    return WH_NOTES;
}

/* The same for one key. */
static inline uint32_t wh_watch_change(wh_watch *w, uint64_t hash)
{
    uint32_t note = (uint32_t)__builtin_ctz(~w->noted);
    if (wh_unlikely(note >= WH_NOTES))
        return wh_watch_change_everything(w);
    w->noted |= 1u << note;
    wh_store_release(&w->mine->notes[note], wh_note_of(hash)); /* pairs: watch-note */
    wh_step();
    return note;
}

/* Every watcher of the key has been marked, and woken if it sleeps. */
static inline void wh_watch_done(wh_watch *w, uint32_t note)
{
    wh_step();
    if (wh_unlikely(note >= WH_NOTES)) {
        wh_store_release(&w->mine->everything, --w->unnoted); /* pairs: watch-note */
    } else {
        wh_store_release(&w->mine->notes[note], 0); /* pairs: watch-note */
        w->noted &= ~(1u << note);
    }
}

/* -- the supervisor ---------------------------------------------------------------------------- */

/* Set these marks of a bucket for all its watchers. */
static inline void wh_watch_mark_all(wh_watch *w, uint32_t bucket, uint64_t mark)
{
    for (uint32_t i = 0; i < w->words; i++)
        for (uint64_t rows = wh_watch_others(w, bucket, i); rows; rows &= rows - 1)
            wh_watch_mark_word(w, 64 * i + (uint32_t)__builtin_ctzll(rows), bucket / 16, mark);
}

/* The worker of the row has died: mark the key that it was changing for all watchers. True: a key
 * was noted; workers that sleep with a mark (wh_watch_owed) must be rung before the row is
 * cleared. */
static inline bool wh_watch_finish(void *memory, uint32_t rows, uint32_t row)
{
    wh_watch w;
    wh_watch_map(&w, memory, rows, row);
    /* pairs: watch-note */
    bool everything = wh_load_acquire(&w.mine->everything) != 0, some = everything;
    wh_watch_barrier(&w);
    for (uint32_t bucket = 0; everything && bucket < WH_BUCKETS; bucket++)
        wh_watch_mark_all(&w, bucket, wh_bucket_marks(bucket));
    for (uint32_t i = 0; i < WH_NOTES; i++) {
        uint64_t note = wh_load_acquire(&w.mine->notes[i]); /* pairs: watch-note */
        some |= note != 0;
        uint64_t hash = wh_note_hash(note); /* it may be garbage, and then marks another key */
        if (note)
            wh_watch_mark_all(&w, wh_hash_bucket(hash), wh_hash_mark(hash));
    }
    return some;
}

/* Does the worker of that row sleep although a mark is set for it? */
static inline bool wh_watch_owed(void *memory, uint32_t rows, uint32_t row)
{
    wh_watch w;
    wh_watch_map(&w, memory, rows, row);
    /* pairs: watch-wait - after the marks: a worker that announces its wait later sees them */
    return wh_load_seq(&w.mine->wait_seq) & 1 && wh_watch_ready(&w);
}

/* This row has no tenant now: remove its bits from the directory, and its marks. A checker that was
 * stopped may mark it later: one extra check of the next tenant. `rows`: wh_watch_rows. */
static inline void wh_watch_clear(void *memory, uint32_t rows, uint32_t row, uint64_t tenant)
{
    wh_watch w;
    wh_watch_map(&w, memory, rows, row);
    wh_store_release(&w.mine->tenant, 0); /* pairs: watch-tenant */
    for (uint32_t bucket = 0; bucket < WH_BUCKETS; bucket++) {
        wh_au64 *word = wh_watch_word(&w, bucket, row);
        if (wh_load_seq(word) & 1ull << row % 64) /* pairs: watch-directory */
            wh_fetch_and_seq(word, ~(1ull << row % 64)); /* pairs: watch-directory */
    }
    wh_exchange_seq(&w.mine->any, 0); /* pairs: watch-any */
    for (uint32_t i = 0; i < WH_MARK_WORDS; i++)
        wh_exchange_seq(&w.mine->dirty[i], 0); /* pairs: watch-dirty */
    for (uint32_t i = 0; i < WH_NOTES; i++)
        wh_store_release(&w.mine->notes[i], 0); /* pairs: watch-note */
    wh_store_release(&w.mine->everything, 0); /* pairs: watch-note */
    wh_store_release(&w.mine->tenant, tenant); /* pairs: watch-tenant */
}

#endif
