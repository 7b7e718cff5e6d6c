/* Histograms: what a reader sees of one half written, and what a new clock and a new tenant of a
 * row find in them, at whatever store the last clock died. */
#include "interleaving.h"
#include "single.h"

static uint64_t counted(const wh_histogram *h)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < WH_HISTOGRAM_BUCKETS; i++)
        sum += wh_load_relaxed(&h->counts[i]);
    return sum;
}

/* A new clock goes on with the histograms of the last one. A row's go to its tenant alone. */
static void play_histograms(void)
{
    single_make(3,
                (wh_config){.tick_ns = MS, .wheel_bits = 6, .capacity = 256, .payload_bytes = 16});
    const wh_histogram *all = &w.clock.histograms[WH_COUNTS_LATENESS];
    const wh_histogram *ours = &w.clock.histograms[WH_COUNTS_OF_ROWS];
    schedule(A, (plan){.delay = 2 * MS});
    schedule(B, (plan){.delay = 3 * MS});
    world_advance_to(&w, 4 * MS);
    CHECK(counted(all) == 2 && counted(ours) == 1, "%lu and %lu counted", counted(all),
          counted(ours));
    schedule(A, (plan){.delay = MS});
    world_settle(&w);
    new_clock_at(w.clock.now[WH_CLOCK_BASE] + 101 * MS);
    uint32_t reaped;
    wh_pass_all(&w.clock, &reaped);
    CHECK(counted(all) == 3 && counted(ours) == 2, "%lu and %lu counted after a death",
          counted(all), counted(ours));
    CHECK(wh_load_relaxed(&all->most) == 100 * MS, "late by %lu ns", wh_load_relaxed(&all->most));
    CHECK(all->counts[wh_histogram_bucket(100 * MS)] == 1, "in another bucket");
    wh_port_begin(w.peers[0].port, w.peers[0].lateness, 77);
    CHECK(counted(ours) == 0 && counted(all) == 3, "the next tenant has the figures of the last");
}

/* -- half written ------------------------------------------------------------------------------ */

#define BIG (3 * MS) /* larger than what was counted before it */

static wh_histogram half;
static wh_port port;

static void begin(void)
{
    memset(&half, 0, sizeof half);
    memset(&port, 0, sizeof port);
}
static void end(void) {}
static void before_count(void) { wh_histogram_add(&half, 1000, 1); }
static void count_big(void) { wh_histogram_add(&half, BIG, 1); }

/* No value is in a bucket above the largest one, so percentiles are those of what was counted. */
static void read_half(void)
{
    uint64_t count = counted(&half), most = wh_load_relaxed(&half.most);
    CHECK(count == 1 || count == 2, "%lu values of 2", count);
    for (uint32_t i = wh_histogram_bucket(most) + 1; i < WH_HISTOGRAM_BUCKETS; i++)
        CHECK(!wh_load_relaxed(&half.counts[i]), "a value above the largest, %lu", most);
}
static void verdict_counted(void)
{
    read_half();
    CHECK(counted(&half) == 2 && wh_load_relaxed(&half.total) == 1000 + BIG, "counted wrongly");
    wh_histogram_add(&half, 5, 1);
    CHECK(wh_load_relaxed(&half.most) == BIG, "the largest is %lu", half.most);
}

/* The next writer goes on where the last one died. */
static void go_on(void)
{
    read_half();
    count_big();
}
static void verdict_went_on(void)
{
    uint64_t count = counted(&half), total = wh_load_relaxed(&half.total);
    CHECK(count == 2 || count == 3, "%lu values of 2 or 3", count);
    CHECK(total == 1000 + BIG || total == 1000 + 2 * BIG, "a sum of %lu", total);
    CHECK(wh_load_relaxed(&half.most) == BIG, "the largest is %lu", half.most);
}

static void before_tenant(void)
{
    for (int64_t value = 1; value < 40 * MS; value *= 3)
        wh_histogram_add(&half, value, 1);
    wh_store_relaxed(&port.fired, 7);
    wh_store_relaxed(&port.incarnation, 1);
}
static void begin_row(void) { wh_port_begin(&port, &half, 2); }
static void verdict_tenant(void)
{
    CHECK(counted(&half) == 0 && half.total == 0 && half.most == 0 && port.fired == 0,
          "the next tenant has figures of the last");
    CHECK(port.incarnation == 2, "whose figures are they?");
}

int main(int argc, char **argv)
{
    static const single_case cases[] = {{"histograms go on", play_histograms}};
    static const race races[] = {
        {.name = "a reader of one half written",
         .before = before_count,
         .operate = count_big,
         .meanwhile = read_half,
         .verdict = verdict_counted},
        {.name = "its writer dies as it counts",
         .before = before_count,
         .operate = count_big,
         .meanwhile = go_on,
         .verdict = verdict_went_on,
         .dies = true},
        {.name = "a clock dies as a row has a new tenant",
         .before = before_tenant,
         .operate = begin_row,
         .meanwhile = begin_row,
         .verdict = verdict_tenant,
         .dies = true},
    };
    options_read(argc, argv);
    int failed = races_run(races, sizeof races / sizeof *races);
    return cases_run(cases, sizeof cases / sizeof *cases) || failed;
}
