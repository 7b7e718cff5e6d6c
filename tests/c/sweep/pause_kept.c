/* Stop a worker at every instruction of its calls about detached timers and about what it holds of
 * them, and the clock in a pass over such, while the others go on; then it does. */
#include "paths_clock.h"
#include "paths_worker.h"
#include "rounds.h"

#include "paths_kept.h"

static void meanwhile(void)
{
    bool clockless = S->clockless, holds = A->holds;
    S->book.racing = true;
    if (kept_clock_stands()) {
        S->clockless = true;
        ledger_trouble(&S->book, true, S->since, 0);
        if (A->alive && holds && dice(2))
            kept_release(A, true);
    } else {
        A->still = true;
    }
    kept_history(dice(10));
    if (!S->clockless && dice(2))
        kept_advance((int64_t)dice(60) * MS);
    kept_history(dice(6));
    S->clockless = clockless;
    S->book.racing = kept_clock_stands() ? false : true;
}

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (!whole) {
        meanwhile();
        return;
    }
    A->still = S->book.racing = false;
    ledger_trouble(&S->book, false, 0, crew_now());
    kept_note();
    kept_end();
}

int main(int argc, char **argv)
{
    return kept_main(argc, argv, (step_plan){.mode = STEP_PAUSE, .survive = survive});
}
