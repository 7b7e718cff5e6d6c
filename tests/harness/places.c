/* Places: the wheel by itself: each node in its bucket, each bit with its bucket, each at its time. */
#include "single.h"

#define NODES 256
#define TICK_NS 1000

static wh_wheel wheel;
static int64_t due[NODES];
static uint32_t ended[NODES], order[NODES], ends;

static void begin(uint32_t bits)
{
    uint32_t buckets = wh_levels_for(bits) << bits;
    wh_link *links = calloc(NODES + buckets, sizeof *links);
    uint64_t *summary = calloc(wh_levels_for(bits), sizeof *summary);
    uint64_t *occupancy = calloc(wh_levels_for(bits) * wh_words_for(bits), sizeof *occupancy);
    CHECK(links && summary && occupancy, "out of memory");
    wh_wheel_bind(&wheel, links, summary, occupancy, NODES, bits, TICK_NS);
    for (uint32_t node = 0; node < NODES; node++)
        wheel.links[node].list = WH_NIL;
    for (uint32_t list = 0; list < buckets; list++)
        wh_list_reset(&wheel, list);
}

static void end(void)
{
    free(wheel.links);
    free(wheel.summary);
    free(wheel.occupancy);
}

static void check(void)
{
    wh_check found;
    CHECK(wh_wheel_check(&wheel, &found), "%s", found.message);
}

static int64_t due_of(void *unused, uint32_t node)
{
    (void)unused;
    return due[node];
}
static void expire(void *unused, uint32_t node)
{
    (void)unused;
    CHECK((int64_t)wheel.tick * TICK_NS >= due[node], "%u is looked at before it is due", node);
    ended[node]++;
    order[ends++] = node;
}
static void prefetch(void *unused, uint32_t node) { (void)unused, (void)node; }
static wh_visitor visitor = {due_of, expire, prefetch, NULL, 0};

static void add(uint32_t node, int64_t at)
{
    due[node] = at;
    wh_wheel_add(&wheel, node, at, INT64_MIN);
    check();
}

static void play_bits(void)
{
    begin(2);
    for (uint32_t node = 0; node < 40; node++)
        add(node, (int64_t)(1 + node * node) * TICK_NS);
    for (uint32_t node = 40; node-- > 0;) {
        wh_wheel_remove(&wheel, node);
        check();
    }
    CHECK(wh_wheel_next(&wheel).tick == UINT64_MAX && wheel.linked == 0, "it is not empty");
    end();
}

static void play_rounding(void)
{
    uint64_t rng = rng_seeded(1);
    begin(6);
    for (int i = 0; i < 10000; i++) {
        int64_t at = 1 + (int64_t)rng_below(&rng, i % 2 ? 5000 : INT64_MAX);
        uint64_t tick = wh_due_tick(&wheel, at);
        CHECK(tick * TICK_NS >= (uint64_t)at, "due at %lld, looked at in tick %llu", (long long)at,
              (ull)tick);
        CHECK((tick - 1) * TICK_NS < (uint64_t)at, "late by a tick");
    }
    end();
}

static void play_past(void)
{
    begin(4);
    wheel.tick = 1000;
    add(0, 999 * TICK_NS);
    add(1, 5 * TICK_NS);
    CHECK(wh_wheel_next(&wheel).tick == 1000, "what is late is not next");
    end();
}

/* A bucket of an upper level is emptied node by node, and more comes in meanwhile. */
static void play_by_pieces(void)
{
    uint64_t rng = rng_seeded(2);
    begin(3);
    for (uint32_t node = 0; node < 100; node++)
        add(node, (int64_t)rng_below(&rng, 3000 * TICK_NS));
    for (int turn = 0; ends < NODES; turn++) {
        CHECK(turn < 100000, "it does not come to an end");
        if (turn % 3 == 0 && 100 + turn / 3 < NODES)
            add(100 + (uint32_t)turn / 3, (int64_t)wheel.tick * TICK_NS + (int64_t)rng_below(&rng, 900 * TICK_NS));
        wh_wheel_advance(&wheel, turn < 500 ? (uint64_t)turn * 4 : 9000, 1, &visitor);
        check();
    }
    for (uint32_t node = 0; node < NODES; node++)
        CHECK(ended[node] == 1, "%u came %u times", node, ended[node]);
    end();
}

/* What was slept over comes in the order of its ticks. */
static void play_late(void)
{
    begin(3);
    for (uint32_t node = 0; node < 60; node++)
        add(node, (int64_t)(1 + node * 37 % 60) * 20 * TICK_NS);
    while (wh_wheel_advance(&wheel, 100000, 7, &visitor) == 0)
        check();
    CHECK(ends == 60, "%u of 60", ends);
    for (uint32_t i = 1; i < ends; i++)
        CHECK(due[order[i - 1]] < due[order[i]], "%u comes before %u", order[i - 1], order[i]);
    end();
}

int main(int argc, char **argv)
{
    static const single_case cases[] = {
        {"a bit per bucket", play_bits},
        {"a tick is never early", play_rounding},
        {"what is late is next", play_past},
        {"by pieces", play_by_pieces},
        {"late ones in order", play_late},
    };
    options_read(argc, argv);
    opt.jitter = 0; /* one thread */
    return cases_run(cases, sizeof cases / sizeof *cases);
}
