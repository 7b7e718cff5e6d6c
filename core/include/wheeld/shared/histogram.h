/* Histogram: counts of values in buckets whose width grows with the value (layout_histogram.h).
 *
 * Invariants
 *  1. One writer. Each count is one word that only grows, so whoever reads needs no lock, and a
 *     writer that dies leaves at most its last value out of `total` or `most`.
 *  2. Nobody but its writer relies on what stands there: no call fails for it.
 */
#ifndef WHEELD_HISTOGRAM_H
#define WHEELD_HISTOGRAM_H

#include "wheeld/shared/layout.h"

/* The bucket of a value. */
static inline uint32_t wh_histogram_bucket(uint64_t value)
{
    if (value < 1u << WH_HISTOGRAM_BITS)
        return (uint32_t)value;
    if (wh_unlikely(value >> WH_HISTOGRAM_TOP))
        return WH_HISTOGRAM_BUCKETS - 1;
    uint32_t power = 63 - (uint32_t)__builtin_clzll(value), shift = power - WH_HISTOGRAM_BITS;
    return (shift << WH_HISTOGRAM_BITS) + (uint32_t)(value >> shift);
}

/* Count a value whose bucket is known. */
static inline void wh_histogram_put(wh_histogram *h, uint32_t bucket, uint64_t value)
{
    wh_count(&h->counts[bucket], 1);
    wh_count(&h->total, value);
    if (wh_unlikely(value > wh_load_relaxed(&h->most)))
        wh_store_relaxed(&h->most, value);
}

static inline void wh_histogram_add(wh_histogram *h, uint64_t value)
{
    wh_histogram_put(h, wh_histogram_bucket(value), value);
}

/* For a new tenant's figures. */
static inline void wh_histogram_reset(wh_histogram *h)
{
    for (uint32_t i = 0; i < WH_HISTOGRAM_BUCKETS; i++)
        wh_store_relaxed(&h->counts[i], 0);
    wh_store_relaxed(&h->total, 0);
    wh_store_relaxed(&h->most, 0);
}

#endif
