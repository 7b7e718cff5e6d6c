/* Keys: workers claim, replace, move, cancel and look up timers of few keys at once, while these
 * fall due. One key is a lock: whoever has claimed it is alone until it cancels that timer. In the
 * end each timer that was armed has fired or was cancelled, once, and every slot is back. */
#include "crew.h"

#include "wheeld/worker/keys.h"

#define HANDS 3
#define KEYS 48 /* in the two sets that they share there are places for 32 */
#define LOCK 0

typedef struct contest {
    world world;
    account account; /* none: cookies only number the timers of a hand */
    hand hands[HANDS];
    wh_keys keys[HANDS];
    void *directory;
    uint64_t rounds;
    uint32_t inside; /* the lock's: only its holder touches these */
    uint64_t held;
} contest;

typedef struct tally {
    contest *contest;
    wh_keys *keys;
    uint8_t *fired; /* by cookie */
    uint64_t events, won, refused, full;
} tally;

static wh_key key_of(uint64_t number)
{
    static const char bytes[64] = "a key that is longer than a room";
    return (wh_key){wh_words_key(number << 3, 1ull << 63 | number << 3, WH_WORD_TIMER), bytes,
                    number % 2 ? 16 : 60};
}

static void take_events(hand *h)
{
    tally *t = h->own;
    bool more;
    uint32_t bytes = wh_event_bytes(&h->client);
    uint64_t got = wh_call_poll(&h->client, h->bell, h->events, EVENTS_ROOM, false, &more);
    for (uint64_t i = 0; i < got; i++) {
        const wh_completion *event = (const wh_completion *)(h->events + i * bytes);
        CHECK(event->cookie < h->next, "cookie %llu", (ull)event->cookie);
        CHECK(!t->fired[event->cookie]++, "%llu fired twice, or was refused", (ull)event->cookie);
        t->events++;
    }
}

static enum wh_call claim(hand *h, uint64_t number, enum wh_conflict how, int64_t delay)
{
    tally *t = h->own;
    wh_client *c = &h->client;
    wh_key key = key_of(number);
    wh_request r = {.deadline = wh_time_add(wh_client_now(c), delay), .cookie = h->next++};
    uint64_t id;
    enum wh_call call = wh_call_schedule_key(c, t->keys, &key, &r, delay, how, true, &id);
    CHECK(call == WH_CALL_OK || call == WH_CALL_TAKEN || call == WH_CALL_KEYS_FULL,
          "a claim ended with %d", (int)call);
    t->fired[r.cookie] = call != WH_CALL_OK;
    *(call == WH_CALL_OK ? &t->won : call == WH_CALL_TAKEN ? &t->refused : &t->full) += 1;
    return call;
}

/* Alone with what nobody guards but the claim. */
static void lock_and_unlock(hand *h)
{
    tally *t = h->own;
    contest *d = t->contest;
    wh_key key = key_of(LOCK);
    uint64_t id;
    if (claim(h, LOCK, WH_KEY_RAISE, 1000000 * MS) != WH_CALL_OK)
        return;
    CHECK(d->inside++ == 0, "two workers have the key");
    d->held++;
    CHECK(--d->inside == 0, "two workers have the key");
    CHECK(wh_call_cancel_key(&h->client, t->keys, &key, true, &id) == WH_CALL_OK,
          "a key that is held is said to be free");
}

static void *hand_main(void *argument)
{
    hand *h = argument;
    tally *t = h->own;
    uint64_t id;
    jitter_seed(h->row + 1);
    for (uint64_t i = 0; i < t->contest->rounds; i++) {
        uint64_t number = 1 + rng_below(&h->rng, i % 2 ? 2 : KEYS - 1);
        wh_key key = key_of(number);
        int64_t delay = (int64_t)rng_below(&h->rng, MS / 10);
        lock_and_unlock(h);
        claim(h, number, (enum wh_conflict)rng_below(&h->rng, 5), delay);
        switch (rng_below(&h->rng, 4)) {
        case 0:
            wh_call_reschedule_key(&h->client, t->keys, &key, delay, 0, true, &id);
            break;
        case 1:
            wh_call_cancel_key(&h->client, t->keys, &key, true, &id);
            break;
        case 2:
            (void)wh_key_pending(t->keys, &key);
        }
        take_events(h);
    }
    return NULL;
}

/* Until nothing is armed and all its slots are back. */
static void wait_for_the_rest(hand *h)
{
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + GIVE_UP_NS;
    while (!hand_idle(h)) {
        wh_client_ring(&h->client);
        take_events(h);
        pause_ns(100000);
        CHECK(wh_clock_read(CLOCK_MONOTONIC) < give_up, "row %u: timers never end", h->row);
    }
}

static void play(uint64_t rounds)
{
    static contest d;
    static tally tallies[HANDS];
    uint64_t armed = 0, ended = 0;
    memset(&d, 0, sizeof d);
    wh_config config = {.tick_ns = 1000,
                        .wheel_bits = 6,
                        .capacity = 1024,
                        .max_workers = HANDS,
                        .payload_bytes = 8,
                        .origin_ns = wh_clock_read(CLOCK_MONOTONIC)};
    world_make(&d.world, &config);
    uint64_t bytes = wh_keys_parts_of(HANDS, config.capacity).bytes;
    d.rounds = rounds;
    d.directory = aligned_alloc(4096, bytes);
    CHECK(d.directory, "out of memory");
    memset(d.directory, 0, bytes);
    wh_keys_create(d.directory, HANDS, config.capacity, 1, 0);
    CHECK(wh_keys_bind(&d.world.clock.keys, d.directory, HANDS, config.capacity,
                       d.world.clock.states, d.world.clock.slots, WH_NIL),
          "out of memory");
    for (uint32_t i = 0; i < HANDS; i++) {
        hand *h = &d.hands[i];
        hand_attach(h, &d.world, &d.account, i, i + 1);
        CHECK(wh_keys_bind(&d.keys[i], d.directory, HANDS, config.capacity, h->client.states,
                           h->client.slots, i),
              "out of memory");
        tallies[i] = (tally){.contest = &d, .keys = &d.keys[i], .fired = calloc(2 * rounds, 1)};
        CHECK(tallies[i].fired, "out of memory");
        h->own = &tallies[i];
    }
    world_start(&d.world);
    for (uint32_t i = 0; i < HANDS; i++)
        CHECK(pthread_create(&d.hands[i].thread, NULL, hand_main, &d.hands[i]) == 0, "thread");
    for (uint32_t i = 0; i < HANDS; i++)
        pthread_join(d.hands[i].thread, NULL);
    for (uint32_t i = 0; i < HANDS; i++)
        wait_for_the_rest(&d.hands[i]);
    world_stop(&d.world);
    request_check(&d.world, NULL);
    for (uint32_t i = 0; i < HANDS; i++) {
        const tally *t = &tallies[i];
        armed += wh_load_relaxed(&d.hands[i].client.seg->scheduled);
        ended += t->events + wh_load_relaxed(&d.hands[i].client.seg->cancelled);
        printf("  row %u: won %llu, refused %llu, full %llu, events %llu\n", i, (ull)t->won,
               (ull)t->refused, (ull)t->full, (ull)t->events);
        free(t->fired);
        wh_keys_free(&d.keys[i]);
        hand_free(&d.hands[i]);
    }
    CHECK(armed == ended, "%llu were armed, %llu ended", (ull)armed, (ull)ended);
    printf("  locked %llu times\n", (ull)d.held);
    world_free(&d.world);
    free(d.directory);
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    play(3000 * opt.scale);
    printf("ok\n");
    return 0;
}
