/* Steps: the wall clock is set while a pass is under way. */
#include "single.h"

#define HOUR_NS 3600000000000LL

static int64_t says[WH_CLOCK_KINDS]; /* what the clocks say, by now */
static uint32_t reads;

static int64_t read_time(uint32_t kind)
{
    reads++;
    return says[kind];
}

/* The clocks stand an hour apart, and the next pass has read them. */
static void begin(void)
{
    single_make(1,
                (wh_config){.tick_ns = MS, .wheel_bits = 6, .capacity = 4096, .payload_bytes = 16});
    w.clock.read_time = read_time;
    for (int kind = 0; kind < WH_CLOCK_KINDS; kind++)
        says[kind] = w.clock.now[kind] = kind * HOUR_NS;
}

/* Time goes on for all clocks, and the next passes begin. */
static void go_on(int64_t ns)
{
    uint32_t reaped;
    for (int kind = 0; kind < WH_CLOCK_KINDS; kind++)
        w.clock.now[kind] = says[kind] += ns;
    wh_pass_all(&w.clock, &reaped);
    world_ask(&w, request_check, NULL);
}

/* A pass under the times that were read before the clock was set. */
static void stale_pass(void)
{
    uint32_t reaped;
    /* not until nothing is left to do: the pass must not try for ever */
    for (int i = 0; i < 4; i++) {
        bool more = wh_pass(&w.clock, &reaped);
        CHECK(!more, "it is looked at again and again");
    }
    world_ask(&w, request_check, NULL);
}

static uint64_t arm_on(uint32_t clock, int64_t deadline)
{
    return arm(A, (wh_request){.deadline = deadline, .flags = clock});
}

static uint64_t ready(void) { return wh_client_ready(&A->client); }

/* Armed after the step, met by a pass that read the time before it. */
static void play_armed_after(void)
{
    for (uint32_t clock = WH_CLOCK_REALTIME; clock < WH_CLOCK_KINDS; clock++)
        for (int64_t interval = 0; interval <= HOUR_NS; interval += HOUR_NS) {
            begin();
            says[clock] -= 20 * MS;
            says[WH_CLOCK_BASE] += 3 * MS; /* so old is what the pass has read */
            arm(A, (wh_request){
                       .deadline = says[clock] + 5 * MS, .interval = interval, .flags = clock});
            stale_pass();
            CHECK(ready() == 0, "clock %u: it came before its deadline", clock);
            go_on(4 * MS);
            CHECK(ready() == 0, "clock %u: it came before its deadline", clock);
            uint64_t looks = wh_load_relaxed(&w.clock.seg->relinked);
            CHECK(looks == 1, "clock %u: looked at %llu times before it was due", clock,
                  (ull)looks);
            go_on(2 * MS);
            CHECK(ready() == 1, "clock %u: it did not come", clock);
        }
}

/* Linked long ago, and extended after the step. */
static void play_extended_after(void)
{
    begin();
    uint64_t id = arm_on(WH_CLOCK_REALTIME, says[WH_CLOCK_REALTIME] + 10 * MS);
    go_on(5 * MS);
    for (int kind = 0; kind < WH_CLOCK_KINDS; kind++)
        w.clock.now[kind] = says[kind] += 10 * MS;
    says[WH_CLOCK_REALTIME] -= HOUR_NS;
    bool earlier;
    CHECK(wh_client_move(&A->client, id, says[WH_CLOCK_REALTIME] + 5 * MS, 0, &earlier), "move");
    stale_pass();
    CHECK(ready() == 0, "it came before its deadline");
    go_on(6 * MS);
    CHECK(ready() == 1, "it did not come");
}

/* The clock is set forward and nobody says so yet: what a pass with the old time places is too
 * late, until the sweep that follows a step has placed it anew. */
static void play_forward(void)
{
    begin();
    says[WH_CLOCK_REALTIME] += HOUR_NS;
    arm_on(WH_CLOCK_REALTIME, says[WH_CLOCK_REALTIME] + 5 * MS);
    stale_pass();
    go_on(10 * MS);
    CHECK(ready() == 0, "placed by a time that it cannot know");
    w.clock.relink_slot = 0;
    go_on(0);
    CHECK(ready() == 1, "it did not come");
}

/* The base clock is read once in a pass. */
static void play_base(void)
{
    begin();
    for (int i = 0; i < 100; i++)
        arm_on(WH_CLOCK_BASE, says[WH_CLOCK_BASE] + MS);
    go_on(2 * MS);
    CHECK(ready() == 100 && reads == 0, "%llu came, %u looks at the clocks", (ull)ready(), reads);
}

/* The sweep looks at no slot that has no memory: here such look like timers of the wall clock. */
static void play_without_memory(void)
{
    begin();
    arm_on(WH_CLOCK_REALTIME, says[WH_CLOCK_REALTIME] + HOUR_NS);
    uint32_t there = 1; /* the slab of that timer */
    wh_store_relaxed(&w.clock.seg->backed, w.clock.backed = there);
    stale_pass();
    for (uint32_t slot = there << WH_SLAB_BITS; slot < w.clock.wheel.capacity; slot++) {
        w.clock.wheel.links[slot].list = 0;
        w.clock.slots[slot].flags = WH_CLOCK_REALTIME;
    }
    w.clock.relink_slot = 0;
    go_on(0);
    CHECK(w.clock.relink_slot == w.clock.wheel.capacity, "it stands at %u", w.clock.relink_slot);
    CHECK(w.clock.wheel.shards[0].linked == 1, "%llu are linked",
          (ull)w.clock.wheel.shards[0].linked);
    CHECK(w.clock.wheel.links[there << WH_SLAB_BITS].list == 0, "a slot without memory was placed");
}

int main(int argc, char **argv)
{
    static const single_case cases[] = {
        {"armed just after a step back", play_armed_after},
        {"extended just after a step back", play_extended_after},
        {"a step forward", play_forward},
        {"the base clock is read once", play_base},
        {"a step, and slots without memory", play_without_memory},
    };
    return cases_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
