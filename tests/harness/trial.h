/* Trial: one operation, and the other side's whole operation at each of its atomic operations; and each
 * of its stores held back for as long as C11 allows it to. All in one thread: see orders.c. */
#ifndef HARNESS_TRIAL_H
#define HARNESS_TRIAL_H

#include "wheeld/atomics.h"

#include <setjmp.h>
#include <stddef.h>

enum strength { RELAXED, ORDERED, SEQ }; /* ORDERED: release, or acquire */

static void trial_point(void);
static void trial_store(void *p, size_t size, uint64_t value, enum strength strength);
static void trial_cas(void);
static void trial_load(const void *p, enum strength strength);

#undef wh_load_relaxed
#undef wh_load_acquire
#undef wh_load_seq
#undef wh_store_relaxed
#undef wh_store_release
#undef wh_store_seq
#undef wh_cas_acq_rel
#undef wh_step
#define LOAD(p, strength) (trial_load((const void *)(p), strength), atomic_load(p))
#define STORE(p, v, strength) trial_store((p), sizeof *(p), (uint64_t)(v), strength)
#define wh_load_relaxed(p) LOAD(p, RELAXED)
#define wh_load_acquire(p) LOAD(p, ORDERED)
#define wh_load_seq(p) LOAD(p, SEQ)
#define wh_store_relaxed(p, v) STORE(p, v, RELAXED)
#define wh_store_release(p, v) STORE(p, v, ORDERED)
#define wh_store_seq(p, v) STORE(p, v, SEQ)
#define wh_step() trial_point()
#define wh_cas_acq_rel(p, expected, desired)                                                      \
    (trial_cas(), atomic_compare_exchange_strong((p), (expected), (desired)))

#include "wheeld/client.h"
#include "wheeld/pass.h"
#include "wheeld/receive.h"
#include "wheeld/recover.h"

#include "single.h"

/* -- one trial ---------------------------------------------------------------------------------- */

#define NEVER UINT64_MAX
#define MOST_VICTIMS 64
#define CAPACITY 256

#define MOST_HELD 256

typedef struct held {
    void *p;
    size_t size;
    uint64_t value;
} held;

static struct trial {
    bool on, other; /* the operation runs; the other side's runs within it */
    bool dies;      /* the operation goes no further; the other side's comes then */
    uint64_t points, at, stores, victim;
    void (*meanwhile)(void);
    held held[MOST_HELD]; /* the victim, and what must not be seen before it, in order */
    uint32_t count;
    bool seq; /* one of them is sequentially consistent */
    jmp_buf death;
} trial;

static void store_now(const held *h)
{
    if (h->size == 8)
        atomic_store((wh_au64 *)h->p, h->value);
    else if (h->size == 4)
        atomic_store((wh_au32 *)h->p, (uint32_t)h->value);
    else
        atomic_store((wh_au16 *)h->p, (uint16_t)h->value);
}

static void trial_land(void)
{
    for (uint32_t i = 0; i < trial.count; i++)
        store_now(&trial.held[i]);
    trial.count = 0;
    trial.seq = false;
}

static void trial_meanwhile(void)
{
    trial.other = true;
    trial.meanwhile();
    trial.other = false;
}

static void trial_point(void)
{
    if (!trial.on || trial.other || trial.points++ != trial.at)
        return;
    if (trial.dies)
        longjmp(trial.death, 1);
    trial_meanwhile();
}

static bool trial_holds(const void *p)
{
    for (uint32_t i = 0; i < trial.count; i++)
        if (trial.held[i].p == p)
            return true;
    return false;
}

static void trial_load(const void *p, enum strength strength)
{
    trial_point();
    if (!trial.on || trial.other)
        return;
    if ((strength == SEQ && trial.seq) || trial_holds(p)) /* its own stores it sees at once */
        trial_land();
}

static void trial_cas(void)
{
    trial_point();
    if (trial.on && !trial.other)
        trial_land();
}

static void trial_store(void *p, size_t size, uint64_t value, enum strength strength)
{
    held now = {p, size, value};
    trial_point();
    if (!trial.on || trial.other) {
        store_now(&now);
        return;
    }
    if (trial_holds(p) || trial.count == MOST_HELD)
        trial_land();
    bool victim = trial.stores++ == trial.victim;
    if (victim || (trial.count && strength != RELAXED)) {
        trial.seq |= strength == SEQ;
        trial.held[trial.count++] = now;
    } else {
        store_now(&now);
    }
}

/* -- the wheel ----------------------------------------------------------------------------------- */

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
    wh_config config = {.tick_ns = MS, .wheel_bits = 6, .capacity = CAPACITY, .max_workers = 2,
                        .payload_bytes = 8, .virtual_clock = 1};
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
    if (slot == WH_NIL && wh_slabs_claim(&c->slabs))
        slot = wh_slabs_take(&c->slabs);
    CHECK(slot != WH_NIL, "no slot");
    wh_request r = {.deadline = due, .interval = interval, .cookie = 77, .target = target,
                    .payload = "payload", .payload_size = 8};
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
    wh_clock_bind(&w.clock, w.wheel, w.slots, w.peers);
    memcpy(w.clock.now, now, sizeof now);
    for (uint32_t i = 0; i < 2; i++)
        wh_clock_attach(&w.clock, i, i + 1, w.memories[i], w.bells[i][1]);
    wh_clock_recover(&w.clock);
    passes();
}

static void receive_some(void)
{
    wh_client_receive(&A->client, A->events, EVENTS_ROOM);
}

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

/* -- races: what stands before, the operation, what comes in between, the verdict ------------------ */

typedef struct race {
    const char *name;
    void (*before)(void), (*operate)(void), (*meanwhile)(void), (*verdict)(void);
    uint32_t variants; /* of what comes in between; 0: one */
    bool hold;         /* its stores, too */
    bool dies;
} race;

static uint64_t variant;

static void race_operate(const race *r)
{
    trial.on = true;
    if (setjmp(trial.death) == 0)
        r->operate();
    trial.on = false;
}

static void race_once(const race *r, uint64_t at, uint64_t victim)
{
    begin();
    r->before();
    trial.dies = r->dies;
    trial.at = at;
    trial.victim = victim;
    trial.meanwhile = r->meanwhile;
    trial.points = trial.stores = 0;
    race_operate(r);
    if (r->dies || at >= trial.points)
        trial_meanwhile();
    trial_land();
    r->verdict();
    end();
}

/* All points near the beginning and the end; of a long loop in between, some. */
static uint64_t race_step(uint64_t at, uint64_t points)
{
    return at > 24 && at + 48 < points ? 23 : 1;
}

static const race *racing;

static void race_play(void)
{
    const race *r = racing;
    race_once(r, NEVER, NEVER);
    uint64_t points = trial.points, stores = r->hold ? trial.stores : 0, trials = 0;
    stores = stores < MOST_VICTIMS ? stores : MOST_VICTIMS;
    for (variant = 0; variant < (r->variants ? r->variants : 1); variant++)
        for (uint64_t victim = 0; victim <= stores; victim++)
            for (uint64_t at = 0; at <= points; at += race_step(at, points), trials++)
                race_once(r, at, victim == stores ? NEVER : victim);
    printf("  %llu trials\n", (ull)trials);
}

static int races_run(const race *races, size_t count)
{
    int failed = 0;
    opt.jitter = 0; /* one thread */
    for (size_t i = 0; i < count; i++) {
        racing = &races[i];
        failed += !case_run(&(single_case){races[i].name, race_play});
    }
    printf(failed ? "FAIL: %d races\n" : "ok\n", failed);
    return failed != 0;
}

#endif
