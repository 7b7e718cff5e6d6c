/* Sweep: what the programs here have in common. Each takes one path of the core through all its
 * instructions: at each of them a process dies (or stops), the others go on, and the account is
 * exact.
 *
 *   sweep.h    options, failure, random numbers, the arena
 *   step.h     a child that runs instruction by instruction; what it dies of
 *   ledger.h   what became of each timer, kept outside the wheel's memory
 *   crew.h     a clock and workers over one wheel, driven by hand in virtual time
 *   workers.h  what workers do: the calls of the core, each with its entry in the ledger
 *   history.h  random pasts, and the end to which each trial is played
 *   paths.h    situations and operations: those of a worker, of one that waits, of a clock;
 *              rounds.h runs them
 *   keying.h, paths_keys.h   the same crew with a directory of keys
 *   keeping.h, paths_kept.h   the same with detached timers, and a keeper of them
 *   borrowers.h, watchers.h, rounds_row.h   the same for pool.h, watch.h and rows.h: no clock
 *
 * All memory that a trial touches stands in one shared mapping, the arena: the segments, what the
 * processes think of as private, the ledger. So a trial is undone by copying the arena back.
 */
#ifndef SWEEP_H
#define SWEEP_H

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../common/base.h"

#include "wheeld/shared/atomics.h"

#define TRIAL_SECONDS 20 /* what takes longer than this hangs */
#define NO_STEP UINT64_MAX
#define STEP_LEVELS 3 /* a sweep may happen within what survivors do in another */

static struct options {
    const char *program, *path; /* path: NULL: all */
    uint64_t seed, seeds, stops, stride;
    bool list;
    uint64_t k[STEP_LEVELS]; /* the one stop wanted of each level; 0: as it comes */
    int64_t seconds;
} opt;

/* The trial in hand: enough to have it again. */
static struct where {
    const char *path;
    uint64_t seed, k[STEP_LEVELS];
} where;

/* -- failure ----------------------------------------------------------------------------------- */

static void step_abandon(void); /* step.h: ends the children */

static void fail_where(void)
{
    printf("FAIL %s --path %s --seed %llu", opt.program, where.path, (ull)where.seed);
    for (int level = 0; level < STEP_LEVELS && where.k[level]; level++)
        printf(" --%c %llu", "kji"[level], (ull)where.k[level]);
}
static void fail_end(void) { step_abandon(); }

/* A survivor crashed, or hangs. */
static void on_fatal(int signal)
{
    static sig_atomic_t again;
    if (!again++)
        FAIL("%s", signal == SIGALRM ? "a survivor hangs" : strsignal(signal));
    _exit(1);
}

/* -- the arena --------------------------------------------------------------------------------- */

#define ARENA_BYTES (4u << 20)

typedef struct arena {
    size_t used;
    _Alignas(4096) char bytes[];
} arena;

static arena *memory;

static void *shared_pages(size_t bytes)
{
    void *pages =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    CHECK(pages != MAP_FAILED, "mmap");
    return pages;
}

/* Zeroed, and on lines of its own. Taken in one instruction: who is stopped in the middle must not
 * share it with those who go on, as no two processes share what malloc() gave them. */
static void *arena_take(size_t bytes)
{
    size_t taken = (bytes + 127) & ~(size_t)127;
    size_t at = __atomic_fetch_add(&memory->used, taken, __ATOMIC_RELAXED);
    CHECK(sizeof(arena) + at + taken <= ARENA_BYTES, "the arena is full");
    return memset(memory->bytes + at, 0, bytes);
}

/* For this process alone: closed, a touch is a crash. */
static void arena_open(bool open)
{
    int access = open ? PROT_READ | PROT_WRITE : PROT_NONE;
    CHECK(mprotect(memory, ARENA_BYTES, access) == 0, "mprotect");
}

static void arena_save(arena *copy) { memcpy(copy, memory, sizeof(arena) + memory->used); }
static void arena_restore(const arena *copy) { memcpy(memory, copy, sizeof(arena) + copy->used); }

/* The core's allocations are private to a process; here they stand in the arena too. */
#define malloc(bytes) arena_take(bytes)
#define calloc(count, bytes) arena_take((size_t)(count) * (bytes))
#define free(pointer) ((void)(pointer))

/* A path: a situation, and an operation in it that a sweep goes through. */
typedef struct path {
    const char *name;
    void (*before)(void), (*operate)(void);
    uint32_t stride; /* stops are so far apart at most; 1: at every instruction */
} path;

/* -- options ----------------------------------------------------------------------------------- */

static void options_usage(void)
{
    printf(
        "usage: %s [--list 1] [--path NAME] [--seed N] [--seeds N] [--stride N] [--stops N] [--seconds N] "
        "[--k N [--j N [--i N]]]\n",
        opt.program);
    exit(2);
}

static void options_number(const char *name, uint64_t value)
{
    if (!strcmp(name, "--seed"))
        opt.seed = value;
    else if (!strcmp(name, "--stops"))
        opt.stops = value;
    else if (!strcmp(name, "--seeds"))
        opt.seeds = value;
    else if (!strcmp(name, "--stride") && value)
        opt.stride = value;
    else if (!strcmp(name, "--list"))
        opt.list = value;
    else if (!strcmp(name, "--seconds"))
        opt.seconds = (int64_t)value;
    else if (!strcmp(name, "--k"))
        opt.k[0] = value;
    else if (!strcmp(name, "--j"))
        opt.k[1] = value;
    else if (!strcmp(name, "--i"))
        opt.k[2] = value;
    else
        options_usage();
}

static void options_read(int argc, char **argv)
{
    opt.program = base_name(argv[0]);
    opt.seed = opt.seeds = opt.stride = 1;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            options_usage();
        else if (!strcmp(argv[i], "--path"))
            opt.path = argv[i + 1];
        else
            options_number(argv[i], strtoull(argv[i + 1], NULL, 0));
    }
    static const int fatal[] = {SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        signal(fatal[i], on_fatal);
    memory = shared_pages(ARENA_BYTES);
}

static inline int64_t seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

#endif
