/* Slot: one timer entry: what may be done with its state word and its fields.
 *
 * Invariants
 *  1. id = generation << 32 | slot, generation >= 1, so 0 is never an id and a stale id never
 *     matches the slot's next tenant.
 *  2. The owner arms a slot that it holds, from whatever phase it is in; all else is a
 *     compare-and-swap on `state`, so each timer has one end: CANCELLED or FIRED.
 *  3. Payloads are written word by word with release, so that who reads one that may be another's
 *     by now (a tick's) can copy it, look at the state again, and know: copied words of a later
 *     tenant make that look see the end of this one.
 *  4. The worker that sets FIRED to TAKEN takes the offer, and the word names it; only the clock
 *     ends that for a worker that has died. So any number of rings may hold a record of it.
 *  5. The version goes up with every change of an armed timer; a reader that sees equal states
 *     before and after has read one consistent set of fields. It wraps after 2**21 changes within
 *     one such read.
 *  6. A move changes the deadline by a compare-and-swap of the slot's first 16 bytes, which its
 *     next tenant has others in: so any worker may move any timer, and a stale id changes nothing.
 *     The flags tell tenants apart; they wrap after 2**10 tenants with the same deadline and target
 *     within one such call.
 *  7. A worker that moves a timer to earlier sets EARLY first, and submits the move afterwards. The
 *     clock may not know of the deadline that a later mover finds then: so each move of a timer
 *     with EARLY is submitted.
 *  8. A move may change the period, too: after the deadline, by a compare-and-swap of the INTERVAL
 *     word, which tells tenants apart as the flags do. Of a worker that dies between the two, the
 *     deadline stays and the period is as it was. A one-shot becomes periodic with MOVED set first,
 *     for the clock's record of it has no last tick; the word of a one-shot is the time at which it
 *     was scheduled, which the next tenant has another of.
 *  9. PAUSED is set before the deadline is far, and removed after it is near: it says nothing of a
 *     deadline that is near.
 * 10. A move of a periodic timer begins a new grid. A tick is of the present grid if its record has
 *     the MOVES of the slot, which the clock counts up with the first tick of a grid; MOVED says
 *     that there has been none yet.
 */
#ifndef WHEELD_SLOT_H
#define WHEELD_SLOT_H

#include <string.h>

#include "wheeld/shared/layout.h"

/* Generations of a wheel begin at random, far from where those of another one are: an id of an
 * earlier wheel belongs to no worker in the next. Of 27 bits: an id of more than 60 is a Python int
 * of a third digit, which costs a `schedule` 8 ns of 74. */
static inline uint32_t wh_first_gen(uint64_t token)
{
    return ((uint32_t)(token >> 32) & 0x7ffffff) + 1;
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

/* The first time first + k * interval that is after `last`. */
static inline int64_t wh_periodic_due(int64_t first, int64_t interval, int64_t last)
{
    if (first > last)
        return first;
    uint64_t into = ((uint64_t)last - (uint64_t)first) % (uint64_t)interval;
    return wh_time_add(last, interval - (int64_t)into);
}

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

/* When a move is made: always, or only to a later or to an earlier time than the timer has. */
enum wh_direction { WH_MOVE_EARLIER = -1, WH_MOVE_ANYWHERE = 0, WH_MOVE_LATER = 1 };

/* The fields of a timer that a move changes, as they were read together. */
typedef struct wh_fields {
    uint64_t deadline, rest; /* the slot's first 16 bytes */
    int64_t interval;
} wh_fields;

/* Read them, the period if it is `wanted`, with *state as it was read last. False: others have
 * changed something; look again. */
wh_hot bool wh_slot_look(wh_au64 *word, wh_slot *slot, uint64_t *state, bool wanted,
                         wh_fields *fields)
{
    wh_au64 *words = (wh_au64 *)slot;
    fields->deadline = wh_load_acquire(&words[0]);      /* pairs: extend */
    fields->rest = wh_load_acquire(&words[1]);          /* pairs: extend */
    fields->interval = wanted ? wh_load_acquire(&slot->interval) : 0; /* pairs: extend */
    uint64_t found = wh_load_acquire(word); /* pairs: arm, fire - if armed, these are its fields */
    bool same = found == *state;
    *state = found;
    return same;
}

/* Set bits of the state that others are to see before the fields change. False: look again. */
static inline bool wh_slot_announce(wh_au64 *word, uint64_t *state, uint64_t announced)
{
    /* pairs: extend - who sees the new fields sees these bits */
    if (announced != *state && !wh_cas_acq_rel(word, state, announced))
        return false;
    *state = announced;
    return true;
}

/* Let the deadline of the armed timer be `deadline`, with *state and `fields` as they were read
 * last. False: look again. */
static inline bool wh_slot_change(wh_au64 *word, wh_slot *slot, uint64_t *state, wh_fields *fields,
                                  int64_t deadline)
{
    bool earlier = deadline < (int64_t)fields->deadline;
    if (!wh_slot_announce(word, state, earlier ? wh_state_early(*state) : *state))
        return false;
    uint64_t to = (uint64_t)deadline;
    /* pairs: extend */
    return wh_cas_both(slot, &fields->deadline, &fields->rest, to, fields->rest);
}

/* When it is due, at `now` of its clock: if it is periodic and has ticked, at the next time of its
 * grid. */
static inline int64_t wh_fields_due(const wh_fields *fields, int64_t now)
{
    int64_t deadline = (int64_t)fields->deadline, interval = wh_interval_ns(fields->interval);
    return interval ? wh_periodic_due(deadline, interval, now) : deadline;
}

/* Move an armed timer; `now`: of its clock, for a direction. True: it is due at `deadline`, or need
 * not be moved; *tell: the clock may have linked it for later. */
wh_hot bool wh_slot_move_if(wh_au64 *word, wh_slot *slot, uint32_t gen, int64_t deadline,
                            enum wh_direction direction, int64_t now, bool *tell)
{
    wh_fields fields;
    uint64_t state = wh_load_acquire(word); /* pairs: arm, fire */
    *tell = false;
    while (wh_state_gen(state) == gen && wh_state_phase(state) == WH_ARMED) {
        if (!wh_slot_look(word, slot, &state, direction != WH_MOVE_ANYWHERE, &fields))
            continue;
        if (direction != WH_MOVE_ANYWHERE) {
            int64_t due = wh_fields_due(&fields, now);
            if (direction == WH_MOVE_LATER ? deadline <= due : deadline >= due)
                return true;
        }
        if (!wh_slot_change(word, slot, &state, &fields, deadline))
            continue;
        *tell = wh_state_is_early(state);
        /* pairs: extend, fire - the deadline is stored first: a clock that judged by the old one
         * fails its own CAS and looks again */
        if (wh_cas_acq_rel(word, &state, wh_state_moved(state)))
            return true;
    }
    return false;
}

static wh_apart bool wh_slot_move(wh_au64 *word, wh_slot *slot, uint32_t gen, int64_t deadline,
                                  bool *tell)
{
    return wh_slot_move_if(word, slot, gen, deadline, WH_MOVE_ANYWHERE, 0, tell);
}

/* The same, and let its period be `interval`, ns. */
static wh_apart bool wh_slot_move_grid(wh_au64 *word, wh_slot *slot, uint32_t gen, int64_t deadline,
                                       int64_t interval, bool *tell)
{
    wh_fields fields;
    uint64_t state = wh_load_acquire(word); /* pairs: arm, fire */
    *tell = true;
    while (wh_state_gen(state) == gen && wh_state_phase(state) == WH_ARMED) {
        if (!wh_slot_look(word, slot, &state, true, &fields))
            continue;
        /* Of a one-shot, the clock's record says something else than the last tick: MOVED, too. */
        uint64_t announced = wh_state_early(state) | WH_MASK(STATE_MOVED);
        if ((fields.interval <= 0 && !wh_slot_announce(word, &state, announced)) ||
            !wh_slot_change(word, slot, &state, &fields, deadline))
            continue;
        /* pairs: extend */
        if (wh_cas_acq_rel(&slot->interval, &fields.interval, wh_interval_word(interval, gen)) &&
            wh_cas_acq_rel(word, &state, wh_state_moved(state))) /* pairs: extend, fire */
            return true;
    }
    return false;
}

/* A paused timer is armed, for a time that never comes: the end of time less what is kept. That is
 * how long a one-shot timer had left, and of a periodic one the deadline, at which its grid
 * begins. */
#define WH_MOST_KEPT (1ll << 62)

static inline bool wh_is_paused(uint64_t state, int64_t deadline)
{
    return wh_state_is_paused(state) && deadline >= INT64_MAX - WH_MOST_KEPT;
}

/* Pause an armed timer, at `now` of its clock. False: it has ended. */
static wh_apart bool wh_slot_pause(wh_au64 *word, wh_slot *slot, uint32_t gen, int64_t now)
{
    wh_fields fields;
    uint64_t state = wh_load_acquire(word); /* pairs: arm, fire */
    while (wh_state_gen(state) == gen && wh_state_phase(state) == WH_ARMED) {
        if (!wh_slot_look(word, slot, &state, true, &fields))
            continue;
        int64_t deadline = (int64_t)fields.deadline;
        if (wh_is_paused(state, deadline))
            return true;
        int64_t kept = wh_interval_ns(fields.interval) ? deadline : wh_time_sub(deadline, now);
        int64_t most = wh_time_sub(INT64_MAX - 1, now); /* so that this time does not come */
        most = most < WH_MOST_KEPT ? most : WH_MOST_KEPT;
        kept = kept < 0 ? 0 : kept > most ? most : kept;
        if (wh_slot_announce(word, &state, wh_state_paused(state)) &&
            wh_slot_change(word, slot, &state, &fields, INT64_MAX - kept) &&
            wh_cas_acq_rel(word, &state, /* pairs: extend, fire */
                           wh_state_paused(wh_state_moved(state))))
            return true;
    }
    return false;
}

/* When a paused timer is due if it goes on at `now`. */
static inline int64_t wh_resumed_due(int64_t deadline, int64_t interval, int64_t now)
{
    int64_t kept = INT64_MAX - deadline;
    return interval ? wh_periodic_due(kept, interval, now) : wh_time_add(now, kept);
}

/* Let a paused timer go on. *due: when it is due. False: it has ended. */
static wh_apart bool wh_slot_resume(wh_au64 *word, wh_slot *slot, uint32_t gen, int64_t now,
                                    int64_t *due)
{
    wh_fields fields;
    uint64_t state = wh_load_acquire(word); /* pairs: arm, fire */
    while (wh_state_gen(state) == gen && wh_state_phase(state) == WH_ARMED) {
        if (!wh_slot_look(word, slot, &state, true, &fields))
            continue;
        *due = (int64_t)fields.deadline;
        if (!wh_is_paused(state, *due))
            return true;
        *due = wh_resumed_due(*due, wh_interval_ns(fields.interval), now);
        if (wh_slot_change(word, slot, &state, &fields, *due) &&
            wh_cas_acq_rel(word, &state, wh_state_moved(state))) /* pairs: extend, fire */
            return true;
    }
    return false;
}

/* Move a periodic timer to a period from `now`, unless it was moved or paused since the tick whose
 * deadline was `ticked`: a move leads beyond that. *due: when it is due. False: it was, or it has
 * ended, or is periodic no longer. */
static wh_apart bool wh_slot_follow(wh_au64 *word, wh_slot *slot, uint32_t gen, int64_t ticked,
                                    int64_t now, int64_t *due)
{
    wh_fields fields;
    uint64_t state = wh_load_acquire(word); /* pairs: arm, fire */
    while (wh_state_gen(state) == gen && wh_state_phase(state) == WH_ARMED &&
           !wh_state_is_moved(state)) {
        if (!wh_slot_look(word, slot, &state, true, &fields))
            continue;
        int64_t interval = wh_interval_ns(fields.interval);
        if (interval == 0 || (int64_t)fields.deadline > ticked)
            return false;
        *due = wh_time_add(now, interval);
        if (wh_slot_change(word, slot, &state, &fields, *due) &&
            wh_cas_acq_rel(word, &state, wh_state_moved(state))) /* pairs: extend, fire */
            return true;
    }
    return false;
}

/* Do the bits of the version already name a taker? */
static inline bool wh_state_offered(uint64_t s)
{
    return wh_state_phase(s) > WH_FIRED ||
           (wh_state_phase(s) == WH_FIRED && wh_state_taker(s) == WH_CLOSED);
}

/* FIRED, and free for every worker it is offered to. */
static inline uint64_t wh_state_fired(uint64_t s)
{
    return wh_unlikely(wh_state_taker(s) == WH_CLOSED) ? wh_state(wh_state_gen(s), WH_FIRED)
                                                       : wh_state_to(s, WH_FIRED);
}

/* True: the offer is the taker's, and its slot does not change until it is done. */
static inline bool wh_offer_take(wh_au64 *state, uint32_t gen, uint32_t taker)
{
    uint64_t s = wh_load_acquire(state); /* pairs: fire, offer */
    return wh_state_gen(s) == gen && wh_state_phase(s) == WH_FIRED &&
           wh_state_taker(s) != WH_CLOSED &&
           /* pairs: offer - else two workers it was offered to would both get it */
           wh_cas_acq_rel(state, &s, wh_state_of(gen, taker, WH_TAKEN));
}

/* End what was taken. False: the clock has given it to somebody else. */
static inline bool wh_offer_done(wh_au64 *state, uint32_t gen, uint32_t taker)
{
    uint64_t s = wh_state_of(gen, taker, WH_TAKEN);
    /* pairs: offer - else the slot could be its owner's while the payload is copied */
    return wh_cas_acq_rel(state, &s, wh_state_of(gen, taker, WH_DONE));
}

/* Is the timer of `id` still armed? */
static inline bool wh_slot_stands(wh_au64 *state, uint64_t id)
{
    uint64_t s = wh_load_acquire(state); /* pairs: cancel */
    return wh_state_gen(s) == wh_id_gen(id) && wh_state_phase(s) == WH_ARMED;
}

/* Has the timer of `id` the key that it was given? While it is armed; with WH_HELD, until the event
 * is acknowledged, or dropped, too. */
static inline bool wh_slot_has_key(wh_au64 *state, wh_slot *slot, uint64_t id)
{
    uint64_t s = wh_load_acquire(state); /* pairs: cancel */
    uint32_t gen = wh_id_gen(id), phase = wh_state_phase(s);
    if (wh_state_gen(s) != gen || (phase != WH_FIRED && phase != WH_TAKEN))
        return wh_state_gen(s) == gen && phase == WH_ARMED;
    /* pairs: held - the next tenant, whose flags these may be, has ended this one by then */
    bool held = wh_load_acquire(&slot->flags) & WH_HELD;
    s = wh_load_acquire(state); /* pairs: held */
    phase = wh_state_phase(s);
    return held && wh_state_gen(s) == gen && (phase == WH_FIRED || phase == WH_TAKEN);
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

/* Copy it while the slot may get another tenant: check the state afterwards. */
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

#endif
