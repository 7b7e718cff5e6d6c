/* Kill a borrower at every instruction of each change, and the supervisor at every instruction of
 * reaping; then the next supervisor, too, and the one after it. Others change the pool meanwhile or
 * do not; what the dead had returns exactly, and once. */
#include "paths_pool.h"
#include "rounds.h"

enum { SECOND_STRIDE = 16, THIRD_STRIDE = 80 };

static bool supervised(void)
{
    return rounds.path >= supervisor_paths && rounds.path < supervisor_paths + SUPERVISOR_PATHS;
}

/* -- a worker has died ------------------------------------------------------------------------- */

static void worker_survived(bool whole)
{
    dies(A);
    if (whole)
        check_line(); /* it said all that it had to */
    if (dice(2))
        settle_unnoted();
    others_act(dice(6));
    settle_unnoted();
    if (dice(4) == 0)
        dies(C);
    if (dice(2) && !B->alive)
        bury(B);
    others_act(dice(3));
    finish();
}

/* -- a supervisor has died --------------------------------------------------------------------- */

/* The next one; it knows from the registry that B is dead. */
static void succeed(void *unused)
{
    (void)unused;
    resume();
    if (!B->alive)
        seat(B->row);
}

static void succeeded(void)
{
    B->have = 0;
    B->alive = true;
    B->waits = B->sleeps = false;
    bank_exact();
    finish();
}

static void third_survive(void *unused, uint64_t k, bool whole)
{
    (void)k, (void)whole;
    round_dice();
    others_act(dice(3));
    succeed(unused);
    succeeded();
}

static uint64_t third_next(void *unused, uint64_t k)
{
    (void)unused;
    return step_after(k, THIRD_STRIDE, 2);
}

static void second_survive(void *unused, uint64_t k, bool whole)
{
    static const step_plan third = {
        .operate = succeed, .survive = third_survive, .next = third_next};
    (void)k, (void)whole;
    round_dice();
    others_act(dice(3));
    if (opt.k[2] || (!opt.k[1] && dice(32) == 0)) {
        step_sweep(&third);
        return;
    }
    succeed(unused);
    succeeded();
}

static uint64_t second_next(void *unused, uint64_t k)
{
    (void)unused;
    return step_after(k, SECOND_STRIDE, 1);
}

static void supervisor_survived(void)
{
    static const step_plan second = {
        .operate = succeed, .survive = second_survive, .next = second_next};
    others_act(dice(4));
    step_sweep(&second);
}

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (supervised())
        supervisor_survived();
    else
        worker_survived(whole);
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(worker_paths, WORKER_PATHS);
    rounds_add(supervisor_paths, SUPERVISOR_PATHS);
    return rounds_run((step_plan){.survive = survive});
}
