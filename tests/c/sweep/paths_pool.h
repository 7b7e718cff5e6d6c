/* The steps of a borrower and a supervisor, and the situations that they meet. */
#ifndef SWEEP_PATHS_POOL_H
#define SWEEP_PATHS_POOL_H

#include "borrowers.h"

static void clear_all(void)
{
    S->unnoted = false;
    S->slow_from = S->slow_to = 0;
    for (uint32_t i = 0; i < BORROWERS; i++)
        if (S->workers[i].have)
            change(&S->workers[i], -S->workers[i].have);
}

/* -- situations -------------------------------------------------------------------------------- */

static void strictly(bool strict)
{
    clear_all(); /* what is out may be more than a strict pool has */
    S->supervisor.pool->strict = strict;
}

static void before_fits(void)
{
    clear_all();
    change(B, 100);
    change(A, 50);
    change(C, 1 + (int64_t)dice(100));
}

/* `left` bytes are left. */
static void fill(int64_t left)
{
    clear_all();
    change(A, LARGEST);
    change(B, LARGEST);
    change(C, LARGEST);
    change(dice(2) ? B : C, SIZE - 3 * LARGEST - left);
}
static void before_strict_refusal(void) { strictly(true), fill(40); }
static void before_lenient_refusal(void) { strictly(false), fill(1), change(B, LARGEST); }
static void before_overshoot(void) { strictly(false), fill(1); }

/* A change whose worker is stopped, or killed, before it notes it. */
static bool change_unnoted(borrower *w, int64_t bytes)
{
    wh_au64 *made = &w->budget.mine->made;
    uint64_t before = wh_load_relaxed(made);
    bool done = change(w, bytes);
    wh_store_relaxed(made, before);
    return done;
}
static void before_unnoted(void)
{
    before_fits();
    change(A, 20);
    change_unnoted(B, dice(2) ? 30 : -10);
    S->unnoted = true;
}

/* Two tenants of B's row were killed like that, one after the other, and D is still about to note
 * the first one's change. */
static void before_tenants(void)
{
    before_fits();
    S->slow_from = wh_load_relaxed(&B->budget.mine->made);
    S->slow_to = S->slow_from + 1;
    change_unnoted(B, -B->have);
    bury(B);
    change_unnoted(B, 30);
    S->unnoted = true;
}
static void note_slowly(void)
{
    uint64_t from = S->slow_from;
    if (S->slow_from != S->slow_to)
        wh_cas_acq_rel(&B->budget.mine->made, &from, S->slow_to);
    S->slow_from = S->slow_to;
}

/* `used` names the change by which A gave back all; nearly all is out. */
static void before_first(void)
{
    clear_all();
    strictly(true);
    for (uint32_t i = 1; i < BORROWERS; i++)
        change(&S->workers[i], LARGEST);
    change(A, 40);
    change(A, -40);
}

/* B and C sleep in the queue. */
static void before_release(void)
{
    fill(1);
    if (!S->supervisor.pool->strict)
        change(A, LARGEST); /* beyond */
    wait_for(B, LARGEST);
    wait_for(C, LARGEST);
    CHECK(B->sleeps && C->sleeps, "nobody was refused");
}
static void before_wait(void)
{
    fill(0);
    CHECK(!change(A, 1), "not full");
}

/* -- what a worker does ------------------------------------------------------------------------ */

static void allocate(void) { change(A, 50); }
static void allocate_largest(void) { change(A, LARGEST); }
static void release_some(void) { change(A, -20); }
static void release_and_wake(void) { give_back(A, LARGEST); }
static void refused_then_less(void)
{
    change(A, LARGEST);
    change(A, 30);
}
static void three(void)
{
    change(A, 10);
    change(A, -30);
    change(A, 5);
}
static void wait_in_queue(void) { wait_for(A, LARGEST); }

static const path worker_paths[] = {
    {"allocate", before_fits, allocate, 1},
    {"allocate-first", before_first, allocate, 1},
    {"release", before_fits, release_some, 1},
    {"refused-strict", before_strict_refusal, refused_then_less, 1},
    {"refused-lenient", before_lenient_refusal, refused_then_less, 1},
    {"overshoot", before_overshoot, allocate_largest, 1},
    {"note-allocate", before_unnoted, allocate, 1},
    {"note-release", before_unnoted, release_some, 1},
    {"note-tenant", before_tenants, allocate, 1},
    {"three", before_unnoted, three, 1},
    {"release-wakes", before_release, release_and_wake, 1},
    {"wait", before_wait, wait_in_queue, 1},
};
#define WORKER_PATHS (sizeof worker_paths / sizeof *worker_paths)

/* -- what B's death leaves, and the supervisor finds ------------------------------------------- */

static void dies(borrower *w) { w->alive = false; }

static void before_loan(void)
{
    before_fits();
    dies(B);
}
static void before_none(void)
{
    clear_all();
    change(C, 10);
    dies(B);
}
static void before_unmade(void) /* begun, and killed before the compare-and-swap */
{
    before_fits();
    wh_ledger *l = B->budget.mine;
    uint64_t begun = wh_load_relaxed(&l->change) + 1;
    wh_store_relaxed(wh_ledger_after(l, begun), 4444);
    wh_store_relaxed(&l->change, begun);
    dies(B);
}
static void before_named(void)
{
    before_unnoted();
    dies(B);
    S->unnoted = false;
}
static void before_noted(void) /* by C, since B did not come to it */
{
    before_named();
    change(C, 10);
}
static void before_own_name(void) /* `used` names the supervisor */
{
    before_fits();
    change(C, 10);
    bury(C);
    dies(B);
}
static void before_queue(void)
{
    before_release();
    dies(B);
}
static void reap(void) { seat(B->row); }

static const path supervisor_paths[] = {
    {"reap", before_loan, reap, 1},          {"reap-none", before_none, reap, 1},
    {"reap-unmade", before_unmade, reap, 1}, {"reap-named", before_named, reap, 1},
    {"reap-noted", before_noted, reap, 1},   {"reap-again", before_own_name, reap, 1},
    {"reap-queue", before_queue, reap, 1},
};
#define SUPERVISOR_PATHS (sizeof supervisor_paths / sizeof *supervisor_paths)

/* B goes on after it was stopped, or never does. */
static void settle_unnoted(void)
{
    if (S->unnoted && dice(2))
        dies(B);
    else if (S->unnoted)
        wh_store_relaxed(&B->budget.mine->made, wh_load_relaxed(&B->budget.mine->change));
    S->unnoted = false;
}

#endif
