/* Client: a worker's side: claim, arm, submit; cancel; extend.
 *
 * Invariants
 *  1. No lock and, but for the doorbell, no system call. The doorbell is rung only for a deadline
 *     before the clock's next wake-up, for a ring that is half full, or for want of slots.
 *  2. Arm comes last: a slot's fields are written before `state`, `state` before the submission,
 *     the submission before the tail that publishes it. A worker that dies in between leaves a
 *     timer that was never armed, or one that its death drops.
 *  3. A slot's fields are written by its owner only, while it holds the slot and before it arms
 *     it. Afterwards any worker may change its state word and its deadline (slot.h), and the clock
 *     counts the moves in its flags.
 *  4. The caller keeps other threads out (the GIL does, or the lock of the Python object).
 *  5. A worker whose row is no longer ACTIVE under its incarnation is fenced: it may change no
 *     shared memory. Others get its slots only when its process has ended or has said good-bye.
 *  6. A clock that does not wake for its bell is reported to the supervisor, now and then, and
 *     never waited for here.
 */
#ifndef WHEELD_CLIENT_H
#define WHEELD_CLIENT_H

#include <sys/socket.h>

#include "wheeld/shared/backing.h"
#include "wheeld/shared/doorbell.h"
#include "wheeld/shared/geometry.h"
#include "wheeld/shared/histogram.h"
#include "wheeld/shared/ring.h"
#include "wheeld/worker/quota.h"
#include "wheeld/sharing/heap.h"
#include "wheeld/worker/waits.h"

#define WH_UNHEARD_NS 2000000000ll     /* a running clock answers its bell long before this */
#define WH_ALARM_EVERY_NS 5000000000ll /* at most one alarm per this time */
#define WH_PATIENCE_NS 1000000000ll

static const wh_row wh_no_row; /* of nobody */

/* How a worker takes the payloads of the heap that events bring. */
typedef struct wh_payload_sink {
    /* memory for one of `size` bytes; NULL: there is none, and the event is left where it is */
    char *(*room)(wh_client *c, uint64_t id, uint32_t size);
    /* it is there now, whole, and its event comes: until then others of that timer count */
    void (*keep)(wh_client *c, uint64_t id, uint32_t size);
} wh_payload_sink;

/* Events for a group with this cookie stay in hand when they are received, until they are
 * acknowledged one by one; for `visibility` ns at most, 0: without a bound. */
typedef struct wh_claim {
    uint64_t cookie;
    int64_t visibility;
} wh_claim;

/* A payload in the heap that was received, and the slot to give back after it, or WH_NIL. */
typedef struct wh_received {
    uint64_t id;
    uint32_t block, slot;
} wh_received;

struct wh_client {
    wh_slabs slabs;
    wh_quota quota;
    wh_wheel_seg *wheel; /* read-only */
    const wh_row *row; /* read-only: this worker's row of the worker table, or wh_no_row */
    wh_port *port; /* read-only */
    wh_worker_seg *seg;
    wh_au64 *states;
    wh_slot *slots;
    char *payloads;
    wh_au64 *subs;
    const wh_completion *comps;
    const wh_au32 *rets;
    wh_histogram *histograms; /* enum wh_worker_histogram */
    uint64_t me;
    uint64_t sub_tail, sub_head; /* sub_head: the clock's, as last read */
    uint64_t comp_head, ret_head;
    /* the shared head: completions from here to comp_head are held */
    uint64_t comp_acked;
    uint64_t sub_size, comp_size, ret_size;
    uint64_t rung_seq; /* the clock's sleep in which we last rang */
    uint64_t wait_seq;
    uint64_t asked; /* our last ask for slots */
    wh_watch_row *watched; /* read by other workers once this one watches keys; or NULL */
    uint32_t capacity, payload_bytes, worker;
    uint32_t populated; /* slabs whose pages this process has mapped in */
    uint32_t first_gen; /* first generation of a slot in this wheel (wh_first_gen) */
    wh_fd clock_bell, control; /* the supervisor's socket, for alarms, or none */
    bool virtual_clock, receives; /* the latter: seg->receives is set */
    bool fds_lost; /* its descriptors were closed by other code */
    uint32_t rung_again; /* how often it could have rung once more */
    int64_t rung_at, alarmed_at; /* CLOCK_MONOTONIC, ns */
    const wh_waits *waits;
    void (*keyed)(wh_client *c, uint64_t id); /* called for each event of a timer with a key */
    /* called for each held event that was delivered before, with how often that was */
    void (*again)(wh_client *c, uint64_t id, uint32_t before);
    int64_t patience_ns; /* submissions until it asks for slots that the clock has to give back */
    uint32_t ask_size; /* how many slots to ask for next time */
    uint64_t short_of; /* how many slots or places the last refused call still needed */
    bool refused, unanswered; /* no slot has come since a refusal; the clock was still to answer */
    wh_heap heap;
    wh_au64 *heap_asked; /* shared */
    const wh_payload_sink *sink; /* NULL: events come without payloads of the heap */
    wh_received *received; /* payloads to be freed once the head has passed their records */
    uint32_t received_count, received_room;
    uint32_t held_payloads; /* of events that are held */
    uint32_t max_payload, detached_most;
    uint64_t *stowed; /* ids of held events for groups, whose records the head has passed */
    uint32_t stowed_count, stowed_room;
    bool stuck; /* the last receive stopped for want of memory */
    int64_t visibility; /* how long an event for a group is held, ns; 0: without a bound */
    const wh_claim *claims; /* the user's of this client */
    uint32_t claim_count;
};

/* Where a predecessor stood in its rings, if that can be: others can write there. A position
 * further from the clock's end than a ring is long is set to that end. */
static inline void wh_client_check_positions(wh_client *c)
{
    uint64_t comp_tail = wh_load_seq(&c->port->comp_tail); /* pairs: comp-tail */
    uint64_t ret_tail = wh_load_acquire(&c->port->ret_tail); /* pairs: ret-tail */
    if (wh_ring_used(c->sub_tail, c->sub_head) > c->sub_size)
        c->sub_tail = c->sub_head;
    if (wh_ring_used(comp_tail, c->comp_head) > c->comp_size)
        c->comp_acked = c->comp_head = comp_tail;
    if (wh_ring_used(ret_tail, c->ret_head) > c->ret_size)
        c->ret_head = ret_tail;
}

/* `config` is private and checked, and the segments have the sizes that it gives. */
static inline bool wh_client_bind(wh_client *c, const wh_config *config, void *wheel, void *slots,
                                  void *worker_memory, uint32_t worker, uint64_t incarnation,
                                  int clock_bell)
{
    wh_geometry g = wh_geometry_of(config);
    uint32_t share = g.slab_count / (8 * config->max_workers);
    *c = (wh_client){.wheel = wheel,
                     .port = wh_port_of(wheel, &g, worker),
                     .seg = worker_memory,
                     .states = (wh_au64 *)((char *)slots + g.states_off),
                     .slots = (wh_slot *)((char *)slots + g.slots_off),
                     .payloads = (char *)slots + g.payloads_off,
                     .subs = (wh_au64 *)((char *)worker_memory + g.sub_off),
                     .comps = (wh_completion *)((char *)worker_memory + g.comp_off),
                     .rets = (wh_au32 *)((char *)worker_memory + g.ret_off),
                     .histograms = (wh_histogram *)((char *)worker_memory + g.counts_off),
                     .me = wh_owner_word(worker, incarnation),
                     .sub_size = 1ull << g.sub_bits,
                     .comp_size = 1ull << g.comp_bits,
                     .ret_size = 1ull << g.ret_bits,
                     .rung_seq = UINT64_MAX,
                     .first_gen = wh_first_gen(config->token),
                     .capacity = config->capacity,
                     .payload_bytes = config->payload_bytes,
                     .heap = wh_heap_bind(config, wheel, slots, worker + 1),
                     .heap_asked = &((wh_slots_seg *)slots)->heap_asked,
                     .max_payload = config->max_payload,
                     .detached_most = config->detached_most,
                     .worker = worker,
                     .row = &wh_no_row,
                     .clock_bell = wh_fd_of(clock_bell),
                     .control = wh_fd_of(-1),
                     .alarmed_at = -WH_ALARM_EVERY_NS,
                     .waits = &wh_thread_waits,
                     .patience_ns = WH_PATIENCE_NS,
                     .virtual_clock = config->virtual_clock};
    /* a predecessor's row: the clock may not have handled all its submissions yet */
    c->sub_head = wh_load_acquire(&c->port->sub_head); /* pairs: sub-head */
    c->sub_tail = wh_load_relaxed(&c->seg->sub_tail);
    c->comp_acked = c->comp_head = wh_load_relaxed(&c->seg->comp_head);
    c->ret_head = wh_load_relaxed(&c->seg->ret_head);
    wh_client_check_positions(c);
    c->wait_seq = wh_load_relaxed(&c->seg->wait_seq);
    wh_store_relaxed(&c->seg->receives, 0);
    wh_store_relaxed(&c->seg->goodbye, 0);
    c->asked = wh_load_relaxed(&c->seg->asked);
    wh_store_relaxed(&c->seg->replacing, 0);
    wh_store_relaxed(&c->seg->replacer, 0);
    wh_store_relaxed(&c->seg->visibility, 0);
    wh_slabs shared = {.owners = (wh_au64 *)((char *)slots + g.owners_off),
                       .freed = &((wh_slots_seg *)slots)->freed,
                       .backed = &c->wheel->backed,
                       .states = c->states,
                       .holders = (wh_au32 *)((char *)wheel + g.holders_off),
                       .slots = c->slots,
                       .me = c->me,
                       .count = g.slab_count,
                       .shared_count = g.slab_count - config->homes,
                       .home = config->homes ? g.slab_count - config->homes + worker : WH_NIL,
                       .cursor = (uint32_t)((uint64_t)worker * wh_load_relaxed(&c->wheel->backed) /
                                            config->max_workers)};
    bool bound = wh_slabs_init(&c->slabs, &shared, share);
    return bound;
}

/* Private memory only. */
static inline void wh_client_free(wh_client *c)
{
    wh_slabs_free(&c->slabs);
    free(c->received);
    free(c->stowed);
    c->received = NULL;
}

/* Map in the pages of slots that got memory since the last time; at first, those of owners and
 * states, too. */
static inline void wh_client_populate(wh_client *c)
{
    uint32_t backed = wh_load_acquire(&c->wheel->backed); /* pairs: backed */
    uint64_t first = (uint64_t)c->populated << WH_SLAB_BITS, end = (uint64_t)backed << WH_SLAB_BITS;
    if (backed <= c->populated || backed > c->slabs.shared_count)
        return;
    if (first == 0)
        wh_populate(c->slabs.owners, (uint64_t)((char *)c->slots - (char *)c->slabs.owners));
    wh_populate(&c->slots[first], (end - first) * sizeof(wh_slot));
    wh_populate(c->payloads + first * c->payload_bytes, (end - first) * c->payload_bytes);
    wh_populate(&c->heap.blocks[first], (end - first) * sizeof(wh_block));
    c->populated = backed;
}

/* Is the row in the worker table still this worker's? Its line is written only at arrivals and
 * departures. */
static inline bool wh_client_has_row(const wh_client *c)
{
    /* pairs: row */
    return wh_load_acquire(&c->row->state) == WH_ROW_ACTIVE &&
           wh_load_relaxed(&c->row->incarnation) == wh_owner_incarnation(c->me);
}

static inline int64_t wh_client_now(const wh_client *c)
{
    if (wh_unlikely(c->virtual_clock))
        return wh_load_acquire(&c->wheel->virtual_now); /* pairs: virtual-now */
    return wh_clock_read(CLOCK_MONOTONIC);
}

/* The time now on one of the clocks; a virtual clock stands for all of them. */
static inline int64_t wh_client_now_of(const wh_client *c, uint32_t kind)
{
    static const clockid_t ids[WH_CLOCK_KINDS] = {CLOCK_MONOTONIC, CLOCK_REALTIME, CLOCK_BOOTTIME};
    return c->virtual_clock ? wh_client_now(c) : wh_clock_read(ids[kind]);
}

/* -- the doorbell ----------------------------------------------------------------------------- */

/* Other code closed this worker's descriptors, so it cannot wake the clock: calls raise from now
 * on. */
static inline void wh_client_lose_fds(wh_client *c)
{
    c->fds_lost = true;
    c->row = &wh_no_row;
}

/* We rang, and the clock sleeps on. After a while the supervisor should know: one line on its
 * socket, which it does not answer. A full or broken socket is not our trouble. */
static inline void wh_client_report_unheard(wh_client *c, int64_t now)
{
    static const char alarm[] = "{\"op\":\"alarm\"}\n";
    if (now - c->rung_at < WH_UNHEARD_NS || now - c->alarmed_at < WH_ALARM_EVERY_NS)
        return;
    c->alarmed_at = now;
    if (wh_fd_is_ours(&c->control)) {
        ssize_t sent =
            send(c->control.number, alarm, sizeof alarm - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent;
    }
}

/* Ring, unless we rang in this very sleep of the clock: that byte wakes it, and it then sees
 * every tail that was published before this look at sleep_seq. */
static inline void wh_client_ring(wh_client *c)
{
    uint64_t seq = wh_load_seq(&c->wheel->sleep_seq); /* pairs: bell-once */
    if (seq == c->rung_seq) {
        if (++c->rung_again % 8 == 0) /* reading the time in each call would cost too much */
            wh_client_report_unheard(c, wh_clock_read(CLOCK_MONOTONIC_COARSE));
        return;
    }
    if (wh_unlikely(!wh_fd_is_ours(&c->clock_bell))) {
        wh_client_lose_fds(c);
        return;
    }
    c->rung_seq = seq;
    c->rung_at = wh_clock_read(CLOCK_MONOTONIC_COARSE);
    wh_fd_ring(&c->clock_bell);
    wh_count(&c->seg->bells, 1);
}

static inline uint64_t wh_client_room(wh_client *c)
{
    c->sub_head = wh_load_acquire(&c->port->sub_head); /* pairs: sub-head */
    return wh_ring_room(c->sub_tail, c->sub_head, c->sub_size);
}

/* Publish what was written to the ring; `earliest`: its earliest deadline, on the base clock. */
static inline void wh_client_publish(wh_client *c, int64_t earliest)
{
    /* pairs: sub-tail, sleep - seq_cst: the load below must not be done before this store is
     * seen, or the clock could go to sleep past `earliest` while we read that it is awake */
    wh_store_seq(&c->seg->sub_tail, c->sub_tail);
    if (wh_unlikely(earliest < wh_load_seq(&c->wheel->sleep_until))) /* pairs: sleep */
        wh_client_ring(c);
    else if (wh_unlikely(c->sub_tail - c->sub_head > c->sub_size / 2))
        if (wh_client_room(c) < c->sub_size / 2)
            wh_client_ring(c);
}

/* The same without waking the clock: a cancel can wait in the ring. */
static inline void wh_client_publish_lazily(wh_client *c)
{
    wh_store_release(&c->seg->sub_tail, c->sub_tail); /* pairs: sub-tail */
    if (wh_unlikely(c->sub_tail - c->sub_head > c->sub_size / 2))
        if (wh_client_room(c) < c->sub_size / 2)
            wh_client_ring(c);
}

static inline void wh_client_push(wh_client *c, uint64_t submission)
{
    wh_store_relaxed(&c->subs[c->sub_tail++ & (c->sub_size - 1)], submission);
}

/* Do `n` more submissions fit? If not, the caller rings and waits for the clock. */
static inline bool wh_client_fits(wh_client *c, uint64_t n)
{
    return wh_likely(wh_ring_room(c->sub_tail, c->sub_head, c->sub_size) >= n) ||
           wh_client_room(c) >= n;
}

/* Ask the clock for up to `n` slots, or, if `all`, for `n` or none. The caller rings. */
static inline void wh_client_ask(wh_client *c, uint64_t n, bool all)
{
    n = n < c->capacity ? n : c->capacity;
    c->asked = wh_ask_word(wh_ask_count(c->asked) + 1, all, (uint32_t)n);
    wh_store_seq(&c->seg->asked, c->asked); /* pairs: asked */
}

/* Has the clock answered? What it found is in the return ring, or can be claimed. */
static inline bool wh_client_answered(const wh_client *c)
{
    return wh_load_acquire(&c->port->answered) == c->asked; /* pairs: asked */
}

/* -- the operations ---------------------------------------------------------------------------- */

typedef struct wh_request {
    int64_t deadline; /* on its own clock, ns */
    int64_t interval; /* ns; or, of a one-shot, as slot.interval */
    uint64_t cookie;
    const void *payload;
    uint32_t payload_size; /* WH_IN_HEAP without a payload: it is there already */
    uint32_t target, flags; /* flags: its clock, WH_PRIVATE, WH_DETACHED, ... */
} wh_request;

/* The interval of a one-shot that is scheduled at `now` of its clock; a virtual one begins at 0. */
static inline int64_t wh_once_from(int64_t now) { return -(now | 1); }

/* The request was made at `now` of its clock. */
static inline void wh_request_made(wh_request *r, int64_t now)
{
    if (r->interval == 0)
        r->interval = wh_once_from(now);
}

/* The generation of the next timer in a slot of this worker. */
static inline uint32_t wh_client_next_gen(const wh_client *c, uint32_t slot)
{
    uint32_t gen = wh_next_gen(wh_state_gen(wh_load_relaxed(&c->states[slot])));
    return wh_likely(gen != 1) ? gen : c->first_gen;
}

/* Arm a slot that this worker holds. Returns the timer's id. */
static inline uint64_t wh_client_arm(wh_client *c, uint32_t index, const wh_request *r)
{
    wh_slot *s = &c->slots[index];
    uint32_t gen = wh_client_next_gen(c, index);
    wh_store_relaxed(&s->deadline, r->deadline);
    wh_store_relaxed(&s->target, r->target);
    wh_store_relaxed(&s->payload_size, (uint16_t)r->payload_size);
    wh_store_relaxed(&s->flags, wh_flags_armed(r->flags, gen));
    wh_store_relaxed(&s->interval, wh_unlikely(r->interval > 0) ? wh_interval_word(r->interval, gen)
                                                                : r->interval);
    wh_store_relaxed(&s->cookie, r->cookie);
    if (r->payload_size && r->payload)
        wh_payload_write(c->payloads + (uint64_t)index * c->payload_bytes, r->payload,
                         r->payload_size);
    /* pairs: arm - the clock must not see the timer before its fields */
    wh_store_release(&c->states[index], wh_state(gen, WH_ARMED));
    return wh_id(gen, index);
}

/* Free the payload of a timer that this worker has cancelled; the clock does if this one dies. */
static wh_seldom void wh_client_free_payload(wh_client *c, uint64_t id)
{
    if (wh_load_relaxed(&c->slots[wh_id_slot(id)].payload_size) == WH_IN_HEAP)
        wh_heap_end_of(&c->heap, id);
}

/* Any worker may cancel. True: it is never delivered. The caller made sure that one submission
 * fits, and publishes it; a cancel can wait in the ring, so it never rings by itself. */
static inline bool wh_client_cancel(wh_client *c, uint64_t id)
{
    uint64_t index = wh_id_given_slot(id);
    if (index >= c->capacity || !wh_slot_cancel(&c->states[index], wh_id_gen(id)))
        return false;
    if (wh_heap_used(&c->heap))
        wh_client_free_payload(c, id);
    wh_client_push(c, wh_id_with(id, WH_OP_CANCEL));
    return true;
}

static inline bool wh_client_owns(const wh_client *c, uint64_t id)
{
    uint64_t index = wh_id_given_slot(id);
    return index < c->capacity && wh_slabs_own(&c->slabs, (uint32_t)index);
}

/* Prefetch what arming or moving a timer in that slot will write. */
static inline void wh_client_prefetch(const wh_client *c, uint32_t slot)
{
    wh_prefetch_write(&c->states[slot]);
    wh_prefetch_write(&c->slots[slot]);
}

/* Is it armed? If not, no timer with that id ever will be. */
static inline bool wh_client_is_armed(const wh_client *c, uint64_t id)
{
    uint64_t index = wh_id_given_slot(id);
    return index < c->capacity && wh_slot_stands(&c->states[index], id);
}

/* Move a timer, of any worker; its period becomes `interval`, if that is not 0. True: it was armed
 * and now is due at `deadline`, and *tell says whether the clock has to be told. False: it has
 * fired or was cancelled. */
static inline bool wh_client_move(wh_client *c, uint64_t id, int64_t deadline, int64_t interval,
                                  bool *tell)
{
    uint64_t index = wh_id_given_slot(id);
    if (index >= c->capacity ||
        !(wh_unlikely(interval)
              ? wh_slot_move_grid(&c->states[index], &c->slots[index], wh_id_gen(id), deadline,
                                  interval, tell)
              : wh_slot_move(&c->states[index], &c->slots[index], wh_id_gen(id), deadline, tell)))
        return false;
    *tell |= wh_load_relaxed(&c->slots[index].interval) > 0; /* a new grid */
    return true;
}

#endif
