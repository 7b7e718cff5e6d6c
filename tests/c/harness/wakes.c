/* Wakes: in lockstep, so that nobody's doorbell hides another's lost one.
 *
 * In each round every worker does one thing that the clock has to wake up for (or nothing), waits
 * for what comes of it, and then stands still until all others have theirs. A wake-up that is lost
 * on either side then is a hang, which the bounded wait reports. */
#include "crew.h"

#define HANDS 3
#define FAR_NS 3600000000000

typedef struct lockstep {
    world world;
    account account;
    hand hands[HANDS];
    pthread_barrier_t round;
    uint64_t rounds;
} lockstep;

static void await_end(hand *h, uint64_t cookie, const char *what)
{
    entry *e = &h->account->entries[cookie];
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + GIVE_UP_NS;
    for (;;) {
        hand_receive(h);
        if (entry_over(e))
            return;
        hand_sleep(h, GIVE_UP_NS);
        CHECK(wh_clock_read(CLOCK_MONOTONIC) < give_up, "row %u: lost wake-up (%s)", h->row, what);
    }
}

static void do_near(hand *h)
{
    uint64_t cookie;
    plan p = {.delay = (int64_t)rng_below(&h->rng, 3) * (int64_t)rng_below(&h->rng, 20000)};
    CHECK(hand_schedule(h, p, &cookie), "no slot");
    await_end(h, cookie, "near timer");
}

/* Ring for nothing first, as a worker in want of slots does: the byte of that ring must not stand
 * in for the one that the timer needs. */
static void do_ring_first(hand *h)
{
    wh_client_ring(&h->client);
    if (rng_below(&h->rng, 2))
        pause_ns((long)rng_below(&h->rng, 30000));
    do_near(h);
}

static void do_earlier(hand *h)
{
    uint64_t cookie;
    CHECK(hand_schedule(h, (plan){.delay = FAR_NS}, &cookie), "no slot");
    if (rng_below(&h->rng, 2))
        pause_ns((long)rng_below(&h->rng, 30000));
    hand_move(h, cookie, (int64_t)rng_below(&h->rng, 20000));
    await_end(h, cookie, "moved earlier");
}

/* Cancelled: that can wait in the ring, so it is rung for, and the slot comes back. */
static void do_cancel(hand *h)
{
    uint64_t cookie;
    CHECK(hand_schedule(h, (plan){.delay = FAR_NS}, &cookie), "no slot");
    CHECK(hand_cancel(h, cookie), "a far timer is gone");
}

/* More than the ring holds: what waits in the backlog comes when there is room. */
static void do_burst(hand *h)
{
    uint64_t first = h->next, count = h->client.comp_size + 100, cookie;
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + GIVE_UP_NS;
    for (uint64_t i = 0; i < count; i++)
        CHECK(hand_schedule(h, (plan){.delay = 0}, &cookie), "no slot");
    while (account_open(h->account, first, h->next)) {
        hand_receive(h);
        if (account_open(h->account, first, h->next))
            hand_sleep(h, GIVE_UP_NS);
        CHECK(wh_clock_read(CLOCK_MONOTONIC) < give_up, "row %u: lost wake-up (backlog), %llu open",
              h->row, (ull)account_open(h->account, first, h->next));
    }
}

static void *hand_main(void *argument)
{
    hand *h = argument;
    lockstep *l = h->own;
    jitter_seed(h->row + 1);
    for (uint64_t i = 0; i < l->rounds; i++) {
        pthread_barrier_wait(&l->round);
        uint64_t dice = rng_below(&h->rng, 400);
        if (dice == 0)
            do_burst(h);
        else if (dice < 150)
            do_near(h);
        else if (dice < 230)
            do_ring_first(h);
        else if (dice < 300)
            do_earlier(h);
        else if (dice < 340)
            do_cancel(h);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    static lockstep l;
    options_read(argc, argv);
    l.rounds = 2000 * opt.scale;
    wh_config config = {.tick_ns = 1000,
                        .wheel_bits = 6,
                        .capacity = 8192,
                        .max_workers = HANDS,
                        .origin_ns = wh_clock_read(CLOCK_MONOTONIC)};
    world_make(&l.world, &config);
    uint64_t share = l.rounds * 16;
    account_make(&l.account, share * HANDS);
    pthread_barrier_init(&l.round, NULL, HANDS);
    for (uint32_t i = 0; i < HANDS; i++) {
        hand_attach(&l.hands[i], &l.world, &l.account, i, i + 1);
        l.hands[i].next = i * share;
        l.hands[i].last = (i + 1) * share;
        l.hands[i].own = &l;
    }
    world_start(&l.world);
    for (uint32_t i = 0; i < HANDS; i++)
        CHECK(pthread_create(&l.hands[i].thread, NULL, hand_main, &l.hands[i]) == 0, "thread");
    for (uint32_t i = 0; i < HANDS; i++)
        pthread_join(l.hands[i].thread, NULL);
    for (uint32_t i = 0; i < HANDS; i++)
        hand_finish(&l.hands[i], i * share);
    world_stop(&l.world);
    request_check(&l.world, NULL);
    printf("  %llu timers, %llu wakes, %llu rounds\nok\n", (ull)account_balance(&l.account),
           (ull)wh_load_relaxed(&l.world.clock.seg->wakes), (ull)l.rounds);
    for (uint32_t i = 0; i < HANDS; i++)
        hand_free(&l.hands[i]);
    account_free(&l.account);
    world_free(&l.world);
    return 0;
}
