/* Layout, second part: the fields of the watch, keys and pools segments, which all workers write.
 *
 * A part of layout.h, which says what the lists are and makes structs of them. */
#ifndef WHEELD_LAYOUT_SHARING_H
#define WHEELD_LAYOUT_SHARING_H

#define WH_BUCKET_BITS 16u
#define WH_BUCKETS (1u << WH_BUCKET_BITS) /* of the watch directory */
#define WH_MARK_WORDS (WH_BUCKETS / 16)   /* of a watch row: 16 buckets share one */
#define WH_NOTES 14u                      /* of a watch row */
#define WH_LONG_KEY 1024u                 /* bytes of the longest key, encoded */
#define WH_CHUNK_BYTES 65536u                 /* of the payload heap */
#define WH_CHUNK_BLOCKS 512u                  /* of the smallest class */
#define WH_CHUNK_DATA (WH_CHUNK_BYTES - 6144u)
#define WH_HEAP_CLASSES 19u                   /* sizes of its blocks */
#define WH_LEASE_PLACES 1024u             /* of a worker, for leases that it waits for */
#define WH_LEASE_CHOICES 16u              /* of those that may be a lease's */
#define WH_SIZES 16u                      /* purgatories of a worker whose sizes are published */

/* The watchers of keys, by hash: watch.h. */
/* clang-format off */
#define WH_WATCH_FIELDS(N, F, A)                                                                   \
    N(uint64_t, directory_off, "offset of the watch directory: WH_BUCKETS * words", "creator",     \
      "all", "before magic")                                                                       \
    F(uint64_t, rows_off, "offset of the watch rows, one per worker", "creator", "all",            \
      "before magic")                                                                              \
    F(uint32_t, row_count, "watch rows", "creator", "all", "before magic")                         \
    F(uint32_t, words, "words per bucket: a bit for each row", "creator", "all", "before magic")   \
    F(uint64_t, sizes_off, "offset of the sizes of purgatories, WH_SIZES per row", "creator",      \
      "all", "before magic")

#define WH_WATCHERS_FIELDS(N, F, A)                                                                \
    F(wh_au64, workers, "bit per worker that watches a key of the bucket",                         \
      "each worker its own bit (or, and); supervisor (and) when it died", "all",                   \
      "seq_cst RMW; pairs: watch-directory")

#define WH_WATCH_ROW_FIELDS(N, F, A)                                                               \
    N(wh_au64, any, "bit per 64 words of `dirty` in which something is marked",                    \
      "all workers (or); its worker (exchange)", "its worker", "seq_cst RMW; pairs: watch-any")    \
    N(wh_au64, wait_seq, "odd: the worker waits for a byte in its FIFO", "worker", "workers",      \
      "seq_cst; pairs: watch-wait")                                                                \
    F(wh_au64, checks, "keys that it checked for others, too", "worker", "inspectors",             \
      "seq_cst RMW; pairs: watch-directory")                                                       \
    F(wh_au64, signals, "marks that it set in other rows", "worker", "inspectors", "relaxed")      \
    F(wh_au64, rings, "bells of other workers that it rang", "worker", "inspectors", "relaxed")    \
    F(wh_au64, drains, "times that it took marks up", "worker", "inspectors", "relaxed")           \
    N(wh_au64, tenant, "incarnation of the worker in this row, 0: none", "supervisor", "workers",  \
      "release; pairs: watch-tenant")                                                              \
    A(uint64_t, tenant_pad, 15, "zero", "nobody", "nobody", "-")                                   \
    N(wh_au64, everything, "changes under way that have no note of their own",                     \
      "worker", "supervisor", "release; pairs: watch-note")                                        \
    A(wh_au64, notes, 14, "NOTE word: the key of a condition that is being changed; 0: none", \
      "worker", "supervisor", "release; pairs: watch-note")                                        \
    F(uint64_t, note_pad, "zero", "nobody", "nobody", "-")                                         \
    A(wh_au64, dirty, 4096, "per 16 buckets the marks of keys that were checked elsewhere",        \
      "all workers (or); its worker (exchange)", "its worker", "seq_cst RMW; pairs: watch-dirty")

/* One directory of keys: each has a 64-bit word. directory.h. */
#define WH_KEYS_FIELDS(N, F, A)                                                                    \
    N(uint64_t, rows_off, "offset of the key rows, one per worker", "creator", "all",              \
      "before magic")                                                                              \
    F(uint64_t, sets_off, "offset of the sets of places", "creator", "all", "before magic")        \
    F(uint64_t, rooms_off, "offset of the key rooms, one per slot", "creator", "all",              \
      "before magic")                                                                              \
    F(uint64_t, long_off, "offset of the rooms for long keys, WH_LONG_KEY bytes per slot",         \
      "creator", "all", "before magic")                                                            \
    F(uint64_t, leases_off, "offset of what all leases share", "creator", "all", "before magic")   \
    F(uint64_t, lease_places_off,                                                                  \
      "offset of the places of those who wait for leases, WH_LEASE_PLACES per worker", "creator",  \
      "all", "before magic")                                                                       \
    F(uint32_t, row_count, "key rows", "creator", "all", "before magic")                           \
    F(uint32_t, set_count, "sets of places", "creator", "all", "before magic")                     \
    F(uint32_t, capacity, "slots", "creator", "all", "before magic")                               \
    F(uint32_t, keys_pad, "zero", "nobody", "nobody", "-")

#define WH_KEY_ROW_FIELDS(N, F, A)                                                                 \
    N(wh_au64, touching, "place + 1 of the word that it looks at; 0: none", "worker", "workers",   \
      "seq_cst; pairs: word-touch")                                                                \
    A(wh_au64, made, 4, "places that it has made a key's: of words, timers, limits, leases", "worker", \
      "supervisor", "relaxed")                                                                     \
    A(wh_au64, given_up, 4, "places that it has given up, likewise", "worker", "supervisor",       \
      "relaxed")                                                                                   \
    A(uint64_t, row_pad, 7, "zero", "nobody", "nobody", "-")                                       \
    N(wh_au64, tenancy, "odd: a worker is here; another number for each", "supervisor",            \
      "workers", "seq_cst; pairs: lease-tenancy")                                                  \
    N(wh_au32, wake, "futex: counts the times that its waiters for leases were woken",             \
      "workers and supervisor (add)", "worker", "seq_cst RMW; pairs: lease-wake")

/* Leases: who waits for them, lease_queue.h. */
#define WH_LEASES_FIELDS(N, F, A)                                                                  \
    N(wh_au64, tokens, "the last token of a holder", "workers (add)", "workers",                   \
      "seq_cst RMW; pairs: word-value")                                                           \
    N(wh_au64, tickets, "tickets given to those who wait", "workers (add)", "workers",             \
      "seq_cst RMW; pairs: lease-queue")                                                           \
    A(uint64_t, tickets_pad, 15, "zero", "nobody", "nobody", "-")                                  \
    A(wh_au64, waiting, 64, "bit per worker with somebody in a queue",                             \
      "each worker its own bit (or, and); supervisor (and) when it died", "all",                   \
      "seq_cst RMW; pairs: lease-queue")

#define WH_LEASE_PLACE_FIELDS(N, F, A)                                                             \
    F(wh_au64, ticket, "TICKET word of the worker's first waiter for a lease; 0: nobody waits",    \
      "its worker; others by compare-and-swap (to 0)", "workers", "seq_cst CAS; pairs: lease-queue")   \
    F(wh_au64, lease, "the lease's hash, 0: the place is free", "worker", "workers",           \
      "seq_cst, before ticket; pairs: lease-queue")

#define WH_KEY_ROOM_FIELDS(N, F, A)                                                                \
    F(wh_au32, place, "of its key's word; WH_NIL: it needs none", "owner", "all", "before arm")               \
    F(wh_au16, size, "bytes of the key; more than fit here: they are in the long room",            \
      "owner", "all", "before arm")                                                    \
    A(char, key, 26, "the key, encoded", "owner", "all", "before arm")

#define WH_WORD_SET_FIELDS(N, F, A)                                                                \
    A(wh_au64, tags, 16, "TAG word", "workers by compare-and-swap", "all",  \
      "seq_cst CAS; pairs: word-tag")                                                              \
    A(wh_au64, values, 16, "the word; of a timer's key: its id", "workers by compare-and-swap",    \
      "workers, clock", "seq_cst CAS; pairs: word-value")                                          \
    A(wh_au32, checks, 16, "32 other bits of the key's hash; 0: empty, or on its way",             \
      "worker", "workers", "relaxed; whose it is says the tag")

/* How many operations wait in one purgatory of one worker: sizes.h. */
#define WH_SIZE_FIELDS(N, F, A)                                                                    \
    N(wh_au64, made, "MADE word, another one for each purgatory",                \
      "worker", "supervisor", "release; pairs: size-made")                                         \
    F(wh_au64, delayed, "operations that wait", "worker", "supervisor", "relaxed")                 \
    F(wh_au64, watched, "keys that they wait under, for each operation", "worker", "supervisor",   \
      "relaxed")                                                                                   \
    A(char, name, 64, "UTF-8, zero-terminated, perhaps cut off", "worker", "supervisor",           \
      "before made")                                                                               \
    A(uint64_t, size_pad, 5, "zero", "nobody", "nobody", "-")

/* Byte budgets that all workers share: pool.h. */
#define WH_POOLS_FIELDS(N, F, A)                                                                   \
    N(uint64_t, pools_off, "offset of the pools", "creator", "all", "before magic")                \
    F(uint64_t, waiters_off, "offset of the waiters' bitmaps, `words` per pool", "creator", "all", \
      "before magic")                                                                              \
    F(uint64_t, ledgers_off, "offset of the ledgers, `ledger_count` per pool", "creator", "all",   \
      "before magic")                                                                              \
    F(uint32_t, pool_count, "pools", "creator", "all", "before magic")                             \
    F(uint32_t, ledger_count, "one per worker, and the supervisor's", "creator", "all",            \
      "before magic")                                                                              \
    F(uint32_t, words, "words of a waiters' bitmap", "creator", "all", "before magic")             \
    F(uint32_t, pools_pad, "zero", "nobody", "nobody", "-")

#define WH_POOL_FIELDS(N, F, A)                                                                    \
    N(uint64_t, size, "bytes that may be out", "creator", "all", "before magic")                   \
    F(uint64_t, largest, "bytes of the largest single request", "creator", "all", "before magic")  \
    F(uint32_t, strict, "1: never more than `size` out; 0: one request may go beyond", "creator",  \
      "all", "before magic")                                                                       \
    F(uint32_t, pool_pad, "zero", "nobody", "nobody", "-")                                         \
    F(int64_t, created, "CLOCK_MONOTONIC, ns", "creator", "all", "before magic")                   \
    A(char, name, 64, "UTF-8, zero-terminated", "creator", "all", "before magic")                  \
    N(wh_au64, used, "USED word",                       \
      "workers and supervisor by compare-and-swap", "all", "seq_cst CAS; pairs: pool-used")        \
    N(wh_au64, tickets, "tickets given to those who wait", "workers (add)", "workers",             \
      "seq_cst RMW; pairs: pool-queue")                                                            \
    N(wh_ai64, dry_since, "when the dry spell that lasts began, ns; 0: none",                      \
      "workers and supervisor by compare-and-swap", "all", "seq_cst CAS; pairs: pool-dry")         \
    F(wh_au64, dry_ns, "ns of the dry spells that are over", "who ends one (add)", "all",          \
      "seq_cst RMW; pairs: pool-dry")                                                              \
    N(wh_au64, reaping, "REAPING word", \
      "supervisor", "the next supervisor", "release; pairs: pool-reaping")

#define WH_WAITERS_FIELDS(N, F, A)                                                                 \
    F(wh_au64, rows, "bit per worker with somebody in the queue",                                  \
      "each worker its own bit (or, and); supervisor (and) when it died", "all",                   \
      "seq_cst RMW; pairs: pool-queue")

/* One worker's account with one pool. */
#define WH_LEDGER_FIELDS(N, F, A)                                                                  \
    N(wh_au64, change, "changes that its worker began", "worker", "workers, supervisor",           \
      "release; pairs: pool-change")                                                               \
    F(wh_ai64, even, "bytes out after the last even change", "worker", "supervisor",               \
      "before change")                                                                             \
    F(wh_ai64, odd, "bytes out after the last odd change", "worker", "supervisor",                 \
      "before change")                                                                             \
    F(wh_au64, ticket, "lowest ticket of its waiters, 0: nobody waits", "worker", "workers",       \
      "seq_cst; pairs: pool-queue")                                                                \
    F(wh_au64, wants, "bytes that the waiter with `ticket` waits for", "worker", "workers",        \
      "seq_cst, before ticket; pairs: pool-queue")                                                 \
    F(wh_au64, allocations, "allocations", "worker", "inspectors", "relaxed")                      \
    F(wh_au64, refusals, "allocations refused", "worker", "inspectors", "relaxed")                 \
    F(wh_au64, waits, "allocations that waited", "worker", "inspectors", "relaxed")                \
    F(wh_au64, timeouts, "waits that ended without memory", "worker", "inspectors", "relaxed")     \
    N(wh_au64, made, "the last change that is known to be in `used`",                              \
      "its worker (store); whoever makes the next change (compare-and-swap)", "supervisor",        \
      "release, acq_rel CAS; pairs: pool-made")                                                    \
    N(wh_au32, wake, "futex: counts the times that its waiters were woken",                        \
      "who gives memory back (add)", "worker", "seq_cst RMW; pairs: pool-wake")                    \
    F(uint32_t, wake_pad, "zero", "nobody", "nobody", "-")                                         \
    N(wh_au64, tenant, "incarnation of the worker in this row, 0: none", "supervisor", "worker",   \
      "release; pairs: pool-tenant")

/* One chunk of the payload heap: heap.h. */
#define WH_CHUNK_FIELDS(N, F, A)                                                                   \
    F(wh_au32, word, "CHUNK word", "workers by compare-and-swap; clock (of the dead)", "all",      \
      "acq_rel CAS, release; pairs: chunk")                                                        \
    F(wh_au32, taken, "blocks taken, modulo 2**32", "the worker that holds the chunk",             \
      "workers", "relaxed")                                                                        \
    F(wh_au32, freed, "blocks freed, modulo 2**32", "who frees one (add)", "workers",              \
      "seq_cst RMW; pairs: chunk-freed")                                                           \
    F(uint32_t, chunk_pad, "zero", "nobody", "nobody", "-")

/* The beginning of each chunk; its blocks follow. */
#define WH_CHUNK_FRONT_FIELDS(N, F, A)                                                             \
    A(wh_au64, ids, 512, "id of the timer that has the block; 0: it is free",                      \
      "the worker that holds the chunk (0 -> id); any process by compare-and-swap (id -> 0)",      \
      "all", "release, acq_rel CAS; pairs: block")                                                 \
    A(wh_au32, sizes, 512, "bytes of the payload in it, or the BLOCK word of the next one",        \
      "the worker that has taken the block", "all", "before arm")
/* clang-format on */

/* How many blocks a chunk has, by class; from one class to the next a block grows by a half at
 * most. */
static const uint16_t wh_heap_counts[WH_HEAP_CLASSES] = {
    WH_CHUNK_BLOCKS, 464, 309, 232, 154, 116, 77, 58, 38, 29, 19, 14, 10, 7, 5, 4, 3, 2, 1};

/* The bytes of a block of that class, whole words. */
static inline uint32_t wh_heap_room(uint32_t kind)
{
    return WH_CHUNK_DATA / wh_heap_counts[kind] & ~7u;
}

/* The smallest class of block that holds `size` bytes, a chunk's data at most. */
static inline uint32_t wh_heap_class(uint32_t size)
{
    uint32_t kind = 0;
    while (kind < WH_HEAP_CLASSES - 1 && wh_heap_room(kind) < size)
        kind++;
    return kind;
}

#endif
