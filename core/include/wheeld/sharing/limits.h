/* Limits: how much of something may be taken in a time, by all workers together, for each key.
 *
 * Idea. A limit's word says when nobody needs it any more (directory.h), so a key that is not used
 * costs nothing, and nobody has to forget it. Three kinds:
 *
 *   rate    One word, GCRA: the time at which all would be there again. To take is to move it
 *           later, by one compare-and-swap, as long as it is not further away than a whole burst.
 *   window  A word for the end of the window that runs, and one for each window that counts what
 *           was taken in it: its key has the end, so no count is ever reset.
 *   log     A ring of words, each taken by one of the last `most`, and over when it has left the
 *           window. A head names the place that is next.
 *
 *     log: worker                                    another worker
 *     head: over no sooner than what is written
 *     are the next n places free?                    the same
 *     each of them: over at now + per, in this lap   the same: the later time stays
 *     head: n further (compare-and-swap)             that fails: look again
 *
 * Only the head decides. A place that has the lap of the head's next round was written by somebody
 * who has not moved the head, and perhaps died, or gave it back: it is free as of when that one has
 * taken it, which may be later than now if it was to wait.
 *
 * Invariants
 *  1. Nothing is taken but by one compare-and-swap, so a worker that dies has taken all or nothing.
 *  2. The head of a log is over after its places: one that begins anew finds none that counts.
 *  3. One word at a time is touched. A word that was read before is compared as it is changed.
 *  4. Lock-free, as the directory.
 *  5. `now` is the base clock at the call. A caller that was stopped takes as of then. If it was
 *     stopped inside the call until the whole limit had come again, it finds its words forgotten
 *     and may take beside them. Its request is then as late as if it had been stopped after the
 *     call.
 */
#ifndef WHEELD_LIMITS_H
#define WHEELD_LIMITS_H

#include "wheeld/sharing/directory.h"

enum wh_limited { WH_LIMIT_TAKEN, WH_LIMIT_REFUSED, WH_LIMIT_NO_ROOM };

#define WH_LIMIT_MOST WH_MOST(TALLY_COUNT) /* of a window */
#define WH_LOG_MOST WH_MOST(LOG_POSITION) /* of a log */
#define WH_WINDOW_LOOKS 64 /* others write how many windows are waited for */
/* Of a log's head what is not a time. */
#define WH_LOG_PLACE (WH_MASK(LOG_ERA) | WH_MASK(LOG_LAP) | WH_MASK(LOG_POSITION))
#define WH_LIMIT_LATEST ((int64_t)WH_MOST(LIMIT_ENDS))

static inline bool wh_limit_over(uint64_t word, int64_t now) { return wh_limit_ends(word) <= now; }

/* Let the key's word, which was `found` a moment ago, be `word`. WH_LIMIT_REFUSED: it was not. */
static inline enum wh_limited wh_limit_swap(wh_keys *k, const wh_word_key *key, uint64_t found,
                                            uint64_t word)
{
    uint32_t place = wh_words_hold(k, key, false);
    if (place == WH_NIL)
        return WH_LIMIT_NO_ROOM;
    /* pairs: word-value - seq_cst: decides */
    bool ours = wh_cas_seq(wh_words_value(k, place), &found, word);
    wh_step();
    wh_words_let_go(k);
    return ours ? WH_LIMIT_TAKEN : WH_LIMIT_REFUSED;
}

/* -- rate -------------------------------------------------------------------------------------- */

/* Take what comes again in `cost` ns, of a rate of which `burst` ns are there at most. *wait: ns
 * until that is there, 0 or less: it is. Refused: that is more than `patience`. */
static inline enum wh_limited wh_rate_take(wh_keys *k, const wh_word_key *key, int64_t now,
                                           int64_t cost, int64_t burst, int64_t patience,
                                           int64_t *wait)
{
    k->now = now;
    for (;;) {
        uint32_t place = wh_words_hold(k, key, false);
        if (place == WH_NIL)
            return WH_LIMIT_NO_ROOM;
        wh_au64 *word = wh_words_value(k, place);
        uint64_t found = wh_load_seq(word); /* pairs: word-value */
        bool taken = false;
        while (!taken && found != WH_KEY_CLOSED) {
            int64_t ends = wh_limit_ends(found);
            ends = wh_time_add(ends > now ? ends : now, cost);
            *wait = wh_time_sub(wh_time_sub(ends, burst), now);
            if (*wait > patience || ends > WH_LIMIT_LATEST)
                break;
            taken = wh_cas_seq(word, &found, wh_limit_word(ends, 0, 0)); /* pairs: word-value */
        }
        wh_step();
        wh_words_let_go(k);
        if (wh_likely(found != WH_KEY_CLOSED))
            return taken ? WH_LIMIT_TAKEN : WH_LIMIT_REFUSED;
    }
}

/* Give back what was taken as in `at`, and not used. Behind `at` nothing is given back: what comes
 * again has begun to replace it. */
static inline void wh_rate_give(wh_keys *k, const wh_word_key *key, int64_t now, int64_t cost,
                                int64_t at)
{
    k->now = now;
    if (now >= at)
        return;
    uint32_t place = wh_words_find(k, key);
    if (place == WH_NIL)
        return;
    wh_au64 *word = wh_words_value(k, place);
    uint64_t found = wh_load_seq(word); /* pairs: word-value */
    while (found != WH_KEY_CLOSED && !wh_limit_over(found, now)) {
        int64_t ends = wh_limit_ends(found) - cost;
        /* pairs: word-value */
        if (wh_cas_seq(word, &found, wh_limit_word(ends > 0 ? ends : 0, 0, 0)))
            break;
    }
    wh_step();
    wh_words_let_go(k);
}

/* ns until all of it is there again. */
static inline int64_t wh_rate_used(const wh_keys *k, const wh_word_key *key, int64_t now)
{
    int64_t ends = wh_limit_ends(wh_words_peek(k, key));
    return ends > now ? ends - now : 0;
}

/* -- window ------------------------------------------------------------------------------------ */

typedef struct wh_window {
    int64_t ends; /* of the window that runs; 0: none does */
    uint64_t count; /* taken in it */
} wh_window;

/* Count `n` in the tally that is needed until `ends`, if it is at most `most` then. */
static inline enum wh_limited wh_tally_add(wh_keys *k, const wh_word_key *key, int64_t now,
                                           int64_t ends, uint64_t n, uint64_t most, uint64_t *count)
{
    k->now = now;
    for (;;) {
        uint64_t found = wh_words_peek(k, key);
        *count = WH_GET(TALLY_COUNT, found);
        if (n > most || *count > most - n)
            return WH_LIMIT_REFUSED;
        uint64_t word = wh_limit_word(ends, *count + n, WH_TALLY_COUNT_BITS);
        enum wh_limited added = wh_limit_swap(k, key, found, word);
        *count += n * (added == WH_LIMIT_TAKEN);
        if (added != WH_LIMIT_REFUSED)
            return added;
    }
}

static inline void wh_tally_clear(wh_keys *k, const wh_word_key *tally)
{
    uint64_t counted;
    do
        counted = wh_words_peek(k, tally);
    while (counted && wh_limit_swap(k, tally, counted, 0) == WH_LIMIT_REFUSED);
}

static inline uint64_t wh_window_tally(const wh_keys *k, const wh_word_key *key, int64_t ends)
{
    wh_word_key tally = wh_words_part(key, (uint64_t)ends);
    return wh_words_peek(k, &tally);
}

/* When the window ends that runs now, of those that follow one another until `last`. One in which
 * nobody has counted has not been: `last` began after `now` was read. */
static inline int64_t wh_window_running(const wh_keys *k, const wh_word_key *key, int64_t last,
                                        int64_t now, int64_t per)
{
    int64_t ends = last - (last - 1 - now) / per * per;
    return ends == last || wh_window_tally(k, key, ends) ? ends : last;
}

/* The window that runs, and its count. *all: when nothing counts any more. */
static inline wh_window wh_window_read(const wh_keys *k, const wh_word_key *key, int64_t now,
                                       int64_t per, int64_t *all)
{
    int64_t last = wh_limit_ends(wh_words_peek(k, key));
    *all = now;
    if (last <= now)
        return (wh_window){0};
    wh_window window = {.ends = wh_window_running(k, key, last, now, per)};
    window.count = WH_GET(TALLY_COUNT, wh_window_tally(k, key, window.ends));
    for (int looks = 0; looks < WH_WINDOW_LOOKS && last > window.ends; looks++, last -= per)
        if (WH_GET(TALLY_COUNT, wh_window_tally(k, key, last)) != 0)
            break; /* else all of it was given back */
    *all = last > window.ends || window.count ? last : now;
    return window;
}

/* Take `n` in the window that runs, in one of `per` ns that begins now, or in the last or the next,
 * which begins in *wait ns. Refused: that is more than `patience`. */
static inline enum wh_limited wh_window_take(wh_keys *k, const wh_word_key *key, int64_t now,
                                             int64_t per, uint64_t n, uint64_t most,
                                             int64_t patience, wh_window *window, int64_t *wait)
{
    k->now = now;
    for (int64_t begins = now;;) {
        uint64_t found = wh_words_peek(k, key), word = found;
        if (wh_limit_over(found, begins)) {
            word = wh_limit_word(wh_time_add(begins, per), 0, WH_LIMIT_LAP_BITS);
            enum wh_limited begun = wh_limit_swap(k, key, found, word);
            if (begun == WH_LIMIT_NO_ROOM)
                return begun;
            if (begun == WH_LIMIT_REFUSED)
                continue;
        }
        wh_step();
        int64_t last = wh_limit_ends(word);
        /* others may have given back what they waited for: first the one that runs */
        window->ends = begins == now ? wh_window_running(k, key, last, now, per) : last;
        *wait = wh_time_sub(wh_time_sub(window->ends, per), now);
        if (*wait > patience)
            return WH_LIMIT_REFUSED;
        wh_word_key tally = wh_words_part(key, (uint64_t)window->ends);
        enum wh_limited added = wh_tally_add(k, &tally, now, window->ends, n, most, &window->count);
        if (added != WH_LIMIT_REFUSED)
            return added;
        begins = window->ends == last ? last : last - 1;
        if (begins == last && (*wait = wh_time_sub(last, now)) > patience)
            return WH_LIMIT_REFUSED;
    }
}

/* Give back what was taken in the window that ends then, and not used. */
static inline void wh_window_give(wh_keys *k, const wh_word_key *key, int64_t now, int64_t ends,
                                  uint64_t n)
{
    wh_word_key tally = wh_words_part(key, (uint64_t)ends);
    k->now = now;
    for (;;) {
        uint64_t found = wh_words_peek(k, &tally);
        if (WH_GET(TALLY_COUNT, found) < n ||
            wh_limit_swap(k, &tally, found, found - n) != WH_LIMIT_REFUSED)
            return;
    }
}

/* Forget what the window has counted. */
static inline void wh_window_clear(wh_keys *k, const wh_word_key *key, int64_t now)
{
    k->now = now;
    uint64_t found = wh_words_peek(k, key);
    if (wh_limit_over(found, now))
        return;
    wh_word_key tally = wh_words_part(key, (uint64_t)wh_limit_ends(found));
    wh_tally_clear(k, &tally);
    wh_limit_swap(k, key, found, 0); /* else another window runs */
}

/* -- log --------------------------------------------------------------------------------------- */

typedef struct wh_log {
    const wh_word_key *key; /* of its head */
    uint32_t most; /* places of its ring */
    int64_t now, per; /* `now`: as of which it is taken, perhaps later than it is */
} wh_log;

typedef struct wh_log_head {
    uint64_t word;
    uint32_t era, lap, position; /* of the place that is taken next */
} wh_log_head;

static inline wh_log_head wh_log_head_of(uint64_t word)
{
    return (wh_log_head){.word = word,
                         .era = (uint32_t)WH_GET(LOG_ERA, word),
                         .lap = (uint32_t)WH_GET(LOG_LAP, word),
                         .position = (uint32_t)WH_GET(LOG_POSITION, word)};
}

static inline uint64_t wh_log_word(int64_t ends, uint32_t era, uint32_t lap, uint32_t position)
{
    uint64_t low = WH_PUT_LOW(LOG_ERA, era) | WH_PUT_LOW(LOG_LAP, lap) | position;
    return wh_limit_word(ends, low, WH_LOG_ERA_AT + WH_LOG_ERA_BITS);
}

/* A place of the ring as seen from a head: `i` further, or before it if that is negative. */
typedef struct wh_log_place {
    wh_word_key key;
    uint32_t lap;
} wh_log_place;

static inline wh_log_place wh_log_at(const wh_log *log, const wh_log_head *head, int64_t i)
{
    int64_t at = head->position % log->most + i;
    int64_t lap = at < 0 ? -1 : at >= log->most;
    uint64_t part = (uint64_t)head->era << 32 | (uint32_t)(at - lap * log->most);
    return (wh_log_place){.key = wh_words_part(log->key, part),
                          .lap = (head->lap + (uint32_t)lap) & (uint32_t)WH_MOST(LOG_LAP)};
}

/* Was this word taken in that lap, and does it still count? */
static inline bool wh_log_counts(uint64_t word, uint32_t lap, int64_t now)
{
    return !wh_limit_over(word, now) && WH_GET(LIMIT_LAP, word) == (lap & WH_MOST(LOG_LAP));
}

/* When a place with this word, to be taken in that lap, is free; not after now: it is. */
static inline int64_t wh_log_free_at(const wh_log *log, uint64_t word, uint32_t lap)
{
    if (wh_log_counts(word, lap - 1, log->now))
        return wh_limit_ends(word);
    return wh_log_counts(word, lap, log->now) ? wh_limit_ends(word) - log->per : 0;
}

/* Write into the place `i` after the head's. WH_LIMIT_REFUSED: it is not free, or not any more. */
static inline enum wh_limited wh_log_write(wh_keys *k, const wh_log *log, const wh_log_head *head,
                                           uint32_t i)
{
    wh_log_place place = wh_log_at(log, head, i);
    uint64_t word = wh_limit_word(log->now + log->per, 0, WH_LIMIT_LAP_BITS) | place.lap;
    enum wh_limited wrote = WH_LIMIT_REFUSED;
    while (wrote == WH_LIMIT_REFUSED) {
        uint64_t found = wh_words_peek(k, &place.key);
        if (wh_log_free_at(log, found, place.lap) > log->now)
            return WH_LIMIT_REFUSED;
        /* as of this head it may be written over: else others are further */
        if (wh_words_peek(k, log->key) != head->word)
            return WH_LIMIT_REFUSED;
        if (found == word)
            return WH_LIMIT_TAKEN;
        wrote = wh_limit_swap(k, &place.key, found, word);
    }
    return wrote;
}

/* One try to take `n`. WH_LIMIT_REFUSED with *wait 0: look again. *ticket: for giving back. */
static inline enum wh_limited wh_log_try(wh_keys *k, const wh_log *log, uint32_t n, int64_t *wait,
                                         uint64_t *ticket)
{
    wh_log_head head = wh_log_head_of(wh_words_peek(k, log->key));
    int64_t ends = log->now + log->per;
    if (wh_limit_ends(head.word) < ends) {
        uint64_t word = wh_log_word(ends, head.era, head.lap, head.position);
        enum wh_limited kept = wh_limit_swap(k, log->key, head.word, word);
        if (kept != WH_LIMIT_TAKEN)
            return kept;
        head.word = word;
    }
    wh_step();
    for (uint32_t i = n; i-- > 0;) { /* the last of them is free last */
        wh_log_place place = wh_log_at(log, &head, i);
        *wait = wh_log_free_at(log, wh_words_peek(k, &place.key), place.lap) - log->now;
        if (*wait > 0)
            return WH_LIMIT_REFUSED;
        *wait = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        enum wh_limited wrote = wh_log_write(k, log, &head, i);
        if (wrote != WH_LIMIT_TAKEN)
            return wrote;
    }
    wh_step();
    uint32_t next = head.position % log->most + n, around = next >= log->most;
    *ticket = WH_PUT(LOG_ERA, head.era) | WH_PUT_LOW(LOG_LAP, head.lap + around) |
              (next - around * log->most);
    return wh_limit_swap(k, log->key, head.word, (head.word & ~WH_LOG_PLACE) | *ticket);
}

/* Take `n` of at most `most` in any `per` ns, as of when so many are free. *wait: ns until then.
 * Refused: that is more than `patience`. */
static inline enum wh_limited wh_log_take(wh_keys *k, const wh_log *log, uint32_t n,
                                          int64_t patience, int64_t *wait, uint64_t *ticket)
{
    wh_log then = *log; /* moves on to when the places are free, in their order */
    k->now = log->now;
    for (;;) {
        int64_t more = 0;
        enum wh_limited taken = wh_log_try(k, &then, n, &more, ticket);
        then.now = wh_time_add(then.now, more);
        *wait = then.now - log->now;
        if (taken != WH_LIMIT_REFUSED || *wait > patience)
            return taken;
    }
}

/* Give back `n` that were not used, if nobody has taken any after them. */
static inline void wh_log_give(wh_keys *k, const wh_log *log, uint64_t ticket, uint32_t n)
{
    uint64_t found;
    k->now = log->now;
    do {
        found = wh_words_peek(k, log->key);
        if ((found & WH_LOG_PLACE) != ticket)
            return;
        wh_log_head head = wh_log_head_of(found);
        uint32_t back = head.position < n;
        head.position += back * log->most - n;
        found = wh_limit_swap(k, log->key, found,
                              (found & ~WH_LOG_PLACE) | WH_PUT(LOG_ERA, head.era) |
                                  WH_PUT_LOW(LOG_LAP, head.lap - back) | head.position);
    } while (found == WH_LIMIT_REFUSED);
}

typedef struct wh_log_state {
    uint32_t count; /* taken in the last `per` ns */
    int64_t oldest, newest; /* when the first and the last of them leave the window */
} wh_log_state;

/* When the place `i` before the head leaves the window. If it was written for the head's next round
 * and not taken, or given back, it counts for the round before. */
static inline int64_t wh_log_leaves(const wh_keys *k, const wh_log *log, const wh_log_head *head,
                                    uint32_t i)
{
    wh_log_place place = wh_log_at(log, head, -(int64_t)i);
    return wh_log_free_at(log, wh_words_peek(k, &place.key), place.lap + 1);
}

/* The state of a log: its places are free from the head on, so halves of them are looked at. */
static inline wh_log_state wh_log_read(wh_keys *k, const wh_log *log)
{
    wh_log_state state = {0};
    wh_log_head head = wh_log_head_of(wh_words_peek(k, log->key));
    uint32_t least = 0, most = wh_limit_over(head.word, log->now) ? 0 : log->most;
    while (least < most) { /* so many before the head count */
        uint32_t middle = least + (most - least + 1) / 2;
        int64_t leaves = wh_log_leaves(k, log, &head, middle);
        if (leaves > log->now)
            state.oldest = leaves, least = middle;
        else
            most = middle - 1;
    }
    if ((state.count = least))
        state.newest = wh_log_leaves(k, log, &head, 1);
    return state;
}

/* Forget all that was taken. */
static inline void wh_log_clear(wh_keys *k, const wh_word_key *key, int64_t now)
{
    enum wh_limited cleared = WH_LIMIT_REFUSED;
    k->now = now;
    while (cleared == WH_LIMIT_REFUSED) {
        wh_log_head head = wh_log_head_of(wh_words_peek(k, key));
        if (wh_limit_over(head.word, now))
            return;
        uint64_t era = WH_PUT_LOW(LOG_ERA, head.era + 1);
        cleared = wh_limit_swap(k, key, head.word, (head.word & ~WH_MASK(LOG_ERA)) | era);
    }
}

#endif
