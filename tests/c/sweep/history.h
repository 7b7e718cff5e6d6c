/* History: random pasts, deaths, and the end to which each trial is played: all time passes, all
 * that is due is received, every slot is used once more, and then the account is exact. */
#ifndef SWEEP_HISTORY_H
#define SWEEP_HISTORY_H

#include "workers.h"

/* -- random pasts ------------------------------------------------------------------------------ */

static worker *someone(void)
{
    for (;;) {
        worker *w = &S->workers[dice(ROWS)];
        if (worker_acts(w))
            return w;
    }
}

static int64_t some_delay(void)
{
    switch (dice(8)) {
    case 0:
        return 0;
    case 1:
        return FAR_NS;
    case 2:
        return (int64_t)dice(200) * MS;
    default:
        return (int64_t)dice(8 * MS);
    }
}

static plan some_plan(const worker *w)
{
    plan p = {.delay = some_delay(), .to = w->row};
    if (dice(6) == 0)
        p.kind = (uint32_t)dice(WH_CLOCK_KINDS);
    if (dice(4) == 0)
        p.to = someone()->row;
    else if (dice(12) == 0)
        p.to = TO_GROUP;
    if (dice(8) == 0)
        p.interval = (int64_t)(3 + dice(60)) * MS;
    return p;
}

/* An open timer of `owner`, of anyone's if WH_NIL; WH_NIL: there is none. */
static uint32_t some_open(uint32_t owner)
{
    uint32_t at = S->book.count ? (uint32_t)dice(S->book.count) : 0;
    for (uint32_t i = 0; i < S->book.count; i++) {
        uint32_t cookie = (at + i) % S->book.count;
        const entry *e = &S->book.entries[cookie];
        if (entry_open(e) && e->flight == LANDED && (owner == WH_NIL || e->owner == owner))
            return cookie;
    }
    return WH_NIL;
}

static void pause_or_resume(worker *w, uint32_t cookie)
{
    if (S->book.entries[cookie].left < 0)
        worker_pause(w, cookie);
    else
        worker_resume(w, cookie);
}

static void do_something(void)
{
    worker *w = someone();
    uint64_t what = dice(23);
    uint32_t cookie = some_open(WH_NIL);
    if (what < 8)
        worker_schedule(w, some_plan(w), NULL);
    else if (what < 12 && cookie != WH_NIL)
        worker_cancel(w, cookie);
    else if (what < 14 && cookie != WH_NIL)
        worker_move(w, cookie, some_delay());
    else if (what < 16)
        worker_receive(w);
    else if (what == 20)
        worker_ask(w);
    else if (what > 20 && cookie != WH_NIL)
        pause_or_resume(w, cookie);
    else if (what < 18 && !S->clockless)
        clock_work();
    else if (!S->clockless)
        clock_advance(crew_now() + (int64_t)dice(3 * MS));
}

static void crew_history(uint64_t steps)
{
    while (steps--)
        do_something();
}

/* -- death ------------------------------------------------------------------------------------- */

/* Did the dead worker take this offer to its end? It may have had it by an earlier record. */
static bool had_offer(const wh_client *c, const wh_completion *r)
{
    uint64_t done = wh_state_of(wh_id_gen(r->id), wh_taker(c->me), WH_DONE);
    return wh_load_relaxed(&c->states[wh_id_slot(r->id)]) == done &&
           !S->book.entries[r->cookie].events;
}

/* The dead worker had all that its head has passed; and the offers that it was done with. */
static void bury_received(worker *w)
{
    wh_client *c = &w->client;
    uint64_t end = wh_load_relaxed(&c->seg->comp_head), tail = wh_load_relaxed(&c->port->comp_tail);
    CHECK(end - w->head <= c->comp_size, "the head of row %u went astray", w->row);
    for (uint64_t p = w->head; p != tail; p++) {
        wh_completion r = c->comps[p & (c->comp_size - 1)];
        uint32_t kind = wh_id_kind(r.id);
        if (kind == WH_EV_OFFER ? !had_offer(c, &r) : tail - p <= tail - end)
            continue;
        if (kind == WH_EV_TICK && !wh_tick_stands(c, r.id, r.flags))
            continue;
        uint64_t id = wh_id(wh_id_gen(r.id), wh_id_slot(r.id));
        ledger_event(&S->book, r.cookie, id, r.deadline, r.fired, r.missed);
    }
}

/* A schedule in flight: did it come as far as the state? */
static void bury_schedule(worker *w, entry *e, uint64_t cookie)
{
    wh_client *c = &w->client;
    if (entry_over(e))
        return; /* a batch that waited: it was received meanwhile */
    e->used = false;
    for (uint32_t slot = 0; slot < S->config.capacity; slot++) {
        uint64_t state = wh_load_relaxed(&c->states[slot]);
        if (!wh_slabs_own(&c->slabs, slot) || wh_state_phase(state) != WH_ARMED ||
            wh_load_relaxed(&c->slots[slot].cookie) != cookie)
            continue;
        CHECK(!e->used, "%llu stands in two slots", (ull)cookie);
        e->used = true;
        e->id = wh_id(wh_state_gen(state), slot);
    }
}

/* A timer whose deadline is far was paused: another far one has nothing to bring it back. */
static void bury_move(const worker *w, const entry *e, uint64_t state)
{
    const wh_slot *slot = &w->client.slots[wh_id_slot(e->id)];
    int64_t deadline = wh_load_relaxed(&slot->deadline);
    if (wh_state_gen(state) == wh_id_gen(e->id) && wh_state_phase(state) == WH_ARMED)
        CHECK(deadline < PAUSED || wh_is_paused(state, deadline), "%llx is far, and not paused",
              (ull)e->id);
}

/* The dead worker holds nothing any more. */
static void bury_taken(const worker *w, entry *e)
{
    const wh_client *c = &w->client;
    if (e->holder == w->row + 1)
        e->holder = 0;
    else if (e->detached && e->id && !entry_over(e) &&
             wh_load_relaxed(&c->states[wh_id_slot(e->id)]) ==
                 wh_state_of(wh_id_gen(e->id), wh_taker(c->me), WH_TAKEN))
        e->takes++;
}

/* The worker died: from what it had in flight, what came to pass did. Before anyone goes on. */
static void worker_dies(worker *w)
{
    w->alive = w->waits = w->holds = false;
    S->leaving[w->row] = true;
    bury_received(w);
    for (uint32_t i = 0; i < S->book.count; i++) {
        entry *e = &S->book.entries[i];
        if (e->flight != LANDED && e->flier == w->row) {
            uint64_t state = wh_load_relaxed(&w->client.states[wh_id_slot(e->id)]);
            if (e->flight == SCHEDULING)
                bury_schedule(w, e, i);
            else if (e->flight == MOVING)
                bury_move(w, e, state);
            else if (e->flight == CANCELLING && wh_state_gen(state) == wh_id_gen(e->id) &&
                     wh_state_phase(state) == WH_CANCELLED && !e->cancels)
                ledger_cancelled(&S->book, e, i);
            else if (e->flight == GIVING_BACK && e->holder == w->row + 1 &&
                     wh_state_gen(state) == wh_id_gen(e->id) && wh_state_phase(state) == WH_ARMED)
                e->wanted = e->tried;
            else if (e->flight == FINISHING && !entry_over(e) &&
                     state == wh_state_of(wh_id_gen(e->id), wh_taker(w->client.me), WH_DONE))
                e->events = 1; /* its record was passed before */
            e->flight = e->flight == MOVING ? MOVING : LANDED;
        }
        bury_taken(w, e);
        if (e->to == w->row && e->owner != w->row)
            e->loose = true; /* ticks that stood in the ring of the dead are lost with it */
        if (e->owner == w->row || e->to == w->row || e->to == TO_GROUP)
            e->asked = INT64_MAX; /* what it had not said or read waits for its sweep */
    }
    memset(&w->client, 0xee, sizeof w->client);
}

/* The clock learns of it, and begins to sweep. */
static void worker_leaves(worker *w, enum wh_leave policy)
{
    S->policy[w->row] = (uint8_t)policy;
    S->dropped[w->row] = wh_load_relaxed(&((wh_wheel_seg *)S->wheel)->dropped);
    for (uint32_t i = 0; i < S->book.count && policy == WH_LEAVE_REROUTE; i++)
        S->book.entries[i].loose |= S->book.entries[i].owner == w->row; /* likewise */
    if (!S->clockless)
        wh_clock_detach(&S->peers[w->row], policy);
}

/* Its timers went with it: all that had not ended. Returns how many. */
static uint64_t ledger_drop(uint32_t owner)
{
    uint64_t dropped = 0;
    for (uint32_t i = 0; i < S->book.count; i++) {
        entry *e = &S->book.entries[i];
        if (e->owner == owner && e->used && !e->detached && !entry_over(e))
            dropped += e->dropped = 1;
    }
    return dropped;
}

/* Its row and what it held are a successor's. */
static void worker_adopted(worker *w)
{
    worker_bind(w->row);
    S->policy[w->row] = 0;
    wh_clock_presence(&S->peers[w->row], true);
    w->client.wait_seq |= 1; /* as the dead one may have left it; the successor awakes */
    S->bells[w->row]++;
}

/* A clock that dies between a drop and its count leaves the count one off. */
static void check_dropped(const worker *w)
{
    uint64_t dropped = wh_load_relaxed(&S->clock.seg->dropped) - S->dropped[w->row];
    uint64_t expected = S->policy[w->row] == WH_LEAVE_DROP ? ledger_drop(w->row) : 0;
    expected += S->unnamed[w->row];
    CHECK(dropped <= expected + S->deaths && dropped + S->deaths >= expected,
          "%llu dropped, the ledger says %llu", (ull)dropped, (ull)expected);
}

/* Is something on loan whose owner is gone? */
static bool crew_has_loose(void)
{
    for (uint32_t slot = 0; slot < S->config.capacity; slot++)
        if (wh_is_loose(&S->clock, slot))
            return true;
    return false;
}

/* The sweep of a worker that leaves, to its end, which waits for nobody; then its row has a tenant
 * again. Others read what they have on loan of it. */
static void worker_left(worker *w)
{
    for (int turn = 0; S->leaving[w->row]; turn++) {
        CHECK(turn < 40, "row %u is never reaped", w->row);
        clock_work();
    }
    for (int turn = 0; turn == 0 || crew_has_loose(); turn++) {
        CHECK(turn < 100, "what row %u had lent is never in the free list", w->row);
        clock_work();
        for (uint32_t row = 0; row < ROWS; row++)
            if (worker_acts(&S->workers[row]))
                worker_receive(&S->workers[row]);
    }
    crew_check_lists();
    for (uint32_t i = 0; i < S->book.count; i++)
        if (S->book.entries[i].asked == INT64_MAX)
            S->book.entries[i].asked = crew_now();
    if (w->incarnation) {
        CHECK(S->policy[w->row] != WH_LEAVE_DROP, "row %u is attached still", w->row);
        worker_adopted(w);
        return;
    }
    check_dropped(w);
    for (uint32_t i = 0; i < S->book.count; i++)
        if (S->book.entries[i].owner == w->row)
            S->book.entries[i].owner =
                NO_ROW; /* a successor's, or nobody's; not the next tenant's */
    worker_hire(w->row);
}

/* -- detached timers --------------------------------------------------------------------------- */

/* Who dies in a move leaves it in flight. */
static inline bool kept_open(const entry *e)
{
    return e->detached && e->id && (e->flight == LANDED || e->flight == MOVING) && entry_open(e);
}

/* Nobody stands in a call, and all was submitted: as many are counted as are pending. */
static inline void kept_check(void)
{
    uint64_t pending = 0, counted = wh_load_relaxed(&S->clock.seg->detached);
    for (uint32_t i = 0; i < S->book.count; i++)
        pending += kept_open(&S->book.entries[i]);
    CHECK(counted == pending, "%llu detached timers are counted, %llu are pending", (ull)counted,
          (ull)pending);
}

/* -- the end ----------------------------------------------------------------------------------- */

/* Every slab is nobody's or of one who lives, and every slot of those is in its hands. */
static void crew_check_slots(void)
{
    for (uint32_t slot = 0; slot < S->config.capacity; slot++) {
        uint64_t word = wh_owner_name(wh_load_relaxed(&S->clock.owners[slot >> WH_SLAB_BITS]));
        uint32_t row = (uint32_t)(word & 0xffff) - 1;
        const wh_link *link = &S->clock.wheel.links[slot];
        if (word == 0)
            continue;
        CHECK((word == WH_SPLIT) == wh_is_split(&S->clock, slot >> WH_SLAB_BITS),
              "slab %u is split or not", slot >> WH_SLAB_BITS);
        if (word == WH_SPLIT) {
            row = wh_holder_row(wh_load_relaxed(&S->clock.free_list.holders[slot]));
            bool listed =
                S->clock.free_list.free[slot >> WH_SLAB_BITS] >> (slot & (WH_SLAB_SLOTS - 1)) & 1;
            CHECK(listed == (row == WH_NIL), "slot %u of a split slab: listed or row %u", slot,
                  row);
            if (listed)
                continue;
            CHECK(row < ROWS && S->workers[row].alive, "slot %u is held by row %u, who is dead",
                  slot, row);
            word = S->workers[row].client.me;
        }
        CHECK(row < ROWS && S->workers[row].alive && S->workers[row].client.me == word,
              "slab %u belongs to %llx, who is dead", slot >> WH_SLAB_BITS, (ull)word);
        CHECK(client_holds(&S->workers[row].client, slot),
              "slot %u of row %u is lost: state %llx, link: gen %x list %d stage %llx", slot, row,
              (ull)wh_load_relaxed(&S->clock.states[slot]), link->gen, (int)link->list,
              (ull)link->completion);
    }
}

/* Use every slot there is. */
static void crew_fill(void)
{
    uint32_t count = 0, failed = 0;
    for (uint32_t row = dice(ROWS); failed < 3 * ROWS; row = (row + 1) % ROWS) {
        worker *w = &S->workers[row];
        if (!worker_acts(w) || !worker_schedule(w, (plan){.delay = FAR_NS, .to = row}, NULL))
            failed++;
        else
            failed = 0, count++;
        if (failed && failed % ROWS == 0)
            clock_work(); /* what they asked for */
    }
    CHECK(count == S->config.capacity, "%u slots of %u can be used", count, S->config.capacity);
    crew_settle();
    clock_advance(crew_now() + FAR_NS + MS);
    crew_settle();
}

static void cancel_rest(void)
{
    for (uint32_t i = 0; i < S->book.count; i++) {
        const entry *e = &S->book.entries[i];
        if (e->used && !entry_over(e))
            CHECK(worker_cancel(someone(), i), "%u (id %llx) neither ended nor can it be cancelled",
                  i, (ull)e->id);
    }
    crew_settle();
}

/* Everyone alive has a clock to talk to again; all accounts are settled. */
static void crew_finish(void)
{
    crew_settle();
    crew_check_lists();
    for (uint32_t row = 0; row < ROWS; row++)
        if (worker_acts(&S->workers[row]))
            for (int i = 0; i < 3; i++)
                worker_schedule(&S->workers[row], some_plan(&S->workers[row]), NULL);
    crew_settle();
    clock_advance(crew_now() + 300 * MS);
    crew_settle();
    ledger_none_late(&S->book, crew_now());
    cancel_rest();
    crew_check_slots();
    ledger_balance(&S->book);
    if (crew_account)
        crew_account();
    S->book.count = 0;
    crew_fill();
    crew_check_slots();
    crew_check_lists();
    ledger_balance(&S->book);
    uint64_t linked = wh_wheel_linked(&S->clock.wheel);
    CHECK(linked == 0, "%llu timers linked in the end", (ull)linked);
    heavy_none();
}

#endif
