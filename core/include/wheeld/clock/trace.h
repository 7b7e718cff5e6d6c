/* Trace: one record per event of a timer, from the clock to the recorder, through a ring.
 *
 * The clock appends and never waits: what finds the ring full is counted by kind, and once there is
 * room a record of kind `lost` says how many are missing. The recorder copies what is published,
 * keeps it, and only then moves `rec_head`. While records come it looks now and then; after a while
 * without any it sleeps on the futex `rings`, and the clock wakes it after the pass that records:
 *
 *     clock                            recorder
 *     rec_tail = t     (seq_cst)       rec_sleeps = 1           (seq_cst)
 *     rec_sleeps ?     (seq_cst)       rec_tail as it was ?     (seq_cst)
 *        rings += 1, futex wake           futex wait
 *
 * Whichever of the two stores comes first in the single order of seq_cst operations, the other
 * side's load sees it.
 *
 * Beside the ring is what the trace knows of each slot's timer. It shows the next clock which
 * events are recorded, so that a death loses or repeats at most one event.
 *
 * Invariants
 *  1. A record is whole before the tail that covers it is published, one by one: a record that a
 *     dead clock wrote and did not publish is written over by the next.
 *  2. counts = events in records (each by its count) + lost; lost - told is what no
 *     record mentions yet.
 *  3. traced.gen names a timer exactly from the record of its beginning to that of its end;
 *     `pending` counts those that name one.
 */
#ifndef WHEELD_TRACE_H
#define WHEELD_TRACE_H

#include "wheeld/shared/geometry.h"
#include "wheeld/shared/ring.h"

/* The clock's side. */
typedef struct wh_trace {
    wh_trace_seg *seg; /* NULL: nothing is recorded */
    wh_trace_record *records;
    wh_traced *traced; /* one per slot */
    uint64_t size, tail;
    uint64_t head; /* the recorder's, as last read */
    uint64_t told_of; /* the tail at the last look whether the recorder sleeps */
    uint64_t pending;
    uint64_t untold; /* lost events that no record mentions yet */
} wh_trace;

/* -- the segment ------------------------------------------------------------------------------- */

static inline uint64_t wh_traced_offset(void) { return wh_align(sizeof(wh_trace_seg), 4096); }
static inline uint64_t wh_trace_records_offset(uint32_t capacity)
{
    return wh_align(wh_traced_offset() + sizeof(wh_traced) * (uint64_t)capacity, 4096);
}
static inline uint64_t wh_trace_bytes(uint32_t capacity, uint32_t ring_bits)
{
    return wh_align(wh_trace_records_offset(capacity) + (sizeof(wh_trace_record) << ring_bits),
                    4096);
}

/* Positions start at `position`, so that those of an earlier ring, already in files, do not occur
 * again. */
static inline void wh_trace_create(void *memory, uint32_t capacity, uint32_t ring_bits,
                                   uint64_t token, uint64_t position)
{
    wh_trace_seg *seg = memory;
    wh_store_relaxed(&seg->rec_tail, position);
    wh_store_relaxed(&seg->rec_head, position);
    seg->capacity = capacity;
    seg->ring_bits = ring_bits;
    seg->traced_off = wh_traced_offset();
    seg->records_off = wh_trace_records_offset(capacity);
    wh_head_publish(&seg->head, WH_KIND_TRACE, wh_trace_bytes(capacity, ring_bits), token);
}

/* Do its sizes fit its length? Checked before any offset is used. */
static inline bool wh_trace_sound(const wh_trace_seg *seg, uint64_t bytes)
{
    return seg->ring_bits >= WH_MIN_TRACE_BITS && seg->ring_bits <= WH_MAX_TRACE_BITS &&
           seg->traced_off == wh_traced_offset() &&
           seg->records_off == wh_trace_records_offset(seg->capacity) &&
           wh_trace_bytes(seg->capacity, seg->ring_bits) == bytes;
}

static inline wh_trace_record *wh_trace_records(wh_trace_seg *seg)
{
    return (wh_trace_record *)((char *)seg + wh_trace_records_offset(seg->capacity));
}

/* -- the clock --------------------------------------------------------------------------------- */

/* Continue where the last clock stopped. */
static inline void wh_trace_bind(wh_trace *t, wh_trace_seg *seg)
{
    *t = (wh_trace){.seg = seg,
                    .records = wh_trace_records(seg),
                    .traced = (wh_traced *)((char *)seg + wh_traced_offset()),
                    .size = 1ull << seg->ring_bits,
                    .tail = wh_load_relaxed(&seg->rec_tail),
                    .head = wh_load_acquire(&seg->rec_head)}; /* pairs: trace-head */
    t->told_of = t->tail - 1; /* the last clock may have died before it woke the recorder */
    for (uint32_t kind = 0; kind < WH_TRACE_KINDS; kind++)
        t->untold += wh_load_relaxed(&seg->lost[kind]) - wh_load_relaxed(&seg->told[kind]);
    for (uint32_t slot = 0; slot < seg->capacity; slot++)
        t->pending += t->traced[slot].gen != 0;
    wh_store_relaxed(&seg->pending, t->pending);
}

static inline bool wh_trace_room(wh_trace *t)
{
    if (wh_likely(wh_ring_room(t->tail, t->head, t->size)))
        return true;
    /* pairs: trace-head - else a record could be written over while the recorder copies it */
    t->head = wh_load_acquire(&t->seg->rec_head);
    return wh_ring_room(t->tail, t->head, t->size) != 0;
}

static inline void wh_trace_publish(wh_trace *t)
{
    /* pairs: trace-tail - else the recorder could copy a record that is not whole */
    wh_store_release(&t->seg->rec_tail, ++t->tail);
}

/* After a pass: true if the recorder sleeps beside new records, and has to be woken. */
static inline bool wh_trace_wakes(wh_trace *t)
{
    if (wh_likely(t->told_of == t->tail) || t->seg == NULL)
        return false;
    t->told_of = t->tail;
    /* pairs: trace-sleep - else each misses the other: the recorder sleeps beside a record. An
     * exchange, as a store is on x86-64 anyway: qemu lets a later load overtake an arm64 store. */
    (void)wh_exchange_seq(&t->seg->rec_tail, t->tail);
    if (wh_likely(!wh_load_seq(&t->seg->rec_sleeps))) /* pairs: trace-sleep */
        return false;
    /* pairs: trace-sleep - else the recorder sleeps on a count from before it was woken */
    wh_store_seq(&t->seg->rings, wh_load_relaxed(&t->seg->rings) + 1);
    return true;
}

/* Record what is missing, as far as there is room. */
static inline void wh_trace_tell(wh_trace *t, int64_t now_ns)
{
    for (uint32_t kind = 1; t->untold && kind < WH_TRACE_KINDS; kind++) {
        uint64_t told = wh_load_relaxed(&t->seg->told[kind]);
        uint64_t missing = wh_load_relaxed(&t->seg->lost[kind]) - told;
        if (missing == 0)
            continue;
        if (!wh_trace_room(t))
            return;
        missing = missing < UINT32_MAX ? missing : UINT32_MAX;
        t->records[t->tail & (t->size - 1)] = (wh_trace_record){
            .time_ns = now_ns,
            .deadline_ns = INT64_MAX,
            .id = kind,
            .count = (uint32_t)missing,
            .pending = t->pending < UINT32_MAX ? (uint32_t)t->pending : UINT32_MAX,
            .worker = WH_NO_ROW,
            .receiver = WH_NO_ROW,
            .kind = WH_TRACE_LOST};
        wh_trace_publish(t);
        wh_store_relaxed(&t->seg->told[kind], told + missing);
        wh_count(&t->seg->counts[WH_TRACE_LOST], 1);
        t->untold -= missing;
    }
}

/* Account for `count` events that found the ring full, and are in `counts` already. */
static inline void wh_trace_lose(wh_trace *t, enum wh_trace_kind kind, uint32_t count)
{
    wh_count(&t->seg->lost[kind], count);
    t->untold += count;
}

/* Account for `count` events. Returns the record to fill in and publish, or NULL: they are lost. */
static inline wh_trace_record *wh_trace_append(wh_trace *t, enum wh_trace_kind kind, uint32_t count,
                                               int64_t now_ns)
{
    wh_count(&t->seg->counts[kind], count);
    if (wh_likely(wh_trace_room(t))) {
        if (wh_unlikely(t->untold))
            wh_trace_tell(t, now_ns);
        if (wh_likely(wh_trace_room(t)))
            return &t->records[t->tail & (t->size - 1)];
    }
    wh_trace_lose(t, kind, count);
    return NULL;
}

/* -- the recorder ------------------------------------------------------------------------------ */

/* Copy what is published from `position` on, up to `most` records. Returns how many; UINT64_MAX:
 * the position is not between head and tail. */
static inline uint64_t wh_trace_take(wh_trace_seg *seg, uint64_t position, wh_trace_record *out,
                                     uint64_t most)
{
    uint64_t size = 1ull << seg->ring_bits;
    uint64_t tail = wh_load_acquire(&seg->rec_tail); /* pairs: trace-tail */
    uint64_t head = wh_load_relaxed(&seg->rec_head);
    uint64_t ready = wh_ring_used(tail, position);
    if (ready > wh_ring_used(tail, head) || ready > size)
        return UINT64_MAX;
    uint64_t count = ready < most ? ready : most, first = position & (size - 1);
    uint64_t whole = count < size - first ? count : size - first;
    memcpy(out, wh_trace_records(seg) + first, whole * sizeof *out);
    memcpy(out + whole, wh_trace_records(seg), (count - whole) * sizeof *out);
    return count;
}

/* Records before `position` are saved; their room is the clock's again. False: it is not between
 * head and tail. */
static inline bool wh_trace_release(wh_trace_seg *seg, uint64_t position)
{
    uint64_t tail = wh_load_acquire(&seg->rec_tail); /* pairs: trace-tail */
    if (wh_ring_used(tail, position) > wh_ring_used(tail, wh_load_relaxed(&seg->rec_head)))
        return false;
    wh_store_release(&seg->rec_head, position); /* pairs: trace-head - all before it is copied */
    return true;
}

/* Before it sleeps on `rings`, as long as that is *seen: true if nothing is behind `position`. */
static inline bool wh_trace_may_sleep(wh_trace_seg *seg, uint64_t position, uint32_t *seen)
{
    *seen = wh_load_seq(&seg->rings); /* pairs: trace-sleep */
    (void)wh_exchange_seq(&seg->rec_sleeps, 1); /* pairs: trace-sleep */
    return wh_load_seq(&seg->rec_tail) == position; /* pairs: trace-sleep */
}

static inline void wh_trace_awake(wh_trace_seg *seg) { wh_store_relaxed(&seg->rec_sleeps, 0); }

#endif
