/* Events: what happens to timers, as records of the trace, if there is one. Each wh_note_ is for
 * one transition, and does nothing without a trace.
 *
 *     scheduled     the clock sees a generation for the first time; `found`: it had seen it when
 *                   there was no trace
 *     rescheduled   the clock learns that the deadline was changed; the state word's version says
 *                   how often since it last checked. Changes that it never saw come before the end.
 *     cancelled     the clock returns a cancelled timer
 *     expired       an expiration is put into a ring: the end of a one-shot, a tick of a periodic
 *                   timer. An event that waits behind a full ring has not expired yet, so time -
 * deadline is the lateness that the receiver sees.
 *     dropped       an armed or waiting timer ends with its owner; or a client armed a slot that
 *                   was not yet returned to it (then only id and owner are known)
 *
 * Invariants
 *  1. A timer has one beginning and one end: traced.gen names it in between, and an end that it
 *     does not name is recorded already. So a new clock may deliver an event again, but does not
 *     record it again.
 *  2. The record comes before the words that make the next clock skip the event: link.gen after
 *     the beginning is announced in traced.gen, traced.gen = 0 after the end. The tick of a
 *     periodic timer that is repeated after a death was recorded (WH_TRACED_TICK), unless the
 *     clock died at it.
 *  3. A client that overwrites shared words makes records wrong, but at most one or two per
 * submission.
 */
#ifndef WHEELD_EVENTS_H
#define WHEELD_EVENTS_H

#include "wheeld/clock/timing.h"

static inline bool wh_traces(const wh_clock *c) { return wh_unlikely(c->trace.seg != NULL); }

/* Prefetch the record of a timer that is handled soon. */
static inline void wh_note_prefetch(const wh_clock *c, uint32_t slot)
{
    if (wh_traces(c))
        wh_prefetch_write(&c->trace.traced[slot]);
}

static inline void wh_event_pending(wh_trace *t, uint64_t more)
{
    t->pending += more;
    wh_store_relaxed(&t->seg->pending, t->pending);
}

/* Changes of a state word since `known`; what looks like a step back is none: a tick that a dead
 * clock had noted and not done. */
static inline uint32_t wh_version_ahead(uint32_t version, uint32_t known)
{
    uint32_t ahead = (version - known) & WH_VERSION_MASK;
    return ahead <= WH_VERSION_MASK / 2 ? ahead : 0;
}

/* The size of a timer's payload for its record. */
static inline uint16_t wh_traced_payload(const wh_clock *c, uint32_t slot, uint32_t gen)
{
    uint16_t size = wh_load_relaxed(&c->slots[slot].payload_size);
    if (wh_likely(size != WH_IN_HEAP))
        return size;
    uint32_t block = wh_load_relaxed(&c->heap.blocks[slot].block);
    uint32_t found = wh_heap_size(&c->heap, block, wh_id(gen, slot));
    return found == UINT32_MAX ? 0 : found < UINT16_MAX ? (uint16_t)found : UINT16_MAX;
}

/* A record of the slot's tenant with all that is the same in each kind of event, or NULL: it is
 * lost. */
static inline wh_trace_record *wh_event_begin(wh_clock *c, uint32_t slot, enum wh_trace_kind kind,
                                              uint32_t count)
{
    wh_trace *t = &c->trace;
    wh_trace_record *r = wh_trace_append(t, kind, count, c->now[WH_CLOCK_BASE]);
    if (wh_unlikely(r == NULL))
        return NULL;
    const wh_traced *known = &t->traced[slot];
    wh_slot *s = &c->slots[slot];
    uint64_t owner = wh_owner_word_of(c, slot);
    uint32_t row = wh_owner_row(owner);
    uint32_t base = wh_flags_clock(wh_load_relaxed(&s->flags));
    r->time_ns = c->now[WH_CLOCK_BASE];
    r->scheduled_ns = known->scheduled_ns;
    r->id = wh_id(known->gen, slot);
    r->cookie = wh_load_relaxed(&s->cookie);
    r->count = count;
    r->missed = 0;
    r->pending = t->pending < UINT32_MAX ? (uint32_t)t->pending : UINT32_MAX;
    r->incarnation = (uint32_t)wh_owner_incarnation(owner);
    r->worker = row < c->max_workers ? (uint16_t)row : WH_NO_ROW;
    r->receiver = WH_NO_ROW;
    r->payload_size = wh_traced_payload(c, slot, known->gen);
    r->kind = (uint8_t)kind;
    r->flags = (uint8_t)((base < WH_CLOCK_KINDS ? base : 0) |
                         (wh_load_relaxed(&s->interval) > 0 ? WH_TRACE_PERIODIC : 0));
    return r;
}

/* The same, with the next due time. */
static inline wh_trace_record *wh_event_due(wh_clock *c, uint32_t slot, enum wh_trace_kind kind,
                                            uint32_t count)
{
    wh_trace_record *r = wh_event_begin(c, slot, kind, count);
    if (wh_likely(r != NULL))
        r->deadline_ns = wh_base_due(c, wh_timing_of(c, slot));
    return r;
}

/* The end of a timer whose slot already has another tenant. */
static inline void wh_event_vanished(wh_clock *c, uint32_t slot)
{
    wh_event_pending(&c->trace, (uint64_t)-1);
    wh_trace_record *r = wh_event_begin(c, slot, WH_TRACE_DROPPED, 1);
    if (r == NULL)
        return;
    r->deadline_ns = INT64_MAX;
    r->cookie = 0;
    r->payload_size = r->flags = 0;
    wh_trace_publish(&c->trace);
}

/* The same, if the clock has seen one there whose end is not recorded. */
static inline void wh_note_gone(wh_clock *c, uint32_t slot)
{
    if (!wh_traces(c) || c->trace.traced[slot].gen == 0)
        return;
    wh_event_vanished(c, slot);
    wh_step();
    c->trace.traced[slot].gen = 0;
    wh_step();
}

/* -- the beginning ----------------------------------------------------------------------------- */

/* From here on traced.gen names `gen`. A clock that dies before it has set link.gen is followed by
 * one that does all this again. */
static inline void wh_event_open(wh_clock *c, uint32_t slot, uint32_t gen, uint32_t version)
{
    wh_traced *known = &c->trace.traced[slot];
    if (wh_unlikely(known->gen != 0 && known->gen != gen)) {
        wh_event_vanished(c, slot);
        known->gen = 0;
    }
    if (wh_likely(known->gen == 0))
        wh_event_pending(&c->trace, 1);
    known->scheduled_ns = c->now[WH_CLOCK_BASE];
    known->version = version;
    wh_step();
    known->gen = gen;
    wh_step();
}

static inline void wh_event_scheduled(wh_clock *c, uint32_t slot, uint8_t found)
{
    wh_trace_record *r = wh_event_due(c, slot, WH_TRACE_SCHEDULED, 1);
    if (r == NULL)
        return;
    r->flags |= found;
    wh_trace_publish(&c->trace);
}

/* Record what changed since the last record. */
static inline void wh_note_moved(wh_clock *c, uint32_t slot, uint64_t state)
{
    if (!wh_traces(c))
        return;
    wh_traced *known = &c->trace.traced[slot];
    uint32_t count = wh_version_ahead(wh_state_version(state), known->version);
    if (wh_likely(count == 0) || known->gen != wh_state_gen(state) || wh_state_offered(state))
        return;
    if (wh_event_due(c, slot, WH_TRACE_RESCHEDULED, count))
        wh_trace_publish(&c->trace);
    wh_step();
    known->version = wh_state_version(state) | (known->version & WH_TRACED_TICK);
}

/* A timer that was cancelled before the clock met it finds the ring full: its beginning and its end
 * are lost in this one look, and nothing is to be known of it in between. False: there is more to
 * do. */
static inline bool wh_note_all_lost(wh_clock *c, uint32_t slot, uint64_t state)
{
    if (!wh_traces(c))
        return false;
    wh_trace *t = &c->trace;
    if (wh_state_version(state) != 0 || t->traced[slot].gen != 0 || wh_trace_room(t))
        return false;
    wh_count(&t->seg->counts[WH_TRACE_SCHEDULED], 1);
    wh_trace_lose(t, WH_TRACE_SCHEDULED, 1);
    wh_step();
    wh_link_begin(&c->wheel.links[slot], wh_state_gen(state));
    wh_count(&t->seg->counts[WH_TRACE_CANCELLED], 1);
    wh_trace_lose(t, WH_TRACE_CANCELLED, 1);
    return true;
}

/* The clock meets the timer of `state` for the first time, or for the first time after its death:
 * before link.gen names it, and after that. No worker arms generation 0: others have overwritten
 * that state. */
static inline void wh_note_met(wh_clock *c, uint32_t slot, uint64_t state)
{
    if (!wh_traces(c))
        return;
    if (wh_state_gen(state) != 0)
        wh_event_open(c, slot, wh_state_gen(state), 0);
    else
        wh_note_gone(c, slot);
}
static inline void wh_note_scheduled(wh_clock *c, uint32_t slot, uint64_t state)
{
    if (!wh_traces(c) || wh_state_gen(state) == 0)
        return;
    wh_event_scheduled(c, slot, 0);
    wh_note_moved(c, slot, state);
}

/* A new clock found the timer armed: if the trace is new to it, it begins here. */
static inline void wh_note_found(wh_clock *c, uint32_t slot, uint64_t state)
{
    if (!wh_traces(c))
        return;
    uint32_t gen = wh_state_gen(state);
    if (gen == 0 || c->trace.traced[slot].gen == gen)
        return;
    wh_event_open(c, slot, gen, wh_state_version(state));
    wh_event_scheduled(c, slot, WH_TRACE_FOUND);
}

/* -- ticks ------------------------------------------------------------------------------------- */

/* Before the version goes up with a tick: that is no change of the deadline. */
static inline void wh_note_ticks(wh_clock *c, uint32_t slot, uint64_t state)
{
    if (!wh_traces(c))
        return;
    wh_traced *known = &c->trace.traced[slot];
    wh_note_moved(c, slot, state);
    known->version = wh_state_version(wh_state_touch(state)) | (known->version & WH_TRACED_TICK);
    wh_step();
}

/* It failed: another compare-and-swap came first. */
static inline void wh_note_no_tick(wh_clock *c, uint32_t slot)
{
    if (!wh_traces(c))
        return;
    wh_traced *known = &c->trace.traced[slot];
    known->version = ((known->version - 1) & WH_VERSION_MASK) | (known->version & WH_TRACED_TICK);
}

/* A new clock repeats a tick: was it recorded? */
static inline void wh_note_tick_again(wh_clock *c, uint32_t slot)
{
    if (!wh_traces(c))
        return;
    wh_traced *known = &c->trace.traced[slot];
    uint32_t version = wh_state_version(wh_load_relaxed(&c->states[slot]));
    if (known->gen == c->wheel.links[slot].gen &&
        ((version - known->version) & WH_VERSION_MASK) <= WH_VERSION_MASK / 2)
        known->version |= WH_TRACED_TICK;
}

/* -- the end ----------------------------------------------------------------------------------- */

/* Record an expiration that was just put into a ring; a receiver other than the owner is named. */
static inline void wh_note_expired(wh_clock *c, uint32_t slot, const wh_completion *record,
                                   const wh_peer *to, bool tick)
{
    if (!wh_traces(c))
        return;
    wh_traced *known = &c->trace.traced[slot];
    if (known->gen == 0 || known->gen != c->wheel.links[slot].gen)
        return;
    if (tick && known->version & WH_TRACED_TICK) {
        known->version &= ~WH_TRACED_TICK;
        return;
    }
    if (!tick) {
        wh_note_moved(c, slot, wh_load_relaxed(&c->states[slot]));
        wh_event_pending(&c->trace, (uint64_t)-1);
    }
    wh_trace_record *r = wh_event_begin(c, slot, WH_TRACE_EXPIRED, 1);
    if (wh_likely(r != NULL)) {
        r->time_ns = record->fired;
        r->deadline_ns = record->deadline;
        r->missed = record->missed;
        uint16_t row = (uint16_t)wh_peer_index(c, to);
        bool own = r->worker == row && r->incarnation == (uint32_t)to->incarnation;
        r->receiver = own ? WH_NO_ROW : row;
        wh_trace_publish(&c->trace);
    }
    wh_step();
    if (!tick)
        known->gen = 0;
}

/* Record an end without an expiration, if none is recorded yet. */
static inline void wh_note_end(wh_clock *c, uint32_t slot, enum wh_trace_kind kind)
{
    if (!wh_traces(c))
        return;
    wh_traced *known = &c->trace.traced[slot];
    uint64_t state = wh_load_relaxed(&c->states[slot]);
    if (known->gen == 0)
        return;
    if (wh_unlikely(known->gen != wh_state_gen(state))) {
        wh_event_vanished(c, slot);
    } else {
        wh_note_moved(c, slot, state);
        wh_event_pending(&c->trace, (uint64_t)-1);
        if (wh_event_due(c, slot, kind, 1))
            wh_trace_publish(&c->trace);
    }
    wh_step();
    known->gen = 0;
}

/* A slot whose owner is gone is cancelled, by the clock just now if it was still armed. */
static inline void wh_note_reclaimed(wh_clock *c, uint32_t slot, uint32_t gen, bool dropped)
{
    if (!wh_traces(c))
        return;
    uint64_t state = wh_load_relaxed(&c->states[slot]);
    if (gen == 0 || wh_state(gen, WH_CANCELLED) != (state & ~WH_MASK(STATE_TAKER)))
        return;
    if (c->wheel.links[slot].gen != gen) { /* armed, but never submitted */
        wh_event_open(c, slot, gen, 0);
        wh_event_scheduled(c, slot, 0);
    }
    wh_note_end(c, slot, dropped ? WH_TRACE_DROPPED : WH_TRACE_CANCELLED);
}

#endif
