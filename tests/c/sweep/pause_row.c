/* Stop a worker that looks up a name at every instruction, while the supervisor gives rows to
 * others: what it finds is the incarnation that had that name, whoever has the row by then, or
 * nobody. */
#include "rounds_row.h"

/* The supervisor goes on, and may be in the middle of it when the reader does. */
static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (!whole) {
        for (uint64_t steps = dice(3 * TENANCY + 2); steps; steps--)
            supervisor_step();
        return;
    }
    uint32_t row = (S->found & 0xfff) - 1, incarnation = S->found >> 12;
    if (S->found)
        CHECK(row < ROWS && incarnation < S->next && S->name_of[incarnation] == S->wanted,
              "%u stands for row %u, incarnation %u, which has never had that name", S->wanted, row,
              incarnation);
    while (S->step)
        supervisor_step();
    look_up();
    CHECK(S->found || !stands(S->wanted), "nobody has the name %u", S->wanted);
}

static const struct path row_paths[] = {{"look-up", before_look_up, look_up, 1}};

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(row_paths, 1);
    return rounds_run((step_plan){.mode = STEP_PAUSE, .survive = survive});
}
