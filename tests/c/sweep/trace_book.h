/* Trace book: what a trace says, held against the ledger.
 *
 * Each timer has one beginning and one end, of the kind that the ledger knows. A clock that died
 * has left at most the record that it was at missing, doubled or of the wrong kind; of a timer that
 * it met and ended in one look, its beginning too. */
#ifndef SWEEP_TRACE_BOOK_H
#define SWEEP_TRACE_BOOK_H

#include "paths_clock.h"

#define TRACE_BITS 12u
#define MOST_SLOTS 512

typedef struct tale {
    uint32_t begins, cancels, expires, drops, ticks;
    int64_t last; /* deadline of the last tick */
} tale;

static tale tales[MOST_ENTRIES];
static uint32_t open_gen[MOST_SLOTS]; /* by slot: of the timer that has begun and not ended */
static uint64_t trace_odd;            /* records too many or too few */

static inline void trace_begin(void)
{
    memset(tales, 0, sizeof tales);
    memset(open_gen, 0, sizeof open_gen);
    trace_odd = 0;
}

static void trace_check_record(const wh_trace_record *r)
{
    CHECK(r->kind >= WH_TRACE_SCHEDULED && r->kind <= WH_TRACE_DROPPED, "kind %u", r->kind);
    CHECK(wh_id_gen(r->id) != 0 && wh_id_slot(r->id) < S->config.capacity, "id %llx", (ull)r->id);
    CHECK(r->count == 1 || (r->kind == WH_TRACE_RESCHEDULED && r->count && r->count < 1000),
          "%u events in one record of kind %u", r->count, r->kind);
    CHECK(r->worker < ROWS, "row %u", r->worker);
    CHECK(r->cookie < S->book.count, "cookie %llu", (ull)r->cookie);
    const entry *e = &S->book.entries[r->cookie];
    CHECK(!e->id || e->id == r->id, "%llu has id %llx, the trace says %llx", (ull)r->cookie,
          (ull)e->id, (ull)r->id);
    CHECK(r->kind != WH_TRACE_EXPIRED || r->time_ns >= r->deadline_ns, "%llu expired early",
          (ull)r->cookie);
    CHECK(!(r->flags & WH_TRACE_PERIODIC) == !e->interval, "%llu: flags %x", (ull)r->cookie,
          r->flags);
}

static void trace_tell(const wh_trace_record *r)
{
    tale *t = &tales[r->cookie];
    uint32_t slot = wh_id_slot(r->id), gen = wh_id_gen(r->id);
    bool tick = r->kind == WH_TRACE_EXPIRED && r->flags & WH_TRACE_PERIODIC;
    trace_odd += r->kind == WH_TRACE_SCHEDULED ? open_gen[slot] == gen : open_gen[slot] != gen;
    open_gen[slot] = gen; /* what has no beginning is odd once */
    if (r->kind == WH_TRACE_SCHEDULED) {
        t->begins++;
    } else if (tick) {
        trace_odd += t->ticks && r->deadline_ns <= t->last;
        t->ticks++;
        t->last = r->deadline_ns;
    } else if (r->kind != WH_TRACE_RESCHEDULED) {
        t->cancels += r->kind == WH_TRACE_CANCELLED;
        t->expires += r->kind == WH_TRACE_EXPIRED;
        t->drops += r->kind == WH_TRACE_DROPPED;
        open_gen[slot] = 0;
    }
}

/* All that was recorded since the last look. */
static void trace_read(void)
{
    static wh_trace_record records[1u << TRACE_BITS];
    wh_trace_seg *seg = S->trace;
    uint64_t head = wh_load_relaxed(&seg->rec_head);
    uint64_t count = wh_trace_take(seg, head, records, 1u << TRACE_BITS);
    CHECK(count <= 1u << TRACE_BITS, "the ring is torn");
    for (uint32_t kind = 0; kind < WH_TRACE_KINDS; kind++)
        CHECK(wh_load_relaxed(&seg->lost[kind]) == 0, "the ring is too small for this test");
    for (uint64_t i = 0; i < count; i++) {
        trace_check_record(&records[i]);
        trace_tell(&records[i]);
    }
    CHECK(wh_trace_release(seg, head + count), "release");
}

static uint32_t apart(uint32_t a, uint32_t b) { return a > b ? a - b : b - a; }

/* Every timer's story is what the ledger says. */
static void trace_account(void)
{
    trace_begin();
    trace_read();
    uint64_t wrong = 0;
    uint32_t worst = WH_NIL;
    for (uint32_t i = 0; i < S->book.count; i++) {
        const entry *e = &S->book.entries[i];
        const tale *t = &tales[i];
        /* what was put into a dead worker's ring and not read had expired, to the trace */
        bool unread = e->dropped && !e->interval && t->expires;
        uint32_t ends = e->used, told = t->cancels + t->expires + t->drops;
        bool kind = t->cancels == e->cancels && t->drops == (e->dropped && !unread);
        uint32_t odd = apart(t->begins, e->used) + (told == ends ? !kind : apart(told, ends));
        wrong += odd;
        worst = odd ? i : worst;
    }
    const entry *e = &S->book.entries[worst == WH_NIL ? 0 : worst];
    const tale *t = &tales[worst == WH_NIL ? 0 : worst];
    CHECK(
        wrong <= S->deaths && trace_odd <= S->deaths,
        "after %llu deaths %llu records are odd, %llu out of order, such as those of %u (id %llx; events "
        "%u cancels %u dropped %u): begins %u cancels %u expires %u drops %u",
        (ull)S->deaths, (ull)wrong, (ull)trace_odd, worst, (ull)e->id, e->events, e->cancels,
        e->dropped, t->begins, t->cancels, t->expires, t->drops);
    CHECK(S->clock.trace.pending == 0, "%llu stories without an end", (ull)S->clock.trace.pending);
}

#endif
