/* Rounds: seed after seed, path after path, at most until the time or the stops that were given are
 * used up. Whoever includes this says in round_world() what each begins with, and has S->rng. */
#ifndef SWEEP_ROUNDS_H
#define SWEEP_ROUNDS_H

#include "step.h"

#define MOST_PATHS 96

static struct round {
    const path *paths[MOST_PATHS];
    size_t count;
    step_plan plan;
    const path *path; /* in hand */
    uint64_t seed; /* of that path and the seed in hand */
    int64_t begun;
    uint64_t stops[MOST_PATHS], deepest[MOST_PATHS], seeds[MOST_PATHS];
} rounds;

/* The acts of survivors differ from stop to stop, and are the same each time. */
static void round_dice(void)
{
    S->rng = rounds.seed;
    for (int level = 0; level < STEP_LEVELS; level++)
        S->rng = rng_mix(S->rng, where.k[level]);
}

static bool rounds_spent(void)
{
    return (opt.stops && step_stops >= opt.stops) ||
           (opt.seconds && seconds_now() - rounds.begun >= opt.seconds);
}

/* The stop after `k`: at most `stride` on, by chance; or the one that was asked for. */
static uint64_t step_after(uint64_t k, uint64_t stride, uint32_t level)
{
    if (opt.k[level])
        return k ? NO_STEP : opt.k[level];
    if (rounds_spent())
        return NO_STEP;
    uint64_t random = rng_mix(rounds.seed + k, level + (level ? where.k[0] : 0));
    return k + 1 + random % (stride * opt.stride);
}

static uint64_t next_step(void *unused, uint64_t k)
{
    (void)unused;
    return step_after(k, rounds.path->stride, 0);
}

static void round_operate(void *unused)
{
    (void)unused;
    rounds.path->operate();
}

static void round_run(size_t at, uint64_t seed)
{
    uint64_t before = step_stops;
    step_plan plan = rounds.plan;
    rounds.path = rounds.paths[at];
    where = (struct where){.path = rounds.path->name, .seed = seed};
    rounds.seed = rng_mix(seed, at);
    round_world(rounds.seed);
    rounds.path->before();
    plan.operate = plan.operate ? plan.operate : round_operate;
    plan.next = plan.next ? plan.next : next_step;
    step_sweep(&plan);
    rounds.stops[at] += step_stops - before;
    rounds.seeds[at]++;
    if (where.k[0] > rounds.deepest[at])
        rounds.deepest[at] = where.k[0];
}

static void rounds_add(const path *paths, size_t count)
{
    for (size_t i = 0; i < count; i++)
        rounds.paths[rounds.count++] = &paths[i];
}

static int rounds_print(void)
{
    bool any = false;
    for (size_t at = 0; at < rounds.count; at++) {
        if (!rounds.seeds[at])
            continue;
        printf("%s %s: %llu stops, %llu instructions, %llu seeds\n", opt.program,
               rounds.paths[at]->name, (ull)rounds.stops[at], (ull)rounds.deepest[at],
               (ull)rounds.seeds[at]);
        any = true;
    }
    if (any)
        printf("ok: %llu stops, %llu of them kills, seeds from %llu\n", (ull)step_stops,
               (ull)step_kills, (ull)opt.seed);
    else
        printf("no path %s\n", opt.path);
    return any ? 0 : 2;
}

static inline int rounds_run(step_plan plan)
{
    for (size_t at = 0; opt.list && at < rounds.count; at++)
        printf("%s\n", rounds.paths[at]->name);
    if (opt.list)
        return 0;
    rounds.plan = plan;
    rounds.begun = seconds_now();
    step_make();
    for (uint64_t seed = opt.seed; seed < opt.seed + opt.seeds; seed++)
        for (size_t at = 0; at < rounds.count && !rounds_spent(); at++)
            if (!opt.path || strcmp(opt.path, rounds.paths[at]->name) == 0)
                round_run(at, seed);
    return rounds_print();
}

#endif
