/* Clock: the private state of the clock process over the shared segments.
 *
 * The files that build on it, in the order of one pass (pass.h):
 *   timing.h   when a timer is due, on its own clock and on the base clock
 *   events.h   what happens to timers, as records of the trace (trace.h), if there is one
 *   drain.h    what workers submitted -> link, unlink, give back
 *   fire.h     what fell due -> one winner against cancel and reschedule
 *   exact.h    few timers in a tick -> each at its deadline
 *   route.h    to whom: the owner, a worker, a member of a group
 *   offer.h    what members of a group may take from each other; reoffer.h, when
 *   free_list.h    free slots in the clock's hands
 *   detached.h  timers that belong to no worker
 *   deliver.h  records into completion rings, loans, backlogs, doorbells
 *   grant.h   slots for workers that find none
 *   reap.h     what a dead worker leaves; reassign.h, when others take it over
 *   recover.h  what a dead clock leaves
 *
 * Invariants
 *  1. One clock process at a time writes the wheel segment; it is fenced by a file lock.
 *  2. Words that clients can write are loaded once into a local, checked, and the local is used.
 *     No index read from them is followed unchecked, no loop is bounded by them.
 *  3. link.completion of a slot's generation says where its end stands (the stages below). A final
 *     stage is never left for that generation, so a submission met later is a no-op.
 *  4. A slot is its owner's again when it has consumed the EXPIRED completion or the entry in its
 *     return ring; the clock puts exactly one of these there per generation. A slot of a split slab
 *     is the clock's again instead.
 */
#ifndef WHEELD_CLOCK_H
#define WHEELD_CLOCK_H

#include <stdlib.h>

#include "wheeld/shared/backing.h"
#include "wheeld/shared/doorbell.h"
#include "wheeld/shared/histogram.h"
#include "wheeld/sharing/directory.h"
#include "wheeld/sharing/heap.h"
#include "wheeld/clock/peer.h"
#include "wheeld/clock/trace.h"

/* The members of a group, as a pass found them (route.h). Their rows are in the peers' `roster`. */
typedef struct wh_roster {
    uint64_t looked;   /* 1 + that pass */
    uint32_t turn;     /* the row that the next search begins with */
    uint32_t all;      /* members */
    uint32_t waiting;  /* of these, the first ones: they were waiting */
    uint32_t served;   /* the first of those, which were given an event for it */
    uint32_t open;     /* the first members, which may have room; the others have none */
    uint32_t next;     /* whose turn it is */
    bool recheck;         /* something went to a member that is not waiting */
    int64_t look_at; /* when to check on what went to waiting members, ns; 0: nothing went */
} wh_roster;

/* Place of a slot in its group's queue (offer.h): 1 + the slots before and behind it; 0, 0: in
 * none. */
typedef struct wh_place_in {
    uint32_t prev, next;
} wh_place_in;

/* The time of that kind of clock now, ns. */
typedef int64_t (*wh_read_time_fn)(uint32_t kind);

/* Free slots in the clock's hands, and where more may be (free_list.h). */
typedef struct wh_free_list {
    wh_au32 *holders; /* shared */
    uint8_t *split; /* 1: each of the slab's slots has its own holder */
    uint8_t *ended; /* 1: a slot of it may have come free since it was last checked; padded to 8 */
    uint64_t *free; /* one bit per slot that is in the free list */
    uint32_t *stack; /* slabs that may have slots in the free list, each at most once */
    uint8_t *stacked; /* 1: it is in the stack */
    uint32_t stack_size;
    uint64_t slots, slabs_freed, slabs_split;
} wh_free_list;

typedef struct wh_clock {
    wh_wheel wheel;
    wh_wheel_seg *seg;
    wh_au64 *states;
    wh_slot *slots;
    wh_au64 *owners, *freed;
    wh_peer *peers;
    uint32_t max_workers, peers_used; /* rows below peers_used may be attached */
    uint32_t turn; /* the row that the next pass begins with */
    uint64_t sub_size, comp_size, ret_size;
    /* times of this pass; other clocks are read again before they fire a timer */
    int64_t now[WH_CLOCK_KINDS];
    wh_read_time_fn read_time; /* NULL: time stands still (a virtual clock, a test) */
    bool exact; /* few timers fire within their tick (exact.h); not under a virtual clock */
    wh_undo *undo;
    wh_histogram *histograms; /* enum wh_wheel_histogram, then one per row */
    uint64_t undo_used;
    wh_roster rosters[WH_GROUPS];
    /* one per slot, then one sentinel per group; NULL: no group has a member */
    wh_place_in *queue;
    uint64_t offering, offered; /* groups whose queue is not empty; those announced to workers */
    wh_keys keys; /* only read here; without memory: no timer has a key */
    const wh_group *groups; /* the table of names; NULL: no number was ever given another name */
    wh_peer *keeper; /* keeps detached timers whose worker is gone; NULL: there is none */
    uint64_t *detached; /* one bit per slot: its timer is counted; NULL: there was no keeper yet */
    int64_t *kept_since; /* per slot: when an end came to the keeper, ns */
    int64_t keep_ns, keep_until; /* how long it waits there; the next look at that, 0: none */
    bool looks_at_held; /* a worker has a bound for what it holds (unclaimed.h) */
    wh_trace trace;
    wh_free_list free_list;
    wh_heap heap;
    wh_au64 *heap_asked; /* shared */
    uint32_t heap_full; /* with so many chunks there was no room for more; only who asks is heard */
    uint32_t shared_slabs; /* the slabs after them are reserved for one worker each */
    uint32_t backed; /* the first of the shared slabs have memory (backing.h) */
    uint32_t back_until; /* how many slabs are to have it soon */
    wh_growing in_wheel, in_slots; /* where memory is reserved */
    uint32_t relink_slot; /* sweep after a step of the wall clock; == capacity: none */
} wh_clock;

/* Count a value of the clock's own work. */
static inline void wh_clock_counts(const wh_clock *c, enum wh_wheel_histogram which, int64_t value)
{
    wh_histogram_add(&c->histograms[which], value, 1);
}

/* The attached worker that a word of (incarnation, worker + 1) names, or NULL. */
static inline wh_peer *wh_peer_of(const wh_clock *c, uint64_t worker_plus_1, uint64_t incarnation)
{
    if (worker_plus_1 == 0 || worker_plus_1 > c->max_workers)
        return NULL;
    wh_peer *peer = &c->peers[worker_plus_1 - 1];
    return peer->life && peer->incarnation == incarnation ? peer : NULL;
}

static inline uint32_t wh_peer_index(const wh_clock *c, const wh_peer *peer)
{
    return (uint32_t)(peer - c->peers);
}

/* Does the slab have memory? If not, never access it, whatever names it. */
static inline bool wh_slab_there(const wh_clock *c, uint32_t slab)
{
    return wh_likely(slab < c->backed) ||
           (slab >= c->shared_slabs && slab < c->wheel.capacity >> WH_SLAB_BITS);
}

/* Does each of the slab's slots have its own holder? */
static inline bool wh_is_split(const wh_clock *c, uint32_t slab)
{
    return wh_unlikely(c->free_list.slabs_split != 0) && c->free_list.split[slab];
}

/* The attached worker that holds a slot of a split slab, or NULL. */
static inline wh_peer *wh_holder_of(const wh_clock *c, uint32_t slot)
{
    uint32_t row = wh_holder_row(wh_load_relaxed(&c->free_list.holders[slot]));
    return row < c->max_workers && c->peers[row].life ? &c->peers[row] : NULL;
}

/* The same if the owner word says that the slab is split; NULL if that word is garbage. */
static wh_seldom wh_peer *wh_split_owner(const wh_clock *c, uint32_t slot)
{
    return wh_is_split(c, slot >> WH_SLAB_BITS) ? wh_holder_of(c, slot) : NULL;
}

/* Is it on loan, and its owner gone? */
static inline bool wh_is_loose(const wh_clock *c, uint32_t slot)
{
    return wh_is_split(c, slot >> WH_SLAB_BITS) &&
           wh_load_relaxed(&c->free_list.holders[slot]) == WH_HOLDER_NOBODY;
}

/* The attached worker whose slot it is, or NULL. */
wh_hot wh_peer *wh_owner_of(const wh_clock *c, uint32_t slot)
{
    /* pairs: slab - the slot's fields are read after the claim that names their writer */
    uint64_t word = wh_load_acquire(&c->owners[slot >> WH_SLAB_BITS]);
    if (wh_unlikely(wh_owner_worker(word) == WH_SPLIT))
        return wh_split_owner(c, slot);
    return wh_peer_of(c, wh_owner_worker(word), wh_owner_incarnation(word));
}

/* The same as a word, for the record: it may name a worker that is gone. */
static inline uint64_t wh_owner_word_of(const wh_clock *c, uint32_t slot)
{
    if (wh_likely(!wh_is_split(c, slot >> WH_SLAB_BITS)))
        return wh_owner_name(wh_load_relaxed(&c->owners[slot >> WH_SLAB_BITS]));
    const wh_peer *holder = wh_holder_of(c, slot);
    return holder ? wh_owner_word(wh_peer_index(c, holder), holder->incarnation) : 0;
}

/* Does EXPIRED to `to` return the slot to `owner`? In a split slab every slot returns to the
 * clock. */
static inline bool wh_ends_with(const wh_clock *c, uint32_t slot, const wh_peer *to,
                                const wh_peer *owner)
{
    return to == owner && !wh_is_split(c, slot >> WH_SLAB_BITS);
}

/* The timer of the slot has ended, and nobody reads its payload from here on: free that, if it is
 * in the heap and its reader has not. */
static inline void wh_end_payload(wh_clock *c, uint32_t slot)
{
    if (wh_heap_used(&c->heap) && wh_load_relaxed(&c->slots[slot].payload_size) == WH_IN_HEAP)
        wh_heap_clear(&c->heap, slot);
}

/* The same for a slot of a dead worker, which may have been about to arm it. */
static inline void wh_clear_payload(wh_clock *c, uint32_t slot)
{
    if (wh_heap_used(&c->heap))
        wh_heap_clear(&c->heap, slot);
}

/* Take a slab from its owner, so that it has none. */
static inline void wh_free_slab(wh_clock *c, uint32_t slab)
{
    c->free_list.ended[slab] = 1;
    wh_store_release(&c->owners[slab], 0); /* pairs: slab - all its slots are settled */
    wh_fetch_add_seq(c->freed, 1); /* pairs: freed */
}

/* Where a worker's timers are placed, and no other's if there is a shard for each. */
static inline uint32_t wh_shard_of(const wh_clock *c, const wh_peer *owner)
{
    return wh_peer_index(c, owner) & (c->wheel.shard_count - 1);
}

static inline uint32_t wh_backlog_list(const wh_clock *c, const wh_peer *peer)
{
    return c->wheel.buckets + wh_peer_index(c, peer);
}
static inline uint32_t wh_lent_list(const wh_clock *c, const wh_peer *peer)
{
    return c->wheel.buckets + c->max_workers + wh_peer_index(c, peer);
}
static inline uint32_t wh_hand_list(const wh_clock *c, const wh_peer *peer)
{
    return c->wheel.buckets + 2 * c->max_workers + wh_peer_index(c, peer);
}

static inline enum wh_stage wh_stage_of(const wh_link *link)
{
    return wh_completion_stage(link->completion);
}
static inline uint32_t wh_stage_worker(const wh_link *link)
{
    return wh_completion_worker(link->completion);
}
/* Is its record in a ring other than its owner's, or lent to one? */
static inline bool wh_stage_out(enum wh_stage stage)
{
    return stage == WH_STAGE_LENT || stage == WH_STAGE_OFFERED;
}
/* May its record be an offer? */
static inline bool wh_stage_offers(enum wh_stage stage)
{
    return stage == WH_STAGE_OFFERED || stage == WH_STAGE_WAIT_EXPIRE;
}
/* This generation has ended: only its owner has the slot, or it is on its way there. */
static inline bool wh_stage_over(enum wh_stage stage) { return stage >= WH_STAGE_WAIT_EXPIRE; }

static inline void wh_clock_free(wh_clock *c)
{
    wh_keys_free(&c->keys);
    free(c->detached);
    free(c->kept_since);
    wh_hints_free(&c->wheel.hints);
    free(c->free_list.split);
    free(c->free_list.ended);
    free(c->free_list.stacked);
    free(c->free_list.free);
    free(c->free_list.stack);
}

/* False: out of memory. */
static inline bool wh_free_list_bind(wh_free_list *s, wh_au32 *holders, uint32_t slabs)
{
    *s = (wh_free_list){.holders = holders};
    s->split = calloc(slabs, 1);
    s->ended = calloc(slabs + 8, 1);
    s->stacked = calloc(slabs, 1);
    s->free = calloc(slabs, sizeof(uint64_t));
    s->stack = malloc(slabs * sizeof(uint32_t));
    if (!s->split || !s->ended || !s->stacked || !s->free || !s->stack)
        return false;
    memset(s->ended, 1, slabs);
    return true;
}

/* False: out of memory. */
static inline bool wh_clock_bind(wh_clock *c, void *wheel_memory, void *slots_memory,
                                 wh_peer *peers)
{
    wh_wheel_seg *seg = wheel_memory;
    wh_config config = wh_config_of(seg);
    wh_geometry g = wh_geometry_of(&config);
    char *base = wheel_memory, *slots_base = slots_memory;
    *c = (wh_clock){.seg = seg,
                    .states = (wh_au64 *)(slots_base + g.states_off),
                    .slots = (wh_slot *)(slots_base + g.slots_off),
                    .owners = (wh_au64 *)(slots_base + g.owners_off),
                    .freed = &((wh_slots_seg *)slots_memory)->freed,
                    .heap = wh_heap_bind(&config, wheel_memory, slots_memory, 0),
                    .heap_asked = &((wh_slots_seg *)slots_memory)->heap_asked,
                    .undo = (wh_undo *)(base + g.undo_off),
                    .histograms = wh_histograms_of(wheel_memory, &g),
                    .peers = peers,
                    .max_workers = seg->max_workers,
                    .shared_slabs = g.slab_count - seg->homes,
                    .backed = wh_load_relaxed(&seg->backed),
                    .in_wheel = {-1, base, g.wheel_bytes, seg->capacity >= WH_HUGE_CAPACITY},
                    .in_slots = {-1, slots_base, g.slots_bytes, seg->capacity >= WH_HUGE_CAPACITY},
                    .sub_size = 1ull << seg->sub_bits,
                    .comp_size = 1ull << seg->comp_bits,
                    .ret_size = 1ull << seg->ret_bits,
                    .relink_slot = seg->capacity};
    wh_wheel_bind(&c->wheel, wh_parts_of(wheel_memory, &g), seg->capacity, g.shards,
                  seg->wheel_bits, seg->tick_ns);
    c->wheel.tick = wh_load_relaxed(&seg->tick);
    for (int kind = 0; kind < WH_CLOCK_KINDS; kind++)
        c->now[kind] = wh_load_relaxed(&seg->virtual_now);
    wh_count(&seg->epoch, 1);
    return wh_hints_bind(&c->wheel.hints, c->wheel.buckets, c->wheel.capacity) &&
           wh_free_list_bind(&c->free_list, (wh_au32 *)(base + g.holders_off), g.slab_count);
}

/* Take over the slabs that have memory now. */
static inline void wh_clock_populate(const wh_clock *c)
{
    uint64_t slots = (uint64_t)c->backed << WH_SLAB_BITS;
    wh_populate(c->seg, (uint64_t)((char *)&c->wheel.links[slots] - (char *)c->seg));
    wh_populate(c->free_list.holders, slots * sizeof(wh_holder));
    wh_populate(c->owners, (uint64_t)((char *)&c->slots[slots] - (char *)c->owners));
}

static inline void wh_port_begin(wh_port *port, wh_histogram *lateness, uint64_t incarnation)
{
    if (wh_load_relaxed(&port->incarnation) == incarnation)
        return; /* a new clock for the same worker: its counts continue */
    wh_store_relaxed(&port->fired, 0);
    wh_store_relaxed(&port->returned, 0);
    wh_store_relaxed(&port->dropped, 0);
    wh_store_relaxed(&port->offences, 0);
    wh_histogram_reset(lateness);
    wh_store_relaxed(&port->incarnation, incarnation);
}

/* Attach a worker whose segment is mapped at `memory`, new or as an earlier clock left it. False:
 * out of memory. */
static inline wh_cold bool wh_clock_attach(wh_clock *c, uint32_t worker, uint64_t incarnation,
                                           void *memory, int bell)
{
    wh_config config = wh_config_of(c->seg);
    wh_geometry g = wh_geometry_of(&config);
    wh_peer *peer = &c->peers[worker];
    uint32_t *returns = malloc(sizeof(uint32_t) * c->wheel.capacity); /* touched as needed */
    if (returns == NULL)
        return false;
    *peer =
        (wh_peer){.seg = memory,
                  .port = wh_port_of(c->seg, &g, worker),
                  .lateness = &c->histograms[WH_COUNTS_OF_ROWS + worker],
                  .to_fire = (wh_histogram *)((char *)memory + g.counts_off) + WH_COUNTS_TO_FIRE,
                  .subs = (wh_au64 *)((char *)memory + g.sub_off),
                  .comps = (wh_completion *)((char *)memory + g.comp_off),
                  .rets = (wh_au32 *)((char *)memory + g.ret_off),
                  .incarnation = incarnation,
                  .returns = returns,
                  .bell = bell,
                  .life = WH_PEER_PRESENT};
    peer->sub_head = wh_load_relaxed(&peer->port->sub_head);
    peer->comp_tail = wh_load_relaxed(&peer->port->comp_tail);
    peer->ret_tail = wh_load_relaxed(&peer->port->ret_tail);
    peer->comp_head = wh_load_acquire(&peer->seg->comp_head); /* pairs: comp-head */
    peer->ret_head = wh_load_acquire(&peer->seg->ret_head); /* pairs: ret-head */
    peer->stale_until = peer->ret_tail;
    peer->answered = wh_load_relaxed(&peer->port->answered);
    wh_store_relaxed(&peer->port->backlog, 0);
    wh_port_begin(peer->port, peer->lateness, incarnation);
    if (worker >= c->peers_used)
        c->peers_used = worker + 1;
    return true;
}

/* Set the groups of an attached worker. False: out of memory. */
static inline wh_cold bool wh_clock_join(wh_clock *c, wh_peer *peer, uint64_t groups)
{
    if (groups && c->queue == NULL) {
        uint64_t nodes = (uint64_t)c->wheel.capacity + WH_GROUPS;
        if ((c->queue = calloc(nodes, sizeof *c->queue)) == NULL) /* touched as needed */
            return false;
        for (uint32_t i = c->wheel.capacity; i < nodes; i++)
            c->queue[i] = (wh_place_in){i + 1, i + 1};
    }
    peer->groups = groups;
    wh_store_relaxed(&peer->port->groups, groups);
    return true;
}

/* Where a new tenant's story begins. `gen` comes last: a clock that dies before it leaves a record
 * that says nothing of this generation yet. */
static inline void wh_link_begin(wh_link *link, uint32_t gen)
{
    link->completion = 0;
    link->due = INT64_MIN;
    wh_step();
    link->gen = gen;
    wh_step();
}

#endif
