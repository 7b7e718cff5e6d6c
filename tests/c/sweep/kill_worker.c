/* Kill a worker at every instruction of each of its calls. The clock sweeps it under its policy,
 * time goes on before or after, the others lose nothing; the row has a new tenant, or a
 * successor. */
#include "paths_worker.h"
#include "rounds.h"

/* A is dead. Time goes on or not, others act or not; then it is noticed. */
static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k, (void)whole;
    round_dice();
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
    return rounds_run((step_plan){.survive = survive});
}
