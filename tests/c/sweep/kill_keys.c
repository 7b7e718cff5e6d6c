/* Kill a worker at every instruction of its calls by key, and the clock at every instruction of a
 * pass that fires timers with keys or reaps who claimed them. No key is left without its timer, and
 * no armed timer without its key, whatever the policy; nothing fires that was replaced. */
#include "paths_keys.h"
#include "rounds.h"

static void worker_killed(void)
{
    memset(BOOK->never_free, 0, sizeof BOOK->never_free);
    worker_dies(A);
    if (rounds.path->before == before_key_reopened)
        BOOK->half.kind = HALF_NONE;
    if (dice(2))
        half_ends();
    keys_bury(A);
    if (dice(2))
        wh_words_leave(&A->keys);
    if (dice(2) && !BOOK->kept) /* else whose the key is then is only known behind the sweep */
        keys_history(dice(8));
    if (dice(2))
        clock_advance(crew_now() + (int64_t)dice(12) * MS);
    worker_leaves(A, some_policy());
}

static void clock_killed(void)
{
    clock_dies();
    if (dice(2) && A->alive)
        keys_history(dice(8));
    clock_begins();
    clock_recovers();
    crew_check_lists();
}

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (!key_clock_stands(rounds.path))
        worker_killed();
    else if (!whole)
        clock_killed();
    keys_finish();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    crew_keyed = true;
    crew_account = keys_account;
    rounds_add(key_paths, KEY_PATHS);
    rounds_add(key_clock_paths, KEY_CLOCK_PATHS);
    return rounds_run((step_plan){.survive = survive});
}
