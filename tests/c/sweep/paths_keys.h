/* The calls of a worker by key, and what a clock does with such timers: each with what stands
 * before it. */
#ifndef SWEEP_PATHS_KEYS_H
#define SWEEP_PATHS_KEYS_H

#include "keying.h"
#include "paths_clock.h"

static plan far_own(const worker *w) { return (plan){.delay = FAR_NS, .to = w->row}; }
static plan soon(const worker *w) { return (plan){.delay = 2 * MS, .to = w->row}; }

static void take(worker *w, uint32_t key, plan p)
{
    CHECK(key_schedule(w, key, WH_KEY_RAISE, p) == WH_CALL_OK, "no room");
}

static void before_key_free(void) { keys_begin(FILLERS); }
static void before_key_ended(void)
{
    keys_begin(FILLERS);
    take(B, MINE, soon(B));
    clock_advance(crew_now() + (dice(2) ? 3 * MS : 0));
    if (dice(2))
        key_cancel(C, MINE);
    if (dice(2))
        worker_receive(B);
}
static void before_key_armed(void)
{
    keys_begin(FILLERS);
    worker *w = dice(3) ? B : A;
    plan p = dice(2) ? soon(w) : far_own(w);
    if (dice(4) == 0)
        p.interval = 4 * MS;
    take(w, MINE, p);
    if (dice(2))
        clock_work();
}
/* It would keep the key until the acknowledgement. */
static void before_key_kept(void)
{
    keys_begin(FILLERS);
    BOOK->kept = true;
    worker *w = dice(3) ? B : A;
    take(w, MINE, far_own(w));
    if (dice(2))
        clock_work();
}
/* Its owner has gone: it is the keeper's. */
static void before_key_keepers(void)
{
    keys_begin(FILLERS);
    plan p = dice(2) ? (plan){.delay = 60 * MS} : far_own(C);
    if (dice(2))
        p.interval = 4 * MS;
    take(C, MINE, p);
    if (dice(2))
        clock_work();
    worker_dies(C);
    worker_leaves(C, WH_LEAVE_DROP);
    crew_joins(B);
    worker_left(C);
    keys_note();
}
/* Whatever others do, somebody has the key. */
static void before_key_never_free(void)
{
    keys_begin(FILLERS);
    take(B, MINE, far_own(B));
    BOOK->never_free[MINE] = true;
}
/* Every place is taken, most by timers that have ended. */
static void before_key_full(void)
{
    keys_begin(FILLERS);
    for (uint32_t key = 0; key + 1 < KEYS; key++)
        take(C, key, soon(C));
    take(C, KEYS + FILLERS, soon(C));
    for (uint32_t n = 0; n < FILLERS; n++)
        if (dice(8))
            key_cancel(B, KEYS + n);
    clock_advance(crew_now() + (dice(2) ? 3 * MS : 0));
}
/* And one is being given up by a worker that stands still, or was killed there. */
static void before_key_closed(void)
{
    before_key_full();
    for (uint32_t n = 0; n < FILLERS; n++)
        key_cancel(B, KEYS + n);
    if (dice(2)) {
        half_retire(C, KEYS + 1);
        return;
    }
    half_retire(B, KEYS + 1);
    wh_words_let_go(&B->keys);
    B->still = false;
    BOOK->half.kind = HALF_NONE;
}
static void before_key_half(enum half_kind kind)
{
    before_key_armed();
    half_claim(C, MINE, kind);
    keys_note();
}
static void before_half_armed(void) { before_key_half(HALF_ARMED); }
static void before_half_named(void) { before_key_half(HALF_NAMED); }
static void before_half_closed(void)
{
    before_key_ended();
    if (dice(2))
        clock_advance(crew_now() + 3 * MS);
    key_cancel(B, MINE);
    half_retire(C, MINE);
}

/* No place is left but that of a key whose timer has ended. */
static void before_key_moved(void)
{
    keys_begin(FILLERS);
    for (uint32_t key = 0; key < KEYS; key++)
        take(C, key, far_own(C));
    key_cancel(B, MINE);
}
/* And whoever gave it up was killed on the way. */
static void before_key_reopened(void)
{
    before_key_moved();
    half_retire(B, MINE);
    wh_words_let_go(&B->keys);
    B->still = false;
}

/* A has ends of such timers in its hands; some of their keys are others' by now. */
static void before_keys_held(void)
{
    keys_begin(4);
    BOOK->held = dice(2);
    members(A);
    for (uint32_t key = 0; key < KEYS; key++)
        take(key % 2 ? B : C, key, soon(B));
    clock_advance(crew_now() + 3 * MS);
    S->bells[0]++;
    CHECK(kept_hold(A, dice(2) ? BOUND : 0), "nothing came");
    for (uint32_t key = 0; key < KEYS; key++)
        if (dice(3) == 0)
            key_schedule(B, key, WH_KEY_RAISE, dice(2) ? soon(B) : far_own(B));
    kept_pick();
}

static void give_back_it(void) { kept_give_back(A, subject, (int64_t)dice(2) * 5 * MS); }
static void retire_it(void)
{
    step_begin();
    wh_keys_retire(&A->keys, BOOK->half.place);
    step_end();
    BOOK->half.kind = HALF_NONE;
}
static void claim_it(void) { key_schedule(A, MINE, WH_KEY_RAISE, soon(A)); }
static void claim_periodic(void)
{
    plan p = soon(A);
    p.interval = 3 * MS;
    key_schedule(A, MINE, WH_KEY_REPLACE, p);
}
static void replace_it(void) { key_schedule(A, MINE, WH_KEY_REPLACE, soon(A)); }
static void replace_kept(void) { key_schedule(A, MINE, WH_KEY_REPLACE, far_own(A)); }
static void replace_for_another(void)
{
    key_schedule(A, MINE, WH_KEY_REPLACE, (plan){.delay = MS, .to = 1});
}
static void keep_it(void) { key_schedule(A, MINE, WH_KEY_KEEP, far_own(A)); }
static void later_it(void) { key_schedule(A, MINE, WH_KEY_LATER, (plan){.delay = 9 * MS}); }
static void earlier_it(void) { key_schedule(A, MINE, WH_KEY_EARLIER, (plan){.delay = MS}); }
static void cancel_it(void) { key_cancel(A, MINE); }
static void move_it(void) { key_move(A, MINE, dice(2) ? MS : 20 * MS); }
static void move_far_it(void) { key_move(A, MINE, dice(2) ? FAR_NS / 2 : FAR_NS); }
static void pause_it(void) { key_hold(A, MINE, true); }
static void resume_it(void) { key_hold(A, MINE, false); }
static void find_it(void) { key_find(A, MINE); }

static const path key_paths[] = {
    {"claim", before_key_free, claim_it, 2},
    {"claim-ended", before_key_ended, claim_it, 2},
    {"claim-taken", before_key_armed, claim_it, 2},
    {"claim-full", before_key_full, claim_it, 8},
    {"claim-closed", before_key_closed, claim_it, 8},
    {"replace", before_key_armed, replace_it, 1},
    {"replace-periodic", before_key_armed, claim_periodic, 2},
    {"replace-foreign", before_key_armed, replace_for_another, 2},
    {"replace-kept", before_key_kept, replace_kept, 2},
    {"keep", before_key_ended, keep_it, 2},
    {"later", before_key_armed, later_it, 1},
    {"earlier", before_key_armed, earlier_it, 1},
    {"cancel", before_key_armed, cancel_it, 1},
    {"move", before_key_armed, move_it, 1},
    {"find", before_key_armed, find_it, 1},
    {"cancel-replaced", before_key_never_free, cancel_it, 1},
    {"move-replaced", before_key_never_free, move_far_it, 1},
    {"find-replaced", before_key_never_free, find_it, 1},
    {"claim-half-armed", before_half_armed, claim_it, 2},
    {"replace-half-armed", before_half_armed, replace_it, 2},
    {"claim-half-named", before_half_named, claim_it, 2},
    {"replace-half-named", before_half_named, replace_it, 2},
    {"claim-half-closed", before_half_closed, claim_it, 4},
    {"find-moved", before_key_moved, find_it, 1},
    {"cancel-moved", before_key_moved, cancel_it, 1},
    {"pause-replaced", before_key_never_free, pause_it, 1},
    {"resume-replaced", before_key_never_free, resume_it, 1},
    {"retire-closed", before_key_reopened, retire_it, 1},
    {"detached-claim", before_key_ended, claim_it, 2},
    {"detached-replace", before_key_armed, replace_it, 1},
    {"detached-replace-periodic", before_key_armed, claim_periodic, 2},
    {"detached-later", before_key_armed, later_it, 1},
    {"detached-cancel", before_key_armed, cancel_it, 1},
    {"detached-move", before_key_armed, move_it, 1},
    {"detached-kept-claim", before_key_keepers, claim_it, 2},
    {"detached-kept-replace", before_key_keepers, replace_it, 1},
    {"detached-kept-cancel", before_key_keepers, cancel_it, 1},
    {"detached-kept-move", before_key_keepers, move_it, 1},
    {"detached-give-back", before_keys_held, give_back_it, 1},
};
#define KEY_PATHS (sizeof key_paths / sizeof *key_paths)

/* -- the clock --------------------------------------------------------------------------------- */

static void clock_goes_on(void) { clock_advance(crew_now() + 3 * MS); }

/* Some are due: named, replaced, or taken from by one who stands still. */
static void before_keys_due(void)
{
    keys_begin(4);
    for (uint32_t key = 0; key < KEYS; key++) {
        plan p = {.delay = MS + (int64_t)dice(MS), .to = (uint32_t)dice(2)};
        if (dice(4) == 0)
            p.interval = MS;
        take(key % 2 || dice(2) ? A : B, key, p);
    }
    clock_work();
    if (dice(2))
        key_schedule(A, 0, WH_KEY_REPLACE, soon(A));
    if (dice(3))
        half_claim(C, MINE, dice(2) ? HALF_ARMED : HALF_NAMED);
    keys_note();
}

/* A has died in a claim, or behind it, or has some in flight; or C, which stands still, was to end
 * one of its timers. */
static void before_keys_reap(enum wh_leave policy)
{
    before_keys_due();
    bool stands = BOOK->half.kind != HALF_NONE && dice(2);
    if (!stands)
        half_ends();
    crew_joins(A), crew_joins(B);
    if (!stands && dice(4))
        half_claim(A, MINE, dice(2) ? HALF_ARMED : HALF_NAMED);
    A->still = false;
    worker_dies(A);
    if (!stands)
        BOOK->half.kind = HALF_NONE;
    keys_bury(A);
    worker_leaves(A, policy);
}
static void before_keys_drop(void) { before_keys_reap(WH_LEAVE_DROP); }
static void before_keys_keep(void) { before_keys_reap(WH_LEAVE_KEEP); }
static void before_keys_reroute(void) { before_keys_reap(WH_LEAVE_REROUTE); }

/* Some are in upper levels, and come down. */
static void before_keys_cascade(void)
{
    keys_begin(4);
    for (uint32_t key = 0; key < KEYS; key++)
        take(key % 2 || dice(2) ? A : B, key,
             (plan){.delay = 80 * MS + (int64_t)dice(20 * MS), .to = (uint32_t)dice(2)});
    clock_work();
    if (dice(2))
        key_schedule(A, 0, WH_KEY_REPLACE,
                     (plan){.delay = 80 * MS + (int64_t)dice(4 * MS), .to = 0});
    if (dice(2))
        key_move(B, 1, 79 * MS + (int64_t)dice(8 * MS));
    if (dice(3))
        half_claim(C, MINE, dice(2) ? HALF_ARMED : HALF_NAMED);
    clock_advance(crew_now() + 78 * MS + (int64_t)dice(4 * MS));
    keys_note();
}

/* Some were given back, and of that some replaced, cancelled or moved by their keys. */
static void before_keys_given(void)
{
    before_keys_held();
    for (uint32_t i = 0; i < S->book.count; i++)
        if (S->book.entries[i].holder == A->row + 1 && dice(4))
            kept_give_back(A, i, (int64_t)dice(3) * MS);
    keys_history(dice(4));
}

static void before_keys_recover(void)
{
    switch (dice(4)) {
    case 0:
        before_keys_due();
        break;
    case 1:
        before_keys_cascade();
        break;
    case 2:
        if (crew_keeps) {
            before_keys_given();
            break;
        } /* else: */
        before_keys_due();
        break;
    default:
        before_keys_reap(some_policy());
    }
    clock_dies();
}

static const path key_clock_paths[] = {
    {"fire", before_keys_due, clock_goes_on, 4},
    {"cascade", before_keys_cascade, clock_goes_on, 4},
    {"recover", before_keys_recover, do_recover, 16},
    {"detached-cascade", before_keys_cascade, clock_goes_on, 4},
    {"detached-recover", before_keys_recover, do_recover, 16},
    {"detached-given", before_keys_given, clock_goes_on, 4},
    {"reap-drop", before_keys_drop, clock_goes_on, 16},
    {"reap-keep", before_keys_keep, clock_goes_on, 16},
    {"reap-reroute", before_keys_reroute, clock_goes_on, 16},
    {"detached-fire", before_keys_due, clock_goes_on, 4},
    {"detached-reap-drop", before_keys_drop, clock_goes_on, 16},
    {"detached-reap-keep", before_keys_keep, clock_goes_on, 16},
    {"detached-reap-reroute", before_keys_reroute, clock_goes_on, 16},
};
#define KEY_CLOCK_PATHS (sizeof key_clock_paths / sizeof *key_clock_paths)

static inline bool key_clock_stands(const path *p)
{
    return p >= key_clock_paths && p < key_clock_paths + KEY_CLOCK_PATHS;
}

/* All go on; the account. */
static inline void keys_finish(void)
{
    bool drops = S->policy[A->row] == WH_LEAVE_DROP;
    if (A->alive && A->holds)
        kept_release(A, dice(2));
    if (crew_keeps)
        crew_joins(B);
    for (int turn = 0; S->leaving[0] && turn < 40; turn++)
        clock_work();
    half_ends(); /* who stands still reads nothing that it has on loan */
    if (!A->alive) {
        wh_words_leave(&A->keys);
        worker_left(A);
    }
    clock_work();
    keys_check();
    memset(BOOK->never_free, 0, sizeof BOOK->never_free);
    if (BOOK->kept) { /* no event of it is acknowledged here */
        int live;
        CHECK(BOOK->freed || drops || armed_now(key_word(MINE, &live)),
              "neither the timer that was replaced nor the other one is there");
        key_cancel(B, MINE);
        BOOK->kept = false;
    }
    if (crew_keeps) {
        crew_settle();
        kept_check();
    }
    keys_history(dice(6));
    crew_settle();
    keys_check();
    crew_finish();
}

#endif
