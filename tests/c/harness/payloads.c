/* Payloads: those in the heap: of all sizes, from many workers, freed by whoever ends their timer;
 * and nothing is left of them, whoever dies on the way. */
#include "single.h"

#define CHUNKS 24u

/* The last payload of each timer that a hand has received. */
typedef struct arrival {
    uint64_t id;
    uint32_t size;
    char *bytes;
} arrival;

typedef struct arrivals {
    uint32_t count;
    bool refuse; /* there is no memory */
    arrival list[EVENTS_ROOM];
} arrivals;

static arrivals got[SINGLE_HANDS];

static char *make_room(wh_client *c, uint64_t id, uint32_t size)
{
    arrivals *a = &got[c->worker];
    if (a->refuse)
        return NULL;
    CHECK(a->count < EVENTS_ROOM, "row %u: more payloads than events", c->worker);
    char *bytes = malloc(size + 1);
    CHECK(bytes, "out of memory");
    a->list[a->count] = (arrival){id, size, bytes};
    return bytes;
}

static void keep(wh_client *c, uint64_t id, uint32_t size)
{
    arrivals *a = &got[c->worker];
    CHECK(a->list[a->count].id == id && a->list[a->count].size == size, "another payload");
    a->count++;
}

static const wh_payload_sink sink = {make_room, keep};

static void forget(uint32_t row)
{
    for (uint32_t i = 0; i < got[row].count; i++)
        free(got[row].list[i].bytes);
    got[row].count = 0;
}

static char byte_at(uint64_t cookie, uint32_t at) { return (char)(cookie * 31 + at + at / 251); }

static void fill(char *payload, uint64_t cookie, uint32_t size)
{
    for (uint32_t at = 0; at < size; at++)
        payload[at] = byte_at(cookie, at);
}

static void check_arrival(const hand *h, const wh_completion *event)
{
    const arrivals *a = &got[h->row];
    uint32_t size, i = a->count;
    memcpy(&size, &event->payload_size, sizeof size);
    const char *bytes = (const char *)(event + 1);
    if (size > h->client.payload_bytes) {
        while (i-- > 0 && a->list[i].id != event->id)
            ;
        CHECK(i < a->count, "%llu came without its payload", (ull)event->cookie);
        CHECK(a->list[i].size == size, "%llu: %u bytes, not %u", (ull)event->cookie, size,
              a->list[i].size);
        bytes = a->list[i].bytes;
    }
    for (uint32_t at = 0; at < size; at++)
        CHECK(bytes[at] == byte_at(event->cookie, at), "%llu: byte %u of %u is wrong",
              (ull)event->cookie, at, size);
}

/* Take what is there; the payload of each is its own. Returns how many came. */
static uint64_t take(hand *h)
{
    bool more;
    uint64_t count = wh_call_poll(&h->client, h->bell, h->events, EVENTS_ROOM, false, &more);
    for (uint64_t i = 0; i < count; i++)
        check_arrival(h, (const wh_completion *)(h->events + i * wh_event_bytes(&h->client)));
    forget(h->row);
    return count;
}

/* Under a clock of one thread no call waits: whoever would is refused. */
static enum wh_call try_to(hand *h, uint64_t cookie, uint32_t size, plan p, uint64_t *id)
{
    char *payload = malloc(size + 1);
    CHECK(payload, "out of memory");
    fill(payload, cookie, size);
    wh_request r = {.deadline = wh_time_add(wh_client_now(&h->client), p.delay),
                    .interval = p.interval,
                    .cookie = cookie,
                    .payload = payload,
                    .payload_size = size,
                    .target = p.target};
    enum wh_call done = wh_call_schedule(&h->client, &r, r.deadline, false, id);
    free(payload);
    return done;
}

static uint64_t arm_one(hand *h, uint64_t cookie, uint32_t size, plan p)
{
    uint64_t id;
    enum wh_call done = try_to(h, cookie, size, p, &id);
    CHECK(done == WH_CALL_OK, "row %u: %u bytes: call %d", h->row, size, done);
    return id;
}

static void heap_is(uint64_t bytes)
{
    uint64_t found = wh_heap_bytes(&w.clock.heap);
    CHECK(found == bytes, "%llu bytes in the heap, not %llu", (ull)found, (ull)bytes);
}

static void begin(uint32_t hands_count, uint32_t chunks, uint32_t room)
{
    single_make(hands_count, (wh_config){.tick_ns = MS,
                                         .wheel_bits = 6,
                                         .capacity = 4096,
                                         .payload_bytes = room,
                                         .heap_chunks = chunks,
                                         .max_payload = WH_MAX_PAYLOAD});
    for (uint32_t row = 0; row < hands_count; row++)
        hands[row].client.sink = &sink;
}

static void advance(int64_t ms) { world_advance_to(&w, w.clock.now[WH_CLOCK_BASE] + ms * MS); }

/* -- one thread -------------------------------------------------------------------------------- */

/* Each class, its edges, and chains of chunks. */
static void play_sizes(void)
{
    static const uint32_t more[] = {
        1, 7, 8, 9, WH_CHUNK_BYTES, 3 * WH_CHUNK_DATA, 3 * WH_CHUNK_DATA + 1, 20 * WH_CHUNK_DATA};
    for (uint32_t room = 0; room <= 16; room += 16) {
        begin(1, CHUNKS, room);
        for (uint32_t i = 0; i < 3 * WH_HEAP_CLASSES + 8; i++) {
            uint32_t size = i < 3 * WH_HEAP_CLASSES ? wh_heap_room(i / 3) - 1 + i % 3
                                                    : more[i - 3 * WH_HEAP_CLASSES];
            arm_one(A, i, size, (plan){.delay = MS});
            heap_is(size > room ? size : 0);
            advance(2);
            CHECK(take(A) == 1, "%u bytes: no event", size);
            heap_is(0);
        }
        single_free();
    }
}

/* A heap that is full refuses, whole; what is freed is there again, for other sizes, too. */
static void play_full(void)
{
    begin(1, 4, 0);
    static const uint32_t sizes[] = {100, WH_CHUNK_DATA, 5000, 2 * WH_CHUNK_DATA, 112, 29000};
    for (uint32_t turn = 0; turn < 12; turn++) {
        uint64_t ids[4096], count = 0, id;
        uint32_t size = sizes[turn % 6];
        while (try_to(A, count, size, (plan){.delay = FAR_NS}, &id) == WH_CALL_OK)
            ids[count++] = id, passes(1);
        uint32_t each = wh_heap_counts[wh_heap_class(size)];
        CHECK(count == (size > WH_CHUNK_DATA ? 2 : 4 * each), "%llu payloads of %u bytes",
              (ull)count, size);
        heap_is(count * size);
        CHECK(try_to(A, 0, size, (plan){.delay = FAR_NS}, &id) == WH_CALL_HEAP_FULL,
              "it is not full");
        for (uint64_t i = 0; i < count; i++, passes(1))
            CHECK(wh_call_cancel(&A->client, ids[i], false) == WH_CALL_OK, "cancel");
        heap_is(0);
        passes(1);
        wh_client_reclaim(&A->client);
    }
    CHECK(try_to(A, 0, WH_MAX_PAYLOAD + 1, (plan){.delay = 0}, &(uint64_t){0}) ==
              WH_CALL_LONG_PAYLOAD,
          "it is not too large");
    single_free();
}

/* Every second block is free: small ones go between, and a large one finds no chunk. */
static void play_fragments(void)
{
    begin(1, 2, 0);
    uint64_t ids[1024], id, count = 0;
    while (count < 1024 && try_to(A, count, 100, (plan){.delay = FAR_NS}, &ids[count]) == 0)
        count++, passes(1);
    CHECK(count == 1024, "%llu fit", (ull)count);
    for (uint64_t i = 0; i < count; i += 2, passes(1))
        wh_call_cancel(&A->client, ids[i], false);
    CHECK(try_to(A, 0, 4000, (plan){.delay = FAR_NS}, &id) == WH_CALL_HEAP_FULL, "room for 4000");
    passes(1);
    for (uint64_t i = 0; i < count; i += 2, passes(1))
        ids[i] = arm_one(A, i, 90, (plan){.delay = FAR_NS});
    heap_is(512 * 190);
    for (uint64_t i = 0; i < count; i++, passes(1))
        wh_call_cancel(&A->client, ids[i], false);
    arm_one(A, 1, 2 * WH_CHUNK_DATA, (plan){.delay = 0});
    single_free();
}

/* Of a timer that ticks, each tick brings it; the cancel frees it, by anyone. */
static void play_ticks(void)
{
    begin(2, 4, 0);
    uint64_t own = arm_one(A, 1, 5000, (plan){.delay = MS, .interval = MS});
    arm_one(A, 2, 70000, (plan){.delay = MS, .interval = MS, .target = hand_target(B)});
    for (int i = 0; i < 5; i++) {
        advance(2);
        CHECK(take(A) && take(B), "no tick");
        heap_is(75000);
    }
    advance(2);
    CHECK(wh_call_cancel(&B->client, own, false) == WH_CALL_OK, "cancel");
    heap_is(70000);
    CHECK(take(A) == 0, "a tick after the cancel");
    single_free();
}

/* Held events keep their payloads until they are acknowledged. */
static void play_held(void)
{
    begin(1, 8, 0);
    for (uint64_t cookie = 0; cookie < 100; cookie++)
        arm_one(A, cookie, 1000, (plan){.delay = MS});
    advance(2);
    CHECK(wh_client_hold(&A->client, A->events, 60) == 60, "held");
    forget(0);
    heap_is(100000);
    wh_client_acknowledge(&A->client);
    heap_is(40000);
    CHECK(take(A) == 40, "the rest");
    heap_is(0);
    single_free();
}

/* Without memory for a payload its event stays in the ring. */
static void play_no_memory(void)
{
    begin(1, 4, 0);
    arm_one(A, 1, 1000, (plan){.delay = MS});
    advance(2);
    got[0].refuse = true;
    CHECK(take(A) == 0 && A->client.stuck, "it came");
    got[0].refuse = false;
    CHECK(take(A) == 1 && !A->client.stuck, "it is lost");
    heap_is(0);
    single_free();
}

/* A batch is armed with all its payloads, or none of them is left. */
static void play_batch(void)
{
    begin(1, 4, 0);
    static char bytes[64 * 2000];
    static double delays[64];
    uint64_t ids[64];
    wh_batch b = {.n = 64, .ids = ids, .delays = delays, .payloads = bytes, .width = 2000};
    wh_request r = {.payload = bytes, .payload_size = 2000};
    CHECK(wh_call_schedule_batch(&A->client, &b, &r, false) == WH_CALL_OK, "no batch");
    heap_is(64 * 2000);
    b.n = 60; /* 116 fit */
    CHECK(wh_call_schedule_batch(&A->client, &b, &r, false) == WH_CALL_HEAP_FULL, "it fits");
    heap_is(64 * 2000);
    single_free();
}

/* The clock has memory for more chunks, and gives it to who asks. */
static void play_grow(void)
{
    begin(1, 40, 0);
    uint64_t id;
    wh_store_relaxed(&w.clock.seg->heap_backed, 2);
    arm_one(A, 1, 2 * WH_CHUNK_DATA, (plan){.delay = FAR_NS});
    CHECK(try_to(A, 2, 100, (plan){.delay = FAR_NS}, &id) == WH_CALL_HEAP_FULL, "without memory");
    CHECK(A->client.unanswered, "it does not say that the clock has to answer");
    passes(1);
    CHECK(wh_load_relaxed(&w.clock.seg->heap_backed) == 18, "%u chunks",
          wh_load_relaxed(&w.clock.seg->heap_backed));
    arm_one(A, 2, 100, (plan){.delay = FAR_NS});
    CHECK(try_to(A, 3, 35 * WH_CHUNK_DATA, (plan){.delay = FAR_NS}, &id) == WH_CALL_HEAP_FULL,
          "without memory");
    heap_is(2 * WH_CHUNK_DATA + 100);
    passes(1);
    arm_one(A, 3, 35 * WH_CHUNK_DATA, (plan){.delay = FAR_NS});
    single_free();
}

/* -- deaths ------------------------------------------------------------------------------------ */

static void die(hand *h)
{
    wh_clock_detach(&w.peers[h->row], WH_LEAVE_DROP);
    for (int i = 0; i < 200; i++)
        passes(1);
}

/* A worker takes with it all that it had armed, had in hand, or had received. */
static void play_death(void)
{
    begin(2, 100, 0);
    for (uint64_t cookie = 0; cookie < 50; cookie++)
        arm_one(A, cookie, (uint32_t)(cookie * 3001), (plan){.delay = cookie % 2 ? MS : FAR_NS});
    advance(2); /* half of them fired, and are not read */
    uint32_t slot;
    CHECK(wh_client_have_slot(&A->client, 1, false, &slot) == WH_CALL_OK, "no slot");
    wh_request r = {.payload = "never armed", .payload_size = 11};
    CHECK(wh_client_write_payload(&A->client, slot, &r), "no room");
    /* it dies with a chunk held */
    uint32_t chunk = A->client.heap.at[0] - 1;
    CHECK(wh_heap_hold(&A->client.heap, chunk, wh_load_relaxed(&w.clock.heap.chunks[chunk].word)),
          "hold");
    die(A);
    heap_is(0);
    CHECK(!wh_chunk_is_held(wh_load_relaxed(&w.clock.heap.chunks[chunk].word)), "it is held");
    single_free();
}

/* A freer that dies before it has counted: all of the heap is found again. */
static void play_uncounted(void)
{
    begin(2, 4, 0);
    uint64_t ids[4], id;
    for (uint64_t i = 0; i < 4; i++)
        ids[i] = arm_one(A, i, WH_CHUNK_DATA, (plan){.delay = FAR_NS});
    for (uint64_t i = 0; i < 4; i++) {
        wh_call_cancel(&A->client, ids[i], false);
        wh_fetch_add_seq(&w.clock.heap.chunks[i].freed, -1u);
    }
    passes(1);
    wh_client_reclaim(&A->client);
    A->client.heap.counted = wh_load_seq(w.clock.freed) + 1;
    CHECK(try_to(A, 9, WH_CHUNK_DATA, (plan){.delay = FAR_NS}, &id) == WH_CALL_HEAP_FULL,
          "it was counted again without a death");
    die(B);
    arm_one(A, 9, 4 * WH_CHUNK_DATA, (plan){.delay = FAR_NS});
    single_free();
}

/* The receiver dies, with the record unread or behind its head: the payload goes with the event, or
 * with the slot. */
static void play_lent(void)
{
    for (int read = 0; read < 2; read++) {
        begin(2, 4, 0);
        arm_one(A, 1, 5000, (plan){.delay = MS, .target = hand_target(B)});
        advance(2);
        if (read) { /* its head has passed the record, and it dies before it frees */
            B->client.comp_head++;
            wh_store_seq(&B->client.seg->comp_head, B->client.comp_head);
        }
        die(B);
        if (!read)
            CHECK(take(A) == 1, "it is lost");
        passes(2);
        heap_is(0);
        single_free();
    }
}

/* -- threads ----------------------------------------------------------------------------------- */

#define TURNS (2000 * opt.scale)

static wh_au64 sent, cancelled, received;

static void *work(void *argument)
{
    hand *h = argument;
    uint64_t ids[64] = {0};
    jitter_seed(h->row);
    h->client.sink = &sink;
    for (uint64_t i = 0; i < TURNS; i++) {
        uint64_t cookie = h->row << 24 | i, at = rng_below(&h->rng, 64);
        uint32_t size = (uint32_t)(rng_below(&h->rng, 50) ? rng_below(&h->rng, 3000)
                                                          : rng_below(&h->rng, 200000));
        hand *to = &hands[rng_below(&h->rng, 4)];
        plan p = {.delay = (int64_t)rng_below(&h->rng, 20 * MS), .target = hand_target(to)};
        if (try_to(h, cookie, size, p, &ids[at]) == WH_CALL_OK)
            entry_add(&sent);
        at = rng_below(&h->rng, 64);
        if (ids[at] && wh_call_cancel(&h->client, ids[at], false) == WH_CALL_OK)
            entry_add(&cancelled);
        atomic_fetch_add_explicit(&received, take(h), memory_order_relaxed);
    }
    return NULL;
}

static void play_threads(void)
{
    opt.jitter = 64;
    world_make(&w, &(wh_config){.tick_ns = MS,
                                .wheel_bits = 6,
                                .capacity = 4096,
                                .max_workers = 4,
                                .heap_chunks = CHUNKS,
                                .max_payload = WH_MAX_PAYLOAD});
    world_start(&w);
    for (uint32_t row = 0; row < 4; row++)
        hand_attach(&hands[row], &w, &book, row, row + 1);
    for (uint32_t row = 0; row < 4; row++)
        CHECK(pthread_create(&hands[row].thread, NULL, work, &hands[row]) == 0, "pthread_create");
    for (uint32_t row = 0; row < 4; row++)
        pthread_join(hands[row].thread, NULL);
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + GIVE_UP_NS;
    while (received + cancelled < sent) {
        CHECK(wh_clock_read(CLOCK_MONOTONIC) < give_up, "%llu sent, %llu cancelled, %llu received",
              (ull)sent, (ull)cancelled, (ull)received);
        for (uint32_t row = 0; row < 4; row++)
            received += take(&hands[row]);
        pause_ns(100000);
    }
    heap_is(0);
    world_stop(&w);
    printf("  %llu sent, %llu cancelled, %u chunks\n", (ull)sent, (ull)cancelled,
           wh_load_relaxed(w.clock.heap.top));
    for (uint32_t row = 0; row < 4; row++)
        hand_free(&hands[row]);
    world_free(&w);
}

int main(int argc, char **argv)
{
    static const single_case cases[] = {
        {"all sizes", play_sizes},
        {"a full heap", play_full},
        {"fragments", play_fragments},
        {"ticks", play_ticks},
        {"held", play_held},
        {"without memory", play_no_memory},
        {"a batch", play_batch},
        {"it grows", play_grow},
        {"a death", play_death},
        {"a death uncounted", play_uncounted},
        {"a receiver's death", play_lent},
        {"threads", play_threads},
    };
    return cases_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
