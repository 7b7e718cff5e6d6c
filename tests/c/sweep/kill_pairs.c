/* Kill twice, or three times: a worker and then the clock that sweeps it, a clock and then the one
 * that recovers from its death, and that one's successor. The first kill and the second are chosen
 * by chance: all pairs would be too many. */
#include "paths_clock.h"
#include "paths_worker.h"
#include "rounds.h"

enum { FIRST_STOPS = 2, SECOND_STRIDE = 160, THIRD_STRIDE = 400 };

static void finish(void)
{
    crew_check_lists();
    if (!A->alive)
        worker_left(A);
    crew_finish();
}

static void recover(void *unused)
{
    (void)unused;
    clock_begins();
    clock_recovers();
    clock_work();
}

static uint64_t third_next(void *unused, uint64_t k)
{
    (void)unused;
    return step_after(k, THIRD_STRIDE, 2);
}

static void third_survive(void *unused, uint64_t k, bool whole)
{
    (void)k, (void)whole;
    round_dice();
    clock_dies();
    recover(unused);
    finish();
}

/* The clock has died (again). */
static void second_survive(void *unused, uint64_t k, bool whole)
{
    static const step_plan third = {
        .operate = recover, .survive = third_survive, .next = third_next};
    (void)k, (void)whole;
    round_dice();
    clock_dies();
    if (dice(4) == 0)
        crew_history(5);
    if (opt.k[2] || (!opt.k[1] && dice(100) == 0)) {
        step_sweep(&third);
        return;
    }
    recover(unused);
    finish();
}

static uint64_t second_next(void *unused, uint64_t k)
{
    (void)unused;
    return step_after(k, SECOND_STRIDE, 1);
}

static void sweep_the_dead(void *unused)
{
    (void)unused;
    for (int pass = 0; pass < 3; pass++)
        clock_work();
}

static void first_survive(void *unused, uint64_t k, bool whole)
{
    step_plan second = {.operate = recover, .survive = second_survive, .next = second_next};
    (void)unused, (void)k, (void)whole;
    round_dice();
    if (rounds.path < clock_paths || rounds.path >= clock_paths + CLOCK_PATHS) {
        worker_dies(A);
        worker_leaves(A, some_policy());
        second.operate = sweep_the_dead;
    } else {
        clock_dies();
        if (dice(3) == 0)
            crew_history(5);
    }
    step_sweep(&second);
}

/* Anywhere in it. */
static uint64_t first_next(void *unused, uint64_t k)
{
    static uint64_t length;
    if (k == 0 && !opt.k[0])
        length = step_length(&(step_plan){.operate = round_operate, .argument = unused});
    return step_after(k, 1 + 2 * length / FIRST_STOPS, 0);
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(clock_paths, CLOCK_PATHS);
    rounds_add(worker_paths, WORKER_PATHS);
    rounds_add(foreign_paths, 1);
    for (size_t i = 0; i < HEAVY_PATHS; i++)
        if (heavy_paths[i].stride < 100) /* else all pairs are too many even by chance */
            rounds_add(&heavy_paths[i], 1);
    return rounds_run((step_plan){.survive = first_survive, .next = first_next});
}
