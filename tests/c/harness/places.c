/* Places: the wheel by itself: each node in its bucket, each bit with its bucket, each at its
 * time. */
#include "cases.h"

#define NODES 256
#define TICK_NS 1000

static wh_wheel wheel;
static int64_t due[NODES];
static uint32_t ended[NODES], order[NODES], ends;
static uint32_t fetched[NODES], unfetched; /* by a hint; those that came and were not */
static int64_t target; /* of the advance that goes on */

static void begin_shards(uint32_t bits, uint32_t shards)
{
    uint32_t buckets = shards << wh_shard_bits(bits), levels = buckets >> bits;
    wh_parts parts = {.links = calloc(NODES + buckets, sizeof *parts.links),
                      .shards = calloc(shards, sizeof *parts.shards),
                      .summary = calloc(levels, sizeof *parts.summary),
                      .occupancy = calloc(levels * wh_words_for(bits), sizeof *parts.occupancy)};
    CHECK(parts.links && parts.shards && parts.summary && parts.occupancy, "out of memory");
    wh_wheel_bind(&wheel, parts, NODES, shards, bits, TICK_NS);
    CHECK(wh_hints_bind(&wheel.hints, buckets, NODES), "out of memory");
    memset(fetched, 0, sizeof fetched);
    memset(ended, 0, sizeof ended);
    ends = unfetched = 0;
    wh_wheel_reset(&wheel, 0);
    for (uint32_t node = 0; node < NODES; node++)
        wheel.links[node].list = WH_NIL;
    for (uint32_t list = 0; list < buckets; list++)
        wh_list_reset(&wheel, list);
}

static void begin(uint32_t bits) { begin_shards(bits, 1); }

/* Each block is a bucket's, once, or free; an empty bucket has none. */
static void check_notes(void)
{
    const wh_hints *s = &wheel.hints;
    uint32_t found = 1;
    for (uint32_t block = s->free; block; block = s->blocks[block].next, found++)
        CHECK(found < s->fresh, "free blocks go round");
    for (uint32_t bucket = 0; bucket < wheel.buckets; bucket++) {
        const wh_hint_list *t = &s->lists[bucket];
        bool empty = wh_list_first(&wheel, bucket) == WH_NIL;
        CHECK(!empty || t->first == 0, "bucket %u is empty, and has notes", bucket);
        if (t->first == 0 || t->first == WH_HINTS_LOST)
            continue;
        for (uint32_t block = t->first; found++, block != t->last; block = s->blocks[block].next)
            CHECK(found < s->fresh, "blocks of bucket %u go round", bucket);
    }
    CHECK(found == s->fresh && s->fresh <= s->count, "%u blocks of %u are somewhere", found,
          s->fresh);
}

static void end(void)
{
    check_notes();
    wh_hints_free(&wheel.hints);
    free(wheel.links);
    free(wheel.shards);
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
    CHECK(target * TICK_NS >= due[node], "%u is looked at before it is due", node);
    ended[node]++;
    unfetched += !fetched[node];
    order[ends++] = node;
}
static void prefetch(void *unused, uint32_t node)
{
    (void)unused;
    CHECK(node < NODES, "%u is no node", node);
    fetched[node]++;
}
static wh_visitor visitor = {due_of, expire, prefetch, NULL, 0};

static uint32_t advance(int64_t to, uint32_t budget)
{
    target = to;
    uint32_t left = wh_wheel_advance(&wheel, (uint64_t)to, budget, &visitor);
    check();
    return left;
}

static void add_to(uint32_t shard, uint32_t node, int64_t at)
{
    due[node] = at;
    wh_wheel_add(&wheel, shard, node, at, INT64_MIN);
    check();
}
static void add(uint32_t node, int64_t at) { add_to(0, node, at); }

static void play_bits(void)
{
    begin(2);
    for (uint32_t node = 0; node < 40; node++)
        add(node, (int64_t)(1 + node * node) * TICK_NS);
    for (uint32_t node = 40; node-- > 0;) {
        wh_wheel_remove(&wheel, node);
        check();
    }
    CHECK(wh_wheel_next(&wheel).tick == UINT64_MAX && wh_wheel_linked(&wheel) == 0,
          "it is not empty");
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
            add(100 + (uint32_t)turn / 3,
                (int64_t)wheel.tick * TICK_NS + (int64_t)rng_below(&rng, 900 * TICK_NS));
        advance(turn < 500 ? turn * 4 : 9000, 1);
    }
    for (uint32_t node = 0; node < NODES; node++)
        CHECK(ended[node] == 1, "%u came %u times", node, ended[node]);
    end();
}

/* Timers that were slept over come in the order of their ticks. */
static void play_late(void)
{
    begin(3);
    for (uint32_t node = 0; node < 60; node++)
        add(node, (int64_t)(1 + node * 37 % 60) * 20 * TICK_NS);
    while (advance(100000, 7) == 0)
        ;
    CHECK(ends == 60, "%u of 60", ends);
    for (uint32_t i = 1; i < ends; i++)
        CHECK(due[order[i - 1]] < due[order[i]], "%u comes before %u", order[i - 1], order[i]);
    end();
}

/* A crowd in one shard, in one tick and in a bucket that cascades: what another shard has comes in
 * between. */
static void play_neighbour(void)
{
    for (int upper = 0; upper <= 1; upper++) {
        int64_t crowd_at = upper ? 70 : 3, begins = upper ? 64 : 3;
        begin_shards(3, 4);
        for (uint32_t node = 0; node < 200; node++)
            add_to(1, node, crowd_at * TICK_NS);
        for (uint32_t node = 200; node < 210; node++)
            add_to(2, node, (begins + (node - 200) % 4) * TICK_NS);
        for (int step = 0; step < 4; step++) { /* the crowd does not get through in any of these */
            uint32_t came = 0, before = ends;
            CHECK(advance(begins + step, 20) == 0, "that was all");
            CHECK(advance(begins + step, 20) == 0, "that was all");
            for (uint32_t i = before; i < ends; i++)
                came += order[i] >= 200 && due[order[i]] == (begins + step) * TICK_NS;
            CHECK(came == (step < 2 ? 3 : 2), "%u of the neighbour's in its tick", came);
        }
        while (advance(200, 20) == 0)
            ;
        CHECK(ends == 210 && wh_wheel_linked(&wheel) == 0, "%u of 210", ends);
        end();
    }
}

/* Each shard has a share in each round, wherever the last call's budget ended; what is late keeps
 * its order within its shard. */
static void play_turns(void)
{
    begin_shards(2, 8);
    for (uint32_t node = 0; node < NODES; node++)
        add_to(node % 8, node, (int64_t)(1 + node * 101 % 50) * TICK_NS);
    uint32_t calls = 0;
    while (advance(1000, 3) == 0)
        CHECK(++calls < 1000, "no end");
    int64_t last[8] = {0};
    for (uint32_t i = 0; i < ends; i++) {
        CHECK(due[order[i]] >= last[order[i] % 8], "%u is out of order", order[i]);
        last[order[i] % 8] = due[order[i]];
    }
    CHECK(ends == NODES, "%u of %u", ends, NODES);
    end();
}

/* An empty shard has no tick of its own: its first timer is placed by where the others stand. */
static void play_idle_shard(void)
{
    begin_shards(6, 2);
    add_to(0, 0, 5 * TICK_NS);
    advance(100000, 100);
    add_to(1, 1, 100001 * TICK_NS);
    CHECK(wheel.links[1].list < 2u << wheel.shard_bits && !wh_is_upper(&wheel, wheel.links[1].list),
          "list %u: it will cascade for nothing", wheel.links[1].list);
    CHECK(wh_wheel_next(&wheel).tick == 100001, "next at %llu", (ull)wh_wheel_next(&wheel).tick);
    add_to(0, 2, 100000 * TICK_NS);
    CHECK(wh_wheel_next(&wheel).tick == 100000, "next at %llu", (ull)wh_wheel_next(&wheel).tick);
    end();
}

/* Who comes was fetched before, also where most of those that were noted have gone. The first of a
 * bucket is not noted. */
static void play_notes(void)
{
    for (uint32_t gone = 0; gone < 4; gone++) {
        begin(6);
        for (uint32_t i = 0; i < NODES; i++)
            add(i * 101 % NODES, 70 * TICK_NS);
        while (advance(69, 100) == 0) /* into one tick, where those that go leave their notes */
            ;
        for (uint32_t node = 0; node < NODES; node++)
            if (gone && node % 4 < gone)
                wh_wheel_remove(&wheel, node);
        while (advance(100, 7) == 0) /* by pieces: each goes on where the last one ended */
            check_notes();
        CHECK(ends == NODES - gone * NODES / 4, "%u came", ends);
        CHECK(unfetched <= 2, "%u of %u were not fetched", unfetched, ends);
        end();
    }
}

/* Notes are bounded: one node stays, others come and go, and what was noted of them stays, too. */
static void play_lost_notes(void)
{
    begin(6);
    add(0, 70 * TICK_NS);
    for (uint32_t turn = 0; turn < 100 * NODES; turn++) {
        add(1 + turn % (NODES - 1), 70 * TICK_NS);
        wh_wheel_remove(&wheel, 1 + turn % (NODES - 1));
    }
    check_notes();
    CHECK(wheel.hints.lists[wheel.links[0].list].first == WH_HINTS_LOST, "they were not lost");
    add(1, 5 * TICK_NS);
    add(2, 5 * TICK_NS); /* another bucket has the blocks now */
    CHECK(wheel.hints.lists[wheel.links[2].list].first != WH_HINTS_LOST, "all are lost");
    while (advance(100, 7) == 0)
        ;
    CHECK(ends == 3 && ended[0] == 1, "%u came", ends);
    end();
}

int main(int argc, char **argv)
{
    static const single_case cases[] = {
        {"a bit per bucket", play_bits},     {"a tick is never early", play_rounding},
        {"what is late is next", play_past}, {"by pieces", play_by_pieces},
        {"late ones in order", play_late},   {"a crowded neighbour", play_neighbour},
        {"shards in turn", play_turns},      {"an idle shard", play_idle_shard},
        {"fetched ahead", play_notes},       {"notes are bounded", play_lost_notes},
    };
    return cases_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
