/* Stop a checker, a watcher, or the supervisor that clears a row, at every instruction, while the
 * others check, watch, look and sleep; then it goes on, and nobody has missed anything. */
#include "paths_watch.h"
#include "rounds.h"

static void meanwhile(void)
{
    if (dice(2))
        check(C, (int)dice(KEYS));
    if (dice(2) && !B->watches[0])
        watch_key(B, 0);
    if (dice(2)) {
        react(B);
        react(C);
    }
    others_act(dice(8));
    if (dice(3) == 0)
        check(B, dice(2) ? 0 : 3);
}

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (!whole) {
        meanwhile();
        return;
    }
    if (!A->alive)
        let_in(A);
    verdict();
    if (!A->watches[0])
        watch_key(A, 0);
    others_act(4);
    check(A, 0);
    check(C, 0);
    verdict();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(checker_paths, CHECKER_PATHS);
    rounds_add(watcher_paths, WATCHER_PATHS);
    rounds_add(supervisor_paths, SUPERVISOR_PATHS);
    return rounds_run((step_plan){.mode = STEP_PAUSE, .survive = survive});
}
