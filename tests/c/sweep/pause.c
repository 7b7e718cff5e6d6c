/* Stop a process at every instruction of an operation while the others go on: they cancel what it
 * is at, time passes, slots come back and are used again; then it continues. Workers first, then
 * the clock. */
#include "paths_clock.h"
#include "paths_waits.h"
#include "paths_worker.h"
#include "rounds.h"

static bool clock_stands(void)
{
    return rounds.path >= clock_paths && rounds.path < clock_paths + CLOCK_PATHS;
}

/* Whatever A is about to do to that timer, others were faster; its slot has another tenant. */
static void overtake(void)
{
    uint32_t count = S->book.count;
    const entry *e = &S->book.entries[subject];
    if (subject < count && e->used && e->id && !entry_over(e))
        worker_cancel(B, subject);
    for (int i = 0; i < 6; i++) {
        if (!S->clockless)
            clock_work();
        worker_receive(B);
        worker_schedule(i % 2 ? B : C, (plan){.delay = (int64_t)dice(3 * MS), .to = i % 2}, NULL);
    }
}

static void meanwhile(void)
{
    bool clockless = S->clockless;
    S->clockless |= clock_stands();
    if (clock_stands())
        ledger_trouble(&S->book, true, S->since, 0);
    A->still = !clock_stands();
    S->book.racing = true;
    if (dice(2))
        overtake();
    crew_history(12);
    if (!S->clockless && dice(2)) {
        clock_advance(crew_now() + (int64_t)dice(40) * MS);
        crew_settle();
        crew_history(6);
    }
    S->clockless = clockless;
    S->book.racing = false;
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
    ledger_trouble(&S->book, false, 0, crew_now());
    if (!A->alive)
        worker_left(A);
    crew_finish();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(worker_paths, WORKER_PATHS);
    rounds_add(clock_paths, CLOCK_PATHS);
    rounds_add(waiting_paths, WAITING_PATHS);
    rounds_add(foreign_paths, 1);
    rounds_add(heavy_paths, HEAVY_PATHS);
    return rounds_run((step_plan){.mode = STEP_PAUSE, .survive = survive});
}
