/* Kill a worker at every instruction of each call of a limit: the others never get more than the
 * limit in any window, and all that is there but what that call asked for. */
#include "limiting.h"
#include "rounds.h"

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k, (void)whole;
    uint32_t unknown = S->asked;
    round_dice();
    if (dice(2))
        wh_words_leave(A);
    others_act(dice(2) * dice(6));
    check_limits();
    check_lost(unknown);
    wh_words_leave(A);
    others_act(dice(4));
    check_whole();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(limit_paths, LIMIT_PATHS);
    return rounds_run((step_plan){.survive = survive});
}
