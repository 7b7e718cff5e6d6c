/* Kill a worker at every instruction of its calls about detached timers and about what it holds of
 * them, and the clock at every instruction of a pass that fires, keeps, drops and takes back such.
 * Each is received until it is acknowledged, or dropped when nobody came for it; the count of them
 * is exact. */
#include "paths_clock.h"
#include "paths_worker.h"
#include "rounds.h"

#include "paths_kept.h"

static void worker_killed(void)
{
    worker_dies(A);
    if (dice(2))
        kept_history(dice(8));
    if (dice(2))
        kept_advance((int64_t)dice(60) * MS);
    worker_leaves(A, some_policy());
}

static void clock_killed(void)
{
    clock_dies();
    if (dice(2) && !A->holds)
        kept_history(dice(8));
    clock_begins();
    clock_recovers();
    crew_check_lists();
    kept_note();
}

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (!kept_clock_stands())
        worker_killed();
    else if (!whole)
        clock_killed();
    kept_note();
    kept_end();
}

int main(int argc, char **argv) { return kept_main(argc, argv, (step_plan){.survive = survive}); }
