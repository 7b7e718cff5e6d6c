/* The cost of the live histograms: ns for one value, by the code that the clock and workers run.
 *
 * Each loop runs once with the counting and once without; the difference is the price. Values are
 * random and known before, so neither is predicted; the processor's own time is read. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "wheeld/clock/deliver.h"
#include "wheeld/worker/receive.h"

#define VALUES (1u << 16)

static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static wh_completion records[VALUES];
static wh_histogram clocks[WH_COUNTS_OF_ROWS], row, workers[WH_COUNTS_OF_WORKER];
static wh_slot slots[VALUES];
static wh_wheel_seg seg;

/* Lateness between a microsecond and a few milliseconds, as a clock's is. */
static void fill(void)
{
    srandom(1);
    for (uint32_t i = 0; i < VALUES; i++) {
        int64_t late = (1000 + random() % 1000) << (random() % 12);
        records[i] = (wh_completion){.id = wh_id(7, i), .deadline = i, .fired = i + late};
        wh_store_relaxed(&slots[i].interval, wh_once_from(i / 2));
    }
}

static double fires(uint32_t rounds, bool counts)
{
    wh_peer peer = {.lateness = &row, .to_fire = &workers[WH_COUNTS_TO_FIRE]};
    wh_clock c = {.seg = &seg, .histograms = clocks, .peers = &peer, .slots = slots};
    int64_t start = cpu_ns();
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t i = 0; i < VALUES; i++) {
            wh_count(&seg.fired, 1);
            if (counts) {
                wh_count_lateness(&c, &peer, &records[i]);
                wh_count_to_fire(&c, &peer, i, records[i].fired);
            }
        }
    return (double)(cpu_ns() - start) / rounds / VALUES;
}

static double polls(uint32_t rounds, bool counts)
{
    wh_client c = {.histograms = workers};
    wh_look look = {.clocks = {{true, true, true}, {1 << 30, 1 << 30, 1 << 30}}};
    int64_t start = cpu_ns();
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t i = 0; i < VALUES; i++) {
            wh_count(&seg.fired, 1);
            if (counts)
                wh_client_note(&c, (const char *)&records[i], 0, &look);
        }
    return (double)(cpu_ns() - start) / rounds / VALUES;
}

int main(int argc, char **argv)
{
    uint32_t rounds = argc > 1 ? (uint32_t)atoi(argv[1]) : 64;
    fill();
    fires(1, true), polls(1, true);
    double clock = fires(rounds, true) - fires(rounds, false);
    double worker = polls(rounds, true) - polls(rounds, false);
    printf("{\"clock, ns\": %.3f, \"worker, ns\": %.3f, \"both, ns\": %.3f}\n", clock, worker,
           clock + worker);
    return 0;
}
