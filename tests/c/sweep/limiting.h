/* Limiting: workers that take from limits of all three windows, wait, and give back, in virtual
 * time, all in the arena.
 *
 * The amounts that each worker was told it took stand outside of the directory, each with the time
 * as of which it is taken. A worker that was killed in a call has taken an amount that it was not
 * told, or none. */
#ifndef SWEEP_LIMITING_H
#define SWEEP_LIMITING_H

#include "step.h"

#include "wheeld/sharing/limits.h"

#define WORKERS 3
#define SLOTS 64
#define MOST 4 /* of each limit, and its burst */
#define UNIT (1ll << 30)
#define PER (MOST * UNIT)
#define GRANTS 256

enum kind { RATE, WINDOW, LOG, KINDS };

typedef struct grant {
    int64_t at, until, ends; /* as of when, or until when; of its window */
    uint64_t ticket;
    enum kind kind;
    uint32_t n; /* 0: it was given back, perhaps */
} grant;

typedef struct book {
    void *segment;
    wh_keys workers[WORKERS];
    uint64_t rng, seed;
    int64_t now;
    grant grants[GRANTS];
    uint32_t count, waits; /* waits: the position of what A waits for */
    enum kind kind; /* that it is about */
    uint32_t asked; /* by the call that A is in; 0: none */
    uint32_t told; /* 1 + the position of what that has taken */
    bool given[KINDS]; /* back: it is not known what is there */
    bool excess; /* of RATE */
} book;

static book *S; /* the first thing in the arena */

#define A (&S->workers[0])
#define B (&S->workers[1])
#define C (&S->workers[2])

static inline uint64_t dice(uint64_t limit) { return rng_next(&S->rng) % limit; }

static wh_word_key key_of(enum kind kind)
{
    return wh_words_key(rng_mix(S->seed, kind), rng_mix(~S->seed, kind), WH_WORD_LIMIT);
}

/* -- calls ------------------------------------------------------------------------------------- */

static void is_told(enum kind kind, int64_t at, int64_t ends, uint64_t ticket, uint32_t n)
{
    CHECK(S->count < GRANTS, "the book is full");
    S->grants[S->count++] = (grant){.at = at,
                                    .until = at > S->now ? at : S->now,
                                    .ends = ends,
                                    .ticket = ticket,
                                    .kind = kind,
                                    .n = n};
}

/* As limit_take_as_of() of limit_type.c. */
static bool take(wh_keys *w, enum kind kind, uint32_t n, int64_t patience)
{
    wh_word_key key = key_of(kind);
    int64_t now = S->now, wait = 0;
    wh_log log = {&key, MOST, now, PER};
    wh_window window = {0};
    uint64_t ticket = 0;
    enum wh_limited done;
    if (w == A)
        S->asked = n;
    step_begin();
    if (kind == RATE)
        done = wh_rate_take(w, &key, now, (int64_t)n * UNIT, MOST * UNIT, patience, &wait);
    else if (kind == WINDOW)
        done = wh_window_take(w, &key, now, PER, n, MOST, patience, &window, &wait);
    else
        done = wh_log_take(w, &log, n, patience, &wait, &ticket);
    step_end();
    CHECK(done != WH_LIMIT_NO_ROOM, "no room");
    if (done == WH_LIMIT_TAKEN)
        is_told(kind, now + (wait > 0 ? wait : 0), window.ends, ticket, n);
    if (w == A)
        S->asked = 0, S->told = done == WH_LIMIT_TAKEN ? S->count : 0;
    return done == WH_LIMIT_TAKEN;
}

/* One that was interrupted while it waited. */
static void give(wh_keys *w, grant *g)
{
    wh_word_key key = key_of(g->kind);
    int64_t now = S->now;
    wh_log log = {&key, MOST, now, PER};
    uint32_t n = g->n;
    g->n = 0;
    S->given[g->kind] = true;
    step_begin();
    if (g->kind == RATE)
        wh_rate_give(w, &key, now, n * UNIT, g->at);
    else if (g->kind == WINDOW)
        wh_window_give(w, &key, now, g->ends, n);
    else
        wh_log_give(w, &log, g->ticket, n);
    step_end();
    /* it was stopped in here for longer than it was to wait: what it gave has come again, too */
    S->excess |= g->kind == RATE && now < g->at && S->now >= g->at;
}

/* Give up the places of keys that nobody needs, as whoever makes a key does. */
static void retire(wh_keys *w)
{
    w->now = S->now;
    for (enum kind kind = RATE; kind < KINDS; kind++) {
        wh_word_key key = key_of(kind);
        uint32_t place = wh_words_find(w, &key);
        wh_words_let_go(w);
        if (place != WH_NIL) {
            wh_keys_retire(w, place);
            wh_words_empty(w, place);
        }
    }
}

static void others_act(uint64_t count)
{
    for (; count; count--) {
        wh_keys *w = dice(2) ? B : C;
        enum kind kind = dice(3) ? S->kind : (enum kind)dice(KINDS);
        if (dice(3) == 0)
            S->now += (int64_t)dice(UNIT);
        if (dice(4) == 0)
            retire(w);
        take(w, kind, 1 + (uint32_t)dice(2), dice(4) ? 0 : (int64_t)dice(2 * PER));
        grant *last = &S->grants[S->count ? dice(S->count) : 0];
        if (last->n && (last->kind == RATE || last->at > S->now) && dice(2))
            give(w, last);
    }
}

/* -- what never fails to hold ------------------------------------------------------------------ */

/* Taken of a kind from `i`'s time on: up to `until`, or in its window. */
static uint64_t taken(enum kind kind, const grant *from, int64_t until)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < S->count; i++) {
        const grant *g = &S->grants[i];
        if (g->kind == kind &&
            (kind == WINDOW ? g->ends == from->ends : g->at >= from->at && g->at < until))
            sum += g->n;
    }
    return sum;
}

static const char *fault_of(const grant *one, const grant *two)
{
    uint64_t sum = one->kind == RATE && !S->excess ? taken(RATE, one, two->at + 1) : 0;
    if (sum > MOST && two->at >= one->at && (int64_t)(sum - MOST) * UNIT > two->at - one->at)
        return "more than the burst and what came meanwhile";
    int64_t apart = two->ends - one->ends;
    bool other = one->kind == WINDOW && apart != 0;
    return other && apart < PER && -apart < PER ? "windows that overlap" : NULL;
}

static const char *fault(void)
{
    const char *found = NULL;
    for (uint32_t i = 0; i < S->count && !found; i++) {
        const grant *g = &S->grants[i];
        if (g->kind != RATE && taken(g->kind, g, g->at + PER) > MOST)
            found = "more than the limit in a window";
        if (g->kind == WINDOW && (g->at >= g->ends || g->ends - g->at > PER + 16))
            found = "something beside its window";
        for (uint32_t j = 0; j < S->count && !found; j++)
            if (S->grants[j].kind == g->kind)
                found = fault_of(g, &S->grants[j]);
    }
    return found;
}

/* Never more than the limit, in any window. */
static void check_limits(void)
{
    const char *found = fault();
    CHECK(!found, "%s was taken", found);
}

/* One that was stopped in its call has taken as of its begin; if that was for so long that the rest
 * was forgotten meanwhile, beside it. */
static void check_stopped(grant *g)
{
    if (g->until - g->at >= PER)
        *g = (grant){.kind = KINDS};
    check_limits();
}

/* How much is there now by the book: at least what is there. -1: it is not known. */
static int64_t there(enum kind kind)
{
    int64_t all = 0, sum = 0;
    for (uint32_t i = 0; i < S->count; i++) {
        const grant *g = &S->grants[i];
        if (g->kind != kind)
            continue;
        if (g->at > S->now || S->given[kind])
            return -1; /* somebody waits */
        all = (all > g->at ? all : g->at) + (int64_t)g->n * UNIT;
        sum += g->n * (kind == WINDOW ? g->ends > S->now : g->at + PER > S->now);
    }
    if (kind == RATE)
        return all > S->now ? (PER - (all - S->now)) / UNIT : MOST;
    return MOST - sum;
}

static uint32_t drain(enum kind kind)
{
    uint32_t got = 0;
    while (take(got % 2 ? B : C, kind, 1, 0))
        got++;
    return got;
}

/* All that is there can be had now, but for what the dead one may have taken. */
static void check_lost(uint32_t unknown)
{
    for (enum kind kind = RATE; kind < KINDS; kind++) {
        int64_t expected = there(kind);
        uint32_t least = kind == S->kind ? unknown : 0, got = expected < 0 ? 0 : drain(kind);
        if (expected >= 0)
            CHECK(got <= expected && got + least >= expected,
                  "%u of kind %d can be had, expected %lld, or %u less", got, kind,
                  (long long)expected, least);
    }
    check_limits();
}

/* In the end all of each limit is there. */
static void check_whole(void)
{
    S->now += 8 * PER;
    for (enum kind kind = RATE; kind < KINDS; kind++) {
        uint32_t got = drain(kind);
        CHECK(got == MOST, "%u of kind %d can be had in the end", got, kind);
    }
    check_limits();
}

static void round_world(uint64_t seed)
{
    memory->used = 0;
    S = arena_take(sizeof *S);
    S->rng = S->seed = seed;
    S->now = 1000 * UNIT + (int64_t)dice(UNIT);
    S->segment = arena_take(wh_keys_parts_of(WORKERS, SLOTS).bytes);
    wh_keys_create(S->segment, WORKERS, SLOTS, 1, 0);
    for (uint32_t row = 0; row < WORKERS; row++)
        CHECK(wh_keys_bind(&S->workers[row], S->segment, WORKERS, SLOTS, NULL, NULL, row),
              "memory");
}

/* -- situations and operations ----------------------------------------------------------------- */

static void before_used(enum kind kind)
{
    S->kind = kind;
    take(B, kind, 1, 0);
    if (dice(2))
        take(C, kind, 1, 0);
}
static void before_full(enum kind kind)
{
    S->kind = kind;
    drain(kind);
}
static void before_over(enum kind kind) /* its places are used again, or not yet */
{
    before_full(kind);
    S->now += PER + (int64_t)dice(PER);
    if (dice(2))
        retire(C);
}
static void before_waits(enum kind kind)
{
    before_full(kind);
    CHECK(take(A, kind, 1, 2 * PER), "it is not to wait");
    S->waits = S->count - 1;
    if (dice(2))
        take(B, kind, 1, 2 * PER);
}

static void take_it(void) { take(A, S->kind, 1 + (uint32_t)dice(2), 0); }
static void wait_it(void) { take(A, S->kind, 1 + (uint32_t)dice(2), 2 * PER); }
static void give_it(void) { give(A, &S->grants[S->waits]); }

#define LIMIT_BEFORE(name, which)                                                                  \
    static void name##_free(void) { S->kind = which; }                                             \
    static void name##_used(void) { before_used(which); }                                          \
    static void name##_full(void) { before_full(which); }                                          \
    static void name##_over(void) { before_over(which); }                                          \
    static void name##_waits(void) { before_waits(which); }
LIMIT_BEFORE(rate, RATE)
LIMIT_BEFORE(window, WINDOW)
LIMIT_BEFORE(log, LOG)

#define LIMIT_PATHS_OF(name)                                                                       \
    {#name, name##_free, take_it, 1}, {#name "-used", name##_used, take_it, 1},                    \
        {#name "-full", name##_full, take_it, 1}, {#name "-over", name##_over, take_it, 1},        \
        {#name "-wait", name##_full, wait_it, 1}, {#name "-give", name##_waits, give_it, 1}

static const path limit_paths[] = {LIMIT_PATHS_OF(rate), LIMIT_PATHS_OF(window),
                                   LIMIT_PATHS_OF(log)};
#define LIMIT_PATHS (sizeof limit_paths / sizeof *limit_paths)

#endif
