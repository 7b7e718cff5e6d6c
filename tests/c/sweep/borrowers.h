/* Borrowers: workers and a supervisor over one pool, driven by hand, all in the arena.
 *
 * The bytes that each worker was told it has stand outside the pool (`have`), so at rest the
 * account is exact: `used` is what the living have. Futexes are counters: a waiter that was refused
 * sleeps until its wake counter moves, so a lost wake-up shows as a waiter that sleeps beside
 * memory. */
#ifndef SWEEP_BORROWERS_H
#define SWEEP_BORROWERS_H

#include "step.h"

#include "wheeld/sharing/pool.h"

#define BORROWERS 4
#define POOL 1u /* of two: what stands before it is not ours */
#define SIZE 1000
#define LARGEST 300
#define WRAP (1ull << WH_USED_CHANGE_BITS)

typedef struct borrower {
    wh_budget budget;
    int64_t have; /* as acknowledged */
    uint32_t row, seen;
    bool alive, waits, sleeps;
} borrower;

typedef struct bank {
    void *pools;
    wh_budget supervisor;
    borrower workers[BORROWERS];
    bool unnoted; /* B made a change and was stopped before it noted that */
    uint64_t slow_from, slow_to; /* what D, stopped, is about to note for B */
    uint64_t rng;
} bank;

static bank *S; /* the first thing in the arena */

#define A (&S->workers[0])
#define B (&S->workers[1])
#define C (&S->workers[2])

static inline uint64_t dice(uint64_t limit) { return rng_next(&S->rng) % limit; }

static uint64_t bank_used(void)
{
    return wh_used_bytes(wh_load_relaxed(&S->supervisor.pool->used));
}

/* This always holds, whoever stands where. */
static void bank_bounds(void)
{
    uint64_t most = S->supervisor.pool->strict ? SIZE : SIZE - 1 + LARGEST;
    CHECK(bank_used() <= most, "%llu bytes out, at most %llu", (ull)bank_used(), (ull)most);
}

/* Nobody is in the middle of a change, and the dead are reaped. */
static void bank_exact(void)
{
    int64_t sum = 0;
    bank_bounds();
    for (uint32_t i = 0; i < BORROWERS; i++)
        sum += S->workers[i].have;
    CHECK((int64_t)bank_used() == sum, "%llu bytes out; the living have %lld", (ull)bank_used(),
          (long long)sum);
}

/* -- calls: what the operation does stands between step_begin and step_end --------------------- */

static bool change(borrower *w, int64_t bytes)
{
    step_begin();
    bool done = wh_budget_change(&w->budget, bytes);
    step_end();
    w->have += done ? bytes : 0;
    CHECK(w->have >= 0, "the test gives back what it has not");
    bank_bounds();
    return done;
}

static void count_wake(wh_au32 *word) { (void)word; }

/* As release does: the queue is looked at when the bytes are back. */
static void give_back(borrower *w, int64_t bytes)
{
    step_begin();
    wh_budget_change(&w->budget, -bytes);
    if (!wh_wait_queue_empty(&w->budget))
        wh_wait_queue_wake(&w->budget, count_wake);
    step_end();
    w->have -= bytes;
}

/* Into the queue; sleeps if it is refused. The counter is read before `used` is looked at. */
static void wait_for(borrower *w, int64_t bytes)
{
    step_begin();
    wh_wait_queue_show(&w->budget, wh_wait_queue_ticket(&w->budget), (uint64_t)bytes);
    uint32_t seen = wh_load_acquire(&w->budget.mine->wake);
    bool done = wh_budget_change(&w->budget, bytes);
    if (done)
        wh_wait_queue_show(&w->budget, 0, 0);
    step_end();
    w->have += done ? bytes : 0;
    w->seen = seen;
    w->waits = w->sleeps = !done;
}

/* Waiters that sleep and were not woken have nothing to wait for. */
static void check_line(void)
{
    for (uint32_t i = 0; i < BORROWERS; i++) {
        borrower *w = &S->workers[i];
        if (w->alive && w->sleeps && wh_load_relaxed(&w->budget.mine->wake) == w->seen)
            CHECK(!wh_pool_fits(w->budget.pool, bank_used(), LARGEST),
                  "worker %u sleeps beside memory", i);
    }
}

/* -- deaths ------------------------------------------------------------------------------------ */

/* As seat_borrower and resume_pools of sharing_part.c. */
static int64_t seat(uint32_t row)
{
    step_begin();
    int64_t out = wh_budget_reap(&S->supervisor, row);
    wh_wait_queue_wake(&S->supervisor, count_wake);
    wh_store_release(&S->supervisor.ledgers[row].tenant, 7);
    step_end();
    return out;
}

static void resume(void)
{
    step_begin();
    wh_budget_resume(&S->supervisor);
    wh_wait_queue_wake(&S->supervisor, count_wake);
    step_end();
}

/* The supervisor has seen a death; the row has a new tenant. */
static void bury(borrower *w)
{
    uint64_t before = bank_used();
    w->alive = w->waits = w->sleeps = false;
    w->have = 0;
    int64_t out = seat(w->row);
    CHECK((int64_t)(before - bank_used()) == out, "%lld returned of %lld", (long long)out,
          (long long)(before - bank_used()));
    CHECK(seat(w->row) == 0, "returned twice");
    CHECK(wh_load_relaxed(&w->budget.mine->ticket) == 0, "the dead one stands in the queue");
    w->alive = true;
}

/* -- random changes ---------------------------------------------------------------------------- */

/* Not dead, nor asleep, nor stopped. */
static bool goes_on(const borrower *w) { return w->alive && !w->waits && !(S->unnoted && w == B); }

static void act(borrower *w)
{
    if (!goes_on(w))
        return;
    if (w->have && dice(2))
        give_back(w, 1 + (int64_t)dice((uint64_t)w->have));
    else
        change(w, 1 + (int64_t)dice(LARGEST));
}

/* Others than A. */
static void others_act(uint64_t count)
{
    for (; count; count--)
        act(&S->workers[1 + dice(BORROWERS - 1)]);
}

/* Nobody waits any more. */
static void leave_lines(void)
{
    for (uint32_t i = 0; i < BORROWERS; i++) {
        borrower *w = &S->workers[i];
        if (w->waits)
            wh_wait_queue_show(&w->budget, 0, 0);
        w->waits = w->sleeps = false;
    }
}

/* A new tenant is refused only bytes that are not its own. */
static void refuse_tenants(void)
{
    while (change(&S->workers[BORROWERS - 1], LARGEST))
        ;
    for (uint32_t i = 0; i + 1 < BORROWERS; i++)
        if (!change(&S->workers[i], LARGEST) && dice(2))
            bury(&S->workers[i]);
    bank_exact();
}

/* All exact; each row's next tenant finds its ledger in order; in the end all is given back. */
static void finish(void)
{
    for (uint32_t i = 0; i < BORROWERS; i++)
        if (!S->workers[i].alive)
            bury(&S->workers[i]);
    bank_exact();
    check_line();
    leave_lines();
    if (dice(2))
        refuse_tenants();
    for (int i = 0; i < 8; i++) {
        act(&S->workers[dice(BORROWERS)]);
        bank_exact();
        if (dice(4) == 0)
            bury(&S->workers[dice(BORROWERS)]);
    }
    for (uint32_t i = 0; i < BORROWERS; i++)
        if (S->workers[i].have)
            give_back(&S->workers[i], S->workers[i].have);
    CHECK(bank_used() == 0, "%llu bytes are lost", (ull)bank_used());
    CHECK(wh_wait_queue_empty(&S->supervisor), "somebody stands in the queue");
}

/* -- the beginning ----------------------------------------------------------------------------- */

/* As if so many changes had been made: near a wrap of the 14 bits, or of all. */
static void start_at(wh_ledger *l, uint64_t count)
{
    wh_store_relaxed(&l->change, count);
    wh_store_relaxed(&l->made, count);
}

static void round_world(uint64_t seed)
{
    memory->used = 0;
    S = arena_take(sizeof *S);
    S->rng = seed;
    uint64_t starts[] = {
        0, 1, WRAP - 1, WRAP, 5 * WRAP - 1, UINT64_MAX - 1, UINT64_MAX, dice(UINT64_MAX)};
    S->pools = arena_take(wh_pools_bytes(BORROWERS, 2));
    wh_pool *pools = wh_pools_create(S->pools, BORROWERS, 2);
    for (uint32_t i = 0; i < 2; i++)
        wh_pool_create(&pools[i], SIZE, LARGEST, dice(2), 0);
    wh_budget_bind(&S->supervisor, S->pools, 2, BORROWERS, POOL, BORROWERS);
    start_at(S->supervisor.mine, starts[dice(8)]);
    for (uint32_t row = 0; row < BORROWERS; row++) {
        borrower *w = &S->workers[row];
        w->row = row;
        w->alive = true;
        wh_budget_bind(&w->budget, S->pools, 2, BORROWERS, POOL, row);
        start_at(w->budget.mine, starts[dice(8)]);
    }
    for (uint64_t i = dice(20); i; i--)
        act(&S->workers[dice(BORROWERS)]);
}

#endif
