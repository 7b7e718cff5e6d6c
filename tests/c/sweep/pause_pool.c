/* Stop a borrower or the supervisor at every instruction, while others change the pool, die and are
 * reaped, and come all the way round the 14 bits of a name; then it goes on. */
#include "paths_pool.h"
#include "rounds.h"

static bool supervised(void)
{
    return rounds.path >= supervisor_paths && rounds.path < supervisor_paths + SUPERVISOR_PATHS;
}

/* `used` is, in the end, what it was; the name in it has come round, or nearly. */
static void come_round(borrower *w)
{
    int64_t by = w->have ? -1 : 1;
    if (!goes_on(w))
        return;
    uint64_t count = WRAP * (1 + dice(2)) + (dice(3) ? 0 : 2 * dice(3));
    for (uint64_t i = 0; i < count; i++, by = -by)
        if (!change(w, by))
            return;
}

static borrower *somebody(void) { return &S->workers[1 + dice(BORROWERS - 1)]; }

/* Killed after its last change, before it could note it; others go on. */
static void killed_unnoted(void)
{
    borrower *w = somebody();
    if (!goes_on(w) || !w->have || !change_unnoted(w, -1))
        return;
    dies(w);
    others_act(1 + dice(3));
}

static void meanwhile(void)
{
    note_slowly();
    switch (dice(7)) {
    case 0:
        others_act(1 + dice(4));
        break;
    case 1:
        come_round(wh_used_row(wh_load_relaxed(&S->supervisor.pool->used)) == 2 ? C : B);
        if (dice(2))
            dies(B);
        break;
    case 2:
        killed_unnoted();
        break;
    case 3:
        settle_unnoted();
        others_act(1 + dice(2));
        dies(somebody());
        break;
    case 4: /* the one that is named goes on, and another after it */
        settle_unnoted();
        act(B);
        act(C);
        dies(B);
        break;
    case 5:
        if (goes_on(B))
            wait_for(B, LARGEST);
        if (goes_on(C) && dice(2))
            wait_for(C, LARGEST);
        break;
    default: /* somebody gives back all; those who wait are told */
        for (uint32_t i = 1; i < BORROWERS; i++)
            if (goes_on(&S->workers[i]) && S->workers[i].have)
                give_back(&S->workers[i], S->workers[i].have);
    }
    for (uint32_t i = 1; i < BORROWERS && !supervised(); i++)
        if (!S->workers[i].alive && dice(2))
            bury(&S->workers[i]);
}

static void survive(void *unused, uint64_t k, bool whole)
{
    (void)unused, (void)k;
    round_dice();
    if (!whole) {
        meanwhile();
        return;
    }
    if (supervised()) { /* it has reaped B */
        B->have = 0;
        B->waits = B->sleeps = false;
        B->alive = true;
    }
    settle_unnoted();
    for (uint32_t i = 1; i < BORROWERS && dice(4); i++)
        if (goes_on(&S->workers[i]) && S->workers[i].have)
            give_back(&S->workers[i], S->workers[i].have);
    finish();
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(worker_paths, WORKER_PATHS);
    rounds_add(supervisor_paths, SUPERVISOR_PATHS);
    return rounds_run((step_plan){.mode = STEP_PAUSE, .survive = survive});
}
