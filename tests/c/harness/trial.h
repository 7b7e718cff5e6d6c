/* Trial: the wheel, the clock and two workers for the races of orders.c; see interleaving.h. */
#ifndef HARNESS_TRIAL_H
#define HARNESS_TRIAL_H

#include "interleaving.h"

#define CAPACITY 256

/* -- the wheel --------------------------------------------------------------------------------- */

static world w;
static hand hands[2];
#define A (&hands[0])
#define B (&hands[1])

static bool asleep; /* the clock is in ppoll */
static bool waits;  /* A is */
static uint64_t id;
static int64_t due;

static void begin(void)
{
    wh_config config = {.tick_ns = MS,
                        .wheel_bits = 6,
                        .capacity = CAPACITY,
                        .max_workers = 2,
                        .payload_bytes = 8,
                        .virtual_clock = 1};
    world_make(&w, &config);
    for (uint32_t i = 0; i < 2; i++)
        hand_attach(&hands[i], &w, NULL, i, i + 1);
    asleep = waits = false;
    id = 0;
}

static void end(void)
{
    for (uint32_t i = 0; i < 2; i++)
        hand_free(&hands[i]);
    world_free(&w);
}

static bool rung(int bell)
{
    struct pollfd fd = {.fd = bell, .events = POLLIN};
    return poll(&fd, 1, 0) == 1;
}

static void passes(void)
{
    uint32_t reaped;
    wh_pass_all(&w.clock, &reaped);
}

static void fall_asleep(void)
{
    asleep = wh_may_sleep(&w.clock, wh_wheel_next_ns(&w.clock.wheel));
    if (!asleep)
        wh_awake(&w.clock);
}

static void wake_up(void)
{
    wh_bell_clear(w.bell[0]);
    wh_awake(&w.clock);
    asleep = false;
}

static void turn(void)
{
    passes();
    fall_asleep();
}

static void go_to(int64_t target)
{
    uint32_t reaped;
    wh_advance_virtual(&w.clock, target, &reaped);
}

static uint64_t arm(hand *h, uint32_t target, int64_t interval)
{
    wh_client *c = &h->client;
    uint32_t slot = wh_slabs_take(&c->slabs);
    if (slot == WH_NIL && wh_client_claim(c))
        slot = wh_slabs_take(&c->slabs);
    CHECK(slot != WH_NIL, "no slot");
    wh_request r = {.deadline = due,
                    .interval = interval,
                    .cookie = 77,
                    .target = target,
                    .payload = "payload",
                    .payload_size = 8};
    return wh_client_arm(c, slot, &r);
}

static void submit(hand *h, uint64_t submission)
{
    wh_client_push(&h->client, submission);
    wh_client_publish(&h->client, due);
}

static void schedule(void)
{
    id = arm(A, 0, 0);
    submit(A, id);
}

/* The ring of events is full of what is long over, but for `room` places. */
static void fill_events(uint64_t room)
{
    wh_peer *peer = &w.peers[0];
    for (uint64_t i = 0; i < w.clock.comp_size; i++)
        peer->comps[i].id = wh_id_with(wh_id(0x7fffffff, 0), WH_EV_TICK);
    peer->comp_tail += w.clock.comp_size - room;
    wh_store_seq(&peer->line->comp_tail, peer->comp_tail);
}

/* The clock died; another one recovers. */
static void new_clock(void)
{
    int64_t now[WH_CLOCK_KINDS];
    memcpy(now, w.clock.now, sizeof now);
    for (uint32_t i = 0; i < 2; i++)
        free(w.peers[i].returns);
    wh_clock_free(&w.clock);
    wh_clock_bind(&w.clock, w.wheel, w.slots, w.peers);
    memcpy(w.clock.now, now, sizeof now);
    for (uint32_t i = 0; i < 2; i++)
        wh_clock_attach(&w.clock, i, i + 1, w.memories[i], w.bells[i][1]);
    wh_clock_recover(&w.clock);
    passes();
}

static void receive_some(void) { wh_client_receive(&A->client, A->events, EVENTS_ROOM); }

static void reclaim(void) { wh_client_reclaim(&A->client); }

/* Is that slot in its hands? */
static bool has(hand *h, uint32_t slot)
{
    const wh_slabs *s = &h->client.slabs;
    for (uint32_t i = 0; i < s->magazine_size; i++)
        if (s->magazine[i] == slot)
            return true;
    return s->free[slot >> WH_SLAB_BITS] >> (slot & (WH_SLAB_SLOTS - 1)) & 1;
}

/* The one timer, whenever it was met, comes at its time and as it was scheduled. */
static void check_event(hand *h)
{
    wake_up();
    go_to(due + MS);
    uint64_t got = wh_client_receive(&h->client, h->events, EVENTS_ROOM);
    const wh_completion *event = (const wh_completion *)h->events;
    CHECK(got == 1, "%llu events", (ull)got);
    CHECK(event->id == id && event->deadline == due && event->cookie == 77, "another's event");
    CHECK(event->fired < due + MS, "late");
    CHECK(event->payload_size == 8 && !memcmp(event + 1, "payload", 8), "another's payload");
}

#endif
