/* Layout, third part: what is only watched: the trace segment, which the clock writes and the
 * recorder reads; and the live histograms, with their buckets.
 *
 * A part of layout.h, which says what the lists are and makes structs of them. */
#ifndef WHEELD_LAYOUT_TRACE_H
#define WHEELD_LAYOUT_TRACE_H

#include "wheeld/shared/atomics.h"

#define WH_TRACE_KINDS 7u /* kinds of events: indices of the counts below; 0: none */

/* clang-format off */
#define WH_TRACE_FIELDS(N, F, A)                                                                   \
    N(uint32_t, capacity, "slots", "creator", "all", "before magic")                               \
    F(uint32_t, ring_bits, "log2 of the ring's records", "creator", "all", "before magic")         \
    F(uint64_t, traced_off, "offset of what is known of each slot's timer", "creator", "all",      \
      "before magic")                                                                              \
    F(uint64_t, records_off, "offset of the ring of records", "creator", "all", "before magic")    \
    N(wh_au64, rec_tail, "records published", "clock", "recorder", "release; pairs: trace-tail")   \
    F(wh_au64, pending, "timers whose beginning is recorded, and whose end is not", "clock",       \
      "inspectors", "relaxed")                                                                     \
    A(wh_au64, counts, 7, "events by kind, lost ones too (each by its `count`)", "clock",          \
      "recorder", "relaxed")                                                                       \
    A(wh_au64, lost, 7, "those of them that found the ring full", "clock", "recorder", "relaxed")  \
    A(wh_au64, told, 7, "those of these that a record of kind `lost` tells of", "clock",           \
      "recorder", "relaxed")                                                                       \
    F(wh_au32, rings, "futex: counts the times that the recorder was woken", "clock", "recorder",  \
      "seq_cst; pairs: trace-sleep")                                                               \
    N(wh_au64, rec_head, "records kept by the recorder", "recorder", "clock",                      \
      "release; pairs: trace-head")                                                                \
    F(wh_au32, rec_sleeps, "1: the recorder sleeps until there is a record", "recorder", "clock",  \
      "seq_cst; pairs: trace-sleep")

/* One per slot. Only the clock reads it, this one or the next. */
#define WH_TRACED_FIELDS(N, F, A)                                                                  \
    F(uint32_t, gen, "generation whose beginning is recorded and whose end is not; 0: none",       \
      "clock", "the next clock", "-")                                                              \
    F(uint32_t, version,                                                                           \
      "TRACED word", \
      "clock", "the next clock", "-")                                                              \
    F(int64_t, scheduled_ns, "when a clock first saw it, base clock, ns", "clock", "the next clock",  \
      "before gen")

/* One event. */
#define WH_TRACE_RECORD_FIELDS(N, F, A)                                                            \
    F(int64_t, time_ns, "when; expired: on the timer's clock, others: base clock; ns", "clock",    \
      "recorder", "before rec_tail")                                                               \
    F(int64_t, scheduled_ns, "when a clock first saw the timer, base clock, ns; lost: 0", "clock", \
      "recorder", "before rec_tail")                                                               \
    F(int64_t, deadline_ns,                                                                        \
      "expired: as in the completion; others: due time, base clock; INT64_MAX: none; ns", "clock", \
      "recorder", "before rec_tail")                                                               \
    F(uint64_t, id, "timer id; lost: kind of the missing events", "clock", "recorder",             \
      "before rec_tail")                                                                           \
    F(uint64_t, cookie, "slot.cookie", "clock", "recorder", "before rec_tail")                     \
    F(uint32_t, count, "events in this record: 1; rescheduled, lost: how many", "clock",           \
      "recorder", "before rec_tail")                                                               \
    F(uint32_t, missed, "expired, periodic: whole intervals skipped", "clock", "recorder",         \
      "before rec_tail")                                                                           \
    F(uint32_t, pending, "`pending` of the header after this event, UINT32_MAX at most", "clock",  \
      "recorder", "before rec_tail")                                                               \
    F(uint32_t, incarnation, "of the owner, low 32 bits", "clock", "recorder", "before rec_tail")  \
    F(uint16_t, worker, "row of the owner; 0xffff: none", "clock", "recorder", "before rec_tail")  \
    F(uint16_t, receiver, "expired: row of who receives it; 0xffff: the owner", "clock",           \
      "recorder", "before rec_tail")                                                               \
    F(uint16_t, payload_size,                                                                      \
      "bytes of the payload, 65535 at most; 0 if it was freed before, as by a cancel", "clock",    \
      "recorder", "before rec_tail")                                                               \
    F(uint8_t, kind, "1 scheduled 2 rescheduled 3 cancelled 4 expired 5 dropped 6 lost", "clock",  \
      "recorder", "before rec_tail")                                                               \
    F(uint8_t, flags,                                                                              \
      "bits 0-1: the timer's clock, as in slot.flags; 2: periodic; 3: found when the trace began", \
      "clock", "recorder", "before rec_tail")
/* clang-format on */

/* -- histograms -- */

/* Eight buckets from each power of two to the next: a bucket is as wide as an eighth of the power
 * it begins with, or less. Values below eight have a bucket each; those from 2**48 on share the
 * last one, 2**48 ns being three days. */
#define WH_HISTOGRAM_BITS 3u
#define WH_HISTOGRAM_TOP 48u
#define WH_HISTOGRAM_BUCKETS ((WH_HISTOGRAM_TOP - WH_HISTOGRAM_BITS + 1) << WH_HISTOGRAM_BITS)

/* The histograms of the wheel segment; one lateness histogram for each row of the worker table
 * follows them. */
enum wh_wheel_histogram {
    WH_COUNTS_LATENESS = 0, /* from a timer's deadline to its record in a ring, ns */
    WH_COUNTS_PASS,         /* time in a pass, ns */
    WH_COUNTS_FIRED,        /* expirations in a pass that had any */
    WH_COUNTS_DRAINED,      /* submissions in a pass that had any */
    WH_COUNTS_OVERSLEPT,    /* from when the clock wanted to wake to when it did, ns */
    WH_COUNTS_OF_ROWS       /* the first row's */
};

/* The histograms of a worker's segment, of the events that go to it. */
enum wh_worker_histogram {
    WH_COUNTS_TO_FIRE = 0, /* from the schedule of a one-shot to its firing, ns; by the clock */
    WH_COUNTS_TO_POLL,     /* from the firing to the worker's poll, ns; by the worker */
    WH_COUNTS_OF_WORKER
};

/* clang-format off */
#define WH_HISTOGRAM_FIELDS(N, F, A)                                                               \
    N(wh_au64, total, "sum of all values", "clock; the worker: fire to poll", "inspectors", "relaxed")    \
    F(wh_au64, most, "largest value", "clock; the worker: fire to poll", "inspectors", "relaxed")         \
    A(wh_au64, counts, WH_HISTOGRAM_BUCKETS, "values in each bucket",                              \
      "clock; the worker: fire to poll", "inspectors", "relaxed")
/* clang-format on */

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

#endif
