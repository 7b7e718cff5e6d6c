/* Crew: workers and their threads. A hand does the calls of the core (calls.h), and enters them in
 * the account. */
#ifndef HARNESS_CREW_H
#define HARNESS_CREW_H

#include "account.h"
#include "wheel_world.h"

#define EVENTS_ROOM 256
#define PATIENCE_NS 200000 /* for slots: some who wait are alone with a clock that stands */

typedef struct hand {
    world *world;
    account *account;
    wh_client client;
    uint32_t row;
    int bell; /* the end that it reads */
    uint64_t rng;
    uint64_t next, last; /* its share of the account's entries */
    uint64_t moves;      /* reschedules that it won */
    char *events;
    pthread_t thread;
    void *own; /* the program's */
} hand;

typedef struct attachment {
    uint32_t row;
    uint64_t incarnation;
} attachment;

static inline void request_attach(world *w, void *argument)
{
    attachment *a = argument;
    CHECK(wh_clock_attach(&w->clock, a->row, a->incarnation, w->memories[a->row],
                          w->bells[a->row][1]),
          "out of memory");
}

static enum wh_nap hand_nap(wh_client *c);
static const wh_waits hand_waits = {wh_thread_now, hand_nap, wh_thread_doze};

static inline void hand_attach(hand *h, world *w, account *a, uint32_t row, uint64_t incarnation)
{
    CHECK(row < MAX_HANDS && row < w->config.max_workers, "row %u", row);
    if (!w->memories[row])
        pipe_make(w->bells[row]);
    free(w->memories[row]);
    void *memory = w->memories[row] = aligned_alloc(4096, w->geometry.worker_bytes);
    CHECK(memory, "out of memory");
    memset(memory, 0, w->geometry.worker_bytes);
    wh_create_worker(memory, &w->config, wh_port_of(w->wheel, &w->geometry, row));
    attachment wanted = {row, incarnation};
    world_ask(w, request_attach, &wanted);
    *h = (hand){
        .world = w, .account = a, .row = row, .bell = w->bells[row][0], .rng = rng_seeded(row + 1)};
    CHECK(wh_client_bind(&h->client, &w->config, w->wheel, w->slots, memory, row, incarnation,
                         w->bell[1]),
          "out of memory");
    h->client.waits = &hand_waits;
    h->client.patience_ns = PATIENCE_NS;
    wh_client_begin_to_receive(&h->client);
    h->events = malloc(EVENTS_ROOM * wh_event_bytes(&h->client));
    CHECK(h->events, "out of memory");
}

/* Private memory only: the segment stays until the clock has reaped the row. */
static inline void hand_free(hand *h)
{
    wh_client_free(&h->client);
    free(h->events);
}

static inline uint32_t hand_target(const hand *h)
{
    return (uint32_t)(h->client.me >> 16 & 0xfffff) << 12 | (h->row + 1);
}

/* -- receive ----------------------------------------------------------------------------------- */

/* Take what is in the ring. Returns how many events there were. */
static inline uint64_t hand_receive(hand *h)
{
    bool more;
    uint32_t bytes = wh_event_bytes(&h->client);
    uint64_t got = wh_call_poll(&h->client, h->bell, h->events, EVENTS_ROOM, false, &more);
    for (uint64_t i = 0; i < got; i++) {
        const wh_completion *event = (const wh_completion *)(h->events + i * bytes);
        if (account_foreign(h->account, event))
            continue;
        check_payload(event, h->client.payload_bytes);
        account_event(h->account, event);
    }
    return got;
}

/* Sleep on the bell until rung; false: nothing came within `most_ns`. */
static inline bool hand_sleep(hand *h, int64_t most_ns)
{
    struct pollfd fd = {.fd = h->bell, .events = POLLIN};
    if (!wh_client_may_sleep(&h->client))
        return true;
    struct timespec timeout = {most_ns / 1000000000, most_ns % 1000000000};
    return ppoll(&fd, 1, &timeout, NULL) != 0;
}

/* -- schedule, cancel, move -------------------------------------------------------------------- */

/* Its thread does what others would do meanwhile. */
static enum wh_nap hand_nap(wh_client *c)
{
    hand *h = (hand *)((char *)c - offsetof(hand, client));
    hand_receive(h);
    return wh_thread_nap(c);
}

/* False: the wheel is full. */
static inline bool hand_done(const hand *h, enum wh_call call)
{
    CHECK(call <= WH_CALL_OVER || call == WH_CALL_WHEEL_FULL, "row %u: call %d", h->row, call);
    return call == WH_CALL_OK;
}

/* A slot, or WH_NIL when the wheel is full. */
static inline uint32_t hand_slot(hand *h)
{
    uint32_t slot = wh_slabs_take(&h->client.slabs);
    if (slot == WH_NIL)
        hand_done(h, wh_client_find_slot(&h->client, 0, true, &slot));
    return slot;
}

typedef struct plan {
    int64_t delay, interval;
    uint32_t target, payload_size;
} plan;

/* Schedule the hand's next entry. False: no slot, or no entry left. */
static inline bool hand_schedule(hand *h, plan p, uint64_t *cookie)
{
    char payload[256];
    wh_client *c = &h->client;
    uint32_t slot;
    if (h->next == h->last || !hand_done(h, wh_client_have_slot(c, 1, true, &slot)))
        return false;
    *cookie = h->next++;
    for (uint32_t at = 0; at < p.payload_size; at += 8)
        memcpy(payload + at, cookie, 8);
    entry *e = &h->account->entries[*cookie];
    wh_request r = {.deadline = wh_time_add(wh_client_now(c), p.delay),
                    .interval = p.interval,
                    .cookie = *cookie,
                    .payload = payload,
                    .payload_size = p.payload_size,
                    .target = p.target};
    e->interval = p.interval;
    e->next_tick = r.deadline;
    wh_store_relaxed(&e->wanted, r.deadline);
    wh_store_relaxed(&e->before, r.deadline);
    wh_store_relaxed(&e->tried, r.deadline);
    /* known before anybody can meet it */
    wh_store_relaxed(&e->id, wh_id(wh_client_next_gen(c, slot), slot));
    wh_client_submit(c, slot, &r, r.deadline);
    return true;
}

static inline bool hand_cancel(hand *h, uint64_t cookie)
{
    uint64_t id = wh_load_relaxed(&h->account->entries[cookie].id);
    if (id == 0)
        return false;
    if (!hand_done(h, wh_call_cancel(&h->client, id, true)))
        return false;
    account_cancelled(h->account, cookie);
    return true;
}

/* Move a timer to now + delay. */
static inline bool hand_move(hand *h, uint64_t cookie, int64_t delay)
{
    wh_client *c = &h->client;
    entry *e = &h->account->entries[cookie];
    uint64_t id = wh_load_relaxed(&e->id);
    if (e->lost || !wh_client_owns(c, id))
        return false; /* it ended; its slab may have gone back */
    int64_t deadline = wh_time_add(wh_client_now(c), delay);
    wh_store_relaxed(&e->before, wh_load_relaxed(&e->wanted));
    wh_store_relaxed(&e->tried, deadline);
    if (e->interval)
        wh_store_relaxed(&e->moved, 1);
    if (!hand_done(h, wh_call_reschedule_at(c, id, deadline, true))) {
        e->lost = true;
        return false;
    }
    wh_store_relaxed(&e->wanted, deadline);
    h->moves++;
    return true;
}

/* -- the end ----------------------------------------------------------------------------------- */

/* Is that slot in its own hands? */
static inline bool hand_holds(const hand *h, uint32_t slot)
{
    return client_holds(&h->client, slot);
}

/* Every slot of the slabs that it owns is in its own hands. */
static inline bool hand_idle(const hand *h)
{
    const wh_slabs *s = &h->client.slabs;
    uint64_t free_slots = s->magazine_size, owned = 0;
    for (uint32_t slot = 0; slot < s->count * WH_SLAB_SLOTS; slot++)
        if (wh_slabs_own(s, slot)) {
            owned++;
            free_slots += s->free[slot >> WH_SLAB_BITS] >> (slot & (WH_SLAB_SLOTS - 1)) & 1;
        }
    CHECK(free_slots <= owned, "row %u: %llu free slots in %llu", h->row, (ull)free_slots,
          (ull)owned);
    return free_slots == owned;
}

/* For a report: the slots that are in other hands, and where the clock says that they are. */
static inline void hand_print_missing(const hand *h)
{
    const wh_slabs *s = &h->client.slabs;
    const world *w = h->world;
    for (uint32_t slot = 0, lines = 0; slot < w->config.capacity && lines < 10; slot++) {
        const wh_link *link = &w->clock.wheel.links[slot];
        if (hand_holds(h, slot) || !wh_slabs_own(s, slot))
            continue;
        printf("  slot %u state %llx link: gen %x list %d of %u stage %llx\n", slot,
               (ull)wh_load_relaxed(&w->clock.states[slot]), link->gen, (int)link->list,
               w->clock.wheel.buckets, (ull)link->completion);
        lines++;
    }
    printf("  row %u: %llu completions, %llu returns to take\n", h->row,
           (ull)wh_client_ready(&h->client), (ull)wh_client_returns_ready(&h->client));
}

/* Receive until its entries have ended and its slots are back. */
static inline void hand_finish(hand *h, uint64_t first)
{
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + GIVE_UP_NS;
    while (account_open(h->account, first, h->next) || !hand_idle(h)) {
        wh_client_ring(&h->client);
        if (!hand_receive(h))
            pause_ns(100000);
        if (wh_clock_read(CLOCK_MONOTONIC) > give_up)
            FAIL("row %u: %llu timers never ended, slots %s", h->row,
                 (ull)account_open(h->account, first, h->next), hand_idle(h) ? "back" : "lost");
    }
}

#endif
