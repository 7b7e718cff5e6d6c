/* Slabs: a worker's private view of the slots that it holds.
 *
 * Idea. A slab is 64 slots, claimed by one compare-and-swap on its owner word; the word names the
 * owner, so a worker that dies between claim and use leaks nothing. Which slots of a slab are free
 * is one private 64-bit word. Slots are handed out from a small magazine, lowest first, prefetched
 * when it is filled: the next schedule finds its cache line present.
 *
 * Invariants
 *  1. A set bit, or a place in the magazine, means: ours, and in no other hands.
 *  2. A slab goes back only when all 64 bits are set and some other slab is free too.
 *  3. A walk that found no unowned slab is not made again before one was given back: who gives one back
 *     counts it in `freed` afterwards, and for one that dies in between the clock does.
 *  4. All this is private memory of one process, used by one thread at a time.
 *  5. An owner word is changed by compare-and-swap only: from 0 to our name, and from our name to 0.
 */
#ifndef WHEELD_SLABS_H
#define WHEELD_SLABS_H

#include <stdlib.h>

#include "wheeld/slot.h"

#define WH_MAGAZINE 32

typedef struct wh_slabs {
    wh_au64 *owners; /* shared */
    wh_au64 *freed;  /* shared */
    wh_au64 *states; /* shared */
    wh_slot *slots;  /* shared; only for prefetching */
    uint64_t me;     /* our owner word */
    uint64_t *free;  /* a bit per slot */
    uint32_t *stack; /* slabs that may have free slots, each at most once */
    uint8_t *stacked;
    uint32_t count, stack_size;
    uint64_t none_at;    /* what `freed` said when a walk over all slabs found none, plus one */
    uint32_t cursor;     /* where to look for the next unowned slab */
    uint32_t empty;      /* slabs wholly free */
    uint32_t keep_empty; /* how many of those to keep */
    uint32_t magazine_size;
    uint32_t magazine[WH_MAGAZINE];
} wh_slabs;

static inline bool wh_slabs_init(wh_slabs *s, wh_au64 *owners, wh_au64 *freed, wh_au64 *states,
                                 wh_slot *slots, uint32_t count, uint64_t me, uint32_t start,
                                 uint32_t keep_empty)
{
    *s = (wh_slabs){.owners = owners, .freed = freed, .states = states, .slots = slots, .me = me, .count = count,
                    .cursor = start, .keep_empty = keep_empty,
                    .free = calloc(count, sizeof(uint64_t)),
                    .stack = malloc(count * sizeof(uint32_t)),
                    .stacked = calloc(count, 1)};
    return s->free && s->stack && s->stacked;
}

static inline void wh_slabs_free(wh_slabs *s)
{
    free(s->free);
    free(s->stack);
    free(s->stacked);
}

static inline void wh_slabs_stack(wh_slabs *s, uint32_t slab)
{
    if (!s->stacked[slab]) {
        s->stacked[slab] = 1;
        s->stack[s->stack_size++] = slab;
    }
}

/* Claim an unowned slab. False: there is none. */
static inline bool wh_slabs_claim(wh_slabs *s)
{
    uint64_t freed = wh_load_seq(s->freed) + 1; /* pairs: freed - what is freed during the walk counts */
    if (freed == s->none_at)
        return false;
    for (uint32_t looked = 0; looked < s->count; looked++) {
        uint32_t slab = s->cursor;
        s->cursor = slab + 1 < s->count ? slab + 1 : 0;
        uint64_t nobody = 0;
        if (wh_load_relaxed(&s->owners[slab]))
            continue;
        /* pairs: slab - acquire: what the last owner and the clock wrote to its slots is seen */
        if (wh_cas_acq_rel(&s->owners[slab], &nobody, s->me)) {
            s->free[slab] = ~0ull;
            s->empty++;
            wh_slabs_stack(s, slab);
            return true;
        }
    }
    s->none_at = freed;
    return false;
}

/* What is left free of the slab on top of the stack. */
static inline void wh_slabs_keep(wh_slabs *s, uint32_t slab, uint64_t bits)
{
    s->free[slab] = bits;
    if (!bits) {
        s->stack_size--;
        s->stacked[slab] = 0;
    }
}

/* Move free slots into the magazine. False: there were none. */
static inline bool wh_slabs_load(wh_slabs *s)
{
    while (s->magazine_size < WH_MAGAZINE && s->stack_size) {
        uint32_t slab = s->stack[s->stack_size - 1];
        uint64_t bits = s->free[slab];
        s->empty -= bits == ~0ull;
        while (bits && s->magazine_size < WH_MAGAZINE) {
            uint32_t slot = slab << WH_SLAB_BITS | (uint32_t)__builtin_ctzll(bits);
            bits &= bits - 1;
            wh_prefetch_write(&s->states[slot]);
            wh_prefetch_write(&s->slots[slot]);
            s->magazine[s->magazine_size++] = slot;
        }
        wh_slabs_keep(s, slab, bits);
    }
    /* it is used from the end: turn it, so that slots go out lowest first */
    for (uint32_t i = 0, j = s->magazine_size; i + 1 < j; i++) {
        uint32_t slot = s->magazine[i];
        s->magazine[i] = s->magazine[--j];
        s->magazine[j] = slot;
    }
    return s->magazine_size != 0;
}

/* A free slot of ours, or WH_NIL: claim a slab, or wait for returns. */
static inline uint32_t wh_slabs_take(wh_slabs *s)
{
    if (wh_unlikely(s->magazine_size == 0) && !wh_slabs_load(s))
        return WH_NIL;
    return s->magazine[--s->magazine_size];
}

/* Up to `n` free slots for a batch, which prefetches them itself. Returns how many. */
static inline uint64_t wh_slabs_take_many(wh_slabs *s, uint64_t *slots, uint64_t n)
{
    uint64_t got = 0;
    while (got < n && s->magazine_size)
        slots[got++] = s->magazine[--s->magazine_size];
    while (got < n && s->stack_size) {
        uint32_t slab = s->stack[s->stack_size - 1];
        uint64_t bits = s->free[slab];
        s->empty -= bits == ~0ull;
        for (; bits && got < n; bits &= bits - 1)
            slots[got++] = slab << WH_SLAB_BITS | (uint32_t)__builtin_ctzll(bits);
        wh_slabs_keep(s, slab, bits);
    }
    return got;
}

/* Make a slab of ours nobody's. */
static inline void wh_slabs_release(wh_slabs *s, uint32_t slab)
{
    uint64_t mine = s->me;
    s->free[slab] = 0; /* a stale place in the stack is passed over */
    /* pairs: slab - compared, lest a worker that was given up releases its successor's */
    if (wh_cas_acq_rel(&s->owners[slab], &mine, 0))
        wh_fetch_add_seq(s->freed, 1); /* pairs: freed */
    s->cursor = slab < s->cursor ? slab : s->cursor;
}

/* A slot is ours again. */
static inline void wh_slabs_give(wh_slabs *s, uint32_t slot)
{
    uint32_t slab = slot >> WH_SLAB_BITS;
    uint64_t bits = s->free[slab] | 1ull << (slot & (WH_SLAB_SLOTS - 1));
    s->free[slab] = bits;
    if (wh_likely(bits != ~0ull)) {
        wh_slabs_stack(s, slab);
    } else if (s->empty < s->keep_empty) {
        s->empty++;
        wh_slabs_stack(s, slab);
    } else {
        wh_slabs_release(s, slab);
    }
}

/* Armed timers in our slabs: exact, by looking at every slot that we own. */
static inline uint64_t wh_slabs_armed(const wh_slabs *s)
{
    uint64_t armed = 0;
    for (uint32_t slab = 0; slab < s->count; slab++) {
        if (wh_load_relaxed(&s->owners[slab]) != s->me)
            continue;
        for (uint32_t i = 0; i < WH_SLAB_SLOTS; i++) {
            uint64_t state = wh_load_relaxed(&s->states[slab << WH_SLAB_BITS | i]);
            armed += wh_state_phase(state) == WH_ARMED;
        }
    }
    return armed;
}

#endif
