/* Bounds: however long a list is, a pass does a piece of it, and the others' work between two
 * pieces. */
#include "single.h"

#define CAPACITY 65536
#define CROWD 20000
#define ROWS SINGLE_HANDS

static uint64_t armed; /* their cookies count up */

static void begin(uint32_t rows)
{
    single_make(rows, (wh_config){.tick_ns = MS, .wheel_bits = 6, .capacity = CAPACITY});
}

static uint64_t arm_to(hand *h, int64_t deadline, uint32_t target)
{
    return arm(h, (wh_request){.deadline = deadline, .target = target, .cookie = armed++});
}

static void arm_many(hand *h, uint32_t count, int64_t deadline, uint32_t target)
{
    for (uint32_t i = 0; i < count; i++) {
        arm_to(h, deadline, target);
        if (i % 1024 == 1023)
            world_settle(&w);
    }
    world_settle(&w);
}

static uint32_t length(uint32_t list)
{
    uint64_t count;
    wh_check check = {0};
    CHECK(wh_check_list(&w.clock.wheel, CAPACITY, list, &count, &check), "%s", check.message);
    return (uint32_t)count;
}

static uint32_t for_b(void)
{
    return length(wh_backlog_list(&w.clock, &w.peers[1])) +
           length(wh_lent_list(&w.clock, &w.peers[1]));
}

static bool one_pass(void)
{
    uint32_t reaped;
    bool more = wh_pass(&w.clock, &reaped);
    if (reaped != WH_NIL)
        wh_store_release(&w.reaped[reaped], wh_load_relaxed(&w.reaped[reaped]) + 1);
    world_ask(&w, request_check, NULL);
    return more || reaped != WH_NIL;
}

/* B does not read what A sends, and dies. C's timers come meanwhile. */
static void play_dead_reader(void)
{
    begin(3);
    arm_many(A, CROWD, 0, hand_target(B));
    CHECK(for_b() == CROWD, "%u wait", for_b());
    wh_clock_detach(&w.peers[1], WH_LEAVE_DROP);
    uint32_t before = for_b(), during = 0;
    while (w.reaped[1] == 0) {
        arm_to(C, 0, 0);
        uint64_t ready = wh_client_ready(&C->client);
        CHECK(one_pass(), "it sleeps with %u left", before);
        CHECK(before - for_b() <= WH_REAP_LISTED, "%u in one pass", before - for_b());
        CHECK(wh_client_ready(&C->client) == ready + 1, "C's timer waits for the sweep");
        during += before != for_b();
        before = for_b();
        CHECK(during <= CROWD, "no end");
    }
    CHECK(during >= CROWD / WH_REAP_LISTED, "all in %u pieces", during);
    CHECK(for_b() == 0, "%u are lost", for_b());
    uint64_t kept = length(wh_backlog_list(&w.clock, &w.peers[0])) + wh_client_ready(&A->client);
    CHECK(kept == CROWD, "A gets %llu of %u", (ull)kept, CROWD);
}

/* A crowd of A's, in one tick or in a bucket that cascades, and C's timers, armed before, in
 * between and after, in the same ticks: these do not wait for the crowd. */
static void play_crowded_neighbour(void)
{
    for (int upper = 0; upper <= 1; upper++) {
        begin(3);
        int64_t bucket = 4096 * MS, crowd_at = upper ? bucket + 3000 * MS : 5 * MS;
        for (int64_t i = 0; i < 30; i++) {
            arm_to(C, (upper ? bucket : 4 * MS) + i % 10 * MS, 0);
            arm_many(A, 1000, crowd_at, 0);
        }
        uint64_t ready = 0;
        for (int64_t i = 0; i < 10; i++) {
            int64_t now = (upper ? bucket : 4 * MS) + i * MS;
            for (int kind = 0; kind < WH_CLOCK_KINDS; kind++)
                w.clock.now[kind] = now;
            bool more = one_pass();
            CHECK(more || i == 0, "that was all of the crowd");
            CHECK(wh_client_ready(&C->client) == ready + 3, "C has to wait for A's crowd");
            ready += 3;
        }
    }
}

/* A clock that dies in the middle of that is followed by one that begins anew. */
static void play_dead_reader_again(void)
{
    begin(3);
    arm_many(A, CROWD, 0, hand_target(B));
    wh_clock_detach(&w.peers[1], WH_LEAVE_DROP);
    while (for_b() > CROWD / 2)
        one_pass();
    CHECK(wh_clock_recover(&w.clock), "out of memory");
    wh_clock_detach(&w.peers[1], WH_LEAVE_DROP);
    for (int i = 0; i < 1000 && w.reaped[1] == 0; i++)
        one_pass();
    CHECK(w.reaped[1] == 1, "B is never reaped");
    uint64_t kept = length(wh_backlog_list(&w.clock, &w.peers[0])) + wh_client_ready(&A->client);
    CHECK(kept == CROWD, "A gets %llu of %u", (ull)kept, CROWD);
}

/* Workers that die together are swept one after the other. */
static void play_deaths_at_once(void)
{
    begin(ROWS);
    for (int row = 1; row < ROWS; row++)
        arm_many(&hands[row], 4096, FAR_NS, 0);
    for (uint32_t row = 1; row < ROWS; row++)
        wh_clock_detach(&w.peers[row], WH_LEAVE_DROP);
    uint64_t before = 0;
    for (bool more = true; more;) {
        more = one_pass();
        uint64_t dropped = wh_load_relaxed(&w.clock.seg->dropped);
        CHECK(dropped - before <= WH_REAP_OWN * WH_SLAB_SLOTS, "%llu in one pass",
              (ull)(dropped - before));
        before = dropped;
    }
    for (int row = 1; row < ROWS; row++)
        CHECK(w.reaped[row] == 1, "row %d is never reaped", row);
}

/* One pass at a time until `left` says 0: never more than `most` in one. */
static void in_pieces(uint32_t (*left)(void), uint32_t most)
{
    uint32_t before = left(), pieces = 0;
    CHECK(before > most, "%u would do in one piece", before);
    while (before) {
        one_pass();
        uint32_t rest = left();
        CHECK(before - rest <= most, "%u in one pass", before - rest);
        CHECK(++pieces < 1000, "%u stay", rest);
        before = rest;
    }
}

static uint32_t lent_to_b(void) { return length(wh_lent_list(&w.clock, &w.peers[1])); }
static uint32_t returns_of_a(void)
{
    return (uint32_t)(w.peers[0].returns_tail - w.peers[0].returns_head);
}

static void play_loans(void)
{
    begin(2);
    w.clock.comp_size = CAPACITY; /* what B holds is not read here */
    w.peers[1].comps = calloc(CAPACITY, sizeof(wh_completion));
    CHECK(w.peers[1].comps, "out of memory");
    arm_many(A, CROWD, 0, hand_target(B));
    wh_store_seq(&B->client.seg->comp_head, B->client.comp_head + CROWD); /* all read */
    in_pieces(lent_to_b, WH_ROW_BUDGET);
}

static uint64_t ids[CROWD];

static void play_returns(void)
{
    begin(1);
    for (uint32_t i = 0; i < CROWD; i++) {
        ids[i] = arm_to(A, FAR_NS, 0);
        if (i % 1024 == 1023)
            world_settle(&w);
    }
    for (uint32_t i = 0; i < CROWD; i++) {
        CHECK(wh_client_cancel(&A->client, ids[i]), "cancel");
        wh_client_publish_lazily(&A->client);
        if (i % 1024 == 1023)
            world_settle(&w);
    }
    w.clock.ret_size = CAPACITY; /* all of it has room at once */
    w.peers[0].rets = calloc(CAPACITY, sizeof(wh_au32));
    CHECK(w.peers[0].rets, "out of memory");
    in_pieces(returns_of_a, WH_ROW_BUDGET);
}

static uint32_t backlog_of_a(void) { return length(wh_backlog_list(&w.clock, &w.peers[0])); }

/* And the first of them goes first, although there is room for what comes meanwhile. */
static void play_events(void)
{
    begin(1);
    arm_many(A, CROWD, 0, 0);
    w.clock.comp_size = CAPACITY;
    const wh_peer *a = &w.peers[0];
    wh_completion *ring = w.peers[0].comps = calloc(CAPACITY, sizeof(wh_completion));
    CHECK(ring, "out of memory");
    arm_to(A, 0, 0);
    one_pass();
    CHECK(ring[(a->comp_tail - 1) & (CAPACITY - 1)].cookie < CROWD,
          "what came last overtakes the rest");
    in_pieces(backlog_of_a, WH_ROW_BUDGET);
}

/* Everybody floods: each gets on in each pass, and all together do not make it longer. */
static void play_flood(void)
{
    begin(ROWS);
    for (int row = 0; row < ROWS; row++) {
        hand *h = &hands[row];
        for (uint64_t i = 0; i < h->client.sub_size; i++)
            wh_store_relaxed(&w.peers[row].subs[i], 0); /* each of them is nonsense, and counted */
        wh_store_seq(&h->client.seg->sub_tail, h->client.sub_size);
    }
    uint64_t met = 0, first[ROWS] = {0};
    for (int pass = 0; pass < ROWS; pass++) {
        uint64_t before = met;
        one_pass();
        met = 0;
        for (int row = 0; row < ROWS; row++) {
            uint64_t mine = w.peers[row].sub_head;
            CHECK(mine >= (uint64_t)(pass + 1) * WH_ROW_LEAST, "row %d gets nothing", row);
            first[row] = mine;
            met += mine;
        }
        CHECK(met - before <= WH_ROWS_BUDGET + ROWS * WH_ROW_LEAST, "%llu in one pass",
              (ull)(met - before));
    }
    for (int row = 0; row < ROWS; row++)
        CHECK(first[row] >= WH_ROW_BUDGET, "row %d is never first", row);
}

static uint32_t beats;
static int64_t beat(uint32_t kind)
{
    (void)kind;
    return ++beats;
}

/* A long recovery shows that it gets on, in each of its parts. */
static void play_heartbeat(void)
{
    begin(2);
    arm_many(A, CROWD, 0, hand_target(B));
    w.clock.read_time = beat;
    CHECK(wh_clock_recover(&w.clock), "out of memory");
    /* the lists, the slots, the sort, what waits */
    uint32_t least = (CAPACITY + CROWD + 5 * (CROWD - 2048) + CROWD) / WH_BEAT_STEPS;
    CHECK(beats >= least, "%u beats, of %u", beats, least);
    CHECK(wh_load_relaxed(&w.clock.seg->heartbeat) == beats, "it is not stored");
    w.clock.read_time = NULL;
    CHECK(wh_clock_recover(&w.clock), "out of memory");
    CHECK(wh_load_relaxed(&w.clock.seg->heartbeat) > beats, "no heartbeat under a virtual clock");
}

static int64_t slow_ns;
static int64_t slow_now(void) { return slow_ns; }
static enum wh_nap slow_nap(wh_client *c)
{
    (void)c;
    one_pass();
    slow_ns += 100 * MS;
    return WH_NAP_OVER;
}
static enum wh_nap vain_nap(wh_client *c)
{
    (void)c;
    slow_ns += 100 * MS;
    return WH_NAP_OVER;
}

/* All slots are A's. B waits for as long as the clock looks for one, and is refused when it has
 * answered; for a clock that makes no passes it waits no longer than its patience. */
static void play_long_look(void)
{
    wh_waits slow = {slow_now, slow_nap, wh_thread_doze};
    uint64_t got;
    begin(2);
    arm_many(A, CAPACITY, FAR_NS, 0);
    B->client.waits = &slow;
    B->client.patience_ns = 300 * MS;
    CHECK(wh_batch_claim(&B->client, &got, 1, true) == WH_CALL_WHEEL_FULL, "there was another");
    CHECK(wh_client_answered(&B->client), "it gave up after %lld ms", (long long)(slow_ns / MS));
    CHECK(slow_ns > 2 * B->client.patience_ns, "all was looked at in %lld ms",
          (long long)(slow_ns / MS));
    slow.nap = vain_nap;
    slow_ns = 0;
    world_settle(&w);
    wh_client_ask(&B->client, 0, false);
    CHECK(wh_batch_claim(&B->client, &got, 1, true) == WH_CALL_WHEEL_FULL, "there was another");
    CHECK(slow_ns <= 2 * B->client.patience_ns, "it waited %lld ms", (long long)(slow_ns / MS));
}

int main(int argc, char **argv)
{
    static const single_case cases[] = {
        {"what waited for a dead worker", play_dead_reader},
        {"the clock dies in that", play_dead_reader_again},
        {"a crowded neighbour", play_crowded_neighbour},
        {"many die at once", play_deaths_at_once},
        {"loans that came back", play_loans},
        {"returns that find room", play_returns},
        {"events that find room", play_events},
        {"everybody floods", play_flood},
        {"a long recovery", play_heartbeat},
        {"a long look for a slot", play_long_look},
    };
    return cases_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
