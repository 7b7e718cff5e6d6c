/* Recover: a new clock first puts the memory of a dead one in order.
 *
 * Idea. None of the wheel's lists is trusted: they are rebuilt from the slots, whose state and link
 * record say where each timer is. Events that were decided but not published are queued, in a
 * backlog or among the returns, and the ordinary passes deliver them. Recovery puts nothing into a
 * ring and moves no tail, so that a clock that dies in it is followed by the very same scan.
 *
 *     S2, S3, S4     link it (states.h): its submission may come, or never
 *     S5, S6         return it
 *     S7, S13, S16   back into that list or queue
 *     S8, S9, S12    below the tail: delivered, on loan if another must read it; else queue it
 *     S10            leave it to the taker; if that is gone: FIRED
 *     S17            link it; a cancelled one is returned
 *     S11            return it
 *     S14            below the tail: its owner's, or will be; unread by another: hand it over
 *     S1, S15        its owner's
 *
 * Called once, after all workers were attached, including those that have died meanwhile. It reads
 * every slot of owned slabs, and sorts what waits. The heartbeat continues however long that takes,
 * so that the clock is not taken for a hung one.
 */
#ifndef WHEELD_RECOVER_H
#define WHEELD_RECOVER_H

#include "wheeld/loop/pass.h"

typedef struct wh_recovery {
    wh_clock *clock;
    uint32_t *waiting; /* slots for backlogs and loans, to be sorted */
    uint64_t count;
    uint64_t steps; /* work done since it began, of any kind */
    int64_t first_due; /* of all armed timers */
} wh_recovery;

#define WH_BEAT_STEPS 16384 /* a few milliseconds at most */

static inline void wh_recover_step(wh_recovery *r)
{
    if (wh_likely(++r->steps % WH_BEAT_STEPS))
        return;
    wh_clock *c = r->clock;
    int64_t last = wh_load_relaxed(&c->seg->heartbeat);
    wh_store_relaxed(&c->seg->heartbeat, c->read_time ? c->read_time(WH_CLOCK_BASE) : last + 1);
}

static inline bool wh_published(const wh_clock *c, const wh_link *link)
{
    return wh_pos_before(wh_completion_position(link->completion),
                         c->peers[wh_stage_worker(link)].comp_tail);
}

/* The worker that the record's stage names, or NULL. If it is dying, the reaper handles the events
 * that go to it now. */
static inline wh_peer *wh_stage_peer(const wh_clock *c, const wh_link *link)
{
    uint32_t worker = wh_stage_worker(link);
    wh_peer *peer = worker < c->max_workers ? &c->peers[worker] : NULL;
    return peer && peer->life ? peer : NULL;
}

/* -- link.due before ticks that were not published --------------------------------------------- */

static inline void wh_recover_tick(wh_clock *c, const wh_undo *undo)
{
    wh_link *link = &c->wheel.links[undo->slot];
    /* The lowest: of several ticks the first; and INT64_MIN, if one of them was the first after a
     * move, for MOVED is gone with it. */
    link->due = undo->due < link->due ? undo->due : link->due;
    wh_note_tick_again(c, undo->slot);
}

static inline void wh_recover_undo(wh_clock *c)
{
    uint64_t used = wh_load_relaxed(&c->seg->undo_used);
    for (uint64_t i = used < WH_UNDO_ENTRIES ? used : WH_UNDO_ENTRIES; i-- > 0;) {
        const wh_undo *undo = &c->undo[i];
        if (undo->slot >= c->wheel.capacity)
            continue;
        wh_link *link = &c->wheel.links[undo->slot];
        if (link->gen == undo->gen && wh_stage_of(link) == WH_STAGE_TICKED &&
            wh_stage_worker(link) < c->max_workers && !wh_published(c, link))
            wh_recover_tick(c, undo);
    }
}

/* -- one slot ---------------------------------------------------------------------------------- */

static inline void wh_recover_wait(wh_recovery *r, uint32_t slot, enum wh_stage stage,
                                   wh_peer *peer)
{
    wh_clock *c = r->clock;
    if (peer == NULL) { /* nobody's, and who was to read it is gone */
        wh_deliver_fired(c, slot, WH_GROUPS, NULL, NULL);
        return;
    }
    c->wheel.links[slot].completion = wh_completion_word(stage, wh_peer_index(c, peer), 0);
    r->waiting[r->count++] = slot;
}

static inline void wh_recover_armed(wh_recovery *r, uint32_t slot, const wh_peer *owner)
{
    wh_clock *c = r->clock;
    wh_link *link = &c->wheel.links[slot];
    wh_peer *to = wh_stage_peer(c, link);
    enum wh_stage stage = wh_stage_of(link);
    if (stage == WH_STAGE_WAIT_TICK && to) {
        wh_recover_wait(r, slot, stage, to);
        return;
    }
    if (stage == WH_STAGE_TICKED && to) {
        if (!wh_published(c, link)) /* undone: give it no position that other records may have */
            link->completion = wh_completion_word(stage, wh_stage_worker(link), to->comp_tail - 1);
    } else if (stage != WH_STAGE_OPEN) {
        if (owner == NULL)
            owner = wh_adopt(c, slot); /* given back by its taker, and nobody's */
        if (wh_stage_over(stage)) {
            wh_count_attempt(c, slot);
            link->due = INT64_MIN;
        }
        wh_step();
        link->completion = 0;
    }
    int64_t due = wh_slot_due(c, slot);
    r->first_due = due < r->first_due ? due : r->first_due;
    /* by its own tick, even if that has passed: late timers keep their order */
    uint32_t shard = owner ? wh_shard_of(c, owner) : 0; /* it looked fired just now, and on loan */
    wh_place(c, slot, shard, wh_timing_of(c, slot), INT64_MIN);
}

/* It has ended and is unused: return it to its owner, or to the free list. */
static inline void wh_recover_home(wh_clock *c, wh_peer *owner, uint32_t slot)
{
    wh_end_payload(c, slot);
    wh_detached_end(c, slot);
    if (wh_is_split(c, slot >> WH_SLAB_BITS))
        wh_free_list_put(c, slot);
    else
        wh_to_returns(c, owner, slot);
}

/* Fired: was it delivered, is it on loan, or is it still to be sent? */
static inline void wh_recover_sent(wh_recovery *r, uint32_t slot, wh_peer *owner, bool fired)
{
    wh_clock *c = r->clock;
    wh_link *link = &c->wheel.links[slot];
    wh_peer *to = wh_stage_peer(c, link);
    bool lent = wh_stage_of(link) == WH_STAGE_LENT;
    if (wh_is_split(c, slot >> WH_SLAB_BITS) && to) { /* its slab was being split */
        lent = true;
        link->completion =
            wh_completion_word(WH_STAGE_LENT, wh_stage_worker(link), link->completion);
    }
    bool out = wh_stage_worker(link) < c->max_workers && wh_published(c, link);
    bool unread = to && wh_unread(c, link);
    if (out && lent && unread)
        r->waiting[r->count++] = slot;
    else if (out && lent)
        wh_recover_home(c, owner, slot);
    else if ((out && to == owner) || (!lent && !unread))
        return; /* in its owner's ring, or with its owner */
    else if (fired)
        wh_recover_wait(r, slot, WH_STAGE_WAIT_EXPIRE, wh_route_again(c, slot, owner));
    else
        wh_recover_home(c, owner, slot); /* cancelled before the step to FIRED */
}

/* Offered, but not taken: it stays with the worker it was last offered to, if that can still read
 * it. */
static inline void wh_recover_offered(wh_recovery *r, uint32_t slot, wh_peer *owner, bool fired)
{
    wh_clock *c = r->clock;
    const wh_link *link = &c->wheel.links[slot];
    if (fired)
        wh_unbind(c, slot);
    if (!fired)
        wh_recover_home(c, owner, slot); /* done, or cancelled before the step to FIRED */
    else if (wh_stage_peer(c, link) && wh_published(c, link) && wh_unread(c, link))
        r->waiting[r->count++] = slot;
    else
        wh_recover_wait(r, slot, WH_STAGE_WAIT_EXPIRE, wh_route_again(c, slot, owner));
}

/* An offer that a worker has taken stays with it; if that worker is gone, another one gets it. */
static inline void wh_recover_taken(wh_recovery *r, uint32_t slot, wh_peer *owner, uint64_t state)
{
    wh_clock *c = r->clock;
    wh_peer *taker = wh_taker_peer(c, state);
    if (taker) {
        c->wheel.links[slot].completion =
            wh_completion_word(WH_STAGE_OFFERED, wh_peer_index(c, taker), taker->comp_tail - 1);
        r->waiting[r->count++] = slot;
        /* unless he was given up, lives, and is done with it */
    } else if (wh_untake(c, slot, state, WH_FIRED)) {
        wh_recover_wait(r, slot, WH_STAGE_WAIT_EXPIRE, wh_route_again(c, slot, owner));
    } else {
        wh_recover_home(c, owner, slot);
    }
}

/* Is it in its owner's return ring, or in the ring of the dead worker that had it? */
static inline void wh_recover_returned(wh_recovery *r, uint32_t slot, wh_peer *owner)
{
    wh_link *link = &r->clock->wheel.links[slot];
    wh_peer *to = wh_stage_peer(r->clock, link);
    uint64_t position = wh_completion_position(link->completion);
    bool out = to && wh_pos_before(position, to->ret_tail);
    bool unread = to && !wh_pos_before(position, to->ret_head);
    if (to == owner ? !out : unread)
        wh_to_returns(r->clock, owner, slot);
}

static inline void wh_recover_over(wh_recovery *r, uint32_t slot, wh_peer *owner, bool fired)
{
    wh_clock *c = r->clock;
    wh_peer *to = wh_stage_peer(c, &c->wheel.links[slot]);
    switch (wh_stage_of(&c->wheel.links[slot])) {
    case WH_STAGE_WAIT_EXPIRE:
        if (fired)
            wh_recover_wait(r, slot, WH_STAGE_WAIT_EXPIRE, to ? to : wh_route_of(c, slot, owner));
        else
            wh_recover_home(c, owner, slot);
        break;
    case WH_STAGE_LENT:
    case WH_STAGE_EXPIRED:
        wh_recover_sent(r, slot, owner, fired);
        break;
    case WH_STAGE_OFFERED:
        wh_recover_offered(r, slot, owner, fired);
        break;
    case WH_STAGE_HANDED:
        wh_clear_payload(c, slot);
        wh_to_returns(c, owner, slot);
        break;
    case WH_STAGE_WAIT_RETURN:
        wh_to_returns(c, owner, slot);
        break;
    case WH_STAGE_RETURNED:
        wh_recover_returned(r, slot, owner);
        break;
    default:
        break; /* reclaimed: its owner has it */
    }
}

/* One slot of a slab that `owner`, who is attached and not dying, holds; NULL: it is nobody's. */
static inline wh_cold void wh_recover_slot(wh_recovery *r, uint32_t slot, wh_peer *owner)
{
    wh_clock *c = r->clock;
    wh_link *link = &c->wheel.links[slot];
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel, fire */
    uint32_t phase = wh_state_phase(state);
    if (link->gen != wh_state_gen(state)) {
        if (phase != WH_ARMED && phase != WH_CANCELLED) {
            /* no correct worker does this: others have overwritten the state */
            wh_forget(c, slot);
            return;
        }
        wh_first_sight(c, slot, state);
    } else if (phase == WH_ARMED) {
        wh_note_found(c, slot, state);
    }
    if (phase == WH_ARMED || wh_stage_offers(wh_stage_of(link)))
        wh_detached_begin(c, slot);
    if (phase == WH_CANCELLED)
        wh_note_end(c, slot, WH_TRACE_CANCELLED);
    if (phase == WH_ARMED)
        wh_recover_armed(r, slot, owner);
    else if (phase == WH_TAKEN && wh_stage_offers(wh_stage_of(link)))
        wh_recover_taken(r, slot, owner, state);
    else if (wh_stage_over(wh_stage_of(link)))
        wh_recover_over(r, slot, owner, phase == WH_FIRED);
    else if (phase == WH_CANCELLED)
        wh_recover_home(c, owner, slot);
}

/* Was it on loan when its owner ended? */
static inline bool wh_recovers_loose(const wh_clock *c, uint32_t slot)
{
    const wh_link *link = &c->wheel.links[slot];
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: fire, offer */
    enum wh_stage stage = wh_stage_of(link);
    return wh_is_loose(c, slot) && wh_state_gen(state) == link->gen &&
           (wh_state_phase(state) >= WH_FIRED || wh_state_phase(state) == WH_ARMED) &&
           (wh_stage_out(stage) || stage == WH_STAGE_WAIT_EXPIRE);
}

/* Each slot of a split slab: its holder's, on loan, or in the free list. */
static inline void wh_recover_split(wh_recovery *r, uint32_t slab)
{
    wh_clock *c = r->clock;
    wh_free_list_split(c, slab);
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++) {
        uint32_t slot = slab << WH_SLAB_BITS | i;
        wh_peer *holder = wh_holder_of(c, slot);
        if (holder || wh_recovers_loose(c, slot)) {
            wh_recover_slot(r, slot, holder);
        } else {
            wh_end_orphan(c, slot);
            wh_free_list_put(c, slot);
        }
    }
}

/* Not in use: where others have truncated the states, the next owner counts generations
 * anew, and the clock would take what it knows of the last timer for that of the next. */
static inline void wh_recover_free(wh_clock *c, uint32_t slab)
{
    for (uint32_t slot = slab << WH_SLAB_BITS, i = 0; i < WH_SLAB_SLOTS; i++, slot++)
        if (wh_load_relaxed(&c->states[slot]) == 0)
            wh_forget(c, slot);
}

/* -- all of them ------------------------------------------------------------------------------- */

static inline void wh_recover_lists(wh_recovery *r)
{
    wh_clock *c = r->clock;
    wh_wheel *w = &c->wheel;
    wh_wheel_reset(w, w->tick);
    for (uint32_t slab = 0; slab < w->capacity >> WH_SLAB_BITS; slab++)
        for (uint32_t i = 0; wh_slab_there(c, slab) && i < WH_SLAB_SLOTS; i++, wh_recover_step(r))
            w->links[slab << WH_SLAB_BITS | i].list = WH_NIL;
    for (uint32_t list = 0; list < w->buckets + 3 * c->max_workers; list++)
        wh_list_reset(w, list);
}

/* Events that wait go by their due time; loans stand in the order of the ring. */
static inline uint64_t wh_recover_key(const wh_clock *c, const wh_link *link)
{
    if (!wh_stage_out(wh_stage_of(link)))
        return (uint64_t)link->due ^ 1ull << 63; /* signed order as unsigned */
    uint64_t behind = c->peers[wh_stage_worker(link)].comp_tail - link->completion;
    return wh_completion_position(~behind);
}

static inline wh_cold int wh_recover_order(const void *left, const void *right, void *context)
{
    wh_recovery *r = context;
    const wh_clock *c = r->clock;
    const wh_link *a = &c->wheel.links[*(const uint32_t *)left];
    const wh_link *b = &c->wheel.links[*(const uint32_t *)right];
    bool lent_a = wh_stage_out(wh_stage_of(a)), lent_b = wh_stage_out(wh_stage_of(b));
    uint64_t key_a = wh_recover_key(c, a), key_b = wh_recover_key(c, b);
    wh_recover_step(r);
    return lent_a != lent_b ? lent_a - lent_b : (key_a > key_b) - (key_a < key_b);
}

static inline void wh_recover_waiting(wh_recovery *r)
{
    wh_clock *c = r->clock;
    qsort_r(r->waiting, r->count, sizeof *r->waiting, wh_recover_order, r);
    for (uint64_t i = 0; i < r->count; i++, wh_recover_step(r)) {
        const wh_link *link = &c->wheel.links[r->waiting[i]];
        wh_peer *peer = &c->peers[wh_stage_worker(link)];
        if (wh_stage_of(link) == WH_STAGE_OFFERED)
            wh_offer_note(c, r->waiting[i], wh_group_of(c, r->waiting[i]), peer);
        uint64_t state = wh_load_acquire(&c->states[r->waiting[i]]); /* pairs: offer */
        if (wh_stage_of(link) == WH_STAGE_OFFERED && wh_has_taken(c, state, peer))
            wh_list_append(&c->wheel, wh_hand_list(c, peer), r->waiting[i]);
        else if (wh_stage_out(wh_stage_of(link)))
            wh_list_append(&c->wheel, wh_lent_list(c, peer), r->waiting[i]);
        else
            wh_to_backlog(c, peer, r->waiting[i], wh_stage_of(link), wh_group_of(c, r->waiting[i]));
    }
    wh_count(&c->seg->recovered, r->count);
}

/* How late the first timer is that fell due without a clock. A timer that was armed for a time
 * before the last clock's last pass is late only since that pass: it was armed after it. */
static inline void wh_recover_lateness(wh_recovery *r)
{
    wh_clock *c = r->clock;
    int64_t stood = (int64_t)c->wheel.tick * c->wheel.tick_ns;
    int64_t late = c->now[WH_CLOCK_BASE] - (r->first_due > stood ? r->first_due : stood);
    if (late > 0 && (uint64_t)late > wh_load_relaxed(&c->seg->wake_late_ns) &&
        r->first_due < INT64_MAX)
        wh_store_relaxed(&c->seg->wake_late_ns, (uint64_t)late);
}

/* Rebuild the wheel from the slots. False: out of memory, and nothing was touched. */
static inline wh_cold bool wh_clock_recover(wh_clock *c)
{
    wh_recovery r = {.clock = c,
                     .first_due = INT64_MAX,
                     .waiting = malloc(sizeof(uint32_t) * c->wheel.capacity)};
    if (r.waiting == NULL)
        return false;
    wh_awake(c); /* a ring from here on is for this clock */
    wh_store_seq(&c->seg->offered, c->offered = 0); /* pairs: offered */
    wh_recover_lists(&r);
    wh_recover_undo(c);
    wh_step(); /* the scan rewrites the words that decide which undo entries count */
    for (uint32_t slab = 0; slab < c->wheel.capacity >> WH_SLAB_BITS; slab++) {
        if (!wh_slab_there(c, slab))
            continue;
        uint64_t word = wh_load_acquire(&c->owners[slab]); /* pairs: slab */
        if (word == WH_SPLIT) {
            wh_recover_split(&r, slab);
            continue;
        }
        if (word == 0) {
            wh_recover_free(c, slab);
            continue;
        }
        wh_peer *owner = wh_peer_of(c, wh_owner_worker(word), wh_owner_incarnation(word));
        if (owner == NULL)
            wh_free_orphan(c, slab);
        for (uint32_t i = 0; owner && i < WH_SLAB_SLOTS; i++, wh_recover_step(&r))
            wh_recover_slot(&r, slab << WH_SLAB_BITS | i, owner);
    }
    wh_recover_waiting(&r);
    wh_recover_lateness(&r);
    free(r.waiting);
    wh_step();
    wh_store_relaxed(&c->seg->undo_used, 0);
    wh_mirror(c);
    for (uint32_t row = 0; row < c->peers_used; row++)
        if (c->peers[row].life)
            wh_bell_ring(c->peers[row].bell); /* the old clock may have published without ringing */
    return true;
}

#endif
