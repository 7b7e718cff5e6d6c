/* Free list: free slots in the clock's hands, for workers that find none (grant.h).
 *
 * Idea. A slab belongs to one worker as a whole until another is short of slots. Then the clock
 * splits it: the slab's owner word says WH_SPLIT, and `holders` names the holder of each slot, or
 * none: such a slot is in the free list. A timer of a split slab comes home to the clock at its
 * end, whichever worker held the slot. When all 64 are in the free list the slab has no owner
 * again, and any worker can claim it.
 *
 * Invariants
 *  1. A slot of a split slab is in the free list exactly if its holder is 0; that is stored before
 *     anything else says so, so a new clock rebuilds the free list from the holders. A slot that is
 *     on loan when its owner ends is nobody's: it comes to the free list when its reader has read
 *     it or is gone itself. Until then it is in that reader's list of loans or backlog.
 *  2. Only the clock writes the owner word of a split slab, and only to clear it. Whether
 *     it is split the clock knows by a mark of its own.
 */
#ifndef WHEELD_FREE_LIST_H
#define WHEELD_FREE_LIST_H

#include "wheeld/clock/events.h"

/* A slot of the slab may be free from here on. */
static inline void wh_free_list_ended(wh_clock *c, uint32_t slot)
{
    c->free_list.ended[slot >> WH_SLAB_BITS] = 1;
}

static inline void wh_free_list_split(wh_clock *c, uint32_t slab)
{
    c->free_list.split[slab] = 1;
    c->free_list.slabs_split++;
}

/* All of it is in the free list, so it has no owner. Stale entries of the stack are skipped. */
static inline void wh_free_list_unsplit(wh_clock *c, uint32_t slab)
{
    c->free_list.free[slab] = 0;
    c->free_list.slots -= slab < c->shared_slabs ? WH_SLAB_SLOTS : 0;
    c->free_list.slabs_split--;
    c->free_list.slabs_freed += slab < c->shared_slabs;
    c->free_list.split[slab] = 0;
    wh_free_slab(c, slab);
}

/* Set the holder of a slot that is in no return ring. */
static inline void wh_free_list_hold(wh_clock *c, uint32_t slot, const wh_peer *holder)
{
    wh_store_relaxed(&c->free_list.holders[slot],
                     wh_holder_word(wh_peer_index(c, holder), wh_holder_away(holder->ret_tail)));
}

/* Put it at the tail of its return ring; the record already says so. */
static inline void wh_free_list_hand(wh_clock *c, uint32_t slot, const wh_peer *holder)
{
    wh_step();
    wh_store_relaxed(&c->free_list.holders[slot],
                     wh_holder_word(wh_peer_index(c, holder), holder->ret_tail));
}

/* The timer of a split slab's slot has ended, and is in no list: take the slot into the free
 * list. */
static inline void wh_free_list_put(wh_clock *c, uint32_t slot)
{
    wh_free_list *s = &c->free_list;
    uint32_t slab = slot >> WH_SLAB_BITS;
    wh_link *link = &c->wheel.links[slot];
    wh_store_relaxed(&s->holders[slot], 0);
    wh_step();
    link->completion = wh_completion_word(WH_STAGE_RECLAIMED, 0, 0);
    link->gen = wh_state_gen(wh_load_acquire(&c->states[slot])); /* pairs: arm */
    s->free[slab] |= 1ull << (slot & (WH_SLAB_SLOTS - 1));
    s->slots += slab < c->shared_slabs; /* a home goes to nobody else: it waits until it is whole */
    if (s->free[slab] == ~0ull) {
        wh_free_list_unsplit(c, slab);
    } else if (slab < c->shared_slabs && !s->stacked[slab]) {
        s->stacked[slab] = 1;
        s->stack[s->stack_size++] = slab;
    }
}

/* A slot from the free list, or WH_NIL. */
static inline uint32_t wh_free_list_take(wh_clock *c)
{
    wh_free_list *s = &c->free_list;
    while (s->stack_size) {
        uint32_t slab = s->stack[s->stack_size - 1];
        uint64_t bits = s->free[slab];
        if (bits) {
            s->free[slab] = bits & (bits - 1);
            s->slots--;
            return slab << WH_SLAB_BITS | (uint32_t)__builtin_ctzll(bits);
        }
        s->stack_size--;
        s->stacked[slab] = 0;
    }
    return WH_NIL;
}

#endif
