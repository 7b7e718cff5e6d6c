/* Grant: slots for workers that find none.
 *
 * Idea. A worker marks the owner word of each slab that it does not use right now as parked. It
 * uses nothing of a parked slab before it has removed the mark by compare-and-swap. So when a
 * worker asks for slots, the clock may split a parked slab (free_list.h): slots that are neither
 * armed nor on their way go into the free list, without a call of the owner, which finds out when
 * it tries to unpark the slab.
 *
 *     owner                                    clock
 *     CAS  A|parked -> A                       CAS    A|parked -> A|parked|taking
 *       done: what is free of it is mine       read the slots, write their holders
 *       else: it is split, or another's        CAS    A|parked|taking -> WH_SPLIT
 *
 * Invariants
 *  1. Only the clock sets `taking`, and unparking removes it: if the slab was unparked meanwhile,
 *     even if it was parked again, the second compare-and-swap fails.
 *  2. The clock also takes back returns that the owner has not yet read. Their entries stay in the
 *     ring: the owner accepts an entry for a split slab only if the slot's holder names this very
 *     position, and reads the ring to its end after it has claimed a slab. Before the slab gets
 *     another owner in other ways, the ring must be past `stale_until`.
 *  3. An expiration that the owner has not read keeps its slot; it is on loan to the owner from
 *     then on.
 *  4. A parked slab whose mark in `ended` is 0 has nothing to take.
 *  5. A slab that is reserved for one worker (its home) is not taken over.
 *  6. Nothing is taken over while slabs without memory can be given some (backing.h).
 */
#ifndef WHEELD_GRANT_H
#define WHEELD_GRANT_H

#include "wheeld/clock/backlog.h"

#define WH_GRANT_LOOKS 64   /* slabs examined per worker and pass */
#define WH_GRANT_SLOTS 4096 /* slots handed over per worker and pass */

/* The fate of a slab's slots when it is split: one bit each. */
typedef struct wh_sorted {
    uint64_t idle;   /* free: to the free list */
    uint64_t unread; /* fired, but not yet read by the owner */
} wh_sorted;

static inline void wh_sort_slot(wh_clock *c, uint32_t slot, const wh_peer *owner, wh_sorted *sorted)
{
    const wh_link *link = &c->wheel.links[slot];
    uint64_t bit = 1ull << (slot & (WH_SLAB_SLOTS - 1)),
             position = wh_completion_position(link->completion);
    uint64_t state = wh_load_acquire(&c->states[slot]); /* pairs: arm, cancel, fire */
    bool theirs = wh_stage_worker(link) == wh_peer_index(c, owner);
    if (wh_state_phase(state) == WH_ARMED || wh_state_gen(state) != link->gen)
        return;
    switch (wh_stage_of(link)) {
    case WH_STAGE_OPEN:
        sorted->idle |= link->gen == 0 ? bit : 0; /* never used, or not handled yet */
        break;
    case WH_STAGE_EXPIRED:
        if (theirs && !wh_pos_before(position, owner->comp_head))
            sorted->unread |= bit;
        else
            sorted->idle |= bit;
        break;
    case WH_STAGE_RETURNED:
    case WH_STAGE_WAIT_RETURN:
    case WH_STAGE_RECLAIMED:
        sorted->idle |= bit;
        break;
    default:
        break;
    }
}

/* Free the slots of a slab that has just been split. */
static inline void wh_split_slots(wh_clock *c, uint32_t slab, wh_peer *owner, wh_sorted sorted)
{
    wh_free_list_split(c, slab);
    owner->stale_until = owner->ret_tail;
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++) {
        uint32_t slot = slab << WH_SLAB_BITS | i;
        wh_link *link = &c->wheel.links[slot];
        if (sorted.unread >> i & 1) {
            link->completion =
                wh_completion_word(WH_STAGE_LENT, wh_stage_worker(link), link->completion);
            wh_list_append(&c->wheel, wh_lent_list(c, owner), slot);
        } else if (sorted.idle >> i & 1) {
            wh_free_list_put(c, slot);
        }
    }
}

static inline wh_sorted wh_sort_slab(wh_clock *c, uint32_t slab, wh_peer *owner)
{
    wh_sorted sorted = {0, 0};
    owner->comp_head = wh_load_acquire(&owner->seg->comp_head); /* pairs: comp-head */
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
        wh_sort_slot(c, slab << WH_SLAB_BITS | i, owner, &sorted);
    return sorted;
}

/* Examine one slab for `asker`, which uses its own anyway. False: check again at the next
 * request. */
static inline bool wh_take_over(wh_clock *c, uint32_t slab, const wh_peer *asker)
{
    uint64_t word = wh_load_acquire(&c->owners[slab]); /* pairs: slab */
    wh_peer *owner = wh_peer_of(c, wh_owner_worker(word), wh_owner_incarnation(word));
    if (wh_is_split(c, slab) || slab >= c->shared_slabs)
        return true;
    if (owner == NULL || owner->life < WH_PEER_ABSENT || !(word & WH_PARKED))
        return false;
    if (owner != asker && !(word & WH_TAKING) &&
        !wh_cas_acq_rel(&c->owners[slab], &word, word | WH_TAKING)) /* pairs: slab */
        return false;
    word |= WH_TAKING;
    wh_publish(c, owner); /* whoever claims the slab next finds all its entries in the ring */
    wh_sorted sorted = wh_sort_slab(c, slab, owner);
    if (!(sorted.idle | sorted.unread))
        return true;
    if (owner == asker)
        return false;
    for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++)
        if (sorted.idle >> i & 1)
            wh_store_relaxed(&c->free_list.holders[slab << WH_SLAB_BITS | i], 0);
        else
            wh_free_list_hold(c, slab << WH_SLAB_BITS | i, owner);
    /* pairs: slab - a worker that sees that it is split also sees its holders */
    if (!wh_cas_acq_rel(&c->owners[slab], &word, WH_SPLIT))
        return false;
    wh_split_slots(c, slab, owner, sorted);
    return true;
}

/* The next slab from `slab` on that may have a free slot; WH_NIL: none. */
static inline uint32_t wh_next_ended(const wh_clock *c, uint32_t slab)
{
    uint32_t slabs = c->wheel.capacity >> WH_SLAB_BITS;
    for (uint64_t eight; slab < slabs; slab = (slab | 7) + 1) {
        memcpy(&eight, c->free_list.ended + (slab & ~7u), sizeof eight);
        for (; eight && slab < slabs; slab++) {
            if (c->free_list.ended[slab])
                return slab;
            if ((slab & 7) == 7)
                break;
        }
    }
    return WH_NIL;
}

/* Can `peer` have what it asks for, perhaps as whole slabs that it may claim? */
static inline bool wh_can_grant(const wh_clock *c, const wh_peer *peer)
{
    uint64_t whole = (c->free_list.slabs_freed - peer->freed_before) * WH_SLAB_SLOTS;
    return c->free_list.slots + whole >= peer->ask_left;
}

/* Reserve memory for some more slabs, or fewer if there is less. False: there is no room. */
static inline wh_cold bool wh_back_some(wh_clock *c)
{
    wh_config config = wh_config_of(c->seg);
    wh_geometry g = wh_geometry_of(&config);
    for (uint32_t step = wh_back_step(config.payload_bytes); step; step /= 16) {
        uint32_t first = c->backed, left = c->shared_slabs - first,
                 end = first + (step < left ? step : left);
        wh_span wheel[WH_SPANS], slots[WH_SPANS];
        wh_wheel_spans(&g, first, end, wheel);
        wh_slots_spans(&g, config.payload_bytes, first, end, slots);
        if (!wh_room_for(c->in_slots.fd, (end - first) * wh_slab_bytes(config.payload_bytes)) ||
            !wh_reserve(&c->in_wheel, wheel) || !wh_reserve(&c->in_slots, slots))
            continue;
        wh_open_slabs(c->seg, c->wheel.links, first, end);
        c->backed = end;
        c->free_list.slabs_freed += end - first;
        wh_fetch_add_seq(c->freed, 1); /* pairs: freed */
        return true;
    }
    c->back_until = 0;
    return false;
}

/* Somebody needs more: reserve some at once, and a quarter of all that there are in the passes to
 * come, so that others need not ask for the next ones. */
static inline bool wh_back_more(wh_clock *c)
{
    uint64_t until = (uint64_t)c->backed + c->backed / 4;
    c->back_until = until < c->shared_slabs ? (uint32_t)until : c->shared_slabs;
    return wh_back_some(c);
}

/* -- memory for the payload heap --------------------------------------------------------------- */

#define WH_HEAP_STEP 16u /* chunks: 1 MiB */

/* Reserve memory for the heap's chunks before `end`, or for fewer. False: there is no room. */
static inline wh_cold bool wh_back_heap(wh_clock *c, uint32_t end)
{
    wh_config config = wh_config_of(c->seg);
    wh_geometry g = wh_geometry_of(&config);
    uint32_t first = wh_load_relaxed(&c->seg->heap_backed);
    end = end < config.heap_chunks ? end : config.heap_chunks;
    for (; end > first; end = first + (end - first) / 4) {
        uint64_t bytes = (uint64_t)(end - first) * WH_CHUNK_BYTES;
        wh_span spans[WH_SPANS] = {{g.heap_off + (uint64_t)first * WH_CHUNK_BYTES, bytes}};
        if (!wh_room_for(c->in_slots.fd, bytes) || !wh_reserve(&c->in_slots, spans))
            continue;
        wh_store_release(&c->seg->heap_backed, end); /* pairs: heap-backed */
        return true;
    }
    return false;
}

static inline bool wh_heap_asks(const wh_clock *c)
{
    /* pairs: heap-asked */
    return wh_load_seq(c->heap_asked) != wh_load_relaxed(&c->seg->heap_answered);
}

/* How many to reserve at a time: a quarter of those that there are. */
static inline uint32_t wh_heap_step(uint32_t backed)
{
    return backed / 4 > WH_HEAP_STEP ? backed / 4 : WH_HEAP_STEP;
}

/* Answer who asks for chunks; and let some be ahead of need. */
static inline void wh_grant_heap(wh_clock *c)
{
    uint64_t asked = wh_load_seq(c->heap_asked); /* pairs: heap-asked */
    uint32_t backed = wh_load_relaxed(&c->seg->heap_backed), more = backed + wh_heap_step(backed);
    uint32_t wanted = wh_ask_size(asked);
    if (wh_unlikely(asked != wh_load_relaxed(&c->seg->heap_answered))) {
        (void)wh_back_heap(c, wanted > more && wanted <= c->heap.count ? wanted : more);
        wh_store_release(&c->seg->heap_answered, asked); /* pairs: heap-asked */
    } else if (wh_unlikely(wh_load_relaxed(c->heap.top) + wh_heap_step(backed) / 2 > backed) &&
               backed != c->heap_full) {
        if (!wh_back_heap(c, more))
            c->heap_full = backed; /* a file system without room is not asked in every pass */
    }
}

/* -- slots ------------------------------------------------------------------------------------- */

/* Take slabs over until that is so. False: there are more to examine in the next pass. */
static inline bool wh_free_list_fill(wh_clock *c, wh_peer *peer)
{
    uint32_t slab;
    if (!wh_can_grant(c, peer) && c->backed < c->shared_slabs && wh_back_more(c) &&
        !wh_can_grant(c, peer))
        return false;
    for (uint32_t looks = 0; !wh_can_grant(c, peer); looks++) {
        if ((slab = wh_next_ended(c, peer->look_slab)) == WH_NIL)
            return true;
        if (looks == WH_GRANT_LOOKS)
            return false;
        peer->look_slab = slab + 1;
        if (wh_take_over(c, slab, peer))
            c->free_list.ended[slab] = 0;
    }
    return true;
}

/* Hand over slots from the free list. False: there is more to do in the next pass. */
static inline bool wh_hand_some(wh_clock *c, wh_peer *peer)
{
    uint32_t slot;
    for (uint32_t given = 0; peer->ask_left && wh_peer_return_room(c, peer);
         given++, peer->ask_left--) {
        if (given == WH_GRANT_SLOTS)
            return false;
        if ((slot = wh_free_list_take(c)) == WH_NIL)
            return true;
        wh_put_returned(c, peer, slot);
        wh_count(&c->seg->handed, 1);
    }
    return true;
}

static inline bool wh_asks(const wh_peer *peer)
{
    return peer->life == WH_PEER_PRESENT &&
           wh_load_seq(&peer->seg->asked) != peer->answered; /* pairs: asked */
}

/* Serve a part of `peer`'s request. True: there is more to do. */
static inline bool wh_grant(wh_clock *c, wh_peer *peer)
{
    uint64_t asked = wh_load_seq(&peer->seg->asked); /* pairs: asked */
    if (asked != peer->asked) {
        uint32_t most = c->wheel.capacity, wanted = wh_ask_size(asked);
        peer->asked = asked;
        peer->look_slab = 0;
        peer->freed_before = c->free_list.slabs_freed;
        peer->ask_left = wanted < most ? wanted : most;
    }
    uint64_t ret_head = wh_load_acquire(&peer->seg->ret_head); /* pairs: ret-head */
    if (peer->ret_tail != ret_head && !(asked & WH_ASK_ALL))
        peer->ask_left = 0; /* something was just returned to it */
    if (!wh_free_list_fill(c, peer))
        return true;
    if (asked & WH_ASK_ALL && !wh_can_grant(c, peer))
        peer->ask_left = 0;
    if (!wh_hand_some(c, peer))
        return true;
    wh_publish(c, peer);
    wh_store_release(&peer->port->answered, asked); /* pairs: asked - its slots are in the ring */
    peer->answered = asked;
    return false;
}

#endif
