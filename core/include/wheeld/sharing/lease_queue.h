/* Lease queue: who waits for which lease, in the order of tickets, over all processes.
 *
 * Idea. Each worker has a table of places, found by the lease's hash. In a place it shows the
 * lowest ticket of its threads that wait for that lease, and sleeps on a futex of its row. A bit in
 * `waiting` says that a worker shows anything: whoever makes a lease free looks at no more than
 * these bits if nobody waits.
 *
 *     waiter                                    whoever makes a seat free
 *     sets its bit; lease, then ticket          the seat's word is free (compare-and-swap)
 *     looks at the seats                        looks at the bits, then at the tickets
 *     sleeps until `wake` moves                 it is the first one's turn; wake + 1
 *
 * Either the waiter sees the free seat, or the other one its ticket.
 *
 * Invariants
 *  1. The bit is set before a place is filled, and cleared after it is empty: the supervisor clears
 *     the places of a dead worker whose bit is set.
 *  2. A place's lease is stored before its ticket. Tickets are unique: who reads the same ticket
 *     before and after the lease has read what belongs together.
 *  3. Others only take a ticket away, by compare-and-swap, of one whose turn has passed, and wake
 *     its owner: that one takes another ticket.
 *  4. Nothing of this is needed for safety: the seats' words decide.
 */
#ifndef WHEELD_LEASE_QUEUE_H
#define WHEELD_LEASE_QUEUE_H

#include "wheeld/sharing/directory.h"

#define WH_LEASE_ANY (1u << 31) /* of a futex: one who sleeps for all places of its worker */

typedef struct wh_lease {
    wh_word_key key; /* of its first seat */
    uint32_t seats;
} wh_lease;

/* Wake whoever sleeps on that word for one of these places. */
typedef void wh_lease_wake(wh_au32 *word, uint32_t places);

/* Which of a futex's sleepers wait for that place. */
static inline uint32_t wh_lease_bit(uint32_t place) { return 1u << place % 31; }

static inline wh_lease_place *wh_lease_place_at(const wh_keys *k, uint32_t row, uint32_t place)
{
    return &k->lease_places[(uint64_t)row * WH_LEASE_PLACES + place % WH_LEASE_PLACES];
}

static inline uint32_t wh_lease_choice(const wh_lease *lease, uint32_t i)
{
    return (uint32_t)((lease->key.other >> 1) + i) % WH_LEASE_PLACES;
}

static inline wh_au64 *wh_lease_bits(const wh_keys *k, uint32_t row)
{
    return &k->leases->waiting[row / 64 % 64];
}

/* Does nobody wait, for any lease? */
static inline bool wh_lease_queue_empty(const wh_keys *k)
{
    uint64_t any = 0;
    for (uint32_t row = 0; row < k->row_count; row += 64)
        any |= wh_load_seq(wh_lease_bits(k, row)); /* pairs: lease-queue */
    return any == 0;
}

/* -- the waiter -------------------------------------------------------------------------------- */

static inline uint64_t wh_lease_queue_ticket(wh_keys *k, uint32_t seats)
{
    /* pairs: lease-queue */
    return wh_ticket_word(wh_fetch_add_seq(&k->leases->tickets, 1) + 1, seats);
}

/* Our place for waiters for this lease: the one that has it, or a free one. WH_NIL: there is none,
 * or no memory. */
static inline uint32_t wh_lease_queue_place(wh_keys *k, const wh_lease *lease)
{
    uint32_t free = WH_NIL;
    const wh_lease_place *row = wh_lease_place_at(k, k->me, 0);
    if (!wh_keys_there(k, row, WH_LEASE_PLACES * sizeof *row))
        return WH_NIL;
    for (uint32_t i = 0; i < WH_LEASE_CHOICES; i++) {
        uint32_t place = wh_lease_choice(lease, i);
        uint64_t found = wh_load_relaxed(&wh_lease_place_at(k, k->me, place)->lease);
        if (found == lease->key.other)
            return place;
        free = found == 0 && free == WH_NIL ? place : free;
    }
    return free;
}

/* Show the ticket of our first waiter. It looks at the seats after this. */
static inline void wh_lease_queue_show(wh_keys *k, const wh_lease *lease, uint32_t at,
                                       uint64_t ticket)
{
    wh_lease_place *place = wh_lease_place_at(k, k->me, at);
    wh_fetch_or_seq(wh_lease_bits(k, k->me), 1ull << k->me % 64); /* pairs: lease-queue */
    wh_step();
    wh_store_seq(&place->lease, lease->key.other); /* pairs: lease-queue */
    wh_store_seq(&place->ticket, ticket);          /* pairs: lease-queue - before the seats */
}

/* None of us waits for the lease of that place; `last`: for no other one, either. */
static inline void wh_lease_queue_hide(wh_keys *k, uint32_t at, bool last)
{
    wh_lease_place *place = wh_lease_place_at(k, k->me, at);
    wh_store_seq(&place->ticket, 0); /* pairs: lease-queue - before the seats: wh_lease_pass_on */
    wh_step();
    wh_store_seq(&place->lease, 0); /* pairs: lease-queue */
    wh_step();
    if (last)
        wh_fetch_and_seq(wh_lease_bits(k, k->me), ~(1ull << k->me % 64)); /* pairs: lease-queue */
}

/* -- whoever makes a seat free ----------------------------------------------------------------- */

typedef struct wh_lease_queued {
    uint64_t ticket; /* 0: nobody waits */
    uint64_t tenancy;
    uint32_t row, place;
} wh_lease_queued;

/* The ticket of a place, if somebody waits there for this lease. A place that changes meanwhile is
 * left out: its worker looks at the seats when it has changed it. */
static inline uint64_t wh_lease_queue_read(const wh_lease_place *place, const wh_lease *lease)
{
    uint64_t ticket = wh_load_seq((wh_au64 *)&place->ticket); /* pairs: lease-queue */
    if (ticket == 0 ||
        wh_load_seq((wh_au64 *)&place->lease) != lease->key.other) /* pairs: lease-queue */
        return 0;
    /* pairs: lease-queue - invariant 2 */
    return wh_load_seq((wh_au64 *)&place->ticket) == ticket ? ticket : 0;
}

/* Look for waiters of one worker that come before `first`. */
static inline void wh_lease_queue_look(wh_keys *k, const wh_lease *lease, uint32_t seat,
                                       uint32_t row, wh_lease_queued *first)
{
    const wh_lease_place *all = wh_lease_place_at(k, row, 0);
    if (!wh_keys_there(k, all, WH_LEASE_PLACES * sizeof *all))
        return;
    uint64_t tenancy = wh_load_seq(&k->rows[row].tenancy); /* pairs: lease-tenancy */
    if (!(tenancy & 1)) /* nobody's, until its places are empty */
        return;
    for (uint32_t i = 0; i < WH_LEASE_CHOICES; i++) {
        uint32_t at = wh_lease_choice(lease, i);
        uint64_t ticket = wh_lease_queue_read(wh_lease_place_at(k, row, at), lease);
        if (ticket && wh_ticket_seats(ticket) > seat && (!first->ticket || ticket < first->ticket))
            *first = (wh_lease_queued){ticket, tenancy, row, at};
    }
}

/* Who waits for the longest time for that seat of the lease. */
static inline wh_lease_queued wh_lease_queue_first(wh_keys *k, const wh_lease *lease, uint32_t seat)
{
    wh_lease_queued first = {0};
    for (uint32_t begin = 0; begin < k->row_count; begin += 64) {
        uint64_t rows = wh_load_seq(wh_lease_bits(k, begin)); /* pairs: lease-queue */
        for (; rows; rows &= rows - 1) {
            uint32_t row = begin + (uint32_t)__builtin_ctzll(rows);
            if (row < k->row_count)
                wh_lease_queue_look(k, lease, seat, row, &first);
        }
    }
    return first;
}

/* Does that one still wait there? */
static inline bool wh_lease_queue_stands(const wh_keys *k, const wh_lease_queued *one)
{
    /* pairs: lease-queue */
    return wh_load_seq(&wh_lease_place_at(k, one->row, one->place)->ticket) == one->ticket;
}

static inline void wh_lease_queue_wake(wh_keys *k, uint32_t row, uint32_t places,
                                       wh_lease_wake *wake)
{
    wh_fetch_add_seq(&k->rows[row].wake, 1); /* pairs: lease-wake */
    wake(&k->rows[row].wake, places);
}

/* Another worker has not taken the seat while it was its turn: it is stopped, or was. If it is not,
 * it looks, and takes another ticket. */
static inline void wh_lease_queue_pass_by(wh_keys *k, const wh_lease *lease, uint32_t row,
                                          wh_lease_wake *wake)
{
    const wh_lease_place *all = wh_lease_place_at(k, row, 0);
    if (row >= k->row_count || row == k->me ||
        !wh_keys_there(k, all, WH_LEASE_PLACES * sizeof *all))
        return;
    for (uint32_t i = 0; i < WH_LEASE_CHOICES; i++) {
        wh_lease_place *place = wh_lease_place_at(k, row, wh_lease_choice(lease, i));
        uint64_t ticket = wh_lease_queue_read(place, lease);
        /* pairs: lease-queue - invariant 3 */
        if (ticket && wh_cas_seq(&place->ticket, &ticket, 0))
            wh_lease_queue_wake(k, row, UINT32_MAX, wake);
    }
}

/* Have all who wait look again. */
static inline void wh_lease_queue_wake_all(wh_keys *k, wh_lease_wake *wake)
{
    for (uint32_t begin = 0; begin < k->row_count; begin += 64) {
        uint64_t rows = wh_load_seq(wh_lease_bits(k, begin)); /* pairs: lease-queue */
        for (; rows; rows &= rows - 1) {
            uint32_t row = begin + (uint32_t)__builtin_ctzll(rows);
            if (row < k->row_count)
                wh_lease_queue_wake(k, row, UINT32_MAX, wake);
        }
    }
}

/* -- the supervisor ---------------------------------------------------------------------------- */

/* The worker of the row is gone: what it has, and its turns, are nobody's from the first step on.
 * `k`: bound for that row. A supervisor that dies in here is followed by one that does it again. */
static inline void wh_leases_leave(wh_keys *k, wh_lease_wake *wake)
{
    uint64_t tenancy = wh_load_seq(&k->mine->tenancy); /* pairs: lease-tenancy */
    wh_lease_place *all = wh_lease_place_at(k, k->me, 0);
    uint64_t bit = 1ull << k->me % 64;
    if (tenancy & 1)
        wh_store_seq(&k->mine->tenancy, tenancy + 1); /* pairs: lease-tenancy */
    wh_step();
    if (wh_load_seq(wh_lease_bits(k, k->me)) & bit && /* pairs: lease-queue */
        wh_keys_there(k, all, WH_LEASE_PLACES * sizeof *all))
        for (uint32_t i = 0; i < WH_LEASE_PLACES; i++) {
            wh_store_seq(&all[i].ticket, 0); /* pairs: lease-queue */
            wh_store_seq(&all[i].lease, 0);  /* pairs: lease-queue */
        }
    wh_step();
    wh_fetch_and_seq(wh_lease_bits(k, k->me), ~bit); /* pairs: lease-queue */
    /* what it had is free, or it died before it woke the next one */
    wh_lease_queue_wake_all(k, wake);
}

/* A worker is to use the row, which was left. */
static inline void wh_leases_seat(wh_keys *k)
{
    uint64_t tenancy = wh_load_seq(&k->mine->tenancy); /* pairs: lease-tenancy */
    wh_store_seq(&k->mine->tenancy, tenancy + 1); /* pairs: lease-tenancy */
}

#endif
