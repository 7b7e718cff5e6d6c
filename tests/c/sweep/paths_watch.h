/* The steps of A as a checker, as a watcher, and of the supervisor with a dead one's row. */
#ifndef SWEEP_PATHS_WATCH_H
#define SWEEP_PATHS_WATCH_H

#include "watchers.h"

/* -- situations -------------------------------------------------------------------------------- */

static void before_awake(void)
{
    watch_key(B, 0);
    watch_key(C, 0);
    watch_key(C, 2);
    watch_key(B, 3);
}
static void before_asleep(void)
{
    before_awake();
    react(B);
    react(C);
}
/* C has marked it; B has not looked yet, or it has. */
static void before_marked(void)
{
    before_awake();
    check(C, 0);
    if (dice(2))
        look(B);
}
static void before_half(void) /* somebody was killed on the way */
{
    before_asleep();
    uint32_t word = wh_hash_mark_word(hashes[0]);
    wh_fetch_or_seq(&B->watch.mine->dirty[word], wh_hash_mark(hashes[0]));
    if (dice(2))
        wh_fetch_or_seq(&B->watch.mine->any, 1ull << word / 64);
}
static void before_alone(void) {}
static void before_same_bucket(void) { watch_key(A, 1); }
static void before_marks(void)
{
    watch_key(A, 0);
    watch_key(A, 2);
    watch_key(A, 3);
    check(B, 0);
    if (dice(2))
        check(C, 2);
}
static void before_sleep(void)
{
    before_marks();
    look(A);
}

/* -- operations -------------------------------------------------------------------------------- */

static void check_key(void) { check(A, 0); }
static void watch_one(void) { watch_key(A, 0); }
static void forget_one(void) { forget_key(A, 0); }
static void look_around(void) { look(A); }
static void go_to_sleep(void) { fall_asleep(A); }

static const path checker_paths[] = {
    {"check", before_awake, check_key, 1},
    {"check-asleep", before_asleep, check_key, 1},
    {"check-marked", before_marked, check_key, 1},
    {"check-half", before_half, check_key, 1},
};
#define CHECKER_PATHS (sizeof checker_paths / sizeof *checker_paths)

static const path watcher_paths[] = {
    {"watch", before_alone, watch_one, 1},   {"watch-again", before_same_bucket, watch_one, 1},
    {"forget", before_marks, forget_one, 1}, {"look", before_marks, look_around, 12},
    {"sleep", before_sleep, go_to_sleep, 1}, {"sleep-marked", before_marks, go_to_sleep, 1},
};
#define WATCHER_PATHS (sizeof watcher_paths / sizeof *watcher_paths)

/* A is dead, and its row is cleared. */
static void before_clear(void)
{
    before_marks();
    before_awake();
    A->alive = false;
}
static void clear_row(void) { clear(A); }

/* The same; it was changing a condition. */
static void before_leave(void)
{
    before_asleep();
    wh_watch_change(&A->watch, hashes[0]);
    wh_store_relaxed(&S->condition[0], wh_load_relaxed(&S->condition[0]) + 1);
    A->alive = false;
}
static void leave_row(void) { leave(A); }

static const path supervisor_paths[] = {
    {"clear", before_clear, clear_row, 400},
    {"leave", before_leave, leave_row, 400},
};
#define SUPERVISOR_PATHS (sizeof supervisor_paths / sizeof *supervisor_paths)

#endif
