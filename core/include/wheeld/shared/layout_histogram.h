/* The field list of a histogram, and what its buckets are, apart from layout.h for its length. */
#ifndef WHEELD_LAYOUT_HISTOGRAM_H
#define WHEELD_LAYOUT_HISTOGRAM_H

#include "wheeld/shared/atomics.h"

/* Eight buckets from each power of two to the next: a bucket is as wide as an eighth of the power
 * it begins with, or less. Values below eight have a bucket each; those from 2**48 on share the
 * last one, 2**48 ns being three days. */
#define WH_HISTOGRAM_BITS 3u
#define WH_HISTOGRAM_TOP 48u
#define WH_HISTOGRAM_BUCKETS ((WH_HISTOGRAM_TOP - WH_HISTOGRAM_BITS + 1) << WH_HISTOGRAM_BITS)

/* What the wheel segment counts; a lateness for each row of the worker table comes after these. */
enum wh_wheel_histogram {
    WH_COUNTS_LATENESS = 0, /* from a timer's deadline to its record in a ring, ns */
    WH_COUNTS_PASS,         /* time in a pass, ns */
    WH_COUNTS_FIRED,        /* expirations in a pass that had any */
    WH_COUNTS_DRAINED,      /* submissions in a pass that had any */
    WH_COUNTS_OVERSLEPT,    /* from when the clock wanted to wake to when it did, ns */
    WH_COUNTS_OF_ROWS       /* the first row's */
};

/* What a worker counts, in its segment. */
enum wh_worker_histogram {
    WH_COUNTS_TO_FIRE = 0, /* from its schedule to the firing, of timers it received itself, ns */
    WH_COUNTS_TO_POLL,     /* from the firing to its poll, ns */
    WH_COUNTS_OF_WORKER
};

/* clang-format off */
#define WH_HISTOGRAM_FIELDS(N, F, A)                                                               \
    N(wh_au64, total, "sum of all values", "clock; worker in its own segment", "inspectors", "relaxed")    \
    F(wh_au64, most, "largest value", "clock; worker in its own segment", "inspectors", "relaxed")         \
    A(wh_au64, counts, WH_HISTOGRAM_BUCKETS, "values in each bucket",                              \
      "clock; worker in its own segment", "inspectors", "relaxed")
/* clang-format on */

#endif
