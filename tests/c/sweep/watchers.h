/* Watchers: workers that watch keys and check them for each other, driven by hand, all in the
 * arena.
 *
 * The condition of a key is a number that each check moves up first. Doorbells are flags: a worker
 * that sleeps looks at nothing until it is rung for. The promise: when every check that began has
 * returned, and those who are awake or were rung have looked, each watcher has seen the last
 * number. */
#ifndef SWEEP_WATCHERS_H
#define SWEEP_WATCHERS_H

#include "step.h"

#include "wheeld/sharing/watch.h"

#define WATCHERS 3
#define KEYS 4

/* Two share a bucket and three of five bits of their marks; three share a word, the third one bit
 * of the first; no key has all bits of another. */
static const uint64_t hashes[KEYS] = {0x906030000005, 0xf06030000005, 0xc0804020ffff,
                                      0xd0a051000004};

typedef struct watcher {
    wh_watch watch;
    uint32_t row;
    bool alive, sleeps, watches[KEYS];
    uint64_t wait_seq, seen[KEYS];
} watcher;

typedef struct club {
    void *segment;
    watcher workers[WATCHERS];
    wh_au64 condition[KEYS], rung[WATCHERS];
    uint64_t rng, incarnations;
} club;

static club *S; /* the first thing in the arena */

#define A (&S->workers[0])
#define B (&S->workers[1])
#define C (&S->workers[2])

static inline uint64_t dice(uint64_t limit) { return rng_next(&S->rng) % limit; }

/* -- watchers: what they do stands between step_begin and step_end ----------------------------- */

static void see(watcher *w, int key) { w->seen[key] = wh_load_relaxed(&S->condition[key]); }

static void watch_key(watcher *w, int key)
{
    w->watches[key] = true; /* known here before it is shown there */
    step_begin();
    wh_watch_add(&w->watch, wh_hash_bucket(hashes[key]));
    see(w, key);
    step_end();
}

static void forget_key(watcher *w, int key)
{
    w->watches[key] = false;
    step_begin();
    wh_watch_remove(&w->watch, wh_hash_bucket(hashes[key]));
    step_end();
}

static void see_marked(watcher *w, uint32_t word, uint64_t marks)
{
    for (int key = 0; key < KEYS; key++)
        if (wh_hash_mark_word(hashes[key]) == word && wh_hash_is_marked(hashes[key], marks))
            see(w, key);
}

/* Take up the marks, and look at what they are about. */
static void look(watcher *w)
{
    step_begin();
    for (uint64_t parts = wh_watch_drain(&w->watch); parts; parts &= parts - 1)
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t word = 64 * (uint32_t)__builtin_ctzll(parts) + i;
            see_marked(w, word, wh_watch_take(&w->watch, word));
        }
    step_end();
}

static void wake_up(watcher *w)
{
    w->sleeps = false;
    wh_store_relaxed(&S->rung[w->row], 0);
    wh_watch_say_wait(w->watch.mine, ++w->wait_seq);
}

static void fall_asleep(watcher *w)
{
    step_begin();
    wh_watch_say_wait(w->watch.mine, ++w->wait_seq);
    bool sleeps = !wh_watch_ready(&w->watch);
    step_end();
    w->sleeps = sleeps;
    if (!sleeps)
        wake_up(w);
}

/* It goes on as it does: until it sleeps and nobody rings. */
static void react(watcher *w)
{
    for (int turn = 0; w->alive && turn < 8; turn++) {
        if (w->sleeps && !wh_load_relaxed(&S->rung[w->row]))
            return;
        if (w->sleeps)
            wake_up(w);
        look(w);
        fall_asleep(w);
    }
    CHECK(!w->alive, "it never sleeps");
}

/* -- checkers ---------------------------------------------------------------------------------- */

static void check(watcher *w, int key)
{
    step_begin();
    uint32_t note = wh_watch_change(&w->watch, hashes[key]);
    wh_store_relaxed(&S->condition[key], wh_load_relaxed(&S->condition[key]) + 1);
    wh_watch_barrier(&w->watch);
    for (uint32_t i = 0; i < w->watch.words; i++)
        for (uint64_t rows = wh_watch_others(&w->watch, wh_hash_bucket(hashes[key]), i); rows;
             rows &= rows - 1) {
            uint32_t row = 64 * i + (uint32_t)__builtin_ctzll(rows);
            if (wh_watch_mark(&w->watch, row, hashes[key]) & 1)
                wh_store_relaxed(&S->rung[row], 1);
        }
    wh_watch_done(&w->watch, note);
    step_end();
    see(w, key); /* its own operations it looks at itself */
}

/* Nobody is in the middle of a check. */
static void verdict(void)
{
    for (int i = 0; i < WATCHERS; i++) {
        watcher *w = &S->workers[i];
        react(w);
        for (int key = 0; w->alive && key < KEYS; key++)
            CHECK(!w->watches[key] || w->seen[key] == wh_load_relaxed(&S->condition[key]),
                  "worker %d missed that key %d became %llu", i, key,
                  (ull)wh_load_relaxed(&S->condition[key]));
    }
}

/* -- seats ------------------------------------------------------------------------------------- */

static void clear(watcher *w)
{
    step_begin();
    wh_watch_clear(S->segment, WATCHERS, w->row, ++S->incarnations);
    step_end();
}

/* It is gone: what it was changing is marked, its row cleared, and who sleeps with a mark rung
 * for. */
static void leave(watcher *w)
{
    step_begin();
    wh_watch_finish(S->segment, WATCHERS, w->row);
    wh_watch_clear(S->segment, WATCHERS, w->row, ++S->incarnations);
    for (uint32_t row = 0; row < WATCHERS; row++)
        if (wh_watch_owed(S->segment, WATCHERS, row))
            wh_store_relaxed(&S->rung[row], 1);
    step_end();
}

/* Of a row that was cleared while nobody marked it. */
static void check_clear(watcher *w)
{
    uint64_t expected = 0, found = 0;
    for (uint32_t bucket = 0; bucket < WH_BUCKETS; bucket++)
        found |= wh_load_relaxed(wh_watch_word(&w->watch, bucket, w->row)) >> w->row & 1;
    CHECK(found == 0, "a bit of a dead worker stays");
    for (uint32_t i = 0; i < WH_MARK_WORDS; i++)
        found |= wh_load_relaxed(&w->watch.mine->dirty[i]);
    CHECK(found == 0 && wh_load_relaxed(&w->watch.mine->any) == 0,
          "a mark for a dead worker stays");
    for (int key = 0; key < KEYS; key++)
        for (int i = 0; i < WATCHERS; i++)
            if (&S->workers[i] != w && S->workers[i].alive && S->workers[i].watches[key])
                expected |= 1ull << i,
                    found |=
                    wh_load_relaxed(wh_watch_word(&w->watch, wh_hash_bucket(hashes[key]), 0));
    CHECK((found & expected) == expected, "a bit of a living worker is gone");
}

/* A new tenant. */
static void let_in(watcher *w)
{
    uint32_t *keys = w->watch.keys;
    memset(keys, 0, WH_BUCKETS * sizeof *keys);
    *w = (watcher){.watch = w->watch, .row = w->row, .alive = true};
    w->watch.keys = keys;
    w->watch.noted = 0;
    w->watch.unnoted = 0;
    wh_store_relaxed(&S->rung[w->row], 0);
    wh_watch_say_wait(w->watch.mine, 0);
}

static void round_world(uint64_t seed)
{
    memory->used = 0;
    S = arena_take(sizeof *S);
    S->rng = seed;
    S->segment = arena_take(wh_watch_bytes(WATCHERS));
    wh_watch_create(S->segment, WATCHERS, 1);
    for (uint32_t row = 0; row < WATCHERS; row++) {
        watcher *w = &S->workers[row];
        w->row = row;
        CHECK(wh_watch_bind(&w->watch, S->segment, WATCHERS, row), "memory");
        let_in(w);
    }
}

/* -- others than A go on ----------------------------------------------------------------------- */

static void other_acts(void)
{
    watcher *w = dice(2) ? B : C;
    int key = (int)dice(KEYS);
    uint64_t what = dice(8);
    if (!w->alive)
        return;
    if (what < 3 && (!w->sleeps || wh_load_relaxed(&S->rung[w->row])))
        react(w);
    else if (w->sleeps)
        check(w == B ? C : B, key); /* the other one */
    else if (what < 5)
        check(w, key);
    else if (what == 5 && !w->watches[key])
        watch_key(w, key);
    else if (what == 6 && w->watches[key])
        forget_key(w, key);
    else
        look(w);
}

static void others_act(uint64_t count)
{
    for (; count; count--)
        other_acts();
}

#endif
