/* After the death of a clock: workers go on meanwhile or not, a new one recovers, all ends
 * well. */
#ifndef SWEEP_SURVIVE_CLOCK_H
#define SWEEP_SURVIVE_CLOCK_H

#include "paths_clock.h"
#include "rounds.h"

static void survive_clock(bool dies)
{
    if (dies) {
        clock_dies();
        if (dice(2))
            crew_history(8);
        clock_begins();
        clock_recovers();
        crew_check_lists();
    }
    if (dice(2))
        crew_history(8);
    if (!A->alive)
        worker_left(A);
    crew_finish();
}

/* The same after a pass that came to its end, as well. */
static inline void survive_pass(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    survive_clock(!whole || dice(2));
}

#endif
