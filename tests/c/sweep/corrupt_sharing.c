/* Corrupt the words of the pools and watch segments, which every client maps writable, head and
 * all.
 *
 *   pools, watch   one after the other, between the calls of the supervisor and of workers
 *   race           by another process, at full speed, while they call
 *
 * Nobody crashes, hangs, or reads beyond the segment, which stands between pages that nobody may
 * touch. */
#include "step.h"

#include "wheeld/sharing/pool.h"

typedef struct mess {
    uint64_t rng;
} mess;
static mess state, *S = &state;

static inline void round_world(uint64_t seed) { S->rng = seed; }
#include "rounds.h"

enum { ROWS = 70, POOLS = 3, EPISODE = 4000, BATCH = 12, RACE_CALLS = 3000, GUARD = 64 << 20 };

static uint64_t dice(uint64_t limit) { return rng_next(&S->rng) % limit; }

static void *segments[2];
static uint64_t sizes[2]; /* what the kernel says: nobody can change that */
static wh_budget borrowers[POOLS][2];
static wh_watch watchers[2];
static uint32_t *keys[2];

/* -- words ------------------------------------------------------------------------------------- */

static uint64_t garbage(void)
{
    static const uint64_t odd[] = {0,         1,        UINT64_MAX, 1ull << 63,
                                   INT64_MAX, 0xffff,   0x10000,    0xffffffff,
                                   ROWS,      ROWS + 1, 1ull << 26, (1ull << 38) - 1};
    uint64_t r = rng_next(&S->rng);
    switch (dice(4)) {
    case 0:
        return odd[r % (sizeof odd / sizeof *odd)];
    case 1: /* a word of `used`: any row, one past the last too */
        return wh_used_word(r >> 40, (uint32_t)(r % (ROWS + 3)), r >> 20);
    case 2:
        return wh_reaping_word((uint32_t)(r % (ROWS + 3)), r >> 60);
    default:
        return r;
    }
}

/* Words that steer somebody, more often than others. */
static uint64_t *victim(int which)
{
    uint64_t *base = segments[which], heads = sizeof(wh_watch_seg) / 8;
    if (dice(8) == 0)
        return base + dice(heads);
    if (which == 1)
        return dice(2) ? (uint64_t *)&watchers[0].rows[dice(ROWS)] + dice(48)
                       : base + dice(sizes[1] / 8);
    wh_budget *b = &borrowers[dice(POOLS)][0];
    if (dice(8) == 0)
        return (uint64_t *)&b->waiters[dice(b->words)];
    if (dice(2))
        return (uint64_t *)b->pool + dice(sizeof(wh_pool) / 8);
    return (uint64_t *)&b->ledgers[dice(3) ? dice(2) : ROWS] + dice(sizeof(wh_ledger) / 8);
}

static void spoil(int which)
{
    uint64_t *word = victim(which), how = dice(3);
    wh_store_relaxed((wh_au64 *)word, how == 0 ? wh_load_relaxed((wh_au64 *)word) ^ 1ull << dice(64)
                                      : how == 1 ? wh_load_relaxed((wh_au64 *)victim(which))
                                                 : garbage());
    step_stops++;
}

/* -- calls ------------------------------------------------------------------------------------- */

static void no_wake(wh_au32 *word) { (void)wh_load_relaxed(word); }

/* As resume_pools and seat_borrower of sharing_part.c. */
static void supervise_pools(void)
{
    uint32_t pools, rows;
    if (!wh_pools_shape(segments[0], sizes[0], &pools, &rows))
        return;
    for (uint32_t i = 0; i < pools; i++) {
        wh_budget b;
        wh_budget_bind(&b, segments[0], pools, rows, i, rows);
        if (dice(2))
            wh_budget_resume(&b);
        uint32_t row = (uint32_t)dice(4);
        int64_t out = row < rows ? wh_budget_reap(&b, row) : 0;
        CHECK(out >= 0 && out < 1ll << 38, "%lld bytes returned", (long long)out);
        wh_pool_wet(b.pool, (int64_t)dice(1000));
        wh_wait_queue_wake(&b, no_wake);
    }
}

static void borrow(void)
{
    wh_budget *b = &borrowers[dice(POOLS)][dice(2)];
    uint64_t wants;
    switch (dice(6)) {
    case 0:
        wh_wait_queue_show(b, wh_wait_queue_ticket(b), 1 + dice(300));
        break;
    case 1:
        wh_wait_queue_show(b, 0, 0);
        break;
    case 2:
        wh_wait_queue_first_other(b, dice(3), &wants);
        wh_wait_queue_wake(b, no_wake);
        break;
    case 3:
        wh_pool_dry(b->pool, (int64_t)dice(1000));
        wh_budget_out(b, (uint32_t)dice(ROWS));
        break;
    default:
        wh_budget_change(b, dice(2) ? 1 + (int64_t)dice(300) : -1 - (int64_t)dice(300));
    }
}

static void supervise_watch(void)
{
    uint32_t rows = wh_watch_rows(segments[1], sizes[1]), row = (uint32_t)dice(2);
    if (row < rows && dice(64) == 0) /* it takes its time */
        wh_watch_clear(segments[1], rows, row, 1);
}

static void watch(void)
{
    wh_watch *w = &watchers[dice(2)];
    uint64_t hash = rng_next(&S->rng);
    uint32_t bucket = wh_hash_bucket(hash);
    if (dice(4) == 0) {
        wh_watch_add(w, bucket);
        if (dice(2))
            wh_watch_remove(w, bucket);
    }
    if (dice(8) == 0 && wh_watch_drain(w))
        for (uint32_t i = 0; i < WH_MARK_WORDS; i++)
            wh_watch_take(w, i);
    wh_watch_barrier(w);
    for (uint32_t i = 0; i < w->words; i++)
        for (uint64_t others = wh_watch_others(w, bucket, i); others; others &= others - 1)
            wh_watch_mark(w, 64 * i + (uint32_t)__builtin_ctzll(others), hash);
}

/* Else a head that was spoiled once would keep the supervisor out for good. */
static void mend_heads(void)
{
    wh_pools_seg *pools = segments[0];
    pools->pool_count = POOLS;
    pools->ledger_count = ROWS + 1;
    ((wh_watch_seg *)segments[1])->row_count = ROWS;
}

static void call(int which)
{
    if (dice(2))
        mend_heads();
    if (which == 0) {
        supervise_pools();
        borrow();
    } else {
        supervise_watch();
        watch();
    }
}

/* -- episodes ---------------------------------------------------------------------------------- */

static void segments_make(void)
{
    memset(segments[0], 0, sizes[0]);
    memset(segments[1], 0, sizes[1]);
    wh_pool *pools = wh_pools_create(segments[0], ROWS, POOLS);
    for (uint32_t i = 0; i < POOLS; i++)
        wh_pool_create(&pools[i], 1000, 300, i % 2, 0);
    wh_watch_create(segments[1], ROWS, 1);
    memory->used = 0;
    for (uint32_t me = 0; me < 2; me++) {
        for (uint32_t i = 0; i < POOLS; i++)
            wh_budget_bind(&borrowers[i][me], segments[0], POOLS, ROWS, i, me);
        CHECK(wh_watch_bind(&watchers[me], segments[1], ROWS, me), "memory");
    }
}

static void run_one_by_one(int which)
{
    for (uint64_t from = step_stops; step_stops < from + EPISODE;) {
        for (uint64_t n = 1 + dice(BATCH); n; n--)
            spoil(which);
        for (uint64_t n = dice(4); n; n--)
            call(which);
    }
}

static void run_race(void)
{
    wh_au64 *count = shared_pages(4096);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    for (uint64_t i = 0; child == 0; i++) {
        spoil((int)(i & 1));
        wh_store_relaxed(count, i);
    }
    for (int i = 0; i < RACE_CALLS; i++)
        call(i & 1);
    while (wh_load_relaxed(count) < 2)
        ;
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    step_stops += wh_load_relaxed(count);
    munmap(count, 4096);
}

static void operate_pools(void) { run_one_by_one(0); }
static void operate_watch(void) { run_one_by_one(1); }

static const path modes[] = {
    {"pools", NULL, operate_pools, 1},
    {"watch", NULL, operate_watch, 1},
    {"race", NULL, run_race, 1},
};
enum { MODES = sizeof modes / sizeof *modes };

static void run(size_t at)
{
    uint64_t before = step_stops, wanted = opt.stops ? opt.stops : 10 * EPISODE;
    where = (struct where){.path = modes[at].name, .seed = opt.seed};
    for (uint64_t number = 1; step_stops < before + wanted; number++) {
        where.k[0] = number;
        if (opt.k[0] && number > opt.k[0])
            break;
        if (opt.k[0] && number < opt.k[0])
            continue;
        round_world(rng_mix(rng_mix(opt.seed, at), number));
        segments_make();
        alarm(TRIAL_SECONDS);
        modes[at].operate();
    }
    rounds.stops[at] = step_stops - before;
    rounds.seeds[at] = 1;
}

/* So many bytes between others that nobody may touch, as far as any number of a row can reach. */
static void *guarded_pages(uint64_t bytes)
{
    char *pages =
        mmap(NULL, bytes + 2 * GUARD, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + GUARD, bytes, PROT_READ | PROT_WRITE) == 0,
          "mmap");
    return pages + GUARD;
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds_add(modes, MODES);
    sizes[0] = wh_pools_bytes(ROWS, POOLS);
    sizes[1] = wh_watch_bytes(ROWS);
    for (int i = 0; i < 2; i++)
        segments[i] = guarded_pages(sizes[i]);
    for (size_t at = 0; at < MODES; at++)
        if (opt.list)
            printf("%s\n", modes[at].name);
        else if (!opt.path || !strcmp(opt.path, modes[at].name))
            run(at);
    return opt.list ? 0 : rounds_print();
}
