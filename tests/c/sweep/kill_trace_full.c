/* Kill the clock at every instruction of a pass whose events find the trace ring full: at most the
 * event that the clock was at is missing in the counts, or doubled. All moves of a timer that one
 * look finds are one event, that counts as so many. */
#include "survive_clock.h"

#define FULL_BITS 4u

typedef struct kinds {
    uint64_t of[WH_TRACE_KINDS];
} kinds;

/* The ledger's account of the kinds that it knows for sure. */
static kinds full_expected(void)
{
    kinds k = {0};
    for (uint32_t i = 0; i < S->book.count; i++) {
        const entry *e = &S->book.entries[i];
        k.of[WH_TRACE_SCHEDULED] += e->used;
        k.of[WH_TRACE_CANCELLED] += e->cancels;
    }
    return k;
}

/* The ring's account; nobody took anything out. */
static kinds full_recorded(void)
{
    static wh_trace_record records[1u << FULL_BITS];
    wh_trace_seg *seg = S->trace;
    kinds k = {0};
    uint64_t head = wh_load_relaxed(&seg->rec_head);
    uint64_t count = wh_trace_take(seg, head, records, 1u << FULL_BITS);
    CHECK(count == 1u << FULL_BITS, "%llu records: the ring was not full, or is torn", (ull)count);
    for (uint64_t i = 0; i < count; i++)
        if (records[i].kind != WH_TRACE_LOST)
            k.of[records[i].kind] += records[i].count;
    CHECK(wh_trace_release(seg, head + count), "release");
    return k;
}

static uint64_t moves_at_death; /* of one timer, which the clock had not told of when it died */

static uint64_t most_moves(void)
{
    wh_trace_seg *seg = S->trace; /* the clock that died may not have bound anything */
    const wh_traced *traced = (wh_traced *)((char *)seg + seg->traced_off);
    wh_au64 *states = (wh_au64 *)((char *)S->slots + S->geometry.states_off);
    uint64_t most = 0;
    for (uint32_t slot = 0; slot < S->config.capacity; slot++) {
        const wh_traced *known = &traced[slot];
        uint64_t state = wh_load_relaxed(&states[slot]);
        uint64_t moves = wh_version_ahead(wh_state_version(state), known->version);
        most = known->gen == wh_state_gen(state) && moves > most ? moves : most;
    }
    return most;
}

static void near(const char *what, uint32_t kind, uint64_t found, uint64_t expected)
{
    uint64_t odd = found > expected ? found - expected : expected - found;
    bool several = kind == WH_TRACE_RESCHEDULED && moves_at_death > 1;
    CHECK(odd <= S->deaths * (several ? moves_at_death : 1),
          "after %llu deaths %llu %s of kind %u, expected %llu", (ull)S->deaths, (ull)found, what,
          kind, (ull)expected);
}

static void full_account(void)
{
    wh_trace_seg *seg = S->trace;
    kinds expected = full_expected(), recorded = full_recorded();
    for (uint32_t kind = WH_TRACE_SCHEDULED; kind < WH_TRACE_LOST; kind++) {
        uint64_t counted = wh_load_relaxed(&seg->counts[kind]);
        uint64_t lost = wh_load_relaxed(&seg->lost[kind]);
        if (kind == WH_TRACE_SCHEDULED || kind == WH_TRACE_CANCELLED)
            near("events", kind, counted, expected.of[kind]);
        near("events lost or recorded", kind, lost + recorded.of[kind], counted);
    }
    /* the next ledger begins with nothing */
    for (uint32_t kind = 0; kind < WH_TRACE_KINDS; kind++) {
        wh_store_relaxed(&seg->counts[kind], 0);
        wh_store_relaxed(&seg->lost[kind], 0);
        wh_store_relaxed(&seg->told[kind], 0);
    }
    S->clock.trace.untold = 0;
    CHECK(S->clock.trace.pending == 0, "%llu stories without an end", (ull)S->clock.trace.pending);
}

static void survive(void *unused, uint64_t k, bool whole)
{
    moves_at_death = whole ? 0 : most_moves();
    survive_pass(unused, k, whole);
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    crew_trace_bits = FULL_BITS;
    crew_account = full_account;
    rounds_add(clock_paths, CLOCK_PATHS);
    return rounds_run((step_plan){.survive = survive});
}
