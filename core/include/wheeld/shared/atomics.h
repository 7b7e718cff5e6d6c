/* Atomics: the few C11 operations that the shared structures use, by their memory order.
 *
 * Rules of the house
 *  1. Shared words are C11 _Atomic, never volatile; no stand-alone fences (ThreadSanitizer does
 *     not understand them), so a store that must be seen before a later load is seq_cst on both.
 *  2. Every ordered operation carries `pairs: TAG` beside it; its partner names the same tag.
 *  3. A relaxed operation orders nothing. It is used for words whose content is published by
 *     another, ordered word, and for client-writable words that are loaded once.
 */
#ifndef WHEELD_ATOMICS_H
#define WHEELD_ATOMICS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef _Atomic uint64_t wh_au64;
typedef _Atomic int64_t wh_ai64;
typedef _Atomic uint32_t wh_au32;
typedef _Atomic uint16_t wh_au16;

_Static_assert(sizeof(wh_au64) == 8 && sizeof(wh_au32) == 4, "atomics must be plain words");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a lock in shared memory would die with its holder");

#define wh_load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define wh_store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define wh_load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define wh_store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define wh_load_seq(p) atomic_load_explicit((p), memory_order_seq_cst)
#define wh_store_seq(p, v) atomic_store_explicit((p), (v), memory_order_seq_cst)

/* Compare-and-swap; on failure *expected holds what was found. */
#define wh_cas_acq_rel(p, expected, desired)                                                       \
    atomic_compare_exchange_strong_explicit((p), (expected), (desired), memory_order_acq_rel,      \
                                            memory_order_acquire)

#define wh_cas_seq(p, expected, desired)                                                           \
    atomic_compare_exchange_strong_explicit((p), (expected), (desired), memory_order_seq_cst,      \
                                            memory_order_seq_cst)

/* Compare-and-swap of two words side by side, 16 bytes aligned, acq_rel. On failure *first and
 * *second hold what was found; on arm64 perhaps of two moments, which the next try finds out. */
static inline bool wh_cas_both(void *words, uint64_t *first, uint64_t *second, uint64_t new_first,
                               uint64_t new_second)
{
    bool done;
#if defined(__SANITIZE_THREAD__)
    void __tsan_release(void *), __tsan_acquire(void *);
    __tsan_release(words);
#endif
#if defined(__x86_64__)
    __asm__ volatile("lock cmpxchg16b %1"
                     : "=@ccz"(done), "+m"(*(unsigned __int128 *)words), "+a"(*first), "+d"(*second)
                     : "b"(new_first), "c"(new_second)
                     : "memory");
#elif defined(__aarch64__)
    uint64_t found, other;
    uint32_t failed;
    do {
        __asm__ volatile("ldaxp %0, %1, %2"
                         : "=&r"(found), "=&r"(other)
                         : "Q"(*(unsigned __int128 *)words)
                         : "memory");
        done = found == *first && other == *second;
        if (!done)
            break;
        __asm__ volatile("stlxp %w0, %2, %3, %1"
                         : "=&r"(failed), "=Q"(*(unsigned __int128 *)words)
                         : "r"(new_first), "r"(new_second)
                         : "memory");
    } while (failed);
    *first = found;
    *second = other;
#else
#error "a compare-and-swap of 16 bytes is needed"
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(words);
#endif
    return done;
}

/* Read-modify-writes of words with several writers; each returns what was there before. */
#define wh_fetch_or_seq(p, bits) atomic_fetch_or_explicit((p), (bits), memory_order_seq_cst)
#define wh_fetch_and_seq(p, bits) atomic_fetch_and_explicit((p), (bits), memory_order_seq_cst)
#define wh_fetch_add_seq(p, n) atomic_fetch_add_explicit((p), (n), memory_order_seq_cst)
#define wh_exchange_seq(p, v) atomic_exchange_explicit((p), (v), memory_order_seq_cst)

/* A process may be killed between any two instructions. Stores above it come before stores below
 * it, so the next incarnation finds no other order; for other processes it orders nothing. */
#define wh_step() atomic_signal_fence(memory_order_acq_rel)

/* A counter with one writer: no read-modify-write is needed. */
#define wh_count(p, n) wh_store_relaxed((p), wh_load_relaxed(p) + (n))

#define wh_likely(x) __builtin_expect(!!(x), 1)
#define wh_unlikely(x) __builtin_expect(!!(x), 0)
#define wh_seldom __attribute__((noinline, cold)) /* never inlined: rarely called */
#define wh_cold __attribute__((cold)) /* made small, not fast: not called per timer */
/* never inlined: its callers stay small */
#define wh_apart __attribute__((noinline, unused))
/* always inlined, however large the caller */
#define wh_hot static inline __attribute__((always_inline))
/* Have a line at hand that is written soon: not shared first, and then asked for again. The builtin
 * of a plain x86-64 target only fetches it for reading. */
#ifdef __x86_64__
#define wh_prefetch_write(p) __asm__ volatile("prefetchw %0" : : "m"(*(const char *)(p)))
#else
#define wh_prefetch_write(p) __builtin_prefetch((p), 1, 3)
#endif
#define wh_prefetch(p) __builtin_prefetch((p), 0, 3) /* a line that is read soon */

#endif
