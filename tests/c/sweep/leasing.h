/* Leasing: workers that take, hold, and wait for the seats of one lease, and a supervisor, driven
 * by hand, all in the arena.
 *
 * The leases that each worker was told it holds stand outside of the directory. Futexes are
 * counters: a waiter that was refused sleeps until its wake counter moves, so a lost wake-up shows
 * as a waiter that sleeps beside a free seat, or at its turn. */
#ifndef SWEEP_LEASING_H
#define SWEEP_LEASING_H

#include "step.h"

#include "wheeld/sharing/leases.h"

#define HOLDERS 4
#define SLOTS 64
#define SECOND 1000000000ll
#define SPAN (10 * SECOND)

typedef struct holder {
    wh_keys keys;
    wh_lease_hold hold;
    int64_t ends, alarm; /* alarm: when it looks again without being woken */
    uint64_t ticket;
    uint32_t row, place, seen;
    bool alive, holds, waits, sleeps;
    bool still; /* stopped in the middle of a call */
} holder;

typedef struct office {
    void *segment;
    wh_lease lease;
    holder holders[HOLDERS];
    int64_t now;
    uint64_t last; /* the largest token that somebody was told */
    bool passed[2]; /* a turn on that seat was over, and its place was given up */
    uint64_t rng;
} office;

static office *S; /* the first thing in the arena */

#define A (&S->holders[0])
#define B (&S->holders[1])
#define C (&S->holders[2])
#define D (&S->holders[3])

static inline uint64_t dice(uint64_t limit) { return rng_next(&S->rng) % limit; }

static void count_wake(wh_au32 *word, uint32_t places) { (void)word, (void)places; }

static wh_lease_call call_at(uint64_t ticket)
{
    return (wh_lease_call){
        .now = S->now, .ends = S->now + SPAN, .ticket = ticket, .wake = count_wake};
}

static uint64_t seat_word(uint32_t seat)
{
    wh_word_key key = wh_lease_key(&S->lease, seat);
    return wh_words_peek(&D->keys, &key);
}

/* Not dead, nor in the middle of a call. */
static bool goes_on(const holder *w) { return w->alive && !w->still; }

/* -- what never fails to hold ------------------------------------------------------------------ */

/* Each worker that was told that it holds a seat has it, as long as its time is not over. */
static void check_held(void)
{
    for (uint32_t seat = 0; seat < S->lease.seats; seat++)
        S->passed[seat] &= seat_word(seat) == 0;
    for (uint32_t i = 0; i < HOLDERS; i++) {
        holder *w = &S->holders[i];
        if (goes_on(w) && w->holds && w->ends > S->now)
            CHECK(wh_lease_holds(&w->keys, &S->lease, &w->hold, S->now),
                  "worker %u has lost seat %u", i, w->hold.seat);
    }
}

static holder *seat_owner(uint64_t word)
{
    uint32_t row = wh_lease_row(word);
    return row < HOLDERS && wh_lease_stands(&D->keys, word, S->now) ? &S->holders[row] : NULL;
}

static bool unwoken(const holder *w)
{
    return w->alive && w->sleeps && S->now < w->alarm &&
           wh_load_relaxed(&w->keys.mine->wake) == w->seen;
}

/* The dead are cleared away and nobody is in a call: who sleeps, and was not woken, has nothing to
 * wait for; each seat is somebody's. */
static void check_sleepers(void)
{
    bool any = false;
    for (uint32_t i = 0; i < HOLDERS; i++)
        any |= unwoken(&S->holders[i]);
    for (uint32_t seat = 0; any && seat < S->lease.seats; seat++) {
        uint64_t word = seat_word(seat);
        holder *owner = seat_owner(word);
        if (S->passed[seat] || (word && wh_lease_ends(word) <= S->now))
            continue; /* they see that when they look around */
        CHECK(owner, "somebody sleeps beside seat %u, which is free: %llx", seat, (ull)word);
        CHECK(!wh_lease_is_granted(word) || !unwoken(owner), "worker %u sleeps, and it is its turn",
              owner->row);
        CHECK(wh_lease_is_granted(word) || owner->holds,
              "seat %u is taken by worker %u, which does not know", seat, owner->row);
    }
}

/* -- calls: what the operation does stands between step_begin and step_end --------------------- */

static void is_told(holder *w, const wh_lease_hold *hold, int64_t ends)
{
    w->holds = true;
    w->hold = *hold;
    w->ends = ends;
    if (!w->still)
        CHECK(hold->token > S->last, "token %llu after %llu", (ull)hold->token, (ull)S->last);
    S->last = hold->token > S->last ? hold->token : S->last;
}

static bool take(holder *w)
{
    wh_lease_call call = call_at(0);
    wh_lease_hold hold;
    step_begin();
    bool taken = wh_lease_take(&w->keys, &S->lease, &call, &hold) == WH_LEASE_TAKEN;
    step_end();
    if (taken)
        is_told(w, &hold, call.ends);
    return taken;
}

static bool give(holder *w)
{
    wh_lease_call call = call_at(0);
    step_begin();
    bool given = wh_lease_give(&w->keys, &S->lease, &w->hold, &call);
    step_end();
    w->holds = false;
    return given;
}

static bool renew(holder *w)
{
    wh_lease_call call = call_at(0);
    wh_lease_hold hold = w->hold;
    step_begin();
    bool renewed = wh_lease_renew(&w->keys, &S->lease, &hold, &call);
    step_end();
    w->holds = renewed;
    w->hold = hold;
    w->ends = call.ends;
    return renewed;
}

/* As wait_leave() of lease_wait_part.c. */
static void leave_now(holder *w)
{
    wh_lease_call call = call_at(0);
    wh_lease_queue_hide(&w->keys, w->place, true);
    wh_lease_pass_on(&w->keys, &S->lease, &call);
}

static void leave(holder *w)
{
    step_begin();
    leave_now(w);
    step_end();
    w->waits = w->sleeps = false;
}

/* As lease_look(): a ticket that was passed by is replaced; who has it leaves the queue. */
static bool look_now(holder *w, wh_lease_hold *hold)
{
    if (wh_load_seq(&wh_lease_place_at(&w->keys, w->row, w->place)->ticket) != w->ticket) {
        w->ticket = wh_lease_queue_ticket(&w->keys, S->lease.seats);
        wh_lease_queue_show(&w->keys, &S->lease, w->place, w->ticket);
    }
    wh_lease_call call = call_at(w->ticket);
    bool taken = wh_lease_take(&w->keys, &S->lease, &call, hold) == WH_LEASE_TAKEN;
    if (taken)
        leave_now(w);
    return taken;
}

static void looked(holder *w, bool taken, const wh_lease_hold *hold, uint32_t seen, int64_t ends)
{
    w->seen = seen;
    w->waits = w->sleeps = !taken;
    w->alarm = wh_lease_next(&w->keys, &S->lease);
    if (taken)
        is_told(w, hold, ends);
}

static void look(holder *w)
{
    wh_lease_hold hold;
    int64_t ends = S->now + SPAN;
    step_begin();
    uint32_t seen = wh_load_seq(&w->keys.mine->wake);
    bool taken = look_now(w, &hold);
    step_end();
    looked(w, taken, &hold, seen, ends);
}

static void wait_for(holder *w)
{
    wh_lease_hold hold;
    int64_t ends = S->now + SPAN;
    step_begin();
    w->ticket = wh_lease_queue_ticket(&w->keys, S->lease.seats);
    w->place = wh_lease_queue_place(&w->keys, &S->lease);
    wh_lease_queue_show(&w->keys, &S->lease, w->place, w->ticket);
    uint32_t seen = wh_load_seq(&w->keys.mine->wake);
    bool taken = look_now(w, &hold);
    step_end();
    looked(w, taken, &hold, seen, ends);
}

/* Give up places that nobody needs, as whoever makes a key does. */
static void retire(holder *w)
{
    w->keys.now = S->now;
    for (uint32_t seat = 0; seat < S->lease.seats; seat++) {
        wh_word_key key = wh_lease_key(&S->lease, seat);
        uint64_t word = seat_word(seat);
        uint32_t place = wh_words_find(&w->keys, &key);
        wh_words_let_go(&w->keys);
        S->passed[seat] |= wh_lease_is_granted(word) && wh_lease_ends(word) <= S->now;
        if (place != WH_NIL) {
            wh_keys_retire(&w->keys, place);
            wh_words_empty(&w->keys, place);
        }
    }
}

/* -- deaths ------------------------------------------------------------------------------------ */

static void dies(holder *w) { w->alive = false; }

/* As seat_keys() of sharing_part.c; the row has a new tenant. */
static void seat_now(uint32_t row)
{
    wh_keys k = S->holders[row].keys;
    wh_words_leave(&k);
    wh_leases_leave(&k, count_wake);
    wh_leases_seat(&k);
}

static void reborn(holder *w)
{
    w->keys.tenancy = wh_load_relaxed(&w->keys.mine->tenancy);
    w->alive = true;
    w->holds = w->waits = w->sleeps = w->still = false;
    w->seen = wh_load_relaxed(&w->keys.mine->wake);
}

static void bury(holder *w)
{
    step_begin();
    seat_now(w->row);
    step_end();
    reborn(w);
}

/* -- random calls ------------------------------------------------------------------------------ */

static void act(holder *w)
{
    if (!goes_on(w))
        return;
    if (w->waits) {
        if (!unwoken(w) || dice(4) == 0)
            look(w);
        else if (dice(3) == 0)
            leave(w);
    } else if (w->holds) {
        dice(3) ? give(w) : renew(w);
    } else {
        dice(2) ? (void)take(w) : wait_for(w);
    }
    check_held();
}

/* Others than A. */
static void others_act(uint64_t count)
{
    for (; count; count--) {
        if (dice(8) == 0)
            S->now += (int64_t)dice(3 * SECOND);
        if (dice(6) == 0)
            retire(D);
        act(&S->holders[1 + dice(HOLDERS - 1)]);
    }
}

/* Time is over for all turns, and all who were woken look. */
static void all_look(void)
{
    for (int turn = 0; turn < 2 * HOLDERS; turn++)
        for (uint32_t i = 0; i < HOLDERS; i++)
            if (goes_on(&S->holders[i]) && S->holders[i].waits && !unwoken(&S->holders[i]))
                look(&S->holders[i]);
    check_held();
}

/* The living waiter that comes first. */
static holder *first_waiter(void)
{
    holder *first = NULL;
    for (uint32_t i = 0; i < HOLDERS; i++) {
        holder *w = &S->holders[i];
        if (w->alive && w->waits && (first == NULL || w->ticket < first->ticket))
            first = w;
    }
    return first;
}

/* Whoever holds gives back, and the first of those who wait has it then; until nobody waits. */
static void drain_in_order(void)
{
    for (int turn = 0; first_waiter() != NULL; turn++) {
        CHECK(turn < 4 * HOLDERS, "the queue does not end");
        for (uint32_t i = 0; i < HOLDERS; i++)
            if (S->holders[i].holds && (turn > 4 || dice(2)))
                give(&S->holders[i]);
        holder *first = first_waiter();
        bool free = false;
        for (uint32_t seat = 0; seat < S->lease.seats; seat++) {
            holder *owner = seat_owner(seat_word(seat));
            free |= owner == NULL || (owner == first && !owner->holds);
        }
        CHECK(!free || !take(D) || D->waits, "one that did not wait came in between");
        if (free) {
            look(first);
            CHECK(first->holds, "the first one does not get it");
        }
        all_look();
    }
}

static void check_empty(void)
{
    for (uint32_t i = 0; i < HOLDERS; i++)
        if (S->holders[i].holds)
            give(&S->holders[i]);
    CHECK(wh_lease_queue_empty(&D->keys), "somebody stands in the queue");
    for (uint32_t i = 0; i < HOLDERS * WH_LEASE_PLACES; i++) {
        const wh_lease_place *place = &D->keys.lease_places[i];
        CHECK(place->ticket == 0 && place->lease == 0, "place %u is not empty", i);
    }
    for (uint32_t seat = 0; seat < S->lease.seats; seat++)
        CHECK(seat_owner(seat_word(seat)) == NULL, "seat %u is lost", seat);
}

/* All is well: the dead are cleared away, and in the end nothing is left. */
static void finish(void)
{
    check_held();
    for (uint32_t i = 0; i < HOLDERS; i++)
        if (!S->holders[i].alive)
            bury(&S->holders[i]);
    check_sleepers();
    all_look();
    check_sleepers();
    drain_in_order();
    check_empty();
    for (uint32_t i = 0; i < S->lease.seats; i++)
        CHECK(take(&S->holders[i]), "seat %u cannot be had", i);
    CHECK(!take(D), "one seat too many");
    check_empty();
}

/* -- the beginning ----------------------------------------------------------------------------- */

static void round_world(uint64_t seed)
{
    memory->used = 0;
    S = arena_take(sizeof *S);
    S->rng = seed;
    S->now = 1000 * SECOND + (int64_t)dice(SECOND);
    S->segment = arena_take(wh_keys_parts_of(HOLDERS, SLOTS).bytes);
    wh_keys_create(S->segment, HOLDERS, SLOTS, 1, 100);
    S->last = 100;
    S->lease = (wh_lease){wh_words_key(seed * 0x9e3779b97f4a7c15ull, ~seed, WH_WORD_LEASE),
                          1 + (uint32_t)dice(2)};
    for (uint32_t row = 0; row < HOLDERS; row++) {
        holder *w = &S->holders[row];
        w->row = row;
        CHECK(wh_keys_bind(&w->keys, S->segment, HOLDERS, SLOTS, NULL, NULL, row), "memory");
        wh_store_relaxed(&w->keys.mine->tenancy, 2 * dice(5));
        seat_now(row);
        reborn(w);
    }
}

#endif
