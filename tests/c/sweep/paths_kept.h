/* Members' steps with the ends of detached timers, and a clock's with the timers: each with what
 * stands before it. */
#ifndef SWEEP_PATHS_KEPT_H
#define SWEEP_PATHS_KEPT_H

#include "keeping.h"

static void before_kept_any(void)
{
    kept_history(dice(3) * 12);
    members(dice(2) ? B : NULL);
}

/* Ends stand in A's ring. B is a member, too. */
static void before_kept_offers(void)
{
    before_kept_any();
    members(A);
    for (int i = 0; i < 5; i++)
        worker_schedule(i % 2 ? C : A, kept_plan((int64_t)dice(3 * MS)), NULL);
    kept_advance(4 * MS);
    crew_joins(B);
    S->bells[0]++;
}

/* They are in its hands. */
static void kept_held(int64_t bound)
{
    before_kept_offers();
    CHECK(kept_hold(A, bound), "nothing came");
    kept_pick();
}
static void before_kept_held(void) { kept_held(dice(2) ? BOUND : 0); }

/* Some of them, which it claims. */
static void before_kept_claimed(void)
{
    before_kept_offers();
    CHECK(kept_claim(A, dice(2) ? BOUND : 0), "nothing came");
    kept_pick();
}

/* It had them for too long: B has them, or had. */
static void before_kept_lost(void)
{
    kept_held(BOUND);
    kept_advance(BOUND + MS);
    S->bells[1]++;
    switch (dice(4)) {
    case 0:
        break;
    case 1:
        kept_serve(B);
        break;
    case 2:
        worker_receive(B);
        break;
    default:
        kept_hold(B, BOUND);
        kept_release(B, false);
        kept_advance(5 * MS);
    }
}

static void do_kept_schedule(void) { worker_schedule(A, kept_plan(some_delay()), NULL); }
static void do_kept_hold(void) { kept_hold(A, BOUND); }
static void do_kept_claim(void) { kept_claim(A, BOUND); }
static void do_kept_finish(void) { kept_finish(A, subject); }
static void do_kept_give_back(void) { kept_give_back(A, subject, (int64_t)dice(2) * 5 * MS); }
static void do_kept_finish_all(void) { kept_release(A, false); }

/* Its owner has gone: it is the keeper's. */
static void before_kept_keepers(void)
{
    before_kept_any();
    subject = schedule(C, kept_plan(30 * MS));
    if (dice(2))
        clock_work();
    worker_dies(C);
    worker_leaves(C, WH_LEAVE_DROP);
    crew_joins(B);
    worker_left(C);
    kept_note();
}
static void before_kept_paused(void)
{
    before_kept_keepers();
    worker_pause(B, subject);
}

static const struct path kept_paths[] = {
    {"kept-schedule", before_kept_any, do_kept_schedule, 2},
    {"kept-hold", before_kept_offers, do_kept_hold, 4},
    {"kept-finish", before_kept_held, do_kept_finish, 1},
    {"kept-finish-all", before_kept_held, do_kept_finish_all, 4},
    {"kept-give-back", before_kept_held, do_kept_give_back, 1},
    {"kept-finish-lost", before_kept_lost, do_kept_finish, 1},
    {"kept-give-back-lost", before_kept_lost, do_kept_give_back, 1},
    {"kept-cancel", before_kept_keepers, do_cancel, 1},
    {"kept-move", before_kept_keepers, do_earlier, 1},
    {"kept-pause", before_kept_keepers, do_pause, 1},
    {"kept-resume", before_kept_paused, do_resume, 1},
    {"kept-claim", before_kept_offers, do_kept_claim, 4},
    {"kept-finish-claimed", before_kept_claimed, do_kept_finish, 1},
    {"kept-give-back-claimed", before_kept_claimed, do_kept_give_back, 1},
    {"heavy-kept-schedule", before_kept_any, do_kept_schedule, 2},
    {"heavy-kept-hold", before_kept_offers, do_kept_hold, 4},
    {"heavy-kept-claim", before_kept_offers, do_kept_claim, 4},
    {"heavy-kept-finish", before_kept_held, do_kept_finish, 1},
    {"heavy-kept-finish-all", before_kept_held, do_kept_finish_all, 4},
    {"heavy-kept-finish-claimed", before_kept_claimed, do_kept_finish, 1},
    {"heavy-kept-give-back", before_kept_held, do_kept_give_back, 1},
    {"heavy-kept-finish-lost", before_kept_lost, do_kept_finish, 1},
    {"heavy-kept-cancel", before_kept_keepers, do_cancel, 1},
};
#define KEPT_PATHS (sizeof kept_paths / sizeof *kept_paths)

/* -- the clock --------------------------------------------------------------------------------- */

static void do_kept_advance(void) { clock_advance(crew_now() + 4 * MS); }
static void do_kept_bound(void) { clock_advance(crew_now() + BOUND + MS); }
static void do_kept_keep(void) { clock_advance(crew_now() + KEEP_NS + MS); }

static void before_kept_bound(void)
{
    kept_held(BOUND);
    B->sleeps = true;
    worker_receive(B);
    kept_note();
}

/* Some of what it held were given back, and of that some cancelled. */
static void before_kept_given(void)
{
    kept_held(dice(2) ? BOUND : 0);
    for (uint32_t i = 0; i < S->book.count; i++) {
        if (S->book.entries[i].holder != A->row + 1 || dice(4) == 0)
            continue;
        kept_give_back(A, i, (int64_t)dice(5) * MS);
        if (dice(4) == 0)
            worker_cancel(C, i);
    }
}

/* Nobody takes what falls due. */
static void before_kept_alone(void)
{
    before_kept_any();
    members(NULL);
    for (int i = 0; i < 5; i++)
        worker_schedule(i % 2 ? C : A, kept_plan((int64_t)dice(3 * MS)), NULL);
    clock_work();
}
static void before_kept_kept(void)
{
    before_kept_alone();
    kept_advance(4 * MS);
}
static void before_kept_member(void)
{
    before_kept_kept();
    crew_joins(B);
    B->sleeps = true;
    worker_receive(B);
}

/* A owns some, holds some, has given some back; C, perhaps, is dead as well. */
static void kept_orphans(enum wh_leave policy)
{
    before_kept_given();
    for (int i = 0; i < 4; i++) {
        worker_schedule(A, kept_plan((int64_t)dice(4 * MS)), NULL);
        if (i == 1)
            clock_work();
    }
    kept_note();
    if (policy == WH_LEAVE_REROUTE)
        crew_joins(A);
    if (dice(2))
        clock_advance(crew_now() + (int64_t)dice(2 * MS));
    worker_dies(A);
    if (dice(2))
        members(NULL);
    worker_leaves(A, policy);
}
static void before_kept_drop(void) { kept_orphans(WH_LEAVE_DROP); }
static void before_kept_keep(void) { kept_orphans(WH_LEAVE_KEEP); }
static void before_kept_reroute(void) { kept_orphans(WH_LEAVE_REROUTE); }

static void before_kept_recover(void)
{
    switch (dice(4)) {
    case 0:
        before_kept_given();
        break;
    case 1:
        before_kept_kept();
        break;
    case 2:
        before_kept_lost();
        break;
    default:
        before_kept_drop();
    }
    clock_dies();
}

static const struct path kept_clock_paths[] = {
    {"kept-bound", before_kept_bound, do_kept_bound, 2},
    {"kept-given", before_kept_given, do_kept_advance, 2},
    {"kept-alone", before_kept_alone, do_kept_advance, 2},
    {"kept-over", before_kept_kept, do_kept_keep, 2},
    {"kept-member", before_kept_member, do_kept_advance, 2},
    {"kept-drop", before_kept_drop, do_kept_advance, 8},
    {"kept-keep", before_kept_keep, do_kept_advance, 8},
    {"kept-reroute", before_kept_reroute, do_kept_advance, 8},
    {"kept-recover", before_kept_recover, do_recover, 8},
    {"heavy-kept-bound", before_kept_bound, do_kept_bound, 2},
    {"heavy-kept-given", before_kept_given, do_kept_advance, 2},
    {"heavy-kept-over", before_kept_kept, do_kept_keep, 2},
    {"heavy-kept-drop", before_kept_drop, do_kept_advance, 8},
    {"heavy-kept-keep", before_kept_keep, do_kept_advance, 8},
    {"heavy-kept-recover", before_kept_recover, do_recover, 8},
};
#define KEPT_CLOCK_PATHS (sizeof kept_clock_paths / sizeof *kept_clock_paths)

static inline bool kept_clock_stands(void)
{
    return rounds.path >= kept_clock_paths && rounds.path < kept_clock_paths + KEPT_CLOCK_PATHS;
}

static int kept_main(int argc, char **argv, step_plan plan)
{
    options_read(argc, argv);
    crew_keeps = true;
    crew_account = kept_check;
    rounds_add(kept_paths, KEPT_PATHS);
    rounds_add(kept_clock_paths, KEPT_CLOCK_PATHS);
    return rounds_run(plan);
}

#endif
