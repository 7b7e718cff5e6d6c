/* Histograms: what a new clock and a new tenant of a row find in them. */
#include "single.h"
#include "wheeld/loop/recover.h"

static world w;
static account book;
static hand hands[3];
#define A (&hands[0])
#define B (&hands[1])

static void schedule(hand *h, plan p)
{
    uint64_t cookie;
    CHECK(hand_schedule(h, p, &cookie), "no slot");
}

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
    wh_config config = {.tick_ns = MS, .wheel_bits = 6, .capacity = 256, .payload_bytes = 16};
    single_make(&w, &book, hands, 3, &config);
    const wh_histogram *all = &w.clock.histograms[WH_COUNTS_LATENESS];
    const wh_histogram *ours = &w.clock.histograms[WH_COUNTS_OF_ROWS];
    schedule(A, (plan){.delay = 2 * MS});
    schedule(B, (plan){.delay = 3 * MS});
    world_advance_to(&w, 4 * MS);
    CHECK(counted(all) == 2 && counted(ours) == 1, "%lu and %lu counted", counted(all),
          counted(ours));
    schedule(A, (plan){.delay = MS});
    world_settle(&w);
    single_new_clock(&w, hands, 3, w.clock.now[WH_CLOCK_BASE] + 101 * MS);
    uint32_t reaped;
    wh_pass_all(&w.clock, &reaped);
    CHECK(counted(all) == 3 && counted(ours) == 2, "%lu and %lu counted after a death",
          counted(all), counted(ours));
    CHECK(wh_load_relaxed(&all->most) == 100 * MS, "late by %lu ns", wh_load_relaxed(&all->most));
    CHECK(all->counts[wh_histogram_bucket(100 * MS)] == 1, "in another bucket");
    wh_line_begin(w.peers[0].line, w.peers[0].lateness, 77);
    CHECK(counted(ours) == 0 && counted(all) == 3, "the next tenant has the figures of the last");
}

int main(int argc, char **argv)
{
    static const single_case cases[] = {{"histograms go on", play_histograms}};
    options_read(argc, argv);
    opt.jitter = 0; /* one thread */
    return cases_run(cases, sizeof cases / sizeof *cases);
}
