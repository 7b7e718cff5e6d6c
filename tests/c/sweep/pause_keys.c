/* Stop a worker at every instruction of its calls by key, while others claim, replace, move and
 * cancel the same one and its neighbours, and time passes; or the clock in a pass over such timers.
 * Then it goes on. */
#include "paths_keys.h"
#include "rounds.h"

static void clock_stands(void)
{
    bool clockless = S->clockless;
    keys_note(); /* what it has ended */
    S->clockless = S->book.racing = true;
    ledger_trouble(&S->book, true, S->since, 0);
    if (A->alive && A->holds && dice(2))
        kept_release(A, true);
    keys_history(dice(10));
    if (A->alive && dice(2)) /* else the clock may have ended what that call is to end */
        half_ends();
    keys_history(dice(6));
    S->clockless = clockless;
    S->book.racing = false;
}

static void worker_stands(void)
{
    A->still = S->book.racing = true;
    keys_note();
    if (rounds.path->before == before_key_moved) /* its place goes to another key */
        key_schedule(B, KEYS + FILLERS, WH_KEY_RAISE, far_own(B));
    if (rounds.path->before == before_key_reopened)
        key_schedule(B, MINE, WH_KEY_RAISE, far_own(B));
    keys_history(dice(10));
    if (dice(2))
        clock_advance(crew_now() + (int64_t)dice(12) * MS);
    keys_note();
    keys_history(dice(10));
}

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (whole) {
        A->still = S->book.racing = false;
        ledger_trouble(&S->book, false, 0, crew_now());
        keys_finish();
    } else if (key_clock_stands(rounds.path)) {
        clock_stands();
    } else {
        worker_stands();
    }
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    crew_keyed = true;
    crew_account = keys_account;
    rounds_add(key_paths, KEY_PATHS);
    rounds_add(key_clock_paths, KEY_CLOCK_PATHS);
    return rounds_run((step_plan){.mode = STEP_PAUSE, .survive = survive});
}
