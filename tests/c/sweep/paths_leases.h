/* The steps of holders, waiters and a supervisor, and the situations that they meet. */
#ifndef SWEEP_PATHS_LEASES_H
#define SWEEP_PATHS_LEASES_H

#include "leasing.h"

static void before_free(void) {}

/* All seats are taken: B has the first, C the second if there are two. */
static void before_held(void)
{
    take(B);
    if (S->lease.seats > 1)
        take(C);
}
static void before_over(void)
{
    before_held();
    S->now += 2 * SPAN;
    if (dice(2))
        retire(D);
}
static void before_dead(void) /* and its row was cleared */
{
    before_held();
    dies(B);
    bury(B);
}
static void before_mine(void)
{
    take(A);
    if (S->lease.seats > 1)
        take(C);
}
static void before_waited(void) /* A has it, B and D wait */
{
    before_mine();
    wait_for(B);
    if (dice(2))
        wait_for(D);
}
static void before_waiting(void) /* A waits, behind somebody or not */
{
    before_held();
    if (dice(2))
        wait_for(D);
    wait_for(A);
    if (S->lease.seats == 1 && dice(2))
        wait_for(C);
}
static void before_turn(void) /* it is A's turn, and D waits */
{
    before_held();
    wait_for(A);
    wait_for(D);
    give(B);
}
static void before_turn_over(void) /* B has not used its turn; D waits, too */
{
    before_mine();
    wait_for(B);
    wait_for(D);
    give(A);
    S->now += 2 * SECOND;
}
static void before_unseen(void) /* the seat is free and B sleeps: who freed it is stopped */
{
    before_mine();
    wait_for(B);
    wh_lease_swap(&A->keys, &S->lease, A->hold.seat, A->hold.word, 0, S->now);
    A->holds = false;
    if (dice(2))
        retire(D);
}

static void take_it(void) { take(A); }
static void give_it(void) { give(A); }
static void renew_it(void) { renew(A); }
static void wait_it(void) { wait_for(A); }
static void leave_it(void) { leave(A); }
static void look_it(void) { look(A); }

static const path worker_paths[] = {
    {"take", before_free, take_it, 1},
    {"take-held", before_held, take_it, 1},
    {"take-over", before_over, take_it, 1},
    {"take-dead", before_dead, take_it, 1},
    {"take-passed", before_turn_over, take_it, 1},
    {"take-unseen", before_unseen, take_it, 1},
    {"give", before_mine, give_it, 1},
    {"give-waited", before_waited, give_it, 1},
    {"renew", before_mine, renew_it, 1},
    {"wait", before_held, wait_it, 1},
    {"wait-free", before_free, wait_it, 1},
    {"wait-unseen", before_unseen, wait_it, 1},
    {"leave", before_waiting, leave_it, 1},
    {"leave-turn", before_turn, leave_it, 1},
    {"look-turn", before_turn, look_it, 1},
    {"look", before_waiting, look_it, 1},
};
#define WORKER_PATHS (sizeof worker_paths / sizeof *worker_paths)

/* -- what B's death leaves, and the supervisor finds ------------------------------------------- */

static void before_holder_dead(void)
{
    before_held();
    wait_for(D);
    dies(B);
}
static void before_waiter_dead(void)
{
    before_mine();
    wait_for(B);
    wait_for(D);
    dies(B);
}
static void before_turn_dead(void)
{
    before_waiter_dead();
    give(A);
}
static void clear_row(void) { bury(B); }

static const path supervisor_paths[] = {
    {"clear-holder", before_holder_dead, clear_row, 1},
    {"clear-waiter", before_waiter_dead, clear_row, 1},
    {"clear-turn", before_turn_dead, clear_row, 1},
};
#define SUPERVISOR_PATHS (sizeof supervisor_paths / sizeof *supervisor_paths)

#endif
