/* Kill a worker at every instruction of each of its calls, those that wait among them. The clock
 * sweeps it under its policy, time goes on before or after, the others lose nothing; the row has a
 * new tenant, or a successor. */
#include "paths_waits.h"
#include "paths_worker.h"
#include "rounds.h"

/* A is dead. Time goes on or not, others act or not; then it is noticed. But a call that waited to
 * its end has left its worker well. */
static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (whole && path_waits(rounds.path)) {
        crew_finish();
        return;
    }
    worker_dies(A);
    if (dice(2))
        clock_advance(crew_now() + (int64_t)dice(40) * MS);
    if (dice(2))
        crew_history(10);
    worker_leaves(A, some_policy());
    worker_left(A);
    crew_finish();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(worker_paths, WORKER_PATHS);
    rounds_add(waiting_paths, WAITING_PATHS);
    rounds_add(undisturbed_paths, UNDISTURBED_PATHS);
    rounds_add(foreign_paths, 1);
    rounds_add(heavy_paths, HEAVY_PATHS);
    return rounds_run((step_plan){.survive = survive});
}
