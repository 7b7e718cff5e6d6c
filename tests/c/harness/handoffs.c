/* Handoffs: plain memory that passes from thread to thread, for the thread sanitizer.
 *
 * Idea. The threads take turns, in a fixed order, by a relaxed word that orders nothing. So the
 * only order that the sanitizer knows of is what the core itself makes, and a release or an acquire
 * that is missing on the way shows each time, not by chance: as a race on the record, the payload
 * or the head that was handed on. Built without it, this program shows nothing. */
#include "single.h"

enum { CLOCK, FIRST, SECOND, ACTORS };

typedef struct turn {
    int who;
    void (*act)(void);
} turn;

static const turn *turns;
static uint32_t turns_count;
static wh_au32 now_on; /* relaxed throughout */
static uint32_t slot;
static uint64_t touched; /* plain: whoever has the slab writes this */
static void *segment;
static char events[2][1024 * 64];

/* -- what they do ------------------------------------------------------------------------------ */

static void arm_slot(hand *h, uint32_t target, int64_t interval)
{
    wh_client *c = &h->client;
    wh_request r = {.deadline = MS,
                    .interval = interval,
                    .target = target,
                    .payload = "payload",
                    .payload_size = 8};
    wh_client_push(c, wh_client_arm(c, slot, &r));
    wh_client_publish(c, MS);
}

/* Past the magazine, so that the rest of the slab is free. */
static void claim_and_arm(hand *h, uint32_t target, int64_t interval)
{
    uint64_t taken;
    h->client.slabs.cursor = 0;
    CHECK(wh_slabs_claim(&h->client.slabs), "claim");
    CHECK(wh_slabs_take_many(&h->client.slabs, &taken, 1) == 1, "take");
    slot = (uint32_t)taken;
    touched++;
    arm_slot(h, target, interval);
    wh_slabs_park(&h->client.slabs);
}
static void a_schedules_to_b(void) { claim_and_arm(A, hand_target(B), 0); }
static void a_schedules(void) { claim_and_arm(A, 0, 0); }
static void a_schedules_ticks(void) { claim_and_arm(A, 0, MS); }
static void b_schedules(void) { claim_and_arm(B, 0, 0); }

static void clock_to(int64_t target)
{
    uint32_t reaped;
    wh_advance_virtual(&w.clock, target, &reaped);
}
static void clock_goes_on(void) { clock_to(2 * MS); }
static void clock_fills_ring(void) { clock_to((int64_t)w.clock.comp_size * MS); }
static void clock_fills_on(void) { clock_to((int64_t)w.clock.comp_size * MS + 10 * MS); }

static void receive(hand *h, uint64_t least)
{
    uint64_t got = wh_client_receive(&h->client, events[h->row], 1024);
    CHECK(got >= least, "%llu events", (ull)got);
}
static void a_receives(void)
{
    touched++;
    receive(A, 1);
}
static void a_receives_all(void) { receive(A, 1000); }
static void b_receives(void) { receive(B, 1); }

static void a_uses_it_again(void)
{
    CHECK(wh_client_returns_ready(&A->client) == 1, "not returned");
    wh_client_reclaim(&A->client);
    arm_slot(A, 0, 0);
}

static void a_creates(void)
{
    wh_create_worker(segment, &w.config, wh_port_of(w.wheel, &w.geometry, 1));
}
static void b_attaches(void)
{
    enum wh_attach attached = wh_head_attach(segment, w.geometry.worker_bytes, WH_KIND_WORKER);
    CHECK(attached == WH_ATTACH_READY, "attach: %d", attached);
}

/* -- in turn ----------------------------------------------------------------------------------- */

static void *actor_main(void *argument)
{
    int me = *(int *)argument;
    jitter_seed((uint64_t)me + 1);
    for (uint32_t at = 0; at < turns_count; at++) {
        if (turns[at].who != me)
            continue;
        while (wh_load_relaxed(&now_on) != at)
            sched_yield();
        turns[at].act();
        wh_store_relaxed(&now_on, at + 1);
    }
    return NULL;
}

static void play(const char *name, const turn *list, size_t count)
{
    static int numbers[ACTORS] = {CLOCK, FIRST, SECOND};
    pthread_t threads[ACTORS];
    single_make(2,
                (wh_config){.tick_ns = MS, .wheel_bits = 6, .capacity = 256, .payload_bytes = 8});
    segment = aligned_alloc(4096, w.geometry.worker_bytes);
    CHECK(segment, "out of memory");
    memset(segment, 0, w.geometry.worker_bytes);
    turns = list;
    turns_count = (uint32_t)count;
    wh_store_relaxed(&now_on, 0);
    for (int i = 0; i < ACTORS; i++)
        CHECK(pthread_create(&threads[i], NULL, actor_main, &numbers[i]) == 0, "thread");
    for (int i = 0; i < ACTORS; i++)
        pthread_join(threads[i], NULL);
    printf("  %s: ok\n", name);
    fflush(stdout);
    free(segment);
    single_free();
}

#define PLAY(name, list) play(name, list, sizeof list / sizeof *list)

int main(int argc, char **argv)
{
    static const turn lent[] = {{FIRST, a_schedules_to_b},
                                {CLOCK, clock_goes_on},
                                {SECOND, b_receives},
                                {CLOCK, clock_goes_on},
                                {FIRST, a_uses_it_again}};
    static const turn given[] = {
        {FIRST, a_schedules}, {CLOCK, clock_goes_on}, {FIRST, a_receives}, {SECOND, b_schedules}};
    static const turn around[] = {{FIRST, a_schedules_ticks},
                                  {CLOCK, clock_fills_ring},
                                  {FIRST, a_receives_all},
                                  {CLOCK, clock_fills_on}};
    static const turn made[] = {{FIRST, a_creates}, {SECOND, b_attaches}};
    options_read(argc, argv);
    PLAY("a payload that is lent, and its slot used again", lent);
    PLAY("a slab that is given back and claimed", given);
    PLAY("a ring that goes around", around);
    PLAY("a segment that is made and attached", made);
    printf("ok\n");
    return 0;
}
