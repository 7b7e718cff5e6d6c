/* Slot: one timer entry: its state word, its fields, its id.
 *
 * Invariants
 *  1. id = generation << 32 | slot, generation >= 1, so 0 is never an id and a stale id never
 *     matches the slot's next tenant.
 *  2. The owner arms a slot that it holds, from whatever phase it is in; all else is a
 *     compare-and-swap on `state`, so each timer has one end: CANCELLED or FIRED.
 *  3. Payloads are written word by word with release, so that who reads one that may be another's
 *     by now (a tick's) can copy it, look at the state again, and know: copied words of a later
 *     tenant make that look see the end of this one.
 *  4. An offer is taken by whoever sets FIRED to TAKEN, which names him; nobody else but the clock,
 *     when he is gone, ends that. So a record of it may stand in any number of rings.
 *  5. The version goes up with every change of an armed timer; who read the fields between two
 *     equal states read one consistent set. It wraps after 2**24 changes within one such read.
 */
#ifndef WHEELD_SLOT_H
#define WHEELD_SLOT_H

#include <string.h>

#include "wheeld/shared/layout.h"

enum wh_phase {
    WH_NEVER = 0,
    WH_ARMED = 1,
    WH_CANCELLED = 2,
    WH_FIRED = 3,
    WH_TAKEN = 4, /* fired, and one of those to whom it was offered has it in hand */
    WH_DONE = 5   /* and has handed it to its user */
};
enum wh_clock_kind { WH_CLOCK_BASE = 0, WH_CLOCK_REALTIME = 1, WH_CLOCK_BOOTTIME = 2 };
#define WH_CLOCK_KINDS 3
/* in slot.flags: what it is for is in its owner's process, and nobody else's */
#define WH_PRIVATE 4u

/* What a submission asks the clock to look at; in a completion the same bits say what it is. */
enum wh_op { WH_OP_SCHEDULE = 0, WH_OP_CANCEL = 1, WH_OP_RESCHEDULE = 2 };
enum wh_event {
    WH_EV_EXPIRED = 0, /* of a timer of the receiver's own, which has the slot again with it */
    WH_EV_TICK = 1,
    WH_EV_LENT = 2, /* of another worker's; also if the receiver owns the slot by now */
    WH_EV_OFFER = 3 /* of a timer for a group: who takes it first has it */
};

/* Whom an owner word names, parked or not. */
static inline uint64_t wh_owner_name(uint64_t word) { return word & ~(WH_PARKED | WH_TAKING); }

/* Who holds a slot of a split slab, and where in its return ring it got it. A ring has 2**17
 * entries at most, so no two entries that stand in it are mistaken for each other. */
static inline uint32_t wh_holder_word(uint32_t worker, uint64_t position)
{
    return (uint32_t)(position & 0xfffff) << 12 | (worker + 1);
}
static inline uint32_t wh_holder_row(uint32_t holder) { return (holder & 0xfff) - 1; }

#define WH_KIND_SHIFT 30
#define WH_SLOT_MASK ((1u << WH_SLOT_BITS) - 1)

static inline uint64_t wh_id(uint32_t gen, uint32_t slot) { return (uint64_t)gen << 32 | slot; }
static inline uint32_t wh_id_gen(uint64_t id) { return (uint32_t)(id >> 32); }
static inline uint32_t wh_id_slot(uint64_t id) { return (uint32_t)id & WH_SLOT_MASK; }
static inline uint32_t wh_id_kind(uint64_t id) { return ((uint32_t)id >> WH_KIND_SHIFT) & 3; }
static inline uint64_t wh_id_with(uint64_t id, uint32_t kind)
{
    return id | (uint64_t)kind << WH_KIND_SHIFT;
}

/* Generations of a wheel begin at random, far from where those of another one are: an id of an
 * earlier wheel is nobody's in the next. Of 27 bits: an id of more than 60 is a Python int of a
 * third digit, which costs a `schedule` 8 ns of 74. */
static inline uint32_t wh_first_gen(uint64_t token)
{
    return ((uint32_t)(token >> 32) & 0x7ffffff) + 1;
}

static inline uint32_t wh_state_gen(uint64_t s) { return (uint32_t)(s >> 32); }
static inline uint32_t wh_state_phase(uint64_t s) { return (uint32_t)(s & 0xff); }
static inline uint64_t wh_state(uint32_t gen, uint32_t phase)
{
    return (uint64_t)gen << 32 | phase;
}

/* The same generation and phase, one version on. */
static inline uint64_t wh_state_touch(uint64_t s)
{
    return (s & ~0xffffff00ull) | ((s + 0x100) & 0xffffff00ull);
}
static inline uint64_t wh_state_to(uint64_t s, uint32_t phase) { return (s & ~0xffull) | phase; }

static inline uint32_t wh_next_gen(uint32_t gen) { return gen + 1 ? gen + 1 : 1; }

/* ARMED -> CANCELLED. True: this caller won, and the timer is never delivered. */
static inline bool wh_slot_cancel(wh_au64 *state, uint32_t gen)
{
    uint64_t s = wh_load_acquire(state); /* pairs: arm */
    while (wh_state_gen(s) == gen && wh_state_phase(s) == WH_ARMED)
        /* pairs: cancel - else the clock that loses would deliver what was cancelled */
        if (wh_cas_acq_rel(state, &s, wh_state_to(s, WH_CANCELLED)))
            return true;
    return false;
}

/* Who takes an offer, in the bits of the version: a worker's row and the end of its incarnation,
 * from its owner word. */
static inline uint32_t wh_taker(uint64_t owner_word)
{
    return (uint32_t)(owner_word & 0xfff) | (uint32_t)(owner_word >> 16 & 0xfff) << 12;
}
static inline uint32_t wh_state_taker(uint64_t s) { return (uint32_t)(s >> 8) & 0xffffff; }
static inline uint64_t wh_state_of(uint32_t gen, uint32_t taker, uint32_t phase)
{
    return (uint64_t)gen << 32 | taker << 8 | phase;
}

/* in place of who takes it, FIRED: no offer any more, somebody has it for good */
#define WH_CLOSED 0xffffffu

/* Are the bits of the version used otherwise by now? */
static inline bool wh_state_offered(uint64_t s)
{
    return wh_state_phase(s) > WH_FIRED ||
           (wh_state_phase(s) == WH_FIRED && wh_state_taker(s) == WH_CLOSED);
}

/* FIRED, and open to whoever it is offered to. */
static inline uint64_t wh_state_fired(uint64_t s)
{
    return wh_unlikely(wh_state_taker(s) == WH_CLOSED) ? wh_state(wh_state_gen(s), WH_FIRED)
                                                       : wh_state_to(s, WH_FIRED);
}

/* True: the offer is the taker's, and nothing of its slot changes until it is done. */
static inline bool wh_offer_take(wh_au64 *state, uint32_t gen, uint32_t taker)
{
    uint64_t s = wh_load_acquire(state); /* pairs: fire, offer */
    return wh_state_gen(s) == gen && wh_state_phase(s) == WH_FIRED &&
           wh_state_taker(s) != WH_CLOSED &&
           /* pairs: offer - else two to whom it was offered would both have it */
           wh_cas_acq_rel(state, &s, wh_state_of(gen, taker, WH_TAKEN));
}

/* The end of what was taken. False: the clock has given it to somebody else. */
static inline bool wh_offer_done(wh_au64 *state, uint32_t gen, uint32_t taker)
{
    uint64_t s = wh_state_of(gen, taker, WH_TAKEN);
    /* pairs: offer - else the slot could be its owner's while the payload is copied */
    return wh_cas_acq_rel(state, &s, wh_state_of(gen, taker, WH_DONE));
}

/* Is the timer that `id` names armed still? */
static inline bool wh_slot_stands(wh_au64 *state, uint64_t id)
{
    uint64_t s = wh_load_acquire(state); /* pairs: cancel */
    return wh_state_gen(s) == wh_id_gen(id) && wh_state_phase(s) == WH_ARMED;
}

/* Fill a slot's payload, which is whole words, with `size` bytes. */
static inline void wh_payload_write(char *payload, const char *from, uint32_t size)
{
    wh_au64 *words = (wh_au64 *)payload;
    uint64_t word;
    for (; size >= sizeof word; size -= (uint32_t)sizeof word, from += sizeof word) {
        memcpy(&word, from, sizeof word);
        wh_store_release(words++, word); /* pairs: payload */
    }
    if (size == 0)
        return;
    word = 0;
    memcpy(&word, from, size);
    wh_store_release(words, word); /* pairs: payload */
}

/* Copy it while its slot may become another's: look at the state afterwards. */
static inline void wh_payload_read(char *to, char *payload, uint32_t size)
{
    wh_au64 *words = (wh_au64 *)payload;
    for (; size; words++) {
        uint32_t part = size < 8 ? size : 8;
        /* pairs: payload - acquire: the next look at the state is not done before this load, and
         * sees the cancel that came before what a later tenant wrote here */
        uint64_t word = wh_load_acquire(words);
        memcpy(to, &word, part);
        to += part;
        size -= part;
    }
}

/* Saturating sum of times; deadlines never wrap. */
static inline int64_t wh_time_add(int64_t a, int64_t b)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return b > 0 ? INT64_MAX : INT64_MIN;
    return sum;
}
static inline int64_t wh_time_sub(int64_t a, int64_t b)
{
    int64_t difference;
    if (__builtin_sub_overflow(a, b, &difference))
        return b < 0 ? INT64_MAX : INT64_MIN;
    return difference;
}

#endif
