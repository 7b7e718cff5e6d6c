/* Stop a worker at every instruction of its calls by key, while others claim, replace, move and
 * cancel the same one and its neighbours, and time passes; then it goes on. */
#include "paths_keys.h"
#include "rounds.h"

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    A->still = !whole;
    if (whole) {
        S->book.racing = false;
        keys_finish();
        return;
    }
    S->book.racing = true;
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

int main(int argc, char **argv)
{
    options_read(argc, argv);
    crew_keyed = true;
    crew_account = keys_account;
    rounds_add(key_paths, KEY_PATHS);
    return rounds_run((step_plan){.mode = STEP_PAUSE, .survive = survive});
}
