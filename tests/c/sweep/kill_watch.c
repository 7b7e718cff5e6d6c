/* Kill a checker, a watcher, or the supervisor that clears a row, at every instruction. When the
 * supervisor, or the next one, has seen to the row of who died, everybody has learned of what it
 * changed; of the dead nothing stays. */
#include "paths_watch.h"
#include "rounds.h"

/* The dead one's row is cleared; its next tenant is reached, and reaches others. */
static void next_tenant(void)
{
    clear(A);
    check_clear(A);
    let_in(A);
    watch_key(A, 0);
    if (dice(2))
        react(A);
    check(B, 0);
    check(A, 2);
    verdict();
}

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    bool checker = rounds.path >= checker_paths && rounds.path < checker_paths + CHECKER_PATHS;
    A->alive = false;
    if (whole && checker)
        verdict();
    if (dice(2)) {
        leave(A); /* nobody checks any more */
        verdict();
    } else if (dice(2)) { /* what the dead checker marked and did not ring for, the next one does */
        check(C, 0);
        verdict();
    } else {
        others_act(dice(6));
    }
    check(B, 0), check(B, 2), check(C, 0);
    verdict();
    next_tenant();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(checker_paths, CHECKER_PATHS);
    rounds_add(watcher_paths, WATCHER_PATHS);
    rounds_add(supervisor_paths, SUPERVISOR_PATHS);
    return rounds_run((step_plan){.survive = survive});
}
