/* Kill the clock at every instruction of what it does in a pass, and of its recovery. Workers go on
 * meanwhile or not; a new clock recovers; nothing is lost, doubled or early. */
#include "survive_clock.h"

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k, (void)whole;
    round_dice();
    survive_clock(true);
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(clock_paths, CLOCK_PATHS);
    rounds_add(heavy_clock_paths, HEAVY_CLOCK_PATHS);
    return rounds_run((step_plan){.survive = survive});
}
