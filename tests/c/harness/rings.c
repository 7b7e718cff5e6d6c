/* Rings: many workers schedule, cancel each other's, move, repeat, deliver to each other, and at
 * times do not drain; in the end the account balances and every slot is back. */
#include "crew.h"

#define SHARED 512 /* cookies that any worker may cancel */
#define MINE 64    /* cookies that a worker may move */

typedef struct setting {
    const char *name;
    wh_config config;
    uint32_t hands, sluggish; /* of which so many seldom drain */
    uint64_t ops;             /* per hand, times scale */
    int64_t reach;            /* longest ordinary delay */
    uint32_t trace_bits;      /* 0: no trace */
} setting;

typedef struct run {
    world world;
    account account;
    const setting *setting;
    hand hands[MAX_HANDS];
    wh_au64 shared[SHARED]; /* cookie + 1 */
    wh_au32 done;
    pthread_barrier_t start;
} run;

static int64_t random_delay(hand *h, int64_t reach)
{
    uint64_t r = rng_next(&h->rng);
    switch (r % 8) {
    case 0:
        return 0;
    case 1:
    case 2:
        return (int64_t)(r >> 8) % (50 * 1000 + 1);
    case 3:
        return reach * 1000; /* only a cancel ends it soon */
    default:
        return (int64_t)((r >> 8) % (uint64_t)reach);
    }
}

static void do_schedule(run *r, hand *h, uint64_t *mine)
{
    plan p = {.delay = random_delay(h, r->setting->reach)};
    uint64_t dice = rng_next(&h->rng), cookie;
    if (dice % 32 == 0)
        p.interval = 1 + (int64_t)(dice >> 32) % (2 * r->setting->reach);
    if (dice % 5 == 0)
        p.target = hand_target(&r->hands[(dice >> 8) % r->setting->hands]);
    if (r->world.config.payload_bytes)
        p.payload_size = (uint32_t)(dice >> 16) % (r->world.config.payload_bytes / 8 + 1) * 8;
    if (!hand_schedule(h, p, &cookie))
        return;
    mine[dice >> 40 & (MINE - 1)] = cookie + 1;
    if (dice % 3)
        wh_store_relaxed(&r->shared[(dice >> 48) % SHARED], cookie + 1);
}

static void do_cancel(run *r, hand *h)
{
    wh_au64 *place = &r->shared[rng_below(&h->rng, SHARED)];
    uint64_t cookie = wh_load_relaxed(place);
    if (cookie && hand_cancel(h, cookie - 1))
        wh_store_relaxed(place, 0);
}

static void do_receive(run *r, hand *h)
{
    bool sluggish = h->row < r->setting->sluggish;
    if (sluggish && rng_below(&h->rng, 1000))
        return;
    hand_receive(h);
    if (rng_below(&h->rng, 16) == 0) {
        hand_sleep(h, MS);
        hand_receive(h);
    }
}

static void work(run *r, hand *h)
{
    uint64_t mine[MINE] = {0};
    for (uint64_t op = 0; op < r->setting->ops * opt.scale; op++) {
        uint64_t dice = rng_below(&h->rng, 100), cookie = mine[dice % MINE];
        if (dice < 45)
            do_schedule(r, h, mine);
        else if (dice < 75)
            do_cancel(r, h);
        else if (dice < 85 && cookie)
            hand_move(h, cookie - 1, random_delay(h, r->setting->reach));
        else
            do_receive(r, h);
    }
}

/* Waiting for these would take too long: periodic timers, far deadlines. */
static void cancel_rest(hand *h, uint64_t first)
{
    for (uint64_t cookie = first; cookie < h->next; cookie++)
        if (!entry_over(&h->account->entries[cookie]))
            hand_cancel(h, cookie);
}

static void finish(run *r, hand *h, uint64_t first)
{
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + GIVE_UP_NS;
    bool over = false;
    while (wh_load_acquire(&r->done) < r->setting->hands) {
        while (first < h->next && entry_over(&h->account->entries[first]))
            first++;
        if (!over && first == h->next && hand_idle(h)) {
            over = true;
            atomic_fetch_add(&r->done, 1);
        }
        wh_client_ring(&h->client);
        if (!hand_receive(h))
            pause_ns(100000);
        if (wh_clock_read(CLOCK_MONOTONIC) > give_up)
            hand_print_missing(h);
        CHECK(wh_clock_read(CLOCK_MONOTONIC) < give_up,
              "row %u: %llu timers never ended, slots %s, %u of %u done", h->row,
              (ull)account_open(h->account, first, h->next), hand_idle(h) ? "back" : "lost",
              r->done, r->setting->hands);
    }
}

static void *hand_main(void *argument)
{
    hand *h = argument;
    run *r = h->own;
    uint64_t first = h->next;
    jitter_seed(h->row + 1);
    pthread_barrier_wait(&r->start);
    work(r, h);
    pthread_barrier_wait(&r->start);
    cancel_rest(h, first);
    finish(r, h, first);
    return NULL;
}

/* Nothing is left anywhere, and nobody did what an honest client does not. */
static void check_end(run *r)
{
    uint64_t linked;
    world_ask(&r->world, request_check, &linked);
    CHECK(linked == 0, "%llu timers linked in the end", (ull)linked);
    for (uint32_t slot = 0; slot < r->world.config.capacity; slot++)
        CHECK(r->world.clock.wheel.links[slot].list == WH_NIL, "slot %u is in a list", slot);
    for (uint32_t i = 0; i < r->setting->hands; i++) {
        CHECK(wh_load_relaxed(&r->world.peers[i].port->offences) == 0, "row %u: offences", i);
        CHECK(wh_slabs_armed(&r->hands[i].client.slabs) == 0, "row %u: armed slots", i);
        CHECK(wh_client_ready(&r->hands[i].client) == 0, "row %u: completions", i);
    }
}

/* The clock recorded, or counted as lost, exactly the acts of the workers. */
static void check_trace(run *r)
{
    wh_trace_seg *seg = r->world.trace;
    uint64_t wanted[WH_TRACE_KINDS] = {[WH_TRACE_EXPIRED] =
                                           wh_load_relaxed(&r->world.clock.seg->fired)};
    for (uint64_t i = 0; i < r->account.size; i++) {
        entry *e = &r->account.entries[i];
        wanted[WH_TRACE_SCHEDULED] += wh_load_relaxed(&e->id) != 0;
        wanted[WH_TRACE_CANCELLED] += wh_load_relaxed(&e->cancels);
    }
    for (uint32_t i = 0; i < r->setting->hands; i++)
        wanted[WH_TRACE_RESCHEDULED] += r->hands[i].moves;
    for (uint32_t kind = WH_TRACE_SCHEDULED; kind < WH_TRACE_LOST; kind++)
        CHECK(wh_load_relaxed(&seg->counts[kind]) == wanted[kind],
              "trace: %llu of kind %u, the workers say %llu",
              (ull)wh_load_relaxed(&seg->counts[kind]), kind, (ull)wanted[kind]);
    CHECK(r->world.clock.trace.pending == 0, "trace: %llu stories without an end",
          (ull)r->world.clock.trace.pending);
}

static void advance_until_done(run *r)
{
    uint64_t rng = rng_seeded(77);
    while (wh_load_acquire(&r->done) < r->setting->hands) {
        uint64_t step = rng_below(&rng, (uint64_t)(r->setting->reach / 4));
        int64_t target = world_now(&r->world) + (int64_t)step;
        world_ask(&r->world, request_advance, &target);
        world_ask(&r->world, request_check, NULL);
        pause_ns((long)rng_below(&rng, 200000));
    }
}

static void play(const setting *s)
{
    static run r;
    memset(&r, 0, sizeof r);
    r.setting = s;
    wh_config config = s->config;
    config.max_workers = s->hands;
    config.origin_ns = config.virtual_clock ? 12345 * MS : wh_clock_read(CLOCK_MONOTONIC);
    world_make(&r.world, &config);
    if (s->trace_bits)
        world_trace(&r.world, s->trace_bits);
    uint64_t share = s->ops * opt.scale;
    account_make(&r.account, share * s->hands);
    pthread_barrier_init(&r.start, NULL, s->hands);
    for (uint32_t i = 0; i < s->hands; i++) {
        hand_attach(&r.hands[i], &r.world, &r.account, i, i + 7);
        r.hands[i].next = i * share;
        r.hands[i].last = (i + 1) * share;
        r.hands[i].own = &r;
    }
    world_start(&r.world);
    for (uint32_t i = 0; i < s->hands; i++)
        CHECK(pthread_create(&r.hands[i].thread, NULL, hand_main, &r.hands[i]) == 0, "thread");
    if (config.virtual_clock)
        advance_until_done(&r);
    for (uint32_t i = 0; i < s->hands; i++)
        pthread_join(r.hands[i].thread, NULL);
    world_stop(&r.world);
    check_end(&r);
    if (s->trace_bits)
        check_trace(&r);
    printf("  %s: %llu timers\n", s->name, (ull)account_balance(&r.account));
    for (uint32_t i = 0; i < s->hands; i++)
        hand_free(&r.hands[i]);
    account_free(&r.account);
    world_free(&r.world);
}

int main(int argc, char **argv)
{
    static const setting settings[] = {
        {"scarce", {.tick_ns = 100000, .wheel_bits = 6, .capacity = 256}, 3, 0, 4000, 2 * MS, 8},
        {"stalling",
         {.tick_ns = MS, .wheel_bits = 2, .capacity = 16384, .payload_bytes = 64},
         4,
         2,
         8000,
         4 * MS,
         0},
        {"fine",
         {.tick_ns = 1000, .wheel_bits = 8, .capacity = 8192, .payload_bytes = 16},
         4,
         1,
         6000,
         MS,
         18},
        {"virtual",
         {.tick_ns = MS, .wheel_bits = 6, .capacity = 4096, .virtual_clock = 1},
         3,
         1,
         6000,
         50 * MS,
         16},
    };
    options_read(argc, argv);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        play(&settings[i]);
    printf("ok\n");
    return 0;
}
