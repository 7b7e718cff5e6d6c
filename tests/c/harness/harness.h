/* Harness: a wheel in plain memory, one clock thread, worker threads, all without Python.
 *
 * The clock thread runs the loop of clock_part.c (clock_loop, clock_sleep), so that a fault in the
 * hand-off between sleep and wake shows as a hang; every wait here is bounded and reports it.
 * Each ordered atomic operation of the core may be delayed (--jitter), which widens the windows
 * between them far beyond what two cores would show by themselves.
 *
 *   harness.h       options, failure, random numbers, jitter
 *   wheel_world.h   memory, the clock thread, requests to it
 *   crew.h          worker threads: what the core's calls do for them, with an entry in account.h
 *   account.h       what became of each timer, and whether that adds up
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../common/base.h"

#include "wheeld/shared/atomics.h"

#define GIVE_UP_NS 10000000000 /* what takes longer than this hangs */

typedef struct options {
    uint64_t seed, scale, first, spin;
    uint32_t jitter; /* delay one ordered operation in so many; 0: none */
    const char *program;
} options;

static options opt;

static void fail_where(void)
{
    printf("FAIL %s --seed %llu --scale %llu --jitter %u", opt.program, (ull)opt.seed,
           (ull)opt.scale, opt.jitter);
}
static void fail_end(void) {}

static inline uint64_t rng_below(uint64_t *state, uint64_t limit)
{
    return rng_next(state) % limit;
}
static inline uint64_t rng_seeded(uint64_t salt)
{
    uint64_t state = opt.seed ^ salt * 0xd1342543de82ef95ull;
    rng_next(&state);
    return state;
}

/* -- jitter ------------------------------------------------------------------------------------ */

static _Thread_local uint64_t jitter_rng;
static _Thread_local uint32_t jitter_left;

static inline void jitter_seed(uint64_t salt)
{
    jitter_rng = rng_seeded(salt + 1000);
    jitter_left = 1;
}

static __attribute__((noinline)) void jitter_pause(void)
{
    uint64_t r = rng_next(&jitter_rng);
    jitter_left = 1 + (uint32_t)(r >> 32) % (2 * opt.jitter);
    if (r % 16 == 0) {
        struct timespec t = {0, (long)(r >> 8) % 50000};
        nanosleep(&t, NULL);
    } else if (r % 4 == 0) {
        sched_yield();
    } else {
        for (volatile uint32_t spin = (uint32_t)(r >> 8) % 512; spin; spin--)
            ;
    }
}

static inline void jitter(void)
{
    if (opt.jitter && wh_unlikely(--jitter_left == 0))
        jitter_pause();
}

#undef wh_load_acquire
#undef wh_store_release
#undef wh_load_seq
#undef wh_store_seq
#undef wh_cas_acq_rel
#undef wh_cas_seq
#undef wh_fetch_or_seq
#undef wh_fetch_and_seq
#undef wh_fetch_add_seq
#undef wh_exchange_seq
#define wh_load_acquire(p) (jitter(), atomic_load_explicit((p), memory_order_acquire))
#define wh_store_release(p, v) (jitter(), atomic_store_explicit((p), (v), memory_order_release))
#define wh_load_seq(p) (jitter(), atomic_load_explicit((p), memory_order_seq_cst))
#define wh_store_seq(p, v) (jitter(), atomic_store_explicit((p), (v), memory_order_seq_cst))
#define wh_cas_acq_rel(p, expected, desired)                                                       \
    (jitter(), atomic_compare_exchange_strong_explicit(                                            \
                   (p), (expected), (desired), memory_order_acq_rel, memory_order_acquire))
#define JITTERED(operation, p, v)                                                                  \
    (jitter(), atomic_##operation##_explicit((p), (v), memory_order_seq_cst))
#define wh_cas_seq(p, expected, desired)                                                           \
    (jitter(), atomic_compare_exchange_strong_explicit(                                            \
                   (p), (expected), (desired), memory_order_seq_cst, memory_order_seq_cst))
#define wh_fetch_or_seq(p, bits) JITTERED(fetch_or, p, bits)
#define wh_fetch_and_seq(p, bits) JITTERED(fetch_and, p, bits)
#define wh_fetch_add_seq(p, n) JITTERED(fetch_add, p, n)
#define wh_exchange_seq(p, v) JITTERED(exchange, p, v)

#include "wheeld/worker/client.h"
#include "wheeld/loop/pass.h"
#include "wheeld/worker/batch_change.h"
#include "wheeld/loop/wheel_check.h"

#include "../common/checks.h"

/* -- options ----------------------------------------------------------------------------------- */

static inline void on_alarm(int signal)
{
    static const char text[] = "FAIL: the whole program hangs (alarm)\n";
    (void)!write(1, text, sizeof text - 1);
    _exit(128 + signal);
}

/* program [--seed N] [--scale N] [--jitter N] [--first 1] [--spin SECONDS]: scale 1 is the least
 * that means something; first: end with the first case that fails; spin: what takes more of a
 * processor hangs. */
static inline void options_read(int argc, char **argv)
{
    opt = (options){.seed = (uint64_t)wh_clock_read(CLOCK_REALTIME),
                    .scale = 1,
                    .jitter = 64,
                    .spin = 20,
                    .program = base_name(argv[0])};
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t value = strtoull(argv[i + 1], NULL, 0);
        if (!strcmp(argv[i], "--seed"))
            opt.seed = value;
        else if (!strcmp(argv[i], "--scale"))
            opt.scale = value;
        else if (!strcmp(argv[i], "--jitter"))
            opt.jitter = (uint32_t)value;
        else if (!strcmp(argv[i], "--first"))
            opt.first = value;
        else if (!strcmp(argv[i], "--spin"))
            opt.spin = value;
        else
            FAIL("unknown option %s", argv[i]);
    }
    signal(SIGALRM, on_alarm);
    alarm(600);
    jitter_seed(0);
    printf("%s --seed %llu --scale %llu --jitter %u\n", opt.program, (ull)opt.seed, (ull)opt.scale,
           opt.jitter);
    fflush(stdout);
}

static inline void pause_ns(long ns)
{
    struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

static inline void pipe_make(int ends[2])
{
    CHECK(pipe2(ends, O_NONBLOCK | O_CLOEXEC) == 0, "pipe2");
}

#endif
