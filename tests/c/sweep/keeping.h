/* Keeping: detached timers for a group, whose members hold their ends, acknowledge them and give
 * them back; and a keeper that has what nobody takes.
 *
 * The ledger learns from the state that the keeper has dropped one (kept_note): it must have waited
 * for KEEP_NS, and not be one that waits for ever. */
#ifndef SWEEP_KEEPING_H
#define SWEEP_KEEPING_H

#include "paths.h"

#define BOUND (20 * MS) /* how long an end may be held */

static uint64_t kept_state(const entry *e)
{
    return wh_load_relaxed(&B->client.states[wh_id_slot(e->id)]);
}

/* Which ends the keeper has dropped. */
static void kept_note(void)
{
    for (uint32_t i = 0; i < S->book.count && !S->clockless; i++) {
        entry *e = &S->book.entries[i];
        if (!kept_open(e))
            continue;
        uint64_t state = kept_state(e);
        if (wh_state_gen(state) == wh_id_gen(e->id) && wh_state_phase(state) != WH_DONE)
            continue;
        CHECK(!e->lasting, "%u (id %llx) is gone, and it waits for ever", i, (ull)e->id);
        CHECK(e->wanted + KEEP_NS <= crew_now(), "%u, due at %lld, was dropped by %lld", i,
              (long long)e->wanted, (long long)crew_now());
        CHECK(!e->holder, "%u was dropped, and row %d holds it", i, e->holder - 1);
        e->dropped = 1;
        for (uint32_t row = 0; row < ROWS; row++)
            S->unnamed[row] += !S->workers[row].alive && S->policy[row];
    }
}

static void kept_advance(int64_t ns)
{
    clock_advance(crew_now() + ns);
    kept_note();
}

/* -- calls ------------------------------------------------------------------------------------- */

static plan kept_plan(int64_t delay)
{
    return (plan){.delay = delay, .to = TO_GROUP, .flags = dice(3) ? WH_DETACHED : WH_LASTING};
}

static void crew_parts(worker *w)
{
    w->member = false;
    CHECK(wh_clock_join(&S->clock, &S->peers[w->row], 0), "part");
}

/* The held events of a poll. */
static void kept_taken(const worker *w, const wh_completion *event, int64_t bound)
{
    CHECK(event->cookie < S->book.count, "event with cookie %llu", (ull)event->cookie);
    const wh_client *c = &w->client;
    uint32_t cookie = (uint32_t)event->cookie, slot = wh_id_slot(event->id), before = 0;
    entry *e = &S->book.entries[cookie];
    CHECK(e->used && (!e->id || e->id == event->id), "%u is held, with id %llx", cookie,
          (ull)event->id);
    e->id = event->id; /* it may come before the call that armed it has returned */
    CHECK(S->book.racing || (!entry_over(e) && entry_free(&S->book, e, crew_now())) ||
              e->holder == w->row + 1,
          "%u came to row %u: row %d holds it, or it is over", cookie, w->row, e->holder - 1);
    CHECK(S->book.racing || event->deadline == e->wanted || event->deadline == e->tried ||
              (e->floats && event->deadline > e->tried) || e->fluid,
          "%u fired for %lld, not %lld", cookie, (long long)event->deadline, (long long)e->wanted);
    ledger_punctual(&S->book, e, cookie, event->deadline, event->fired);
    worker_check_payload(event);
    if (w->client.claim_count)
        before = e->takes; /* such an event does not say it */
    for (uint32_t i = 0; i < again_count && i < EVENTS; i++)
        if (agains[i].id == event->id)
            before = agains[i].before;
    bool mine = wh_load_relaxed(&c->states[slot]) ==
                wh_state_of(wh_id_gen(event->id), wh_taker(c->me), WH_TAKEN);
    if (mine)
        ledger_taken(&S->book, cookie, w->row,
                     bound ? wh_load_relaxed(&c->slots[slot].deadline) : INT64_MAX, before,
                     S->deaths);
    else
        CHECK(S->book.racing, "%u came to row %u, which has not got it", cookie, w->row);
}

/* A poll that holds what it brings. */
static uint64_t kept_hold(worker *w, int64_t bound)
{
    wh_client *c = &w->client;
    if (w->sleeps && c->wait_seq & 1 && !S->bells[w->row])
        return 0;
    w->head = c->comp_acked;
    again_count = 0;
    step_begin();
    wh_poll_begin(c, wh_client_may_be_rung(c), (int)w->row);
    c->visibility = bound;
    if (bound)
        wh_store_relaxed(&c->seg->visibility, (uint64_t)bound);
    uint64_t got = wh_client_hold(c, w->events, EVENTS);
    c->visibility = 0;
    if (!wh_poll_end(c, got, w->sleeps))
        wh_bell_ring((int)w->row);
    step_end();
    w->holds = true;
    for (uint64_t i = 0; i < got; i++)
        kept_taken(w, (const wh_completion *)(w->events + i * wh_event_bytes(c)), bound);
    return got;
}

/* The ends that a poll may be done with, though nobody has noted it yet; or no longer. */
static void kept_finishing(const worker *w, bool begins)
{
    for (uint32_t i = 1; i < S->book.count; i += 2) {
        entry *e = &S->book.entries[i];
        if (begins ? kept_open(e) && e->flight == LANDED
                   : e->flight == FINISHING && e->flier == w->row) {
            e->flight = begins ? FINISHING : LANDED;
            e->flier = (uint8_t)w->row;
        }
    }
}

/* A poll that keeps in hand what has an even cookie, and is done with the rest. */
static uint64_t kept_claim(worker *w, int64_t bound)
{
    static wh_claim claims[MOST_ENTRIES];
    wh_client *c = &w->client;
    if (w->sleeps && c->wait_seq & 1 && !S->bells[w->row])
        return 0;
    c->claims = claims;
    for (uint32_t i = 0; i < S->book.count; i += 2)
        claims[c->claim_count++] = (wh_claim){i, bound};
    if (bound)
        wh_store_relaxed(&c->seg->visibility, (uint64_t)bound);
    w->head = c->comp_head;
    kept_finishing(w, true);
    uint64_t got = worker_polls(w);
    w->holds = true;
    for (uint64_t i = 0; i < got; i++) {
        const wh_completion *event = (const wh_completion *)(w->events + i * wh_event_bytes(c));
        if (wh_client_claim_on(c, event->id))
            kept_taken(w, event, bound);
        else
            worker_note(w, event);
    }
    kept_finishing(w, false);
    c->claim_count = 0;
    return got;
}

/* A call about what is in hand has not ended with success: it was there for too long, or was given
 * back for a time that has come before the call was over. */
static void kept_refused(const worker *w, entry *e, uint32_t cookie, int64_t begun, int64_t given)
{
    if (e->holder != w->row + 1)
        return;
    CHECK(S->book.racing || e->until <= crew_now() || e->until <= begun || given <= crew_now(),
          "%u is in the hands of row %u until %lld, and it is told that it is not", cookie, w->row,
          (long long)e->until);
    e->holder = 0;
}

static bool kept_finish(worker *w, uint32_t cookie)
{
    wh_client *c = &w->client;
    entry *e = &S->book.entries[cookie];
    int64_t begun = crew_now();
    e->flight = FINISHING;
    e->flier = (uint8_t)w->row;
    step_begin();
    bool done = wh_client_acknowledge_one(c, e->id);
    step_end();
    e->flight = LANDED;
    w->head = c->comp_acked;
    if (!done) {
        kept_refused(w, e, cookie, begun, INT64_MAX);
        return false;
    }
    CHECK(!entry_over(e), "%u was acknowledged, and it is over", cookie);
    CHECK(e->holder == w->row + 1, "%u was acknowledged by row %u, row %d holds it", cookie, w->row,
          e->holder - 1);
    e->holder = 0;
    e->events = 1;
    return true;
}

static bool kept_give_back(worker *w, uint32_t cookie, int64_t delay)
{
    wh_client *c = &w->client;
    entry *e = &S->book.entries[cookie];
    int64_t begun = crew_now(), asked = e->asked;
    e->flight = GIVING_BACK;
    e->flier = (uint8_t)w->row;
    e->tried = wh_time_add(wh_client_now(c), delay);
    e->asked = INT64_MAX;
    step_begin();
    enum wh_call call = wh_call_nack(c, e->id, delay, w->waits);
    step_end();
    e->flight = LANDED;
    w->head = c->comp_acked;
    if (call != WH_CALL_OK) {
        e->asked = asked;
        if (call == WH_CALL_OVER)
            kept_refused(w, e, cookie, begun, e->tried);
        return false;
    }
    e->asked = told_of(e, e->to);
    if (e->holder != w->row + 1)
        return true; /* others have had it meanwhile */
    e->wanted = e->tried;
    e->floats |= S->book.racing; /* it looked at the time later */
    e->holder = 0;
    return true;
}

/* Be done with all that is in its hands. */
static void kept_release(worker *w, bool gives_back)
{
    for (uint32_t i = 0; i < S->book.count; i++) {
        if (S->book.entries[i].holder != w->row + 1)
            continue;
        if (gives_back && S->book.entries[i].flight == LANDED && dice(2))
            kept_give_back(w, i, (int64_t)dice(4) * MS);
        else
            kept_finish(w, i);
    }
    step_begin();
    wh_client_acknowledge(&w->client);
    step_end();
    w->head = w->client.comp_acked;
    w->holds = false;
}

static void kept_serve(worker *w)
{
    if (dice(3))
        kept_hold(w, dice(2) ? BOUND : 0);
    else
        kept_claim(w, dice(2) ? BOUND : 0);
    kept_release(w, true);
}

/* -- a crew with detached timers --------------------------------------------------------------- */

static void kept_act(void)
{
    worker *w = someone();
    uint64_t what = dice(13);
    uint32_t cookie = some_open(WH_NIL);
    if (what < 4)
        worker_schedule(w, kept_plan(dice(6) ? (int64_t)dice(6 * MS) : FAR_NS), NULL);
    else if (what == 4 && cookie != WH_NIL)
        worker_cancel(w, cookie);
    else if (what == 5 && cookie != WH_NIL)
        worker_move(w, cookie, (int64_t)dice(9 * MS));
    else if (what == 6 && cookie != WH_NIL)
        pause_or_resume(w, cookie);
    else if (what < 9)
        kept_serve(w);
    else if (what == 9)
        worker_receive(w);
    else if (!S->clockless)
        clock_advance(crew_now() + (int64_t)dice(3 * MS));
    kept_note();
}

static void kept_history(uint64_t steps)
{
    while (steps--)
        kept_act();
}

/* The group has one member; NULL: none. Nothing is left in the rings of others. */
static void members(worker *only)
{
    crew_settle();
    kept_note();
    for (uint32_t row = 0; row < KEEPER; row++) {
        worker *w = &S->workers[row];
        if (w == only)
            crew_joins(w);
        else if (S->peers[row].life)
            crew_parts(w);
    }
}

/* It is about one that A has in hand. */
static void kept_pick(void)
{
    uint32_t at = (uint32_t)dice(S->book.count), last = at + S->book.count;
    while (at < last && S->book.entries[at % S->book.count].holder != A->row + 1)
        at++;
    CHECK(at < last, "nothing is in hand");
    subject = at % S->book.count;
}

/* All go on, and B takes what is left. */
static void kept_end(void)
{
    if (A->alive && A->holds)
        kept_release(A, dice(2));
    if (dice(4) == 0)
        kept_advance(2 * KEEP_NS);
    crew_joins(B);
    if (!A->alive)
        worker_left(A);
    kept_note();
    crew_settle();
    kept_note();
    kept_advance(KEEP_NS + MS); /* what a member has taken from the keeper is given back by then */
    crew_settle();
    kept_check();
    kept_history(dice(6));
    crew_settle();
    kept_note();
    crew_check_lists();
    kept_check();
    crew_finish();
}

#endif
