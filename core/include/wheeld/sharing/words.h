/* Words: shared 64-bit words that only grow, found by key; made at first use, and forgotten.
 *
 * Each call is one of directory.h's keys of kind LIVE. The caller has asked wh_words_there().
 */
#ifndef WHEELD_WORDS_H
#define WHEELD_WORDS_H

#include "wheeld/sharing/directory.h"

enum wh_grown { WH_GREW, WH_GREW_NOT, WH_GREW_NO_ROOM };

/* The value of a key's word; 0: it has none. */
static inline uint64_t wh_words_read(wh_keys *k, const wh_word_key *key)
{
    uint32_t place = wh_words_find(k, key);
    if (place == WH_NIL)
        return 0;
    uint64_t value = wh_load_seq(wh_words_value(k, place)); /* pairs: word-value */
    wh_words_let_go(k);
    return value;
}

/* Let the word of a key be `value` if that is more, and it was from `least` to `most`. A worker
 * that grows it has noted the key's bucket before. */
static inline enum wh_grown wh_words_grow(wh_keys *k, const wh_word_key *key, uint64_t value,
                                          uint64_t least, uint64_t most)
{
    uint32_t place = wh_words_find(k, key);
    if (place == WH_NIL && (value == 0 || least != 0))
        return WH_GREW_NOT;
    if (wh_unlikely(place == WH_NIL) && (place = wh_words_make(k, key)) == WH_NIL)
        return WH_GREW_NO_ROOM;
    wh_au64 *word = wh_words_value(k, place);
    uint64_t found = wh_load_seq(word); /* pairs: word-value */
    /* pairs: word-value - seq_cst: the watchers are looked for after it */
    bool grew = false;
    while (!grew && found < value && found >= least && found <= most)
        grew = wh_cas_seq(word, &found, value);
    wh_step();
    wh_words_let_go(k);
    return grew ? WH_GREW : WH_GREW_NOT;
}

/* Remove the key's word if it is `least` or more. False: it had none, or less. A word that is
 * UINT64_MAX never changes again: no other one is removed in its place. */
static inline bool wh_words_forget(wh_keys *k, const wh_word_key *key, uint64_t least)
{
    uint32_t place = wh_words_find(k, key);
    if (place == WH_NIL)
        return false;
    if (wh_load_relaxed(wh_words_value(k, place)) < least) {
        wh_words_let_go(k);
        return false;
    }
    uint64_t live = key->live;
    bool ours = wh_cas_seq(wh_words_tag(k, place), &live, WH_WORD_OVER); /* pairs: word-tag */
    if (ours)
        wh_words_count(k->mine->given_up, key->live);
    wh_words_let_go(k);
    wh_words_empty(k, place); /* else whoever needs the place does */
    return ours;
}

#endif
