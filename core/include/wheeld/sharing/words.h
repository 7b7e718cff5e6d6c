/* Words: shared 64-bit words that only grow, found by key; made at first use, and forgotten.
 *
 * Idea. A key is 125 bits of hash: a tag and a check. Each names a set of 16 places; the word of a
 * key is in one of the two. A place is made by compare-and-swap of its tag, so no process waits for
 * another, and is forgotten by another one. Before it is emptied for the next key no process may
 * still be about to grow the word: a worker says which place it touches, and only then looks
 * whether it is its key's.
 *
 *     worker                                    who empties the place
 *     touching = place                          tag: OVER -> EMPTYING (compare-and-swap)
 *     is its tag LIVE, of our key?              does anybody touch the place? then: -> OVER again
 *     value = larger one (compare-and-swap)     check = 0, value = 0, tag = EMPTY
 *     touching = 0
 *
 * If two workers make the same key, each first comes (COMING) and then looks for others. A place
 * that is LIVE is the key's. If two are coming, the lower place goes on and the higher one gives
 * way, whichever worker sees it.
 *
 * Invariants
 *  1. At most one place of each key is LIVE: a worker that turns its own LIVE has looked at both
 * sets after it came, and has turned OVER every other one that was coming.
 *  2. check and value of an EMPTY place are 0. check is stored before the tag says LIVE.
 *  3. A place is emptied only while no process uses it, and only by the holder of its tag.
 *  4. Lock-free: a loop goes round only because another process's step succeeded. A worker that was
 *     killed or stopped in between holds up no key; its place stays as it is until it is gone
 *     (wh_words_leave).
 *  5. One thread of each worker at a time is in here; the GIL ensures it.
 */
#ifndef WHEELD_WORDS_H
#define WHEELD_WORDS_H

#include "wheeld/sharing/watch.h"

typedef struct wh_word_key {
    uint64_t hash, check; /* `check` is never 0 */
} wh_word_key;

enum wh_grown { WH_GREW, WH_GREW_NOT, WH_GREW_NO_ROOM };

static inline wh_word_key wh_words_key(uint64_t hash, uint64_t other)
{
    return (wh_word_key){.hash = hash, .check = other | 1};
}

static inline wh_word_set *wh_words_set(const wh_watch *w, uint32_t place)
{
    wh_word_set *sets = (wh_word_set *)((char *)w->seg + wh_watch_sets_off(w->row_count));
    return &sets[place / WH_WORD_PLACES % WH_WORD_SETS];
}
static inline wh_au64 *wh_words_tag(const wh_watch *w, uint32_t place)
{
    return &wh_words_set(w, place)->tags[place % WH_WORD_PLACES];
}
static inline wh_au64 *wh_words_check(const wh_watch *w, uint32_t place)
{
    return &wh_words_set(w, place)->checks[place % WH_WORD_PLACES];
}
static inline wh_au64 *wh_words_value(const wh_watch *w, uint32_t place)
{
    return &wh_words_set(w, place)->values[place % WH_WORD_PLACES];
}

/* Place `i` of a key's 32 possible places. */
static inline uint32_t wh_words_place(const wh_word_key *key, uint32_t i)
{
    uint32_t set = wh_word_set_of(i < WH_WORD_PLACES ? key->hash : key->check);
    return set * WH_WORD_PLACES + i % WH_WORD_PLACES;
}
#define WH_WORD_CHOICES (2 * WH_WORD_PLACES)

/* -- touching ---------------------------------------------------------------------------------- */

/* From here to wh_words_let_go the place is not emptied; check after this that it is the right
 * one. */
static inline void wh_words_touch(wh_watch *w, uint32_t place)
{
    wh_store_seq(&w->mine->touching, place + 1ull); /* pairs: word-touch */
}

static inline void wh_words_let_go(wh_watch *w)
{
    wh_store_seq(&w->mine->touching, 0); /* pairs: word-touch */
}

/* Does any other worker touch the place? */
static inline bool wh_words_touched(const wh_watch *w, uint32_t place)
{
    bool found = false;
    for (uint32_t row = 0; row < w->row_count; row++)
        found |= row != w->me &&
                 wh_load_seq(&w->rows[row].touching) == place + 1ull; /* pairs: word-touch */
    return found;
}

/* Find the place of the key's word, and touch it. WH_NIL: it has none. */
static inline uint32_t wh_words_find(wh_watch *w, const wh_word_key *key)
{
    uint64_t live = wh_word_tag(key->hash, WH_WORD_LIVE);
    for (uint32_t i = 0; i < WH_WORD_CHOICES; i++) {
        uint32_t place = wh_words_place(key, i);
        if (wh_likely(wh_load_relaxed(wh_words_tag(w, place)) != live))
            continue;
        wh_words_touch(w, place);
        /* pairs: word-tag - after the touch: a worker that empties it saw that, or we see it is not
         * ours */
        if (wh_load_seq(wh_words_tag(w, place)) == live &&
            wh_load_relaxed(wh_words_check(w, place)) == key->check)
            return place;
    }
    wh_words_let_go(w);
    return WH_NIL;
}

/* -- emptying ---------------------------------------------------------------------------------- */

/* Empty a place that was forgotten, or whose maker is gone. False: not yet. */
static inline bool wh_words_empty(wh_watch *w, uint32_t place)
{
    wh_au64 *tag = wh_words_tag(w, place);
    uint64_t found = wh_load_seq(tag), state = wh_word_state(found); /* pairs: word-tag */
    if ((state != WH_WORD_OVER && state != WH_WORD_COMING) || wh_words_touched(w, place))
        return false;
    wh_words_touch(w, place); /* so that it is found if this worker dies */
    wh_step();
    uint64_t mine = wh_word_emptying(w->me);
    bool ours = wh_cas_seq(tag, &found, mine); /* pairs: word-tag */
    bool alone = ours && !wh_words_touched(w, place);
    if (alone) {
        wh_store_relaxed(wh_words_check(w, place), 0);
        wh_store_relaxed(wh_words_value(w, place), 0);
    }
    wh_step();
    if (ours) /* pairs: word-tag - release: the next taker finds it empty */
        wh_store_seq(tag, alone ? WH_WORD_EMPTY : WH_WORD_OVER);
    wh_words_let_go(w);
    return alone;
}

/* -- making ------------------------------------------------------------------------------------ */

/* How many places of the set at `first` are EMPTY. */
static inline uint32_t wh_words_room(const wh_watch *w, const wh_word_key *key, uint32_t first)
{
    uint32_t room = 0;
    for (uint32_t i = first; i < first + WH_WORD_PLACES; i++)
        room += wh_load_relaxed(wh_words_tag(w, wh_words_place(key, i))) == WH_WORD_EMPTY;
    return room;
}

/* A place that is being made, touched. In the emptier set, so that both fill equally. WH_NIL: there
 * is no room. */
static inline uint32_t wh_words_come(wh_watch *w, const wh_word_key *key)
{
    bool again = true;
    while (again) {
        uint32_t first =
            wh_words_room(w, key, 0) >= wh_words_room(w, key, WH_WORD_PLACES) ? 0 : WH_WORD_PLACES;
        again = false;
        for (uint32_t i = 0; i < WH_WORD_CHOICES; i++) {
            uint32_t place = wh_words_place(key, i ^ first);
            uint64_t empty = WH_WORD_EMPTY;
            if (wh_load_relaxed(wh_words_tag(w, place)) != empty)
                continue;
            wh_words_touch(w, place);
            wh_step();
            if (wh_cas_seq(wh_words_tag(w, place), &empty, /* pairs: word-tag */
                           wh_word_tag(key->hash, WH_WORD_COMING))) {
                wh_step();
                wh_store_relaxed(wh_words_check(w, place), key->check);
                return place;
            }
        }
        wh_words_let_go(w);
        for (uint32_t i = 0; i < WH_WORD_CHOICES; i++)
            again |= wh_words_empty(w, wh_words_place(key, i));
    }
    return WH_NIL;
}

/* `place` comes, and is touched by us. Which place of the key is to be LIVE: it, or a lower one,
 * which we touch then; all others have given way. WH_NIL: one is LIVE, or the caller looks at all
 * places again. */
static inline uint32_t wh_words_contest(wh_watch *w, const wh_word_key *key, uint32_t place)
{
    uint64_t live = wh_word_tag(key->hash, WH_WORD_LIVE);
    uint64_t coming = wh_word_tag(key->hash, WH_WORD_COMING);
    for (uint32_t i = 0; i < WH_WORD_CHOICES; i++) {
        uint32_t other = wh_words_place(key, i);
        uint64_t tag = wh_load_seq(wh_words_tag(w, other)); /* pairs: word-tag */
        if (other == place || (tag != live && tag != coming))
            continue;
        /* 0: its maker was killed on the way, or is still at it */
        bool same = wh_load_relaxed(wh_words_check(w, other)) == key->check;
        if (tag == live && same)
            return WH_NIL;
        if (tag == coming && same && other < place) {
            wh_words_touch(w, other);
            if (wh_load_seq(wh_words_tag(w, other)) != coming) /* pairs: word-tag */
                return WH_NIL;
            place = other;
            /* whatever comes after that check sees it; what came before must be seen here */
            i = UINT32_MAX;
            /* pairs: word-tag - it gives way; if that fails it is another one now */
        } else if (tag == coming && !wh_cas_seq(wh_words_tag(w, other), &tag, WH_WORD_OVER)) {
            i--;
        }
    }
    return place;
}

/* Make the key's word, or find one that another worker makes meanwhile, and touch it. WH_NIL: there
 * is no room. */
static wh_seldom __attribute__((unused)) uint32_t wh_words_make(wh_watch *w, const wh_word_key *key)
{
    uint64_t live = wh_word_tag(key->hash, WH_WORD_LIVE);
    for (;;) {
        uint32_t mine = wh_words_come(w, key);
        if (mine == WH_NIL)
            return WH_NIL;
        wh_step();
        uint32_t place = wh_words_contest(w, key, mine);
        uint64_t coming = wh_word_tag(key->hash, WH_WORD_COMING), still = coming;
        /* pairs: word-tag - release: the check is there. If it fails another one has decided */
        if (place != WH_NIL && wh_cas_seq(wh_words_tag(w, place), &coming, live))
            return place;
        wh_cas_seq(wh_words_tag(w, mine), &still, WH_WORD_OVER); /* pairs: word-tag */
        if ((place = wh_words_find(w, key)) != WH_NIL)
            return place;
    }
}

/* -- the words --------------------------------------------------------------------------------- */

/* The value of a key's word; 0: it has none. */
static inline uint64_t wh_words_read(wh_watch *w, const wh_word_key *key)
{
    uint32_t place = wh_words_find(w, key);
    if (place == WH_NIL)
        return 0;
    uint64_t value = wh_load_seq(wh_words_value(w, place)); /* pairs: word-value */
    wh_words_let_go(w);
    return value;
}

/* Let the word of a key be `value` if that is more, and it was from `least` to `most`. A worker
 * that grows it has noted the key's bucket before. */
static inline enum wh_grown wh_words_grow(wh_watch *w, const wh_word_key *key, uint64_t value,
                                          uint64_t least, uint64_t most)
{
    uint32_t place = wh_words_find(w, key);
    if (place == WH_NIL && (value == 0 || least != 0))
        return WH_GREW_NOT;
    if (wh_unlikely(place == WH_NIL) && (place = wh_words_make(w, key)) == WH_NIL)
        return WH_GREW_NO_ROOM;
    wh_au64 *word = wh_words_value(w, place);
    uint64_t found = wh_load_seq(word); /* pairs: word-value */
    /* pairs: word-value - seq_cst: the watchers are looked for after it */
    bool grew = false;
    while (!grew && found < value && found >= least && found <= most)
        grew = wh_cas_seq(word, &found, value);
    wh_step();
    wh_words_let_go(w);
    return grew ? WH_GREW : WH_GREW_NOT;
}

/* Remove the key's word if it is `least` or more. False: it had none, or less. A word that is
 * UINT64_MAX never changes again: no other one is removed in its place. */
static inline bool wh_words_forget(wh_watch *w, const wh_word_key *key, uint64_t least)
{
    uint32_t place = wh_words_find(w, key);
    if (place == WH_NIL)
        return false;
    if (wh_load_relaxed(wh_words_value(w, place)) < least) {
        wh_words_let_go(w);
        return false;
    }
    uint64_t live = wh_word_tag(key->hash, WH_WORD_LIVE);
    bool ours = wh_cas_seq(wh_words_tag(w, place), &live, WH_WORD_OVER); /* pairs: word-tag */
    wh_words_let_go(w);
    wh_words_empty(w, place); /* else whoever needs the place does */
    return ours;
}

/* -- the supervisor ---------------------------------------------------------------------------- */

/* The worker of the row has died: others may empty the place that it was emptying, and it touches
 * nothing. */
static inline void wh_words_leave(void *memory, uint32_t rows, uint32_t row)
{
    wh_watch w;
    wh_watch_map(&w, memory, rows, row);
    uint64_t place = wh_load_seq(&w.mine->touching) - 1; /* pairs: word-touch */
    uint64_t mine = wh_word_emptying(row);
    if (place < WH_WORD_SETS * WH_WORD_PLACES) /* pairs: word-tag */
        wh_cas_seq(wh_words_tag(&w, (uint32_t)place), &mine, WH_WORD_OVER);
    wh_step();
    wh_words_let_go(&w);
}

#endif
