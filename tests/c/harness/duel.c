/* Duel: cancel against fire, reschedule against fire, two cancellers against each other and the
 * clock: each time one winner, at the very moment that the timer falls due. */
#include "crew.h"

#define ROUND 32 /* timers at once */
#define SPREAD 40000

typedef struct duel {
    world world;
    account account;
    hand hands[2];
    wh_au64 offered[ROUND]; /* cookie + 1, for the second canceller */
    wh_au32 over;
    uint64_t wins[2], losses;
} duel;

typedef void (*challenge)(duel *d, hand *h, uint64_t cookie);

static void challenge_cancel(duel *d, hand *h, uint64_t cookie)
{
    if (hand_cancel(h, cookie))
        d->wins[0]++;
    else
        d->losses++;
}

/* Later or earlier: a move that won must show in the deadline; one that lost must not. */
static void challenge_move(duel *d, hand *h, uint64_t cookie)
{
    int64_t delay = (int64_t)rng_below(&h->rng, SPREAD);
    if (hand_move(h, cookie, delay))
        d->wins[0]++;
    else
        d->losses++;
}

/* Twice in a row: the second move is under way when the clock looks at the first. */
static void challenge_move_twice(duel *d, hand *h, uint64_t cookie)
{
    hand_move(h, cookie, SPREAD * 4);
    challenge_move(d, h, cookie);
}

static void *second_main(void *argument)
{
    duel *d = argument;
    hand *h = &d->hands[1];
    jitter_seed(2);
    while (!wh_load_acquire(&d->over)) {
        for (uint32_t i = 0; i < ROUND; i++) {
            uint64_t cookie = wh_load_relaxed(&d->offered[i]);
            if (cookie && hand_cancel(h, cookie - 1))
                d->wins[1]++;
        }
        hand_receive(h);
    }
    return NULL;
}

/* Receive until all of the round have ended. */
static void round_end(hand *h, uint64_t first)
{
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + GIVE_UP_NS;
    for (;;) {
        hand_receive(h);
        if (account_open(h->account, first, h->next) == 0)
            return;
        CHECK(wh_clock_read(CLOCK_MONOTONIC) < give_up, "%llu of the round never ended",
              (ull)account_open(h->account, first, h->next));
        hand_sleep(h, MS);
    }
}

/* Slots of cancelled timers come back when the clock gets to it: on a busy machine that takes a
 * while. */
static void schedule_patiently(hand *h, plan p, uint64_t *cookie)
{
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + GIVE_UP_NS;
    while (!hand_schedule(h, p, cookie)) {
        CHECK(wh_clock_read(CLOCK_MONOTONIC) < give_up, "the wheel is full");
        wh_client_ring(&h->client);
        hand_receive(h);
        pause_ns(10000);
    }
}

static void round_play(duel *d, challenge challenge)
{
    hand *h = &d->hands[0];
    uint64_t first = h->next, cookie;
    for (uint32_t i = 0; i < ROUND; i++) {
        plan p = {.delay = (int64_t)rng_below(&h->rng, SPREAD), .payload_size = 8};
        schedule_patiently(h, p, &cookie);
        wh_store_relaxed(&d->offered[i], cookie + 1);
    }
    for (uint64_t i = first; i < h->next; i++) {
        int64_t due = wh_load_relaxed(&h->account->entries[i].wanted);
        while (i % 2 && wh_clock_read(CLOCK_MONOTONIC) < due - 500)
            ; /* every other one: wait for the very moment */
        challenge(d, h, i);
    }
    round_end(h, first);
}

static void play(const char *name, challenge challenge, uint32_t hands, uint64_t rounds)
{
    static duel d;
    memset(&d, 0, sizeof d);
    wh_config config = {.tick_ns = 1000,
                        .wheel_bits = 6,
                        .capacity = 1024,
                        .max_workers = hands,
                        .payload_bytes = 8,
                        .origin_ns = wh_clock_read(CLOCK_MONOTONIC)};
    world_make(&d.world, &config);
    account_make(&d.account, rounds * ROUND);
    for (uint32_t i = 0; i < hands; i++)
        hand_attach(&d.hands[i], &d.world, &d.account, i, i + 1);
    d.hands[0].last = rounds * ROUND;
    world_start(&d.world);
    if (hands > 1)
        CHECK(pthread_create(&d.hands[1].thread, NULL, second_main, &d) == 0, "thread");
    for (uint64_t i = 0; i < rounds; i++)
        round_play(&d, challenge);
    wh_store_release(&d.over, 1);
    if (hands > 1)
        pthread_join(d.hands[1].thread, NULL);
    hand_finish(&d.hands[0], 0);
    world_stop(&d.world);
    request_check(&d.world, NULL);
    uint64_t timers = account_balance(&d.account);
    printf("  %s: %llu timers, first won %llu, second %llu, lost %llu\n", name, (ull)timers,
           (ull)d.wins[0], (ull)d.wins[1], (ull)d.losses);
    for (uint32_t i = 0; i < hands; i++)
        hand_free(&d.hands[i]);
    account_free(&d.account);
    world_free(&d.world);
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    play("cancel against fire", challenge_cancel, 1, 1000 * opt.scale);
    play("move against fire", challenge_move, 1, 1000 * opt.scale);
    play("two moves against fire", challenge_move_twice, 1, 1000 * opt.scale);
    play("two cancellers", challenge_cancel, 2, 1000 * opt.scale);
    printf("ok\n");
    return 0;
}
