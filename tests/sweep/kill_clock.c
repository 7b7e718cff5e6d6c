/* Kill the clock at every instruction of what it does in a pass, and of its recovery. Workers go on
 * meanwhile or not; a new clock recovers; nothing is lost, doubled or early. */
#include "paths_clock.h"
#include "rounds.h"

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k, (void)whole;
    round_dice();
    clock_dies();
    if (dice(2))
        crew_history(8);
    clock_begins();
    clock_recovers();
    crew_check_lists();
    if (dice(2))
        crew_history(8);
    if (!A->alive)
        worker_left(A);
    crew_finish();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(clock_paths, CLOCK_PATHS);
    return rounds_run((step_plan){.survive = survive});
}
