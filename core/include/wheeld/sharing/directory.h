/* Directory: 64-bit words, found by key; each is made at first use, and given up afterwards.
 *
 * Idea. A key is 92 bits of hash: a tag and a check. Each names a set of 16 places; the word of a
 * key is in one of the two. A place is made by compare-and-swap of its tag, so no process waits for
 * another, and is given up by another one. Before it is emptied for the next key no process may
 * still be about to change the word: a worker says which place it touches, and only then looks
 * whether it is its key's.
 *
 *     worker                                    who empties the place
 *     touching = place                          tag: OVER -> EMPTYING (compare-and-swap)
 *     is its tag LIVE, of our key?              does anybody touch the place? then: -> OVER again
 *     change the value (compare-and-swap)       check = 0, value = 0, tag = EMPTY
 *     touching = 0
 *
 * If two workers make the same key, each first comes (COMING) and then looks for others. A place
 * that is LIVE is the key's. If two are coming, the lower place goes on and the higher one gives
 * way, whichever worker sees it.
 *
 * Four kinds of keys have words here: those of Watermarks (words.h), whose state is LIVE, those of
 * timers (keys.h), whose state is TIMER, those of limits (limits.h), whose state is LIMIT, and
 * those of leases (leases.h), whose state is LEASE. The kind is part of the hash, too. The word of
 * a timer, a limit or a lease says when nobody needs it any more; then whoever needs its place may
 * take it.
 *
 * The segment is a file with holes, as large as the capacity asks for. Each process has the kernel
 * reserve a page before it touches that for the first time, so a full file system is an error and
 * not a signal.
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
 *  6. Clients can write all of it, the head too: offsets follow from the size alone.
 */
#ifndef WHEELD_DIRECTORY_H
#define WHEELD_DIRECTORY_H

#include <stdlib.h>

#include "wheeld/shared/backing.h"
#include "wheeld/shared/key_hash.h"

typedef struct wh_keys {
    char *memory;
    wh_key_row *rows, *mine; /* `mine`: NULL for one that only reads */
    wh_word_set *sets;
    wh_key_room *rooms;
    char *long_rooms;
    wh_au64 *states; /* of the slots */
    wh_slot *slots;
    uint64_t *there; /* private: a bit per page that has memory, as far as we know */
    bool huge; /* private: as huge pages, until the kernel has refused one */
    int64_t now; /* private: the base clock at some call before; later than that nothing is over */
    wh_leases *leases;
    wh_lease_place *lease_places; /* WH_LEASE_PLACES for each worker */
    uint64_t tenancy; /* private: ours, when we came */
    uint32_t row_count, me, set_count, capacity;
} wh_keys;

#define WH_KEYS_PAGE 4096u

typedef struct wh_keys_parts {
    uint64_t rows, leases, sets, rooms, long_rooms, lease_places, bytes;
} wh_keys_parts;

/* Where what stands in the segment. */
static inline wh_keys_parts wh_keys_parts_of(uint32_t rows, uint32_t capacity)
{
    wh_keys_parts p = {.rows = wh_align(sizeof(wh_keys_seg), WH_LINE)};
    p.leases = p.rows + (uint64_t)rows * sizeof(wh_key_row);
    p.sets = wh_align(p.leases + sizeof(wh_leases), WH_KEYS_PAGE);
    p.rooms =
        wh_align(p.sets + (uint64_t)wh_set_count(capacity) * sizeof(wh_word_set), WH_KEYS_PAGE);
    p.long_rooms = wh_align(p.rooms + (uint64_t)capacity * sizeof(wh_key_room), WH_KEYS_PAGE);
    p.lease_places = wh_align(p.long_rooms + (uint64_t)capacity * WH_LONG_KEY, WH_KEYS_PAGE);
    p.bytes = p.lease_places + (uint64_t)rows * WH_LEASE_PLACES * sizeof(wh_lease_place);
    return p;
}

/* Fill the head of a zeroed segment; what is behind the rows may be holes. Tokens go on from
 * `tokens`. */
static inline void wh_keys_create(void *memory, uint32_t rows, uint32_t capacity, uint64_t token,
                                  uint64_t tokens)
{
    wh_keys_parts p = wh_keys_parts_of(rows, capacity);
    wh_keys_seg *seg = memory;
    seg->rows_off = p.rows;
    seg->leases_off = p.leases;
    seg->lease_places_off = p.lease_places;
    seg->sets_off = p.sets;
    seg->rooms_off = p.rooms;
    seg->long_off = p.long_rooms;
    seg->row_count = rows;
    seg->set_count = wh_set_count(capacity);
    seg->capacity = capacity;
    wh_store_relaxed(&((wh_leases *)((char *)memory + p.leases))->tokens, tokens);
    wh_head_publish(&seg->head, WH_KIND_KEYS, p.bytes, token);
}

/* Bind the directory of a wheel of this size, which has these slots; `me`: this worker's row, or
 * WH_NIL for one that only reads. False: no memory. */
static inline bool wh_keys_bind(wh_keys *k, void *memory, uint32_t rows, uint32_t capacity,
                                wh_au64 *states, wh_slot *slots, uint32_t me)
{
    wh_keys_parts p = wh_keys_parts_of(rows, capacity);
    char *base = memory;
    *k = (wh_keys){.memory = base,
                   .rows = (wh_key_row *)(base + p.rows),
                   .sets = (wh_word_set *)(base + p.sets),
                   .rooms = (wh_key_room *)(base + p.rooms),
                   .long_rooms = base + p.long_rooms,
                   .leases = (wh_leases *)(base + p.leases),
                   .lease_places = (wh_lease_place *)(base + p.lease_places),
                   .states = states,
                   .slots = slots,
                   .there = calloc(p.bytes / WH_KEYS_PAGE / 64 + 1, sizeof(uint64_t)),
                   .huge = me != WH_NIL && capacity >= WH_HUGE_CAPACITY,
                   .row_count = rows,
                   .me = me,
                   .set_count = wh_set_count(capacity),
                   .capacity = capacity};
    k->mine = me == WH_NIL ? NULL : &k->rows[me];
    /* pairs: lease-tenancy - its worker was told of the row after this was set */
    k->tenancy = k->mine ? wh_load_seq(&k->mine->tenancy) : 0;
    return k->there != NULL;
}

static inline void wh_keys_free(wh_keys *k)
{
    free(k->there);
    k->there = NULL;
}

/* -- memory ------------------------------------------------------------------------------------ */

static inline bool wh_keys_page_there(const wh_keys *k, uint64_t page)
{
    return wh_likely(k->there[page / 64] >> page % 64 & 1);
}

/* Make a huge page of what is around a page that has memory; not of the long rooms, most of which
 * stay holes. */
static wh_seldom __attribute__((unused)) void wh_keys_make_huge(wh_keys *k, uint64_t page)
{
    const uint64_t pages = WH_HUGE_BYTES / WH_KEYS_PAGE;
    uint64_t first = page - page % pages;
    char *at = k->memory + first * WH_KEYS_PAGE;
    if (at < (char *)k->sets || at + WH_HUGE_BYTES > k->long_rooms)
        return;
    k->huge = wh_huge_here(at);
    for (uint64_t i = 0; k->huge && i < pages / 64; i++)
        k->there[first / 64 + i] = ~0ull;
}

/* Have the kernel reserve a page and map it. Before Linux 5.14 it cannot; then the supervisor has
 * reserved all of it. */
static wh_seldom __attribute__((unused)) bool wh_keys_reserve(wh_keys *k, uint64_t page)
{
#ifdef MADV_POPULATE_WRITE
    int how = k->mine ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
    while (madvise(k->memory + page * WH_KEYS_PAGE, WH_KEYS_PAGE, how) != 0) {
        if (errno == EINVAL)
            break;
        if (errno != EINTR && errno != EAGAIN)
            return false;
    }
#endif
    k->there[page / 64] |= 1ull << page % 64;
    if (k->huge)
        wh_keys_make_huge(k, page);
    return true;
}

/* May these bytes be touched? False: their memory is not there, and there is no room for it. */
static inline bool wh_keys_there(wh_keys *k, const void *from, uint64_t bytes)
{
    uint64_t at = (uint64_t)((const char *)from - k->memory);
    uint64_t page = at / WH_KEYS_PAGE, last = (at + bytes - 1) / WH_KEYS_PAGE;
    while (wh_keys_page_there(k, page) || wh_keys_reserve(k, page))
        if (page++ == last)
            return true;
    return false;
}

/* -- places ------------------------------------------------------------------------------------ */

typedef struct wh_word_key {
    uint64_t hash, other;
    uint64_t live; /* the tag of its place */
    uint32_t check; /* of its place: never 0 */
} wh_word_key;

static inline wh_word_key wh_words_key(uint64_t hash, uint64_t other, enum wh_word_state kind)
{
    return (wh_word_key){.hash = hash,
                         .other = other,
                         .live = wh_word_tag(hash, kind),
                         .check = (uint32_t)(other >> 32) | 1};
}

static inline uint32_t wh_words_places(const wh_keys *k) { return WH_WORD_PLACES * k->set_count; }

/* The key of another word of the same owner and kind. */
static inline wh_word_key wh_words_part(const wh_word_key *key, uint64_t part)
{
    return wh_words_key(wh_hash_add(key->hash, part), wh_hash_add(key->other, ~part),
                        (enum wh_word_state)wh_word_state(key->live));
}

/* A place that others may have written anywhere, such as a number in a key's room: of a set that
 * does not exist it is in the first. */
static inline wh_word_set *wh_words_set(const wh_keys *k, uint32_t place)
{
    uint32_t set = place / WH_WORD_PLACES;
    return &k->sets[set < k->set_count ? set : 0];
}
static inline wh_au64 *wh_words_tag(const wh_keys *k, uint32_t place)
{
    return &wh_words_set(k, place)->tags[place % WH_WORD_PLACES];
}
static inline wh_au32 *wh_words_check(const wh_keys *k, uint32_t place)
{
    return &wh_words_set(k, place)->checks[place % WH_WORD_PLACES];
}
static inline wh_au64 *wh_words_value(const wh_keys *k, uint32_t place)
{
    return &wh_words_set(k, place)->values[place % WH_WORD_PLACES];
}

/* A key's set that its place `i` is in. */
static inline wh_word_set *wh_words_own_set(const wh_keys *k, const wh_word_key *key, uint32_t i)
{
    uint32_t half = i < WH_WORD_PLACES ? (uint32_t)(key->hash >> 32) : key->check;
    return &k->sets[wh_word_set_of(half, k->set_count)];
}

#define WH_WORD_LINE 8u /* tags in a cache line */

/* Where in its set place `i` of a key is. Half of the keys begin with the second half of a set, so
 * most are found in the first line that is looked at. */
static inline uint32_t wh_words_turn(const wh_word_key *key, uint32_t i)
{
    return (i ^ ((uint32_t)key->other & WH_WORD_LINE)) % WH_WORD_PLACES;
}

/* Place `i` of a key's 32 possible places. */
static inline uint32_t wh_words_place(const wh_keys *k, const wh_word_key *key, uint32_t i)
{
    uint32_t set = (uint32_t)(wh_words_own_set(k, key, i) - k->sets);
    return set * WH_WORD_PLACES + wh_words_turn(key, i);
}
#define WH_WORD_CHOICES (2 * WH_WORD_PLACES)

/* The first of a key's places, from `i` on, with this tag or that. WH_WORD_CHOICES: none has. */
static inline uint32_t wh_words_seek(const wh_keys *k, const wh_word_key *key, uint64_t tag,
                                     uint64_t or_tag, uint32_t i)
{
    for (; i < WH_WORD_CHOICES; i = (i | (WH_WORD_LINE - 1)) + 1) {
        uint32_t first = i & ~(WH_WORD_LINE - 1);
        wh_au64 *line = &wh_words_own_set(k, key, i)->tags[wh_words_turn(key, first)];
#pragma GCC unroll 8
        for (uint32_t at = 0; at < WH_WORD_LINE; at++) {
            uint64_t found = wh_load_seq(&line[at]); /* pairs: word-tag */
            if (wh_unlikely(found == tag || found == or_tag) && first + at >= i)
                return first + at;
        }
    }
    return i;
}

/* Have the tags of both sets fetched at once, for each lies anywhere in memory, and what else a key
 * needs that is where most are. Of two lines that meet, the processor fetches the second itself. */
static inline void wh_words_prefetch(const wh_keys *k, const wh_word_key *key)
{
    const wh_word_set *first = wh_words_own_set(k, key, 0);
    const wh_word_set *second = wh_words_own_set(k, key, WH_WORD_PLACES);
    uint32_t at = wh_words_turn(key, 0);
    __builtin_prefetch(&first->tags[at], 0, 3);
    __builtin_prefetch(&first->checks[at], 0, 3);
    __builtin_prefetch(&first->values[at], 0, 3);
    __builtin_prefetch(&second->tags[0], 0, 3);
}

/* May both sets of a key be touched? */
static inline bool wh_words_there(wh_keys *k, const wh_word_key *key)
{
    return wh_keys_there(k, wh_words_own_set(k, key, 0), sizeof(wh_word_set)) &&
           wh_keys_there(k, wh_words_own_set(k, key, WH_WORD_PLACES), sizeof(wh_word_set));
}

/* -- touching ---------------------------------------------------------------------------------- */

/* From here to wh_words_let_go the place is not emptied; check after this that it is the right
 * one. */
static inline void wh_words_touch(wh_keys *k, uint32_t place)
{
    wh_store_seq(&k->mine->touching, place + 1ull); /* pairs: word-touch */
}

static inline void wh_words_let_go(wh_keys *k)
{
    wh_store_release(&k->mine->touching, 0); /* pairs: word-touch */
}

/* Does any other worker touch the place? */
static inline bool wh_words_touched(const wh_keys *k, uint32_t place)
{
    bool found = false;
    for (uint32_t row = 0; row < k->row_count; row++)
        found |= row != k->me &&
                 wh_load_seq(&k->rows[row].touching) == place + 1ull; /* pairs: word-touch */
    return found;
}

/* Find the place of the key's word, and touch it. WH_NIL: it has none. */
static inline uint32_t wh_words_find(wh_keys *k, const wh_word_key *key)
{
    uint64_t live = key->live;
    for (uint32_t i = 0; (i = wh_words_seek(k, key, live, live, i)) < WH_WORD_CHOICES; i++) {
        uint32_t place = wh_words_place(k, key, i);
        wh_words_touch(k, place);
        /* pairs: word-tag - after the touch: a worker that empties it saw that, or we see it is not
         * ours */
        if (wh_load_seq(wh_words_tag(k, place)) == live &&
            wh_load_relaxed(wh_words_check(k, place)) == key->check)
            return place;
    }
    wh_words_let_go(k);
    return WH_NIL;
}

/* Count a place of the kind that its tag says, whose state this worker has decided. */
static inline void wh_words_count(wh_au64 counts[4], uint64_t tag)
{
    uint64_t state = wh_word_state(tag);
    wh_count(&counts[state >= WH_WORD_TIMER ? state - WH_WORD_TIMER + 1 : 0], 1);
}

/* -- emptying ---------------------------------------------------------------------------------- */

/* Empty a place that was forgotten, or whose maker is gone. False: not yet. */
static inline bool wh_words_empty(wh_keys *k, uint32_t place)
{
    wh_au64 *tag = wh_words_tag(k, place);
    uint64_t found = wh_load_seq(tag), state = wh_word_state(found); /* pairs: word-tag */
    if ((state != WH_WORD_OVER && state != WH_WORD_COMING) || wh_words_touched(k, place))
        return false;
    wh_words_touch(k, place); /* so that it is found if this worker dies */
    wh_step();
    uint64_t mine = wh_word_emptying(k->me);
    bool ours = wh_cas_seq(tag, &found, mine); /* pairs: word-tag */
    bool alone = ours && !wh_words_touched(k, place);
    if (alone) {
        wh_store_relaxed(wh_words_check(k, place), 0);
        wh_store_relaxed(wh_words_value(k, place), 0);
    }
    wh_step();
    if (ours) /* pairs: word-tag - release: the next taker finds it empty */
        wh_store_seq(tag, alone ? WH_WORD_EMPTY : WH_WORD_OVER);
    wh_words_let_go(k);
    return alone;
}

/* Is it the id of an armed timer? */
static inline bool wh_keys_pending(const wh_keys *k, uint64_t id)
{
    uint64_t slot = wh_id_given_slot(id);
    return slot < k->capacity && wh_slot_stands(&k->states[slot], id);
}

/* Is it the id of a timer that has its key: armed, or fired with WH_HELD? */
static inline bool wh_keys_taken(const wh_keys *k, uint64_t id)
{
    uint64_t slot = wh_id_given_slot(id);
    return slot < k->capacity && wh_slot_has_key(&k->states[slot], &k->slots[slot], id);
}

/* Have the slot of the timer `id` fetched, which lies anywhere in memory; any number is good. */
static inline void wh_keys_fetch(const wh_keys *k, uint64_t id)
{
    uint64_t slot = wh_id_slot(id) < k->capacity ? wh_id_slot(id) : 0;
    __builtin_prefetch(&k->states[slot], 0, 3);
    __builtin_prefetch(&k->slots[slot], 0, 3);
}

/* Does the word of its key name the timer `id`, or has it fired before (WH_NIL)? */
static wh_seldom __attribute__((unused)) bool wh_keys_name(wh_keys *k, uint64_t id)
{
    const wh_key_room *room = &k->rooms[wh_id_slot(id)];
    if (!wh_keys_there(k, room, sizeof *room))
        return false;
    uint32_t place = wh_load_relaxed((wh_au32 *)&room->place);
    wh_au64 *word = wh_words_value(k, place);
    return place == WH_NIL || (wh_keys_there(k, word, sizeof *word) &&
                               wh_load_seq(word) == id); /* pairs: replace, word-value */
}

/* Does a worker that is there have this seat of a lease, or is it its turn? */
static inline bool wh_lease_stands(const wh_keys *k, uint64_t word, int64_t now)
{
    uint32_t row = wh_lease_row(word);
    return wh_lease_ends(word) > now && row < k->row_count &&
           wh_lease_names(word, wh_load_seq(&k->rows[row].tenancy)); /* pairs: lease-tenancy */
}

/* Does anybody still need this word of a kind? */
static inline bool wh_words_stand(const wh_keys *k, uint64_t state, uint64_t value)
{
    if (state == WH_WORD_TIMER)
        return wh_keys_taken(k, value);
    return state == WH_WORD_LIMIT ? wh_limit_ends(value) > k->now
                                  : wh_lease_stands(k, value, k->now);
}

/* Was its timer ended for another one, which is to get the key (keys.h)? Whoever does that touches
 * the place. */
static inline bool wh_keys_handed(const wh_keys *k, uint64_t id, uint32_t place)
{
    uint64_t slot = wh_id_given_slot(id);
    if (slot >= k->capacity)
        return false;
    uint64_t state = wh_load_acquire(&k->states[slot]); /* pairs: cancel */
    return wh_state_gen(state) == wh_id_gen(id) && wh_state_phase(state) == WH_CANCELLED &&
           wh_load_relaxed(&k->slots[slot].flags) & WH_HELD && wh_words_touched(k, place);
}

/* Give up the place of a key that nobody needs: its timer has ended, its limit is over. A worker
 * that dies in between leaves it CLOSED, and whoever looks for the key goes on. */
static inline bool wh_keys_retire(wh_keys *k, uint32_t place)
{
    wh_au64 *tag = wh_words_tag(k, place), *value = wh_words_value(k, place);
    uint64_t found = wh_load_seq(tag); /* pairs: word-tag */
    uint64_t state = wh_word_state(found);
    if (state < WH_WORD_TIMER)
        return false;
    wh_words_touch(k, place);
    wh_step();
    uint64_t id = wh_load_seq(value); /* pairs: word-value */
    /* pairs: word-tag - after the touch: it is still that key's */
    bool given = wh_load_seq(tag) == found &&
                 (id == WH_KEY_CLOSED ||
                  /* pairs: word-value - else a claim could put a word here that nobody finds */
                  (!wh_words_stand(k, state, id) &&
                   !(state == WH_WORD_TIMER && wh_keys_handed(k, id, place)) &&
                   wh_cas_seq(value, &id, WH_KEY_CLOSED)));
    wh_step();
    if (given && (given = wh_cas_seq(tag, &found, WH_WORD_OVER))) /* pairs: word-tag */
        wh_words_count(k->mine->given_up, found);
    wh_words_let_go(k);
    return given;
}

/* -- making ------------------------------------------------------------------------------------ */

/* How many places of the set at `first` are EMPTY. */
static inline uint32_t wh_words_room(const wh_keys *k, const wh_word_key *key, uint32_t first)
{
    const wh_word_set *set = wh_words_own_set(k, key, first);
    uint32_t room = 0;
    for (uint32_t i = 0; i < WH_WORD_PLACES; i++)
        room += wh_load_relaxed((wh_au64 *)&set->tags[i]) == WH_WORD_EMPTY;
    return room;
}

#define WH_WORD_SPARE (WH_WORD_PLACES / 2) /* fewer would leave more places empty at the end */

/* An EMPTY place of the key's: of its first set, where it is looked for first, while that has room
 * to spare; else of the emptier one, so that both fill equally. WH_NIL: there is none. */
static inline uint32_t wh_words_empty_place(const wh_keys *k, const wh_word_key *key)
{
    uint32_t room = wh_words_room(k, key, 0);
    bool first = room >= WH_WORD_SPARE || room >= wh_words_room(k, key, WH_WORD_PLACES);
    uint32_t i = wh_words_seek(k, key, WH_WORD_EMPTY, WH_WORD_EMPTY, first ? 0 : WH_WORD_PLACES);
    if (i == WH_WORD_CHOICES && !first) /* others have filled that set meanwhile */
        i = wh_words_seek(k, key, WH_WORD_EMPTY, WH_WORD_EMPTY, 0);
    return i < WH_WORD_CHOICES ? wh_words_place(k, key, i) : WH_NIL;
}

/* A place that is being made, touched. WH_NIL: there is no room. */
static inline uint32_t wh_words_come(wh_keys *k, const wh_word_key *key)
{
    for (bool again = true; again;) {
        uint32_t place;
        while ((place = wh_words_empty_place(k, key)) != WH_NIL) {
            uint64_t empty = WH_WORD_EMPTY;
            wh_words_touch(k, place);
            wh_step();
            if (wh_cas_seq(wh_words_tag(k, place), &empty, /* pairs: word-tag */
                           wh_word_tag(key->hash, WH_WORD_COMING))) {
                wh_step();
                wh_store_relaxed(wh_words_check(k, place), key->check);
                return place;
            }
        }
        wh_words_let_go(k);
        again = false;
        for (uint32_t i = 0; i < WH_WORD_CHOICES; i++)
            wh_keys_fetch(k, wh_load_relaxed(wh_words_value(k, wh_words_place(k, key, i))));
        for (uint32_t i = 0; i < WH_WORD_CHOICES; i++) {
            place = wh_words_place(k, key, i);
            wh_keys_retire(k, place);
            again |= wh_words_empty(k, place);
        }
    }
    return WH_NIL;
}

/* `place` comes, and is touched by us. Which place of the key is to be LIVE: it, or a lower one,
 * which we touch then; all others have given way. WH_NIL: one is LIVE, or the caller looks at all
 * places again. */
static inline uint32_t wh_words_contest(wh_keys *k, const wh_word_key *key, uint32_t place)
{
    uint64_t live = key->live;
    uint64_t coming = wh_word_tag(key->hash, WH_WORD_COMING);
    for (uint32_t i = 0; (i = wh_words_seek(k, key, live, coming, i)) < WH_WORD_CHOICES; i++) {
        uint32_t other = wh_words_place(k, key, i);
        uint64_t tag = wh_load_seq(wh_words_tag(k, other)); /* pairs: word-tag */
        if (other == place || (tag != live && tag != coming))
            continue;
        /* 0: its maker was killed on the way, or is still at it */
        bool same = wh_load_relaxed(wh_words_check(k, other)) == key->check;
        if (tag == live && same)
            return WH_NIL;
        if (tag == coming && same && other < place) {
            wh_words_touch(k, other);
            if (wh_load_seq(wh_words_tag(k, other)) != coming) /* pairs: word-tag */
                return WH_NIL;
            place = other;
            /* whatever comes after that check sees it; what came before must be seen here */
            i = UINT32_MAX;
            /* pairs: word-tag - it gives way; if that fails it is another one now */
        } else if (tag == coming && !wh_cas_seq(wh_words_tag(k, other), &tag, WH_WORD_OVER)) {
            i--;
        }
    }
    return place;
}

/* Make the key's word, or find one that another worker makes meanwhile, and touch it. WH_NIL: there
 * is no room. */
static wh_seldom __attribute__((unused)) uint32_t wh_words_make(wh_keys *k, const wh_word_key *key)
{
    uint64_t live = key->live;
    for (;;) {
        uint32_t mine = wh_words_come(k, key);
        if (mine == WH_NIL)
            return WH_NIL;
        wh_step();
        uint32_t place = wh_words_contest(k, key, mine);
        uint64_t coming = wh_word_tag(key->hash, WH_WORD_COMING), still = coming;
        /* pairs: word-tag - release: the check is there. If it fails another one has decided */
        if (place != WH_NIL && wh_cas_seq(wh_words_tag(k, place), &coming, live)) {
            wh_words_count(k->mine->made, live);
            return place;
        }
        wh_cas_seq(wh_words_tag(k, mine), &still, WH_WORD_OVER); /* pairs: word-tag */
        if ((place = wh_words_find(k, key)) != WH_NIL)
            return place;
    }
}

/* The place of the key's word, touched; made if there is none. `absent`: the caller has just seen
 * that there is none. WH_NIL: there is no room. */
static inline uint32_t wh_words_hold(wh_keys *k, const wh_word_key *key, bool absent)
{
    for (;; absent = false) {
        uint32_t place = absent ? WH_NIL : wh_words_find(k, key);
        if (wh_unlikely(place == WH_NIL))
            place = wh_words_make(k, key);
        if (place == WH_NIL)
            return WH_NIL;
        uint64_t value = wh_load_seq(wh_words_value(k, place)); /* pairs: word-value */
        if (wh_likely(value != WH_KEY_CLOSED))
            return place;
        wh_words_let_go(k);
        wh_keys_retire(k, place); /* whoever gave it up has not gone on */
    }
}

/* The key's word; 0: it has none. Nothing is touched: the tag is read once more behind the word. */
static inline uint64_t wh_words_peek(const wh_keys *k, const wh_word_key *key)
{
    uint64_t live = key->live;
    for (uint32_t i = 0; (i = wh_words_seek(k, key, live, live, i)) < WH_WORD_CHOICES; i++) {
        uint32_t place = wh_words_place(k, key, i);
        wh_au64 *tag = wh_words_tag(k, place);
        wh_au32 *check = wh_words_check(k, place);
        if (wh_load_relaxed(check) != key->check)
            continue;
        uint64_t value = wh_load_acquire(wh_words_value(k, place)); /* pairs: word-value */
        uint32_t still = wh_load_acquire(check); /* pairs: word-tag */
        if (still == key->check && wh_load_acquire(tag) == key->live) /* pairs: word-tag */
            return value == WH_KEY_CLOSED ? 0 : value;
        i = UINT32_MAX; /* it was given up meanwhile: look from the beginning */
    }
    return 0;
}

/* -- the supervisor ---------------------------------------------------------------------------- */

/* The worker of the row has died: others may empty the place that it was emptying, and it touches
 * nothing. `k`: bound for that row. */
static inline void wh_words_leave(wh_keys *k)
{
    uint64_t place = wh_load_seq(&k->mine->touching) - 1; /* pairs: word-touch */
    uint64_t mine = wh_word_emptying(k->me);
    if (place < wh_words_places(k) &&
        wh_keys_there(k, wh_words_set(k, (uint32_t)place), sizeof(wh_word_set)))
        wh_cas_seq(wh_words_tag(k, (uint32_t)place), &mine, WH_WORD_OVER); /* pairs: word-tag */
    wh_step();
    wh_words_let_go(k);
}

#endif
