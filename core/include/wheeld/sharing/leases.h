/* Leases: what one worker has at a time, or several (seats), until it gives it back, dies, or has
 * not renewed it for a time.
 *
 * Idea. Each seat has a word in the directory, with all that decides: who has it, and until when.
 * To take, to renew and to give back are one compare-and-swap of it each. A worker is named by its
 * row and by which of the row's tenants it is: the moment that its tenancy ends, whatever it has is
 * free, and nobody has to find it.
 *
 *     word       | means                               | becomes
 *     0          | nobody has the seat                 | taken; granted; its place another key's
 *     taken      | a worker has it until `ends`        | taken (renewed); 0 (given back)
 *     granted    | it is a waiter's turn, until `ends` | taken by that one
 *     over       | taken or granted, but `ends` is     | as 0
 *                | over, or the worker gone            |
 *
 * Whoever finds a free seat while somebody waits (lease_queue.h) does not take it: it grants it to
 * the first one. So a seat goes from hand to hand in the order of tickets, and no caller comes in
 * between. A turn that was not used in WH_LEASE_TURN_NS is passed by, with its ticket.
 *
 *     grants                                    leaves the queue
 *     word: granted (compare-and-swap)          its ticket is gone
 *     is the ticket still there? else on        is a seat granted to it? then on to the next one
 *
 * Either sees the other, so no seat stays with somebody who has left.
 *
 * Invariants
 *  1. At most one worker that is there stands in a seat's word. Of two that take it one fails.
 *  2. Tokens: a holder draws its token while the word is its own, and looks at the word again. So
 *     the next one draws later, and its token is larger.
 *  3. A word names its worker, its time and its turn: two holds of one worker have the same word
 *     only if the first one was given back.
 *  4. Lock-free, as the directory. Each loop goes on because a compare-and-swap of another process
 *     succeeded, or a waiter left.
 *  5. `now` is the base clock at the call: time is over for all at the same time, whether a clock
 *     process runs or not.
 */
#ifndef WHEELD_LEASES_H
#define WHEELD_LEASES_H

#include "wheeld/sharing/lease_queue.h"

enum wh_leased { WH_LEASE_TAKEN, WH_LEASE_REFUSED, WH_LEASE_NO_ROOM };

#define WH_LEASE_TURN_NS 1000000000ll

/* A seat that was taken. */
typedef struct wh_lease_hold {
    uint64_t word, token;
    uint32_t seat;
} wh_lease_hold;

/* One call. */
typedef struct wh_lease_call {
    int64_t now, ends; /* ends: of what it takes, or renews */
    uint64_t ticket; /* of the waiter that calls, the first one of its worker; 0: none */
    wh_lease_wake *wake;
} wh_lease_call;

static inline wh_word_key wh_lease_key(const wh_lease *lease, uint32_t seat)
{
    return seat ? wh_words_part(&lease->key, seat) : lease->key;
}

/* `found` is free, and stands in the touched word of a seat. May the caller take it? Else it is the
 * turn of somebody who waits, or the word has changed: *found is what it is then. */
static inline bool wh_lease_may_take(wh_keys *k, const wh_lease *lease, uint32_t seat,
                                     wh_au64 *word, uint64_t *found, const wh_lease_call *call)
{
    if (wh_likely(wh_lease_queue_empty(k)))
        return true;
    if (wh_lease_is_granted(*found) && wh_lease_ends(*found) <= call->now)
        wh_lease_queue_pass_by(k, lease, wh_lease_row(*found), call->wake);
    for (;;) {
        wh_lease_queued first = wh_lease_queue_first(k, lease, seat);
        if (first.ticket == 0 || (first.row == k->me && first.ticket == call->ticket))
            return true;
        int64_t ends = wh_time_add(call->now, WH_LEASE_TURN_NS);
        uint64_t granted = wh_lease_word(ends, first.row, first.tenancy, true);
        wh_step();
        /* pairs: lease-turn, word-value - seq_cst: the ticket is looked at after it */
        if (!wh_cas_seq(word, found, granted))
            return false;
        *found = granted;
        wh_step();
        if (wh_likely(wh_lease_queue_stands(k, &first))) {
            wh_lease_queue_wake(k, first.row, wh_lease_bit(first.place) | WH_LEASE_ANY, call->wake);
            return false;
        }
        /* pairs: lease-turn - it had left before it could see its turn */
        if (!wh_cas_seq(word, found, 0))
            return false;
        *found = 0;
    }
}

/* Is this word a turn of the caller's, who waits? */
static inline bool wh_lease_is_turn(const wh_keys *k, uint64_t word, const wh_lease_call *call)
{
    return call->ticket && wh_lease_is_granted(word) && wh_lease_row(word) == k->me &&
           wh_lease_names(word, k->tenancy);
}

/* Take a touched seat, and draw a token. False: somebody else has it, or *found is CLOSED. */
static inline bool wh_lease_take_word(wh_keys *k, const wh_lease *lease, wh_au64 *word,
                                      uint64_t *found, const wh_lease_call *call,
                                      wh_lease_hold *hold)
{
    *found = wh_load_seq(word); /* pairs: word-value */
    while (*found != WH_KEY_CLOSED) {
        bool stands = wh_lease_stands(k, *found, call->now);
        if (stands && !wh_lease_is_turn(k, *found, call))
            return false;
        if (!stands && !wh_lease_may_take(k, lease, hold->seat, word, found, call))
            continue;
        wh_step();
        if (wh_cas_seq(word, found, hold->word)) { /* pairs: word-value - decides */
            wh_step();
            /* pairs: word-value - the word was ours before, and is after it: invariant 2 */
            hold->token = wh_fetch_add_seq(&k->leases->tokens, 1) + 1;
            return wh_load_seq(word) == hold->word; /* pairs: word-value */
        }
    }
    return false;
}

/* Take that seat. */
static inline enum wh_leased wh_lease_take_seat(wh_keys *k, const wh_lease *lease, uint32_t seat,
                                                const wh_lease_call *call, wh_lease_hold *hold)
{
    wh_word_key key = wh_lease_key(lease, seat);
    *hold = (wh_lease_hold){wh_lease_word(call->ends, k->me, k->tenancy, false), 0, seat};
    k->now = call->now;
    for (;;) {
        uint32_t place = wh_words_hold(k, &key, false);
        if (wh_unlikely(place == WH_NIL))
            return WH_LEASE_NO_ROOM;
        uint64_t found;
        bool taken = wh_lease_take_word(k, lease, wh_words_value(k, place), &found, call, hold);
        wh_step();
        wh_words_let_go(k);
        if (wh_likely(taken || found != WH_KEY_CLOSED))
            return taken ? WH_LEASE_TAKEN : WH_LEASE_REFUSED;
    }
}

/* Take any seat of the lease. */
static inline enum wh_leased wh_lease_take(wh_keys *k, const wh_lease *lease,
                                           const wh_lease_call *call, wh_lease_hold *hold)
{
    enum wh_leased last = WH_LEASE_REFUSED;
    for (uint32_t i = 0; i < lease->seats; i++) {
        uint32_t seat = (k->me + i) % lease->seats;
        enum wh_leased one = wh_lease_take_seat(k, lease, seat, call, hold);
        if (one == WH_LEASE_TAKEN)
            return one;
        last = one == WH_LEASE_NO_ROOM ? one : last;
    }
    return last;
}

/* A seat is free, and nobody has said so to those who wait: it is the turn of the first. */
static inline void wh_lease_offer(wh_keys *k, const wh_lease *lease, uint32_t seat,
                                  const wh_lease_call *call)
{
    wh_word_key key = wh_lease_key(lease, seat);
    uint64_t found = WH_KEY_CLOSED;
    k->now = call->now;
    while (found == WH_KEY_CLOSED) {
        uint32_t place = wh_words_hold(k, &key, false);
        if (place == WH_NIL)
            return;
        wh_au64 *word = wh_words_value(k, place);
        found = wh_load_seq(word); /* pairs: word-value */
        while (found != WH_KEY_CLOSED && !wh_lease_stands(k, found, call->now) &&
               !wh_lease_may_take(k, lease, seat, word, &found, call))
            ;
        wh_step();
        wh_words_let_go(k);
    }
}

/* Let the seat's word be `word` if it is `found`, and stands. */
static inline bool wh_lease_swap(wh_keys *k, const wh_lease *lease, uint32_t seat, uint64_t found,
                                 uint64_t word, int64_t now)
{
    wh_word_key key = wh_lease_key(lease, seat);
    if (!wh_lease_stands(k, found, now))
        return false;
    uint32_t place = wh_words_find(k, &key);
    if (place == WH_NIL)
        return false;
    /* pairs: word-value, lease-queue - seq_cst: the queue is looked at after it */
    bool ours = wh_cas_seq(wh_words_value(k, place), &found, word);
    wh_step();
    wh_words_let_go(k);
    return ours;
}

/* Give a seat back. False: its time was over, or its worker gone. */
static inline bool wh_lease_give(wh_keys *k, const wh_lease *lease, const wh_lease_hold *hold,
                                 const wh_lease_call *call)
{
    if (!wh_lease_swap(k, lease, hold->seat, hold->word, 0, call->now))
        return false;
    if (wh_unlikely(!wh_lease_queue_empty(k)))
        wh_lease_offer(k, lease, hold->seat, call);
    return true;
}

/* Have it for longer, or shorter: until call->ends. */
static inline bool wh_lease_renew(wh_keys *k, const wh_lease *lease, wh_lease_hold *hold,
                                  const wh_lease_call *call)
{
    uint64_t word = wh_lease_word(call->ends, k->me, k->tenancy, false);
    if (!wh_lease_swap(k, lease, hold->seat, hold->word, word, call->now))
        return false;
    hold->word = word;
    return true;
}

/* Does its holder still have it? */
static inline bool wh_lease_holds(const wh_keys *k, const wh_lease *lease,
                                  const wh_lease_hold *hold, int64_t now)
{
    wh_word_key key = wh_lease_key(lease, hold->seat);
    return wh_lease_stands(k, hold->word, now) && wh_words_peek(k, &key) == hold->word;
}

/* When it is worth while to look again, even if nobody wakes us: a seat is over then. */
static inline int64_t wh_lease_next(const wh_keys *k, const wh_lease *lease)
{
    int64_t next = INT64_MAX;
    for (uint32_t seat = 0; seat < lease->seats; seat++) {
        wh_word_key key = wh_lease_key(lease, seat);
        int64_t ends = wh_lease_ends(wh_words_peek(k, &key));
        next = ends < next ? ends : next;
    }
    return next;
}

/* A waiter of this worker has left the queue, and shows no ticket: turns that it did not use go on
 * to the next one. */
static inline void wh_lease_pass_on(wh_keys *k, const wh_lease *lease, const wh_lease_call *call)
{
    for (uint32_t seat = 0; seat < lease->seats; seat++) {
        wh_word_key key = wh_lease_key(lease, seat);
        uint64_t found = wh_words_peek(k, &key);
        if (wh_lease_is_granted(found) && wh_lease_row(found) == k->me &&
            wh_lease_names(found, k->tenancy)) {
            /* pairs: lease-turn - after the ticket is gone */
            wh_lease_swap(k, lease, seat, found, 0, call->now);
            wh_lease_offer(k, lease, seat, call);
        }
    }
}

#endif
