/* Wording: workers that grow, read and forget shared words, all in two crowded sets of the arena.
 *
 * Each key's values are of a range of its own: a value in another key's word is a place that was
 * emptied while somebody still touched it. Fillers leave three places free, so what is forgotten is
 * used again at once. Either set is the lower one: who makes a word looks at one first, and gives
 * way to the lower place. */
#ifndef SWEEP_WORDING_H
#define SWEEP_WORDING_H

#include "step.h"

#include "wheeld/sharing/words.h"

#define WORKERS 3
#define SLOTS 64
#define KEYS 3
#define MINE 2 /* the key that it is about: a value of it in another word is too large there */
#define FREE_PLACES 3
#define RANGE 1000000ull /* key k's values are from k * RANGE + 1 on */

typedef struct book {
    void *segment;
    wh_keys workers[WORKERS];
    uint64_t rng, tried[KEYS], grown[KEYS]; /* the largest value, since it was forgotten last */
    uint64_t first, second; /* the top bit of hash and check: which set is which */
    uint32_t free; /* places */
    uint32_t contested; /* is to be LIVE, of one that was stopped before it says so; WH_NIL: none */
} book;

static book *S; /* the first thing in the arena */

#define A (&S->workers[0])
#define B (&S->workers[1])
#define C (&S->workers[2])

static inline uint64_t dice(uint64_t limit) { return rng_next(&S->rng) % limit; }

/* Keys and fillers of the same two sets. */
static wh_word_key key_of(uint64_t number)
{
    return wh_words_key(S->first | number << 3, S->second | number << 3, WH_WORD_LIVE);
}
static wh_word_key filler_of(uint64_t number) { return key_of(100 + number); }

static uint64_t value_of(int key, uint64_t n) { return (uint64_t)key * RANGE + n; }

static void grow(wh_keys *w, int key, uint64_t n)
{
    wh_word_key k = key_of((uint64_t)key);
    uint64_t value = value_of(key, n);
    S->tried[key] = value > S->tried[key] ? value : S->tried[key];
    step_begin();
    enum wh_grown how = wh_words_grow(w, &k, value, 0, UINT64_MAX);
    step_end();
    if (how != WH_GREW_NO_ROOM && value > S->grown[key])
        S->grown[key] = value;
}

static void forget(wh_keys *w, int key)
{
    wh_word_key k = key_of((uint64_t)key);
    S->grown[key] = 0;
    step_begin();
    wh_words_forget(w, &k, 0);
    step_end();
}

static uint64_t read_word(wh_keys *w, int key)
{
    wh_word_key k = key_of((uint64_t)key);
    step_begin();
    uint64_t value = wh_words_read(w, &k);
    step_end();
    return value;
}

static int live_places(int key)
{
    wh_word_key k = key_of((uint64_t)key);
    int live = 0;
    for (uint32_t i = 0; i < WH_WORD_CHOICES; i++) {
        uint32_t place = wh_words_place(B, &k, i);
        live += wh_load_relaxed(wh_words_tag(B, place)) == wh_word_tag(k.hash, WH_WORD_LIVE) &&
                wh_load_relaxed(wh_words_check(B, place)) == k.check;
    }
    return live;
}

/* A word is its own key's, and no smaller than what a call that returned has made it. */
static void check_words(void)
{
    for (int key = 0; key < KEYS; key++) {
        uint64_t value = read_word(B, key);
        CHECK(live_places(key) <= 1, "key %d has two words", key);
        CHECK(value <= S->tried[key] && (value == 0 || value > (uint64_t)key * RANGE),
              "key %d has a value of another: %llu", key, (ull)value);
        CHECK(value >= S->grown[key], "key %d is %llu, and was grown to %llu", key, (ull)value,
              (ull)S->grown[key]);
    }
}

/* Nobody is in a call: every place can be had again. */
static void check_places(void)
{
    for (int key = 0; key < KEYS; key++)
        forget(C, key);
    wh_word_key k = key_of(0);
    for (uint32_t i = 0; i < WH_WORD_CHOICES; i++)
        wh_words_empty(C, wh_words_place(B, &k, i));
    uint32_t empty = 0;
    for (uint32_t i = 0; i < WH_WORD_CHOICES; i++) {
        uint32_t place = wh_words_place(B, &k, i);
        if (wh_load_relaxed(wh_words_tag(C, place)) != WH_WORD_EMPTY)
            continue;
        empty++;
        CHECK(wh_load_relaxed(wh_words_check(C, place)) == 0 &&
                  wh_load_relaxed(wh_words_value(C, place)) == 0,
              "an empty place is not empty");
    }
    CHECK(empty == S->free, "%u places are empty, expected %u", empty, S->free);
}

static void round_world(uint64_t seed)
{
    memory->used = 0;
    S = arena_take(sizeof *S);
    S->rng = seed;
    S->first = (seed >> 32 & 1) << 63; /* its low bit is always set */
    S->second = ~S->first & 1ull << 63;
    S->free = FREE_PLACES;
    S->contested = WH_NIL;
    S->segment = arena_take(wh_keys_parts_of(WORKERS, SLOTS).bytes);
    wh_keys_create(S->segment, WORKERS, SLOTS, 1, 0);
    for (uint32_t row = 0; row < WORKERS; row++)
        CHECK(wh_keys_bind(&S->workers[row], S->segment, WORKERS, SLOTS, NULL, NULL, row),
              "memory");
    for (uint64_t n = 0; n < WH_WORD_CHOICES - FREE_PLACES; n++) {
        wh_word_key filler = filler_of(n);
        CHECK(wh_words_grow(B, &filler, 1, 0, UINT64_MAX) == WH_GREW, "no room");
    }
}

/* -- situations and operations ----------------------------------------------------------------- */

static void before_none(void) {}
static void before_grown(void) { grow(B, MINE, 1 + dice(5)); }
static void before_over(void) /* forgotten while C looked at it: nobody has emptied it yet */
{
    wh_word_key k = key_of(1);
    grow(B, 1, 1);
    wh_words_touch(C, wh_words_find(C, &k));
    forget(B, 1);
    wh_words_let_go(C);
}
static void before_coming(void) /* another was killed when it made the same key, here or there */
{
    wh_word_key k = key_of(MINE);
    CHECK(wh_words_come(C, &k) != WH_NIL, "no room");
    if (dice(2))
        wh_words_let_go(C);
}
static void before_two_coming(void)
{
    before_coming();
    wh_word_key k = key_of(MINE);
    CHECK(wh_words_come(B, &k) != WH_NIL, "no room");
    wh_words_let_go(B);
}

static void forget_filler(wh_keys *w, uint64_t number)
{
    wh_word_key filler = filler_of(number);
    step_begin();
    S->free += wh_words_forget(w, &filler, 0);
    step_end();
}
/* A comes to the second place of the first set; the one before it is full. */
static void before_contested(void) { forget_filler(B, 2); }

static void contest(wh_keys *w)
{
    wh_word_key k = key_of(MINE);
    step_begin();
    S->contested = wh_words_come(w, &k);
    if (S->contested != WH_NIL)
        S->contested = wh_words_contest(w, &k, S->contested);
    step_end();
}
static void go_on(wh_keys *w)
{
    wh_word_key k = key_of(MINE);
    uint64_t coming = wh_word_tag(k.hash, WH_WORD_COMING);
    step_begin();
    if (S->contested != WH_NIL)
        wh_cas_seq(wh_words_tag(w, S->contested), &coming, wh_word_tag(k.hash, WH_WORD_LIVE));
    S->contested = WH_NIL;
    wh_words_let_go(w);
    step_end();
}
static void before_late(void) { contest(B); } /* A comes when B has looked for others */

static void grow_it(void) { grow(A, MINE, 3 + dice(5)); }
static void forget_it(void) { forget(A, MINE); }
static void read_it(void) { read_word(A, MINE); }
static void empty_by(wh_keys *w)
{
    wh_word_key k = key_of(1);
    step_begin();
    for (uint32_t i = 0; i < WH_WORD_CHOICES; i++)
        wh_words_empty(w, wh_words_place(B, &k, i));
    step_end();
}
static void empty_it(void) { empty_by(A); }

static const path word_paths[] = {
    {"grow", before_grown, grow_it, 1},
    {"make", before_none, grow_it, 2},
    {"make-over", before_over, grow_it, 3},
    {"make-coming", before_coming, grow_it, 2},
    {"forget", before_grown, forget_it, 1},
    {"read", before_grown, read_it, 1},
    {"make-two-coming", before_two_coming, grow_it, 3},
    {"empty", before_over, empty_it, 1},
    {"make-contested", before_contested, grow_it, 2},
    {"make-late", before_late, grow_it, 1},
};
#define WORD_PATHS (sizeof word_paths / sizeof *word_paths)

static void others_act(uint64_t count)
{
    for (; count; count--) {
        wh_keys *w = dice(2) ? B : C;
        int key = (int)dice(KEYS);
        if (dice(3))
            grow(w, key, 1 + dice(9));
        else
            forget(w, key);
    }
}

#endif
