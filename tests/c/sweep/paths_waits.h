/* The calls of a worker that wait: for room in its ring, for a slot, for the rest of what is due;
 * and its sleep on its bell. At each nap the clock makes a pass or not, others act, and so do other
 * threads of the same worker. */
#ifndef SWEEP_PATHS_WAITS_H
#define SWEEP_PATHS_WAITS_H

#include "paths.h"

/* -- what goes on meanwhile -------------------------------------------------------------------- */

/* The clock gets round to it, now and then. */
static enum wh_nap nap_passes(worker *w)
{
    (void)w;
    if (dice(2) || S->naps % 4 == 3)
        clock_work();
    return WH_NAP_OVER;
}

/* Others act as well, in this process, too. */
static enum wh_nap nap_history(worker *w)
{
    if (dice(2))
        crew_history(3);
    return nap_passes(w);
}

/* A signal's handler raises. */
static enum wh_nap nap_stopped(worker *w)
{
    nap_passes(w);
    return S->naps > 2 || dice(3) == 0 ? WH_NAP_STOPPED : WH_NAP_OVER;
}

/* Nothing: the clock hangs. */
static enum wh_nap nap_alone(worker *w)
{
    (void)w;
    return WH_NAP_OVER;
}

/* Another thread ends the worker; its row has a new tenant. */
static enum wh_nap nap_leaves(worker *w)
{
    worker_dies(w);
    worker_leaves(w, WH_LEAVE_DROP);
    worker_left(w);
    return WH_NAP_GONE;
}

/* -- the calls --------------------------------------------------------------------------------- */

/* Run it with waits. */
static void waiting(void (*operate)(void))
{
    S->naps = 0;
    A->waits = true;
    operate();
    A->waits = false;
}

/* `room` places are left in its ring, for a clock that has not come yet. */
static void fill_submissions(uint64_t room)
{
    wh_client *c = &A->client;
    while (!wh_client_fits(c, c->sub_size))
        clock_work();
    while (c->sub_tail - c->sub_head < c->sub_size - room)
        wh_client_push(c, wh_id(0x7ffffff0, 3)); /* of an earlier tenant: looked at, and ignored */
    wh_client_publish_lazily(c);
}

static void before_no_room_with(enum wh_nap (*play)(worker *w))
{
    nap_play = play;
    subject = schedule(A, own(30 * MS));
    if (dice(2))
        clock_work();
    fill_submissions(0);
}
static void before_no_room(void) { before_no_room_with(nap_history); }
static void before_no_room_stopped(void) { before_no_room_with(nap_stopped); }
static void before_no_room_leaves(void) { before_no_room_with(nap_leaves); }
/* Each look at the time is so much later that it soon gives up. */
static void before_no_room_alone(void)
{
    before_no_room_with(nap_alone);
    S->look = 2000 * MS;
}

static void call_schedule(void) { worker_schedule(A, own(some_delay()), NULL); }
static void call_cancel(void) { worker_cancel(A, subject); }
static void call_earlier(void) { worker_move(A, subject, 5 * MS); }
static void do_schedule_waits(void) { waiting(call_schedule); }
static void do_cancel_waits(void) { waiting(call_cancel); }
static void do_earlier_waits(void) { waiting(call_earlier); }

static void check_gone(enum wh_call call)
{
    arena_open(true);
    CHECK(call == WH_CALL_GONE, "a call of a worker that has left ends with %d", call);
}

/* Not in the ledger: it has armed nothing. */
static void call_gone(void)
{
    uint64_t id = 0;
    int64_t deadline = wh_client_now(&A->client) + FAR_NS;
    wh_request r = {.deadline = deadline};
    step_begin();
    enum wh_call call = wh_call_schedule(&A->client, &r, deadline, true, &id);
    step_end();
    CHECK(!id, "a worker that has left has armed a timer");
    check_gone(call);
}
static void do_gone(void) { waiting(call_gone); }

static void call_not_drained(void)
{
    uint32_t before = S->book.count;
    call_schedule();
    CHECK(S->book.count == before, "it was armed without room");
    CHECK(S->naps, "it has not waited");
}
static void do_not_drained(void)
{
    waiting(call_not_drained);
    S->look = MS;
}

/* No slot is free, but some are spent, and the clock has not met them yet. */
static void before_no_slot_with(enum wh_nap (*play)(worker *w), bool spent)
{
    nap_play = play;
    for (uint32_t row = 0; row < ROWS; row++)
        while (worker_acts(&S->workers[row]) &&
               worker_schedule(&S->workers[row], (plan){.delay = FAR_NS, .to = row}, NULL))
            ;
    for (uint32_t i = 0; i < S->book.count && spent; i++)
        if (entry_open(&S->book.entries[i]) && dice(8) == 0)
            worker_cancel(someone(), i);
    A->client.patience_ns = 6 * S->look;
}
static void before_no_slot(void) { before_no_slot_with(nap_history, true); }
static void before_no_slot_passes(void) { before_no_slot_with(nap_passes, true); }
static void before_no_slot_stopped(void) { before_no_slot_with(nap_stopped, true); }
static void before_no_slot_alone(void) { before_no_slot_with(nap_alone, true); }
static void before_wheel_full(void) { before_no_slot_with(nap_passes, false); }

/* -- batches ----------------------------------------------------------------------------------- */

#define BATCH_ROWS 80u /* more than one piece */

/* None falls due while it waits. */
static void call_batch(void)
{
    static uint64_t ids[BATCH_ROWS], cookies[BATCH_ROWS];
    static double delays[BATCH_ROWS];
    uint32_t first = S->book.count;
    int64_t now = wh_client_now(&A->client);
    for (uint32_t i = 0; i < BATCH_ROWS; i++) {
        int64_t delay = i % 8 ? (int64_t)(1 + i % 50) * MS : FAR_NS;
        cookies[i] = first + i;
        delays[i] = (double)delay / 1e9;
        ledger_add(&S->book, A->row, A->row, wh_time_add(now, wh_delay_ns(delays[i])), 0);
    }
    wh_batch batch = {.n = BATCH_ROWS, .ids = ids, .delays = delays, .cookies = cookies};
    wh_request r = {.payload_size = 0};
    step_begin();
    enum wh_call done = wh_call_schedule_batch(&A->client, &batch, &r, true);
    step_end();
    for (uint32_t i = 0; i < BATCH_ROWS; i++) {
        entry *e = &S->book.entries[first + i];
        e->id = ids[i];
        e->flight = LANDED;
        e->asked = crew_now();
        e->used = done == WH_CALL_OK;
    }
    if (done != WH_CALL_OK)
        S->book.count = first;
}
static void do_batch(void) { waiting(call_batch); }

static void before_batch_with(enum wh_nap (*play)(worker *w))
{
    nap_play = play;
    fill_submissions(20 + dice(60));
}
static void before_batch(void) { before_batch_with(nap_passes); }
static void before_batch_stopped(void) { before_batch_with(nap_stopped); }
static void before_batch_leaves(void)
{
    before_batch_with(nap_leaves);
    fill_submissions(0);
}

/* Not in the ledger: it has armed nothing. */
static void call_batch_gone(void)
{
    static uint64_t ids[BATCH_ROWS];
    static double delays[BATCH_ROWS];
    wh_batch batch = {.n = BATCH_ROWS, .ids = ids, .delays = delays};
    wh_request r = {.payload_size = 0};
    step_begin();
    enum wh_call done = wh_call_schedule_batch(&A->client, &batch, &r, true);
    step_end();
    check_gone(done);
}
static void do_batch_gone(void) { waiting(call_batch_gone); }

static uint32_t moved[4];

static void before_moves(void)
{
    nap_play = nap_history;
    for (uint32_t i = 0; i < 4; i++)
        moved[i] = schedule(A, own((20 + (int64_t)dice(60)) * MS));
    if (dice(2))
        clock_work();
    fill_submissions(dice(4));
}
static void call_moves(void) { worker_move_many(A, moved, 4, 5 * MS); }
static void do_moves(void) { waiting(call_moves); }

/* -- receiving --------------------------------------------------------------------------------- */

/* More is due than the ring holds; and then it is read. */
static void before_rest(void)
{
    nap_play = nap_passes;
    fill_completions(dice(3));
    for (int i = 0; i < 5; i++) {
        schedule(A, own(0));
        schedule(B, (plan){.delay = 0, .to = 0});
    }
    clock_advance(crew_now() + 2 * MS);
    S->bells[0]++;
}

/* As a poll of the binding under virtual time: all that is due by now is here when it ends. */
static void call_rest(void)
{
    bool came;
    do {
        S->bells[0]++;
        worker_receive(A);
        step_begin();
        enum wh_call call = wh_call_await_rest(&A->client, &came);
        step_end();
        CHECK(call == WH_CALL_OK, "the wait for the rest ends with %d", call);
    } while (came);
    CHECK(!wh_client_backlogged(&A->client), "a poll ends with a rest behind its ring");
}
static void do_rest(void) { waiting(call_rest); }

/* It sleeps on its bell; what comes rings it. */
static enum wh_nap nap_until_rung(worker *w)
{
    crew_history(2);
    if (S->naps > 20 && !S->bells[w->row])
        schedule(B, (plan){.delay = 0, .to = w->row});
    clock_advance(crew_now() + MS);
    return WH_NAP_OVER;
}
static void before_sleep(void)
{
    nap_play = nap_until_rung;
    schedule(A, own(4 * MS));
    schedule(B, (plan){.delay = 3 * MS, .to = 0});
    if (dice(2)) {
        crew_joins(A), crew_joins(B);
        schedule(C, (plan){.delay = 2 * MS, .to = TO_GROUP});
    }
}
static void call_sleep(void)
{
    uint64_t got = 0;
    do {
        got = worker_receive(A);
        if (got)
            break;
        step_begin();
        hand_doze(&A->client, MS);
        step_end();
        CHECK(S->bells[0] || !wh_client_ready(&A->client), "it sleeps beside its events");
    } while (true);
}
static void do_sleep_waits(void)
{
    A->sleeps = true;
    waiting(call_sleep);
}

static const struct path waiting_paths[] = {
    {"schedule-waits", before_no_room, do_schedule_waits, 1},
    {"schedule-stopped", before_no_room_stopped, do_schedule_waits, 1},
    {"cancel-waits", before_no_room, do_cancel_waits, 1},
    {"cancel-stopped", before_no_room_stopped, do_cancel_waits, 1},
    {"move-waits", before_no_room, do_earlier_waits, 1},
    {"move-many-waits", before_moves, do_moves, 1},
    {"slot-waits", before_no_slot, do_schedule_waits, 2},
    {"slot-waits-passes", before_no_slot_passes, do_schedule_waits, 2},
    {"slot-stopped", before_no_slot_stopped, do_schedule_waits, 2},
    {"slot-alone", before_no_slot_alone, do_schedule_waits, 2},
    {"slot-full", before_wheel_full, do_schedule_waits, 2},
    {"poll-rest", before_rest, do_rest, 40},
    {"poll-sleeps", before_sleep, do_sleep_waits, 1},
};
#define WAITING_PATHS (sizeof waiting_paths / sizeof *waiting_paths)

/* The same, where others act at the naps only: these know what the call has found. */
static const struct path undisturbed_paths[] = {
    {"schedule-gone", before_no_room_leaves, do_gone, 1},
    {"schedule-not-drained", before_no_room_alone, do_not_drained, 1},
    {"batch-gone", before_batch_leaves, do_batch_gone, 20},
    {"batch-waits", before_batch, do_batch, 20},
    {"batch-stopped", before_batch_stopped, do_batch, 20},
};
#define UNDISTURBED_PATHS (sizeof undisturbed_paths / sizeof *undisturbed_paths)

static inline bool path_waits(const struct path *p)
{
    return (p >= waiting_paths && p < waiting_paths + WAITING_PATHS) ||
           (p >= undisturbed_paths && p < undisturbed_paths + UNDISTURBED_PATHS);
}

#endif
