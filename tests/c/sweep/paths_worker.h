/* The calls of a worker, each with what stands before it. */
#ifndef SWEEP_PATHS_WORKER_H
#define SWEEP_PATHS_WORKER_H

#include "paths.h"

static void before_settled(void) { crew_settle(); }

static void do_claim(void)
{
    step_begin();
    wh_client_claim(&A->client);
    step_end();
}

static void do_schedule(void) { worker_schedule(A, own(some_delay()), NULL); }
static void do_schedule_to(void)
{
    worker_schedule(A, (plan){.delay = some_delay(), .to = 1}, NULL);
}
static void do_schedule_group(void)
{
    worker_schedule(A, (plan){.delay = some_delay(), .to = TO_GROUP}, NULL);
}
static void do_schedule_periodic(void)
{
    plan p = {.delay = 3 * MS, .interval = 7 * MS, .to = dice(2) ? 1 : 0};
    worker_schedule(A, p, NULL);
}

/* No slot is left in its hands. */
static void use_up(worker *w)
{
    wh_slabs *s = &w->client.slabs;
    while (s->magazine_size || s->stack_size)
        schedule(w, (plan){.delay = dice(2) ? FAR_NS : some_delay(), .to = w->row});
}

static void before_empty(void)
{
    schedule(A, own(MS));
    use_up(A);
    if (dice(2))
        crew_settle();
}

static void before_own(void) { subject = schedule(A, own(FAR_NS)); }
static void before_own_linked(void)
{
    before_own();
    crew_settle();
}
static void before_foreign(void)
{
    subject = schedule(B, (plan){.delay = dice(2) ? FAR_NS : 20 * MS, .to = 1});
}
static void before_foreign_linked(void)
{
    before_foreign();
    clock_work();
}
/* A tick of B's timer stands in A's ring. */
static void before_foreign_tick(void)
{
    subject = schedule(B, (plan){.delay = 0, .interval = 5 * MS, .to = 0});
    clock_advance(crew_now() + 2 * MS);
}
static void do_cancel(void) { worker_cancel(A, subject); }

static void before_movable(void)
{
    subject = schedule(A, own(30 * MS));
    if (dice(2))
        clock_work();
}
static void before_movable_periodic(void)
{
    subject = schedule(A, (plan){.delay = 10 * MS, .interval = 9 * MS, .to = 0});
    clock_advance(crew_now() + (int64_t)dice(25) * MS);
}
static void do_earlier(void) { worker_move(A, subject, 5 * MS); }
static void do_later(void) { worker_move(A, subject, 90 * MS); }

static void do_every(void) { worker_move_every(A, subject, 5 * MS, 4 * MS); }

static void do_follow(void) { worker_follow(A, subject); }

static void do_pause(void) { worker_pause(A, subject); }
static void before_paused(void)
{
    subject = schedule(dice(2) ? A : B, (plan){.delay = 30 * MS, .to = 0});
    clock_advance(crew_now() + (int64_t)dice(25) * MS);
    worker_pause(B, subject);
    clock_advance(crew_now() + (int64_t)dice(40) * MS);
}
static void before_paused_periodic(void)
{
    before_movable_periodic();
    worker_pause(B, subject);
    clock_advance(crew_now() + (int64_t)dice(40) * MS);
}
static void do_resume(void) { worker_resume(A, subject); }

static void before_movable_foreign(void)
{
    subject = schedule(B, (plan){.delay = 30 * MS, .to = 1, .interval = dice(2) ? 9 * MS : 0});
    if (dice(2))
        clock_work();
}

static uint32_t several[4];

/* One-shot and periodic, some of them met, each on its own clock. */
static void before_movable_many(void)
{
    for (uint32_t i = 0; i < 4; i++) {
        several[i] = schedule(A, (plan){.delay = (20 + (int64_t)dice(60)) * MS,
                                        .to = i / 3,
                                        .interval = i % 2 ? 9 * MS : 0,
                                        .kind = i % WH_CLOCK_KINDS});
        if (dice(2))
            clock_advance(crew_now() + (int64_t)dice(4) * MS);
    }
}
static void do_earlier_many(void) { worker_move_many(A, several, 4, 5 * MS); }

static void before_events(void)
{
    for (int i = 0; i < 12; i++) {
        schedule(A, own(some_delay() % FAR_NS));
        schedule(B, (plan){.delay = (int64_t)dice(3 * MS), .to = 0});
    }
    schedule(A, (plan){.delay = 0, .interval = 2 * MS, .to = 0});
    clock_advance(crew_now() + 5 * MS);
    if (dice(2)) /* more behind it */
        schedule(B, (plan){.delay = 0, .to = 0});
    S->bells[0]++;
}
static void do_receive(void) { worker_receive(A); }

/* A tick for the group stands in A's ring, a later one in B's: whoever looks at the timer's last
 * tick does not see that A reads. */
static void before_group_tick(void)
{
    crew_joins(A), crew_joins(B);
    S->peers[2].groups = 0;
    crew_settle();
    subject = schedule(C, (plan){.delay = 0, .interval = 50 * MS, .to = TO_GROUP});
    use_up(C); /* its next timer has the slot that comes back */
    for (int i = 0; i < 2; i++)
        clock_advance(crew_now() + 50 * MS + MS);
    S->bells[0]++;
}

/* Offers stand in A's ring; B has some of them as well, or took them. */
static void before_offers(void)
{
    crew_joins(A), crew_joins(B);
    for (int i = 0; i < 8; i++)
        schedule(i % 2 ? C : A, (plan){.delay = (int64_t)dice(3 * MS), .to = TO_GROUP});
    use_up(C); /* its next timer has a slot that comes back */
    clock_advance(crew_now() + 4 * MS);
    S->bells[1]++;
    worker_receive(B);
    clock_advance(crew_now() + (dice(2) ? 0 : 12 * MS));
    S->bells[0]++;
}

/* Whole slabs come back at once. */
static void before_returns(void)
{
    uint32_t first = S->book.count;
    for (int i = 0; i < 70; i++)
        schedule(A, own(FAR_NS));
    for (uint32_t i = first; i < S->book.count; i++)
        worker_cancel(dice(4) ? A : B, i);
    clock_work();
}
/* A has much that it does not use, in its hands or on the way to it, and B asks for it. */
static void before_taken_over(void)
{
    before_returns();
    if (dice(2))
        worker_receive(A);
    if (dice(2))
        wh_client_reclaim(&A->client);
    worker_ask(B);
    clock_work();
    if (dice(2))
        wh_client_claim(&B->client);
}
static void do_use(void)
{
    for (int i = 0; i < 3; i++)
        worker_schedule(A, own(some_delay()), NULL);
}

/* B has it, and A asks. */
static void before_asking(void)
{
    uint32_t first = S->book.count;
    for (int i = 0; i < 70; i++)
        schedule(B, (plan){.delay = dice(3) ? FAR_NS : MS, .to = 1});
    for (uint32_t i = first; i < S->book.count; i++)
        if (dice(2))
            worker_cancel(dice(2) ? A : B, i);
    clock_advance(crew_now() + (dice(2) ? 2 * MS : 0));
    if (dice(2))
        wh_client_reclaim(&B->client);
    if (dice(2))
        worker_receive(B);
}
static void do_ask(void) { worker_ask(A); }

/* A has nothing in its magazine; what it has free is in parked slabs. B asks, and has no answer
 * yet. */
static void before_unpark(void)
{
    wh_slabs *slabs = &A->client.slabs;
    uint32_t first = S->book.count;
    for (int i = 0; i < 130 && worker_schedule(A, own(FAR_NS), NULL); i++)
        ;
    for (uint32_t i = first; i < S->book.count; i++)
        if (i % 16)
            worker_cancel(A, i);
    clock_work();
    wh_client_reclaim(&A->client);
    while (slabs->magazine_size)
        wh_slabs_give(slabs, slabs->magazine[--slabs->magazine_size]);
    wh_slabs_park(slabs);
    wh_client_ask(&B->client, 60, false);
}
static void before_answered(void)
{
    before_asking();
    worker_ask(A);
    clock_work();
}

static void do_reclaim(void)
{
    step_begin();
    wh_client_reclaim(&A->client);
    step_end();
}

/* From now on timers wait in the backlog. */
static void before_backlog(void)
{
    fill_completions(dice(3));
    for (int i = 0; i < 5; i++) {
        schedule(A, own(0));
        schedule(B, (plan){.delay = 0, .to = 0});
    }
    schedule(B, (plan){.delay = 0, .interval = 11 * MS, .to = 0});
    clock_advance(crew_now() + 2 * MS);
    S->bells[0]++;
}

static void do_sleep(void)
{
    step_begin();
    if (A->client.wait_seq & 1)
        wh_client_awake(&A->client);
    else if (!wh_client_may_sleep(&A->client))
        wh_client_awake(&A->client);
    step_end();
}

/* One thread waits, and lets others in: what they do finds the worker asleep. */
static void do_call_while_waiting(void)
{
    uint32_t cookie;
    do_sleep();
    if (worker_schedule(A, own(5 * MS), &cookie)) {
        worker_move(A, cookie, 2 * MS);
        if (dice(2))
            worker_cancel(A, cookie);
    }
    S->bells[0]++;
    worker_receive(A);
}

/* The ring is more than half full: the doorbell. */
static void before_half_full(void)
{
    wh_client *c = &A->client;
    crew_settle();
    while (c->sub_tail - c->sub_head < c->sub_size / 2)
        wh_client_push(c, wh_id(0x7ffffff0, 3)); /* of an earlier tenant: looked at, and ignored */
    wh_client_publish_lazily(c);
}

static const struct path worker_paths[] = {
    {"claim", before_any, do_claim, 1},
    {"schedule", before_any, do_schedule, 1},
    {"schedule-to", before_any, do_schedule_to, 1},
    {"schedule-group", before_any, do_schedule_group, 1},
    {"schedule-periodic", before_settled, do_schedule_periodic, 1},
    {"schedule-claims", before_empty, do_schedule, 1},
    {"schedule-rings", before_half_full, do_schedule, 1},
    {"cancel-unseen", before_own, do_cancel, 1},
    {"cancel-own", before_own_linked, do_cancel, 1},
    {"cancel-foreign", before_foreign_linked, do_cancel, 1},
    {"cancel-foreign-unseen", before_foreign, do_cancel, 1},
    {"cancel-foreign-tick", before_foreign_tick, do_cancel, 1},
    {"move-earlier", before_movable, do_earlier, 1},
    {"move-later", before_movable, do_later, 1},
    {"move-periodic", before_movable_periodic, do_earlier, 1},
    {"move-many", before_movable_many, do_earlier_many, 1},
    {"another-period", before_movable_periodic, do_every, 1},
    {"follow", before_movable_periodic, do_follow, 1},
    {"pause", before_movable, do_pause, 1},
    {"pause-periodic", before_movable_periodic, do_pause, 1},
    {"resume", before_paused, do_resume, 1},
    {"resume-periodic", before_paused_periodic, do_resume, 1},
    {"receive", before_events, do_receive, 1},
    {"receive-backlog", before_backlog, do_receive, 40},
    {"reclaim", before_returns, do_reclaim, 1},
    {"sleep", before_any, do_sleep, 1},
    {"receive-offers", before_offers, do_receive, 1},
    {"receive-group-tick", before_group_tick, do_receive, 1},
    {"call-while-waiting", before_events, do_call_while_waiting, 1},
    {"use-taken", before_taken_over, do_use, 1},
    {"reclaim-taken", before_taken_over, do_reclaim, 1},
    {"ask", before_asking, do_ask, 1},
    {"reclaim-handed", before_answered, do_reclaim, 1},
    {"use-handed", before_answered, do_use, 1},
    {"unpark", before_unpark, do_use, 1},
};
#define WORKER_PATHS (sizeof worker_paths / sizeof *worker_paths)

/* With another worker's timer. */
static const struct path foreign_paths[] = {
    {"move-foreign", before_movable_foreign, do_earlier, 1},
};

/* -- with payloads in the heap ----------------------------------------------------------------- */

static void do_schedule_heavy(void)
{
    plan p = {.delay = some_delay(), .to = (uint32_t)dice(2), .bytes = HEAVY_BYTES};
    worker_schedule(A, p, NULL);
}
static void do_schedule_chain(void)
{
    plan p = {.delay = some_delay(), .to = (uint32_t)dice(2), .bytes = CHAIN_BYTES};
    worker_schedule(A, p, NULL);
}

/* Chunks of other sizes are empty; one that A used is, or is full. */
static void before_chunks(void)
{
    uint32_t own_one = schedule(A, (plan){.delay = FAR_NS, .bytes = HEAVY_BYTES});
    uint32_t theirs = schedule(B, (plan){.delay = FAR_NS, .to = 1, .bytes = CHAIN_BYTES});
    if (dice(2))
        worker_cancel(A, own_one);
    worker_cancel(A, theirs);
    if (dice(2))
        A->client.heap.at[wh_heap_class(HEAVY_BYTES)] = 0;
    clock_work();
}
static void before_chain(void)
{
    subject = schedule(B, (plan){.delay = FAR_NS, .to = 1, .bytes = CHAIN_BYTES});
    if (dice(2))
        clock_work();
}
/* Own ones, lent ones, a tick, and what is for the group. */
static void before_heavy_events(void)
{
    crew_joins(A);
    S->peers[1].groups = S->peers[2].groups = 0;
    for (int i = 0; i < 4; i++) {
        schedule(A, (plan){.delay = MS, .bytes = HEAVY_BYTES});
        schedule(B, (plan){.delay = MS, .to = 0, .bytes = HEAVY_BYTES});
        schedule(C, (plan){.delay = MS, .to = TO_GROUP, .bytes = HEAVY_BYTES});
    }
    schedule(C, (plan){.delay = 0, .interval = 5 * MS, .to = 0});
    clock_advance(crew_now() + 2 * MS);
    S->bells[0]++;
}
static void do_hold(void)
{
    wh_client *c = &A->client;
    A->head = c->comp_head;
    step_begin();
    uint64_t got = wh_client_hold(c, A->events, EVENTS);
    wh_client_acknowledge(c);
    step_end();
    wh_count(&c->seg->received, got);
    A->head = c->comp_head;
    for (uint64_t i = 0; i < got; i++)
        worker_note(A, (const wh_completion *)(A->events + i * wh_event_bytes(c)));
}

static const struct path heavy_paths[] = {
    {"heavy-schedule", before_settled, do_schedule_heavy, 1},
    {"heavy-schedule-chunks", before_chunks, do_schedule_heavy, 2},
    {"heavy-schedule-chain", before_any, do_schedule_chain, 300},
    {"heavy-cancel", before_own_linked, do_cancel, 1},
    {"heavy-cancel-foreign", before_foreign, do_cancel, 1},
    {"heavy-cancel-chain", before_chain, do_cancel, 1},
    {"heavy-receive", before_heavy_events, do_receive, 4},
    {"heavy-receive-offers", before_offers, do_receive, 4},
    {"heavy-hold", before_heavy_events, do_hold, 4},
};
#define HEAVY_PATHS (sizeof heavy_paths / sizeof *heavy_paths)

#endif
