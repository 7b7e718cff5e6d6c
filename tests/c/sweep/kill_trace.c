/* Kill the clock at every instruction of a pass that records events, and of its recovery: the ring
 * is never torn, and at most the event that the clock was at is missing or doubled. */
#include "survive_clock.h"
#include "trace_book.h"

static void survive(void *unused, uint64_t k, bool whole)
{
    survive_pass(unused, k, whole);
    trace_begin();
    trace_read();
    CHECK(S->clock.trace.pending == 0, "%llu stories without an end", (ull)S->clock.trace.pending);
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    crew_trace_bits = TRACE_BITS;
    crew_account = trace_account;
    rounds_add(clock_paths, CLOCK_PATHS);
    return rounds_run((step_plan){.survive = survive});
}
