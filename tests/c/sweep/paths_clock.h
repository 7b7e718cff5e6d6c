/* The steps of a clock in a pass, each with its beginning. */
#ifndef SWEEP_PATHS_CLOCK_H
#define SWEEP_PATHS_CLOCK_H

#include "paths.h"

static void do_work(void) { clock_work(); }
static void do_advance(void) { clock_advance(crew_now() + 2 * MS); }

/* -- drain ------------------------------------------------------------------------------------- */

static void before_drain(void)
{
    for (int i = 0; i < 4; i++)
        schedule(i % 2 ? B : A, some_plan(A));
}

static void before_drain_cancelled(void)
{
    for (int i = dice(2) ? 70 : 0; i; i--) /* so that its slots were used before */
        schedule(A, own(0));
    clock_advance(crew_now() + MS);
    S->bells[0]++;
    worker_receive(A);
    for (int i = 0; i < 4; i++) {
        subject = schedule(A, own(dice(2) ? FAR_NS : MS));
        if (i % 2)
            clock_work();
        worker_cancel(i < 2 ? A : B, subject);
    }
}

/* A tick of it is unread. */
static void before_drain_ticked(void)
{
    for (int i = 0; i < 2; i++) {
        subject = schedule(B, (plan){.delay = 0, .interval = 2 * MS, .to = 0});
        clock_advance(crew_now() + 3 * MS);
        worker_cancel(i ? A : B, subject);
    }
}

static void before_drain_moved(void)
{
    for (int i = 0; i < 3; i++) {
        subject = schedule(A, own((20 + i) * MS));
        clock_work();
        worker_move(A, subject, (int64_t)dice(40) * MS);
    }
}

/* -- advance ----------------------------------------------------------------------------------- */

static void before_cascade(void)
{
    for (int i = 0; i < 8; i++)
        schedule(i % 2 ? B : A, own(80 * MS + (int64_t)dice(20 * MS)));
    clock_advance(crew_now() + 78 * MS + (int64_t)dice(4 * MS));
}

static void before_later(void)
{
    subject = schedule(A, own(4 * MS));
    clock_work();
    worker_move(A, subject, 60 * MS);
    clock_advance(crew_now() + 3 * MS);
}

static void before_fire(void)
{
    for (uint32_t i = 0; i < 6; i++)
        schedule(i % 2 ? B : A,
                 (plan){.delay = (int64_t)dice(2 * MS), .to = i / 2 ? i / 2 - 1 : 0});
    clock_work();
}

/* Few of one tick, all due before it is over (exact.h): another's, a moved one, a periodic one. */
static void before_fire_exactly(void)
{
    int64_t into = crew_now() % MS, rest = into ? MS - into : MS;
    S->clock.exact = true;
    schedule(A, (plan){.delay = (int64_t)dice((uint32_t)rest), .to = dice(2)});
    subject = schedule(A, own((int64_t)dice((uint32_t)rest)));
    schedule(B, (plan){.delay = (int64_t)dice((uint32_t)rest), .interval = MS / 4, .to = dice(3)});
    schedule(B, own((int64_t)dice((uint32_t)rest)));
    clock_work();
    if (dice(2))
        worker_move(A, subject, (int64_t)dice(4) * MS / 2);
}
static void do_fire_exactly(void)
{
    int64_t into = crew_now() % MS;
    clock_advance(crew_now() + MS - into - 1);
}

static void before_fire_group(void)
{
    crew_joins(A), crew_joins(B);
    for (int i = 0; i < 4; i++)
        schedule(i % 2 ? B : A, (plan){.delay = (int64_t)dice(2 * MS), .to = TO_GROUP});
}

/* Offers stand in the rings of `busy`, who does not read, and of B, who waits; ticks of the
 * group's, too. */
static void before_offers_to(worker *busy, worker *owner)
{
    crew_joins(busy), crew_joins(B);
    worker_receive(B);
    busy->sleeps = dice(2);
    B->sleeps = true;
    for (int i = 0; i < 6; i++)
        schedule(i % 2 ? B : owner, (plan){.delay = (int64_t)dice(2 * MS), .to = TO_GROUP});
    if (dice(2))
        schedule(owner, (plan){.delay = MS, .interval = 40 * MS, .to = TO_GROUP});
    clock_advance(crew_now() + 3 * MS);
    S->bells[1]++;
    worker_receive(B);
}
static void before_reoffer(void)
{
    if (dice(3) == 0)
        fill_completions(dice(3));
    before_offers_to(A, C);
}
static void do_reoffer(void) { clock_advance(crew_now() + (dice(2) ? 0 : 12 * MS)); }

/* The same, and A died with some of them in hand: taken, or done. */
static void before_taken(enum wh_leave policy)
{
    before_reoffer();
    wh_client *c = &A->client;
    uint64_t ready = wh_client_ready(c), most = dice(4);
    for (uint64_t i = 0; i < ready && i < most; i++) {
        const wh_completion *r = &c->comps[(c->comp_head + i) & (c->comp_size - 1)];
        if (wh_id_kind(r->id) == WH_EV_OFFER &&
            wh_offer_take(&c->states[wh_id_slot(r->id)], wh_id_gen(r->id), wh_taker(c->me)) &&
            dice(2))
            wh_offer_done(&c->states[wh_id_slot(r->id)], wh_id_gen(r->id), wh_taker(c->me));
    }
    worker_dies(A);
    worker_leaves(A, policy);
}
static void before_taken_drop(void) { before_taken(WH_LEAVE_DROP); }
static void before_taken_keep(void) { before_taken(WH_LEAVE_KEEP); }
static void before_taken_reroute(void) { before_taken(WH_LEAVE_REROUTE); }

/* It is the owner of what was offered that died. */
static void before_offered_drop(void)
{
    before_offers_to(C, A);
    worker_dies(A);
    worker_leaves(A, WH_LEAVE_DROP);
}

static void before_fire_periodic(void)
{
    for (uint32_t i = 0; i < 4; i++)
        schedule(i % 2 ? B : A, (plan){.delay = 0, .interval = (1 + i) * MS, .to = i / 2});
    clock_advance(crew_now() + 3 * MS + (int64_t)dice(2 * MS));
    if (dice(2))
        worker_cancel(A, subject = S->book.count - 1);
}

/* -- full rings -------------------------------------------------------------------------------- */

static void before_backlog_fills(void)
{
    fill_completions(dice(4));
    for (uint32_t i = 0; i < 4; i++)
        schedule(i % 2 ? B : A, (plan){.delay = (int64_t)dice(2 * MS), .to = 0});
    schedule(B, (plan){.delay = 0, .interval = 3 * MS, .to = 0});
    schedule(A, (plan){.delay = 0, .interval = 3 * MS, .to = 0});
}

/* It waits; some of it was cancelled meanwhile; now there is room. */
static void before_backlog_settles(void)
{
    before_backlog_fills();
    clock_advance(crew_now() + 4 * MS);
    if (dice(2))
        worker_cancel(dice(2) ? A : B, S->book.count - 1 - (uint32_t)dice(2));
    S->bells[0]++;
    worker_receive(A);
}

static void before_returns_queue(void)
{
    uint32_t first = S->book.count;
    fill_returns(dice(4));
    for (int i = 0; i < 6; i++)
        schedule(A, own(FAR_NS));
    if (dice(2))
        clock_work();
    for (uint32_t i = first; i < S->book.count; i++)
        worker_cancel(dice(2) ? A : B, i);
}

static void before_returns_settle(void)
{
    before_returns_queue();
    clock_work();
    wh_client_reclaim(&A->client);
}

/* B has read what A lent it, or some of it. */
static void before_loans(void)
{
    for (int i = 0; i < 3; i++) {
        schedule(A, (plan){.delay = 0, .to = 1});
        schedule(A, (plan){.delay = 0, .interval = 2 * MS, .to = 1});
    }
    clock_advance(crew_now() + 3 * MS);
    worker_cancel(A, S->book.count - 1);
    clock_work();
    S->bells[1]++;
    worker_receive(B);
    schedule(A, (plan){.delay = 0, .to = 1});
}

/* -- short of slots ---------------------------------------------------------------------------- */

/* B has much that it does not use: free, on its way back, fired and not read. A asks. */
static void before_serve(void)
{
    uint32_t first = S->book.count;
    for (uint32_t i = 0; i < 70; i++)
        schedule(B, (plan){.delay = dice(3) ? FAR_NS : MS, .to = (uint32_t)dice(3)});
    schedule(B, (plan){.delay = 0, .interval = 2 * MS, .to = 1});
    clock_advance(crew_now() + (dice(2) ? 3 * MS : 0));
    for (uint32_t i = first; i < S->book.count; i++)
        if (dice(2))
            worker_cancel(dice(2) ? A : B, i);
    if (dice(2))
        clock_work();
    if (dice(2))
        wh_client_reclaim(&B->client);
    if (dice(2))
        worker_receive(B);
    worker_ask(dice(3) ? A : C);
    if (dice(2))
        worker_ask(A);
}
/* The slabs are split; what is in them ends. */
static void before_split_ends(void)
{
    before_serve();
    clock_work();
    for (uint32_t i = 0; i < 5; i++)
        worker_schedule(A, own((int64_t)dice(2 * MS)), NULL);
    for (uint32_t i = 0; i < 10; i++)
        worker_cancel(dice(2) ? A : B, (uint32_t)dice(S->book.count));
}

/* -- deaths ------------------------------------------------------------------------------------ */

/* A bit of everything in the workers' hands and in flight; `last` may ask for slots. */
static void before_death(worker *last)
{
    before_loans();
    before_drain_cancelled();
    if (dice(2)) /* its slabs are split */
        worker_ask(dice(2) ? A : B);
    before_drain();
    if (dice(3) == 0)
        before_backlog_fills();
    if (dice(3) == 0)
        before_returns_queue();
    if (dice(2))
        clock_advance(crew_now() + (int64_t)dice(4 * MS));
    if (dice(3) == 0)
        worker_ask(last);
}

static void before_reap(enum wh_leave policy)
{
    crew_joins(A), crew_joins(B);
    before_fire();
    before_death(A);
    worker_dies(A);
    worker_leaves(A, policy);
}
static void before_drop(void) { before_reap(WH_LEAVE_DROP); }
static void before_keep(void) { before_reap(WH_LEAVE_KEEP); }
static void before_reroute(void) { before_reap(WH_LEAVE_REROUTE); }

/* The clock died, in the middle of much. */
static void before_recover(void)
{
    before_death(B);
    clock_dies();
    crew_history(dice(2) * 10);
}
static void do_recover(void)
{
    clock_begins();
    clock_recovers();
}

/* The wall clock was set. */
static void before_relink(void)
{
    for (uint32_t i = 0; i < 4; i++)
        schedule(A, (plan){.delay = (int64_t)dice(20 * MS), .to = 0, .kind = i % WH_CLOCK_KINDS});
    clock_work();
    S->clock.relink_slot = 0;
}

/* The last slabs, which nobody owns, have no memory; both ask for slots. */
static void before_grow(void)
{
    uint32_t there = S->config.capacity >> WH_SLAB_BITS;
    while (there > 1 && wh_load_relaxed(&S->clock.owners[there - 1]) == 0)
        there--;
    wh_store_relaxed(&S->clock.seg->backed, S->clock.backed = there);
    for (uint32_t slot = there << WH_SLAB_BITS; slot < S->config.capacity; slot++)
        S->clock.wheel.links[slot].list = 0; /* as in new memory */
    schedule(A, own(FAR_NS));
    worker_ask(A);
    worker_ask(B);
}

static const struct path clock_paths[] = {
    {"drain", before_drain, do_work, 1},
    {"drain-cancelled", before_drain_cancelled, do_work, 1},
    {"drain-ticked", before_drain_ticked, do_work, 1},
    {"drain-moved", before_drain_moved, do_work, 1},
    {"cascade", before_cascade, do_advance, 1},
    {"moved-later", before_later, do_advance, 1},
    {"fire", before_fire, do_advance, 1},
    {"fire-exactly", before_fire_exactly, do_fire_exactly, 1},
    {"fire-group", before_fire_group, do_advance, 1},
    {"fire-periodic", before_fire_periodic, do_advance, 1},
    {"backlog-fills", before_backlog_fills, do_advance, 1},
    {"backlog-settles", before_backlog_settles, do_work, 1},
    {"returns-queue", before_returns_queue, do_work, 1},
    {"returns-settle", before_returns_settle, do_work, 1},
    {"loans", before_loans, do_work, 1},
    {"reap-drop", before_drop, do_work, 1},
    {"reap-keep", before_keep, do_work, 1},
    {"reap-reroute", before_reroute, do_work, 1},
    {"relink", before_relink, do_work, 1},
    {"recover", before_recover, do_recover, 1},
    {"mixed", before_any, do_advance, 1},
    {"reoffer", before_reoffer, do_reoffer, 1},
    {"taken-drop", before_taken_drop, do_work, 1},
    {"taken-keep", before_taken_keep, do_work, 1},
    {"taken-reroute", before_taken_reroute, do_work, 1},
    {"offered-drop", before_offered_drop, do_work, 1},
    {"serve", before_serve, do_work, 1},
    {"split-ends", before_split_ends, do_advance, 1},
    {"grow", before_grow, do_work, 1},
};
#define CLOCK_PATHS (sizeof clock_paths / sizeof *clock_paths)

/* With payloads in the heap. */
static const struct path heavy_clock_paths[] = {
    {"heavy-drain", before_drain, do_work, 1},
    {"heavy-drain-cancelled", before_drain_cancelled, do_work, 2},
    {"heavy-fire-group", before_fire_group, do_advance, 1},
    {"heavy-loans", before_loans, do_work, 1},
    {"heavy-reap-drop", before_drop, do_work, 2},
    {"heavy-reap-keep", before_keep, do_work, 2},
    {"heavy-reap-reroute", before_reroute, do_work, 2},
    {"heavy-recover", before_recover, do_recover, 2},
};
#define HEAVY_CLOCK_PATHS (sizeof heavy_clock_paths / sizeof *heavy_clock_paths)

#endif
