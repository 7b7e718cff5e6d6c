/* Begun: when a worker scheduled a timer, in a word of its private memory, one per slot: the time
 * in units of 1024 ns, its clock, and the lower bits of the timer's generation. Times go round in
 * nine years, and are subtracted likewise. 0: not known. */
#ifndef WHEELD_BEGUN_H
#define WHEELD_BEGUN_H

#include <stdint.h>
#include <stdbool.h>

#define WH_BEGUN_TIME_BITS 48u
#define WH_BEGUN_TIME ((1ull << WH_BEGUN_TIME_BITS) - 1)
static inline uint64_t wh_begun_word(uint32_t gen, uint32_t kind, int64_t at)
{
    return (uint64_t)gen << 50 | (uint64_t)kind << WH_BEGUN_TIME_BITS |
           ((uint64_t)at >> 10 & WH_BEGUN_TIME);
}
static inline bool wh_begun_is_of(uint64_t word, uint32_t gen)
{
    return word >> 50 == (gen & 0x3fffu);
}
static inline uint32_t wh_begun_kind(uint64_t word)
{
    return (uint32_t)(word >> WH_BEGUN_TIME_BITS) & 3;
}
/* ns from then to `at`. */
static inline int64_t wh_begun_since(uint64_t word, int64_t at)
{
    return (int64_t)((((uint64_t)at >> 10) - word) & WH_BEGUN_TIME) << 10;
}

/* What goes into a request: a time that is not 0, to which a virtual clock may stand. */
static inline int64_t wh_begun_at(int64_t now) { return now | 1; }

#endif
