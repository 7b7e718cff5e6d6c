/* Pool: a byte budget that all workers share (KIP-72), whose loans return when their holder dies.
 *
 * Idea. One word, `used`, says how many bytes are out; it changes by compare-and-swap. So that a
 * death at any instruction leaves no doubt about what the dead one had, each change is written down
 * in its worker's ledger first, and `used` names who made its last change: a change was made if
 * `used` names it, or if it is noted in `made`. Its worker notes it there, or the next worker that
 * overwrites its name does.
 *
 *     worker                                    next worker
 *     even or odd = bytes out after it          sees (row, change) in `used`
 *     change = n                                row's made = change (compare-and-swap)
 *     used: (bytes, row, n) (compare-and-swap)  used: (bytes', its row, its change)
 *     made = n
 *
 * So a dead worker had: after change n if that was made, else after n - 1. (A detectable
 * compare-and-swap; docs/decisions/0009-pool-detectable-cas.md.)
 *
 * Invariants
 *  1. Every change of a living worker up to `change` - 1 was made; `change` itself was made or it
 *     is making it. A refused change is undone, and the next change reuses its number.
 *  2. A ledger's numbers go on over its tenants, so a name in `used` is never taken for a later
 *     one's.
 *  3. `made` never goes back. While `used` names n it is n, or n - 1 until the worker has noted the
 *     change. So 14 bits say which change a name means, and a slow noter of an earlier one comes
 *     too late.
 *  4. Lock-free: a compare-and-swap fails only because another worker's succeeded.
 *  5. The queue of those who wait: a waiter sets its bit before it looks at `used` and then sleeps;
 *     who gives back looks at the bits after `used`. So either sees the other.
 *  6. One thread of each worker at a time is in here; the GIL ensures it.
 *  7. Clients can write all of it, the head too: no word serves as an index or a bound unchecked.
 */
#ifndef WHEELD_POOL_H
#define WHEELD_POOL_H

#include "wheeld/shared/geometry.h"
#include "wheeld/sharing/watch.h"

typedef struct wh_budget { /* a worker's view of one pool */
    wh_pool *pool;
    wh_ledger *ledgers, *mine;
    wh_waiters *waiters;
    uint32_t ledger_count, words, me;
} wh_budget;

/* -- the segment ------------------------------------------------------------------------------- */

static inline uint64_t wh_pool_waiters_off(uint32_t pools)
{
    return wh_align(sizeof(wh_pools_seg), WH_LINE) + (uint64_t)pools * sizeof(wh_pool);
}

static inline uint64_t wh_pool_ledgers_off(uint32_t rows, uint32_t pools)
{
    uint64_t waiters = (uint64_t)pools * wh_words_of_rows(rows) * sizeof(wh_waiters);
    return wh_pool_waiters_off(pools) + wh_align(waiters, WH_LINE);
}

static inline uint64_t wh_pools_bytes(uint32_t rows, uint32_t pools)
{
    uint64_t ledgers = (uint64_t)pools * (rows + 1) * sizeof(wh_ledger);
    return wh_align(wh_pool_ledgers_off(rows, pools) + ledgers, 4096);
}

/* Fill a zeroed segment of wh_pools_bytes, but for the pools and its head. */
static inline wh_pool *wh_pools_create(void *memory, uint32_t rows, uint32_t pools)
{
    wh_pools_seg *seg = memory;
    seg->pools_off = wh_align(sizeof(wh_pools_seg), WH_LINE);
    seg->waiters_off = wh_pool_waiters_off(pools);
    seg->ledgers_off = wh_pool_ledgers_off(rows, pools);
    seg->pool_count = pools;
    seg->ledger_count = rows + 1;
    seg->words = wh_words_of_rows(rows);
    return (wh_pool *)((char *)memory + seg->pools_off);
}

static inline void wh_pool_create(wh_pool *pool, uint64_t size, uint64_t largest, bool strict,
                                  int64_t now)
{
    pool->size = size;
    pool->largest = largest;
    pool->strict = strict;
    pool->created = now;
    wh_store_relaxed(&pool->used, wh_used_word(0, WH_POOL_NOBODY, 0));
}

/* The numbers of pools and of workers, as every client could have changed them: they fit `bytes`,
 * or this is false. Offsets follow from them. */
static inline bool wh_pools_shape(const void *memory, uint64_t bytes, uint32_t *pools,
                                  uint32_t *rows)
{
    const wh_pools_seg *seg = memory;
    *pools = wh_head_number(&seg->pool_count);
    *rows = wh_head_number(&seg->ledger_count) - 1;
    return *pools <= WH_POOLS && *rows <= WH_MAX_WORKERS && wh_pools_bytes(*rows, *pools) == bytes;
}

/* Map `pools` pools and `rows` workers, as wh_pools_shape found them. `me`: a worker's row, or
 * `rows` for the supervisor. */
static inline void wh_budget_bind(wh_budget *b, void *memory, uint32_t pools, uint32_t rows,
                                  uint32_t pool, uint32_t me)
{
    uint64_t pools_off = wh_align(sizeof(wh_pools_seg), WH_LINE);
    char *base = memory, *ledgers = base + wh_pool_ledgers_off(rows, pools);
    wh_waiters *waiters = (wh_waiters *)(base + wh_pool_waiters_off(pools));
    uint32_t words = wh_words_of_rows(rows);
    *b = (wh_budget){.pool = (wh_pool *)(base + pools_off) + pool,
                     .ledgers = (wh_ledger *)ledgers + (uint64_t)pool * (rows + 1),
                     .waiters = waiters + (uint64_t)pool * words,
                     .ledger_count = rows + 1,
                     .words = words,
                     .me = me};
    b->mine = &b->ledgers[me];
}

/* -- the word ---------------------------------------------------------------------------------- */

static inline uint64_t wh_budget_used(const wh_budget *b)
{
    return wh_used_bytes(wh_load_seq(&b->pool->used)); /* pairs: pool-used */
}

/* May `n` more bytes be lent when `used` are in use? A lenient pool lends if anything is left. */
static inline bool wh_pool_fits(const wh_pool *pool, uint64_t used, uint64_t n)
{
    return pool->strict ? used + n <= pool->size : used < pool->size;
}

/* -- changes ----------------------------------------------------------------------------------- */

static inline wh_ai64 *wh_ledger_after(wh_ledger *l, uint64_t change)
{
    return change & 1 ? &l->odd : &l->even;
}

/* The change that `word` names was made: note it, for `word` is about to be overwritten. */
static inline void wh_budget_note(const wh_budget *b, uint64_t word)
{
    uint32_t row = wh_used_row(word);
    if (row == b->me || row >= b->ledger_count)
        return;
    wh_au64 *theirs = &b->ledgers[row].made;
    uint64_t made = wh_load_acquire(theirs); /* pairs: pool-made */
    uint64_t ahead = wh_used_ahead(word, made);
    /* pairs: pool-used - a worker that changed the word has noted it. If the compare-and-swap fails
     * another worker has noted this very change: invariant 3 */
    if (ahead != 0 && wh_load_seq(&b->pool->used) == word)
        wh_cas_acq_rel(theirs, &made, made + ahead); /* pairs: pool-made */
}

/* Add `bytes`, which may be negative, to what we have. False: that many are not left. */
static inline bool wh_budget_change(wh_budget *b, int64_t bytes)
{
    wh_ledger *l = b->mine;
    uint64_t change = wh_load_relaxed(&l->change), n = (uint64_t)bytes;
    uint64_t have = (uint64_t)wh_load_relaxed(wh_ledger_after(l, change));
    wh_store_relaxed(wh_ledger_after(l, change + 1), (int64_t)(have + n));
    wh_step();
    /* pairs: pool-change - a worker that sees our name in `used` must find the change here */
    wh_store_release(&l->change, change + 1);
    wh_step();
    uint64_t word = wh_load_seq(&b->pool->used); /* pairs: pool-used */
    for (;;) {
        uint64_t used = wh_used_bytes(word);
        if (bytes > 0 && !wh_pool_fits(b->pool, used, n)) {
            wh_store_release(&l->change, change); /* pairs: pool-change - invariant 1 */
            return false;
        }
        uint64_t after = bytes < 0 && 0 - n > used ? 0 : used + n;
        wh_budget_note(b, word);
        /* pairs: pool-used, pool-queue - seq_cst: the queue is looked at after it */
        if (wh_cas_seq(&b->pool->used, &word, wh_used_word(after, b->me, change + 1)))
            break;
    }
    wh_step();
    /* pairs: pool-made - from here on no other worker has to note it, however its name is
     * overwritten */
    wh_store_release(&l->made, change + 1);
    return true;
}

/* Was that change, the last one begun in the ledger, made? Asked about the dead, and about
 * ourselves. */
static inline bool wh_change_made(const wh_budget *b, uint32_t row, uint64_t change)
{
    /* pairs: pool-used - before made: noted, then gone */
    uint64_t word = wh_load_seq(&b->pool->used);
    if (wh_used_row(word) == row && wh_used_ahead(word, change) == 0)
        return true;
    return wh_load_acquire(&b->ledgers[row].made) == change; /* pairs: pool-made */
}

/* The bytes that a ledger's worker holds; exact if it is dead, or this worker. */
static inline int64_t wh_budget_out(const wh_budget *b, uint32_t row)
{
    wh_ledger *l = &b->ledgers[row];
    uint64_t change = wh_load_acquire(&l->change); /* pairs: pool-change */
    return wh_load_relaxed(wh_ledger_after(l, change - !wh_change_made(b, row, change)));
}

/* -- dry spells last from the first refusal to the next success or release
 * ------------------------- */

static inline void wh_pool_dry(wh_pool *pool, int64_t now)
{
    int64_t none = 0;
    /* pairs: pool-dry - seq_cst: a refused worker looks at `used` again after it */
    if (wh_load_seq(&pool->dry_since) == 0)
        wh_cas_seq(&pool->dry_since, &none, now); /* pairs: pool-dry */
}

/* `now` of CLOCK_MONOTONIC is wanted only if there is one: ask wh_pool_is_dry first. */
static inline bool wh_pool_is_dry(const wh_pool *pool)
{
    /* pairs: pool-dry - seq_cst, after the change of `used`: a spell that began with a load of the
     * word before that change is seen here, or its beginner sees the change and ends it */
    return wh_load_seq(&pool->dry_since) != 0;
}

static inline void wh_pool_wet(wh_pool *pool, int64_t now)
{
    int64_t since = wh_load_acquire(&pool->dry_since); /* pairs: pool-dry */
    /* pairs: pool-dry - one of those who end it adds it up */
    if (since != 0 && wh_cas_acq_rel(&pool->dry_since, &since, 0) && 0 < since && since < now)
        wh_fetch_add_seq(&pool->dry_ns, (uint64_t)(now - since)); /* pairs: pool-dry */
}

/* -- the queue --------------------------------------------------------------------------------- */

static inline uint64_t wh_wait_queue_ticket(wh_budget *b)
{
    return wh_fetch_add_seq(&b->pool->tickets, 1) + 1; /* pairs: pool-queue */
}

/* The ticket of our first waiter, and the bytes that it wants; 0: none of us waits. `used` is
 * looked at after this. */
static inline void wh_wait_queue_show(wh_budget *b, uint64_t ticket, uint64_t wants)
{
    wh_au64 *word = &b->waiters[b->me / 64].rows;
    uint64_t bit = 1ull << b->me % 64;
    wh_store_seq(&b->mine->wants, wants);   /* pairs: pool-queue */
    wh_store_seq(&b->mine->ticket, ticket); /* pairs: pool-queue */
    if (ticket)
        wh_fetch_or_seq(word, bit); /* pairs: pool-queue */
    else
        wh_fetch_and_seq(word, ~bit); /* pairs: pool-queue */
}

/* The lowest ticket above `past` of all waiters but ours, or UINT64_MAX; and what it waits for. */
static inline uint64_t wh_wait_queue_first_other(const wh_budget *b, uint64_t past, uint64_t *wants)
{
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < b->words; i++) {
        uint64_t rows = wh_load_seq(&b->waiters[i].rows); /* pairs: pool-queue */
        for (; rows; rows &= rows - 1) {
            uint32_t row = 64 * i + (uint32_t)__builtin_ctzll(rows);
            if (row == b->me || row + 1 >= b->ledger_count)
                continue;
            uint64_t ticket = wh_load_seq(&b->ledgers[row].ticket); /* pairs: pool-queue */
            if (ticket > past && ticket < first) {
                first = ticket;
                *wants = wh_load_seq(&b->ledgers[row].wants); /* pairs: pool-queue */
            }
        }
    }
    return first;
}

/* Is anybody in the queue? */
static inline bool wh_wait_queue_empty(const wh_budget *b)
{
    uint64_t any = 0;
    for (uint32_t i = 0; i < b->words; i++)
        any |= wh_load_seq(&b->waiters[i].rows); /* pairs: pool-queue */
    return any == 0;
}

/* Have all waiters check again; `futex_wake` wakes whoever sleeps on that word. */
static inline void wh_wait_queue_wake(wh_budget *b, void (*futex_wake)(wh_au32 *))
{
    for (uint32_t i = 0; i < b->words; i++) {
        uint64_t rows = wh_load_seq(&b->waiters[i].rows); /* pairs: pool-queue */
        for (; rows; rows &= rows - 1) {
            uint32_t row = 64 * i + (uint32_t)__builtin_ctzll(rows);
            if (row + 1 >= b->ledger_count)
                continue;
            wh_fetch_add_seq(&b->ledgers[row].wake, 1); /* pairs: pool-wake */
            futex_wake(&b->ledgers[row].wake);
        }
    }
}

/* -- the supervisor ---------------------------------------------------------------------------- */

/* The bytes are back in `used`: nothing of the dead one stays in its ledger. A change that it began
 * and did not make is undone, and one that it made is noted, so that its next tenant begins at
 * rest: invariants 1 and 3. */
static inline void wh_reap_ledger(wh_budget *b, uint32_t row)
{
    wh_ledger *dead = &b->ledgers[row];
    uint64_t change = wh_load_acquire(&dead->change); /* pairs: pool-change */
    change -= !wh_change_made(b, row, change);
    wh_store_relaxed(&dead->even, 0);
    wh_store_relaxed(&dead->odd, 0);
    wh_step();
    wh_store_release(&dead->change, change); /* pairs: pool-change */
    wh_store_release(&dead->made, change);   /* pairs: pool-made */
    wh_store_release(&b->pool->reaping, 0);  /* pairs: pool-reaping - after the ledger is empty */
}

/* Return what the worker that was in `row` had out, once, whenever we die. The caller wakes the
 * queue. */
static inline int64_t wh_budget_reap(wh_budget *b, uint32_t row)
{
    wh_ledger *dead = &b->ledgers[row];
    wh_store_release(&dead->tenant, 0); /* pairs: pool-tenant */
    wh_store_seq(&dead->ticket, 0);     /* pairs: pool-queue */
    wh_fetch_and_seq(&b->waiters[row / 64].rows, ~(1ull << row % 64)); /* pairs: pool-queue */
    int64_t out = wh_budget_out(b, row), most = (int64_t)wh_budget_used(b);
    out = out < most ? out : most; /* its ledger may be garbage */
    /* pairs: pool-reaping - the next supervisor asks whether this change was made */
    wh_store_release(&b->pool->reaping,
                     wh_reaping_word(row, wh_load_relaxed(&b->mine->change) + 1));
    wh_step();
    if (out > 0)
        wh_budget_change(b, -out);
    wh_reap_ledger(b, row);
    return out > 0 ? out : 0;
}

/* Finish the reaping that a killed supervisor had begun. The caller wakes the queue. */
static inline void wh_budget_resume(wh_budget *b)
{
    uint64_t reaping = wh_load_acquire(&b->pool->reaping); /* pairs: pool-reaping */
    uint32_t row = wh_reaping_row(reaping);
    uint64_t begun = wh_load_relaxed(&b->mine->change);
    if (row >= b->ledger_count - 1)
        return;
    bool ours = wh_reaping_names(reaping, begun);
    if (ours && wh_change_made(b, b->me, begun)) {
        wh_reap_ledger(b, row);
        return;
    }
    if (ours) /* begun but not made: undone */
        wh_store_release(&b->mine->change, begun - 1); /* pairs: pool-change */
    wh_budget_reap(b, row);
}

#endif
