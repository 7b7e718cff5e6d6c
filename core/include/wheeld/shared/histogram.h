/* Histogram: how values are distributed, in buckets that layout_trace.h declares.
 *
 * A histogram has one writer. Each count is one word that only grows, so readers need no lock.
 * `most` is stored first, so no bucket above its own has any: a writer that dies in between leaves
 * its last value out of `counts` and `total`, or of `total`.
 */
#ifndef WHEELD_HISTOGRAM_H
#define WHEELD_HISTOGRAM_H

#include "wheeld/shared/slot.h"

/* Count a value in its bucket, which is known. */
static inline void wh_histogram_put(wh_histogram *h, uint32_t bucket, uint64_t value,
                                    uint64_t times)
{
    if (wh_unlikely(value > wh_load_relaxed(&h->most)))
        wh_store_relaxed(&h->most, value);
    wh_count(&h->counts[bucket], times);
    wh_count(&h->total, value * times);
}

/* Count a value, below 0 as 0. */
static inline void wh_histogram_add(wh_histogram *h, int64_t signed_value, uint64_t times)
{
    uint64_t value = signed_value > 0 ? (uint64_t)signed_value : 0;
    wh_histogram_put(h, wh_histogram_bucket(value), value, times);
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
