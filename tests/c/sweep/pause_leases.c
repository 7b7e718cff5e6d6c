/* Stop a worker at every instruction of each call of a lease, while others take, give, wait, give
 * up and die, and the time of what they hold and of their turns passes; then it goes on. */
#include "paths_leases.h"
#include "rounds.h"

static void meanwhile(void)
{
    A->still = true;
    others_act(1 + dice(8));
    holder *w = &S->holders[1 + dice(HOLDERS - 1)];
    if (dice(3) == 0) {
        dies(w);
        if (dice(2))
            bury(w);
    }
    if (dice(3) == 0)
        S->now += (int64_t)dice(2 * SPAN);
    others_act(dice(6));
}

/* Does it hold what it was told, still? */
static bool has_it(const holder *w)
{
    return w->holds && wh_lease_holds(&w->keys, &S->lease, &w->hold, S->now);
}

/* Whoever had freed the seat goes on, too. */
static void free_seen(void)
{
    wh_lease_call call = call_at(0);
    for (uint32_t seat = 0; seat < S->lease.seats; seat++)
        wh_lease_offer(&A->keys, &S->lease, seat, &call);
}

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (!whole) {
        meanwhile();
        return;
    }
    A->still = false;
    if (rounds.path->before == before_unseen)
        free_seen();
    if (A->holds && !wh_lease_holds(&A->keys, &S->lease, &A->hold, S->now)) {
        A->holds = false; /* its time was over before it heard of it */
        for (uint32_t i = 1; i < HOLDERS; i++)
            CHECK(S->holders[i].hold.seat != A->hold.seat ||
                      S->holders[i].hold.token > A->hold.token || !has_it(&S->holders[i]),
                  "who has the seat now has a smaller token");
    }
    finish();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(worker_paths, WORKER_PATHS);
    return rounds_run((step_plan){.mode = STEP_PAUSE, .survive = survive});
}
