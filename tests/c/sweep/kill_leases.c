/* Kill a worker at every instruction of each call of a lease, and the supervisor at every
 * instruction of clearing a row; then the next supervisor, too. Nobody holds what another one
 * holds, no seat is lost, nobody sleeps beside one, and those who wait come in order. */
#include "paths_leases.h"
#include "rounds.h"

enum { SECOND_STRIDE = 64 };

static bool supervised(void)
{
    return rounds.path >= supervisor_paths && rounds.path < supervisor_paths + SUPERVISOR_PATHS;
}

static void worker_survived(bool whole)
{
    if (whole && dice(2))
        check_sleepers(); /* it said all that it had to */
    else
        dies(A);
    others_act(dice(6));
    if (dice(4) == 0)
        dies(C);
    others_act(dice(4));
    finish();
}

/* The next supervisor: it wakes all, and gives the row to somebody else. */
static void succeed(void *unused)
{
    (void)unused;
    step_begin();
    wh_lease_queue_wake_all(&D->keys, count_wake);
    seat_now(B->row);
    step_end();
}

static void second_survive(void *unused, uint64_t k, bool whole)
{
    (void)k, (void)whole;
    round_dice();
    others_act(dice(3));
    succeed(unused);
    reborn(B);
    finish();
}

static uint64_t second_next(void *unused, uint64_t k)
{
    (void)unused;
    return step_after(k, SECOND_STRIDE, 1);
}

static void survive(void *unused, uint64_t k, bool whole)
{
    static const step_plan second = {
        .operate = succeed, .survive = second_survive, .next = second_next};
    (void)unused, (void)k;
    round_dice();
    if (!supervised()) {
        worker_survived(whole);
        return;
    }
    if (!whole)
        B->alive = false;
    others_act(dice(2) * dice(4));
    if (!whole && (opt.k[1] || dice(8) == 0)) {
        step_sweep(&second);
        return;
    }
    if (!whole) {
        succeed(unused);
        reborn(B);
    }
    finish();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(worker_paths, WORKER_PATHS);
    rounds_add(supervisor_paths, SUPERVISOR_PATHS);
    return rounds_run((step_plan){.survive = survive});
}
