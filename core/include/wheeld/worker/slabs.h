/* Slabs: a worker's private view of the slots that it holds.
 *
 * Idea. A slab is 64 slots, claimed by one compare-and-swap on its owner word; the word names the
 * owner, so a worker that dies between claim and use leaks nothing. Which slots of a slab are free
 * is one private 64-bit word. Slots are handed out from a small magazine, lowest first, prefetched
 * when it is filled: the next schedule finds its cache line present.
 *
 * A slab of which nothing is in hand (the magazine, a call that is not over, a reservation) is
 * parked: of such a one the clock may take over what is free when another worker is short of slots
 * (grant.h), and what is believed here about its free slots counts only when it could be unparked.
 * Slots of a slab that was split so are ours one by one.
 *
 * Invariants
 *  1. A place in the magazine, or a set bit of a slab that is worked on or split, means: ours, and
 *     in no other hands. A set bit of a parked slab means so if the slab can be unparked.
 *  2. A slab goes back only when all 64 bits are set and some other slab is free too.
 *  3. A walk that found no unowned slab is not repeated until a slab is given back: the worker that
 *     gives it back then counts it in `freed`, or the clock does if that worker dies in between.
 *  4. `worked` has the slabs of mode WORKED, each once.
 *  5. All this is private memory of one process, used by one thread at a time.
 *  6. An owner word is changed by compare-and-swap only, from a word that names no worker or us.
 */
#ifndef WHEELD_SLABS_H
#define WHEELD_SLABS_H

#include <stdlib.h>

#include "wheeld/shared/slot.h"

#define WH_MAGAZINE 32

/* This process's view of a slab that is or was its own; it is parked if it is neither worked on nor
 * split. */
enum wh_slab_mode {
    WH_SLAB_WORKED = 1,
    WH_SLAB_SPLIT = 2,
    WH_SLAB_MARK = 4,    /* something of it is in the magazine; used by wh_slabs_park only */
    WH_SLAB_STACKED = 8, /* it is in the stack */
};
#define WH_SLAB_HELD (WH_SLAB_WORKED | WH_SLAB_SPLIT)

typedef struct wh_slabs {
    wh_au64 *owners; /* shared */
    wh_au64 *freed;  /* shared */
    const wh_au32 *backed; /* shared: how many of the first slabs have memory */
    wh_au64 *states; /* shared */
    const wh_au32 *holders; /* shared */
    wh_slot *slots;  /* shared; only for prefetching */
    uint64_t me;     /* our owner word */
    uint64_t *free;  /* a bit per slot */
    uint32_t *stack; /* slabs that may have free slots, each at most once */
    uint8_t *mode;       /* bits of wh_slab_mode */
    uint32_t *worked;    /* own slabs that are not parked */
    uint32_t count, stack_size, worked_size;
    /* of `count`, those for any worker, as they get memory; after them, one for each row */
    uint32_t shared_count;
    uint32_t home; /* ours of those, or WH_NIL */
    uint32_t most_worked; /* for the magazine */
    /* calls that hold slots while other threads run: nothing is parked meanwhile */
    uint32_t busy;
    uint64_t none_at; /* `freed` as of a walk over all slabs that found none, plus one */
    uint32_t cursor; /* where to search for the next unowned slab */
    uint32_t empty; /* slabs wholly free */
    uint32_t keep_empty; /* how many of those to keep */
    uint32_t magazine_size;
    uint32_t magazine[WH_MAGAZINE];
} wh_slabs;

/* `shared` has the pointers and numbers that are given; `share`: slabs that may lie idle. */
static inline bool wh_slabs_init(wh_slabs *s, const wh_slabs *shared, uint32_t share)
{
    *s = *shared;
    s->keep_empty = share < 64 ? share : 64;
    s->most_worked = share < 1 ? 1 : share < WH_MAGAZINE ? share : WH_MAGAZINE;
    s->free = calloc(s->count, sizeof(uint64_t));
    s->stack = malloc(s->count * sizeof(uint32_t));
    s->mode = calloc(s->count, 1);
    s->worked = malloc(s->count * sizeof(uint32_t));
    return s->free && s->stack && s->mode && s->worked;
}

static inline void wh_slabs_free(wh_slabs *s)
{
    free(s->free);
    free(s->stack);
    free(s->mode);
    free(s->worked);
}

/* Is it one of this worker's in a split slab? */
static wh_seldom bool wh_slabs_holds(const wh_slabs *s, uint32_t slot, uint64_t owner_word)
{
    return owner_word == WH_SPLIT &&
           wh_holder_row(wh_load_relaxed(&s->holders[slot])) == (uint32_t)(s->me & 0xffff) - 1;
}

/* Is the slot this worker's, armed or not? */
static inline bool wh_slabs_own(const wh_slabs *s, uint32_t slot)
{
    uint64_t word = wh_load_acquire(&s->owners[slot >> WH_SLAB_BITS]); /* pairs: slab */
    return wh_likely(wh_owner_name(word) == s->me) || wh_slabs_holds(s, slot, word);
}

static inline void wh_slabs_stack(wh_slabs *s, uint32_t slab)
{
    if (!(s->mode[slab] & WH_SLAB_STACKED)) {
        s->mode[slab] |= WH_SLAB_STACKED;
        s->stack[s->stack_size++] = slab;
    }
}

static inline void wh_slabs_pop(wh_slabs *s)
{
    s->mode[s->stack[--s->stack_size]] &= (uint8_t)~WH_SLAB_STACKED;
}

static inline void wh_slabs_set(wh_slabs *s, uint32_t slab, uint64_t bits)
{
    s->empty += (bits == ~0ull) - (s->free[slab] == ~0ull);
    s->free[slab] = bits;
}

/* -- parking ----------------------------------------------------------------------------------- */

static inline void wh_slabs_work(wh_slabs *s, uint32_t slab)
{
    if (!(s->mode[slab] & WH_SLAB_WORKED))
        s->worked[s->worked_size++] = slab;
    s->mode[slab] = (s->mode[slab] & WH_SLAB_STACKED) | WH_SLAB_WORKED;
}

/* Unpark a slab before its free slots are used. False: they are no longer this worker's. */
static inline bool wh_slabs_unpark(wh_slabs *s, uint32_t slab)
{
    if (s->mode[slab] & WH_SLAB_WORKED)
        return true;
    uint64_t word = wh_load_acquire(&s->owners[slab]); /* pairs: slab */
    if (s->mode[slab] & WH_SLAB_SPLIT && word == WH_SPLIT)
        return true;
    while (wh_owner_name(word) == s->me)
        /* pairs: slab - else the clock could be giving them to another worker */
        if (wh_cas_acq_rel(&s->owners[slab], &word, s->me)) {
            wh_slabs_work(s, slab);
            return true;
        }
    wh_slabs_set(s, slab, 0);
    s->mode[slab] &= (uint8_t)~WH_SLAB_SPLIT;
    return false;
}

/* Should a slab that is all free be given up: are there others, or is it another worker's home? */
static inline bool wh_slabs_is_spare(const wh_slabs *s, uint32_t slab)
{
    return s->empty > s->keep_empty || (slab >= s->shared_count && slab != s->home);
}

/* Give up a slab, so that it has no owner. */
static inline void wh_slabs_release(wh_slabs *s, uint32_t slab)
{
    uint64_t word = wh_load_acquire(&s->owners[slab]); /* pairs: slab */
    wh_slabs_set(s, slab, 0); /* stale entries of the stack are skipped */
    while (wh_owner_name(word) == s->me)
        /* pairs: slab - compared, lest a worker that was given up releases its successor's */
        if (wh_cas_acq_rel(&s->owners[slab], &word, 0)) {
            wh_fetch_add_seq(s->freed, 1); /* pairs: freed */
            s->cursor = slab < s->cursor ? slab : s->cursor;
            return;
        }
}

/* This worker holds none of its slots any more. */
static inline void wh_slabs_rest(wh_slabs *s, uint32_t slab)
{
    uint64_t mine = s->me;
    s->mode[slab] &= (uint8_t)~WH_SLAB_WORKED;
    if (s->free[slab] == ~0ull && wh_slabs_is_spare(s, slab))
        wh_slabs_release(s, slab);
    else
        /* pairs: slab - what we did to its slots is done; compared as above */
        (void)wh_cas_acq_rel(&s->owners[slab], &mine, s->me | WH_PARKED);
}

/* Park slabs that are not in use, except `next` if something of it is left. */
static inline void wh_slabs_park_all(wh_slabs *s, uint32_t next)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->magazine_size; i++)
        s->mode[s->magazine[i] >> WH_SLAB_BITS] |= WH_SLAB_MARK;
    for (uint32_t i = 0; i < s->worked_size; i++) {
        uint32_t slab = s->worked[i];
        bool goes_on = slab == next && s->free[slab];
        if (goes_on || s->mode[slab] & WH_SLAB_MARK)
            s->worked[kept++] = slab;
        else
            wh_slabs_rest(s, slab);
    }
    s->worked_size = kept;
    for (uint32_t i = 0; i < s->magazine_size; i++)
        s->mode[s->magazine[i] >> WH_SLAB_BITS] &= (uint8_t)~WH_SLAB_MARK;
}

/* Call at the end of each call that took slots. */
static inline void wh_slabs_park(wh_slabs *s)
{
    if (!s->busy)
        wh_slabs_park_all(s, WH_NIL);
}

/* -- claim, take, give ------------------------------------------------------------------------- */

static inline bool wh_slabs_claim_this(wh_slabs *s, uint32_t slab)
{
    uint64_t nobody = 0;
    /* pairs: slab - acquire: what the last owner and the clock wrote to its slots is seen */
    if (wh_load_relaxed(&s->owners[slab]) || !wh_cas_acq_rel(&s->owners[slab], &nobody, s->me))
        return false;
    wh_slabs_work(s, slab);
    wh_slabs_set(s, slab, ~0ull);
    wh_slabs_stack(s, slab);
    return true;
}

/* Claim an unowned slab. False: there is none. */
static inline bool wh_slabs_claim(wh_slabs *s)
{
    /* pairs: freed - what is freed during the walk counts */
    uint64_t freed = wh_load_seq(s->freed) + 1;
    if (freed == s->none_at)
        return false;
    uint32_t there = wh_load_acquire(s->backed); /* pairs: backed - their memory is there */
    there = there < s->shared_count ? there : s->shared_count;
    for (uint32_t looked = 0; looked < there; looked++) {
        uint32_t slab = s->cursor < there ? s->cursor : 0;
        s->cursor = slab + 1;
        if (wh_slabs_claim_this(s, slab))
            return true;
    }
    s->none_at = freed;
    return false;
}

/* The usable slots of the slab on top of the stack. 0: none; it is no longer on top. */
static inline uint64_t wh_slabs_top(wh_slabs *s, uint32_t *slab)
{
    *slab = s->stack[s->stack_size - 1];
    if (wh_likely(s->free[*slab]) && wh_likely(wh_slabs_unpark(s, *slab)))
        return s->free[*slab];
    wh_slabs_pop(s);
    return 0;
}

/* Its free slots. */
static inline void wh_slabs_keep(wh_slabs *s, uint32_t slab, uint64_t bits)
{
    wh_slabs_set(s, slab, bits);
    if (!bits)
        wh_slabs_pop(s);
}

/* Move free slots into the magazine. False: there were none. */
static inline bool wh_slabs_load(wh_slabs *s)
{
    if (!s->busy && s->worked_size >= s->most_worked)
        wh_slabs_park_all(s, s->stack_size ? s->stack[s->stack_size - 1] : WH_NIL);
    while (s->magazine_size < WH_MAGAZINE && s->stack_size &&
           (s->magazine_size == 0 || s->worked_size < s->most_worked)) {
        uint32_t slab;
        uint64_t bits = wh_slabs_top(s, &slab), any = bits;
        while (bits && s->magazine_size < WH_MAGAZINE) {
            uint32_t slot = slab << WH_SLAB_BITS | (uint32_t)__builtin_ctzll(bits);
            bits &= bits - 1;
            wh_prefetch_write(&s->states[slot]);
            wh_prefetch_write(&s->slots[slot]);
            s->magazine[s->magazine_size++] = slot;
        }
        if (any)
            wh_slabs_keep(s, slab, bits);
    }
    /* it is used from the end: reverse it, so that the lowest slots go first */
    for (uint32_t i = 0, j = s->magazine_size; i + 1 < j; i++) {
        uint32_t slot = s->magazine[i];
        s->magazine[i] = s->magazine[--j];
        s->magazine[j] = slot;
    }
    return s->magazine_size != 0;
}

/* A free slot of ours, or WH_NIL: claim a slab, or wait for returns. Arm it before another thread
 * of ours takes one, or be busy meanwhile. */
static inline uint32_t wh_slabs_take(wh_slabs *s)
{
    if (wh_unlikely(s->magazine_size == 0) && !wh_slabs_load(s))
        return WH_NIL;
    return s->magazine[--s->magazine_size];
}

/* Up to `n` free slots for a batch, which prefetches them itself and is busy. Returns how many. */
static inline uint64_t wh_slabs_take_many(wh_slabs *s, uint64_t *slots, uint64_t n)
{
    uint64_t got = 0;
    while (got < n && s->magazine_size)
        slots[got++] = s->magazine[--s->magazine_size];
    while (got < n && s->stack_size) {
        uint32_t slab;
        uint64_t bits = wh_slabs_top(s, &slab), any = bits;
        for (; bits && got < n; bits &= bits - 1)
            slots[got++] = slab << WH_SLAB_BITS | (uint32_t)__builtin_ctzll(bits);
        if (any)
            wh_slabs_keep(s, slab, bits);
    }
    return got;
}

/* All of it is free. */
static inline void wh_slabs_whole(wh_slabs *s, uint32_t slab)
{
    s->empty++;
    if (!(s->mode[slab] & WH_SLAB_HELD) && wh_slabs_is_spare(s, slab))
        wh_slabs_release(s, slab);
    else
        wh_slabs_stack(s, slab);
}

/* A slot that is ours is free. A slot that is already known to be free was taken over and came back
 * in another way: then this is old news. */
static inline void wh_slabs_give(wh_slabs *s, uint32_t slot)
{
    uint32_t slab = slot >> WH_SLAB_BITS;
    uint64_t before = s->free[slab], bits = before | 1ull << (slot & (WH_SLAB_SLOTS - 1));
    s->free[slab] = bits;
    if (wh_likely(bits != ~0ull))
        wh_slabs_stack(s, slab);
    else if (before != bits)
        wh_slabs_whole(s, slab);
}

/* The same for a slot of a split slab that the clock handed over. */
static inline void wh_slabs_handed(wh_slabs *s, uint32_t slot)
{
    uint32_t slab = slot >> WH_SLAB_BITS;
    if (!(s->mode[slab] & WH_SLAB_HELD)) { /* our knowledge of it is outdated */
        wh_slabs_set(s, slab, 0);
        s->mode[slab] |= WH_SLAB_SPLIT;
    }
    wh_slabs_give(s, slot);
}

/* The number of armed timers in own slots: exact, by checking every slot. */
static inline uint64_t wh_slabs_armed(const wh_slabs *s)
{
    uint64_t armed = 0;
    for (uint32_t slab = 0; slab < s->count; slab++) {
        uint64_t word = wh_load_relaxed(&s->owners[slab]);
        if (wh_owner_name(word) != s->me && word != WH_SPLIT)
            continue;
        for (uint32_t slot = slab << WH_SLAB_BITS, end = slot + WH_SLAB_SLOTS; slot < end; slot++)
            armed += wh_state_phase(wh_load_relaxed(&s->states[slot])) == WH_ARMED &&
                     wh_slabs_own(s, slot);
    }
    return armed;
}

#endif
