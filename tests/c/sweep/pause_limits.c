/* Stop a worker at every instruction of each call of a limit, while others take, wait and give
 * back and time passes; then it goes on. */
#include "limiting.h"
#include "rounds.h"

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (!whole) {
        others_act(1 + dice(8));
        if (dice(3) == 0)
            S->now += (int64_t)dice(2 * PER);
        others_act(dice(6));
        check_limits();
        return;
    }
    if (S->told)
        check_stopped(&S->grants[S->told - 1]);
    others_act(dice(4));
    check_whole();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(limit_paths, LIMIT_PATHS);
    return rounds_run((step_plan){.mode = STEP_PAUSE, .survive = survive});
}
