/* Orders of sharing: what two workers may see of each other over one watch directory and one pool,
 * tried out one by one, in one thread; the idea is that of orders.c. The verdicts: nobody sleeps on
 * a key that was checked, or beside memory; and the account of the pool is exact. */
#include "interleaving.h"

enum { ROWS = 2, SIZE = 1000, LARGEST = 300, BUCKET = 3 };

static const uint64_t HASH = 0x906030000000ull | BUCKET;

typedef struct worker {
    wh_watch watch;
    wh_budget budget;
    bool sleeps, rung, waits, dead;
    uint64_t wait_seq, seen;
    uint32_t wake_seen;
    int64_t have;
} worker;

static worker workers[ROWS];
#define A (&workers[0])
#define B (&workers[1])

static void *directory, *pools;
static wh_budget supervisor;
static wh_au64 condition;

static void begin(void)
{
    directory = calloc(1, wh_watch_bytes(ROWS));
    pools = calloc(1, wh_pools_bytes(ROWS, 1));
    CHECK(directory && pools, "memory");
    wh_watch_create(directory, ROWS, 1);
    wh_pool_create(wh_pools_create(pools, ROWS, 1), SIZE, LARGEST, true, 0);
    wh_budget_bind(&supervisor, pools, 1, ROWS, 0, ROWS);
    atomic_store(&condition, 0);
    for (uint32_t row = 0; row < ROWS; row++) {
        workers[row] = (worker){.have = 0};
        CHECK(wh_watch_bind(&workers[row].watch, directory, ROWS, row), "memory");
        wh_budget_bind(&workers[row].budget, pools, 1, ROWS, 0, row);
    }
}

static void end(void)
{
    for (uint32_t row = 0; row < ROWS; row++)
        free(workers[row].watch.keys);
    free(directory);
    free(pools);
}

/* -- A watches, B checks ----------------------------------------------------------------------- */

static void see(void) { A->seen = wh_load_relaxed(&condition); }

static void watch(void)
{
    wh_watch_add(&A->watch, BUCKET);
    see();
}

static void look(void)
{
    if (wh_watch_drain(&A->watch) &&
        wh_hash_is_marked(HASH, wh_watch_take(&A->watch, wh_hash_mark_word(HASH))))
        see();
}

static void fall_asleep(void)
{
    wh_watch_say_wait(A->watch.mine, ++A->wait_seq | 1);
    A->sleeps = !wh_watch_ready(&A->watch);
}

static void check(void)
{
    wh_store_relaxed(&condition, wh_load_relaxed(&condition) + 1);
    wh_watch_barrier(&B->watch);
    if (wh_watch_others(&B->watch, BUCKET, 0) & 1)
        A->rung |= wh_watch_mark(&B->watch, 0, HASH) & 1;
}

static void before_marked(void)
{
    watch();
    check();
    A->rung = false;
}

/* Somebody said that there is a mark, and there is none: it was taken up in the round before. */
static void before_empty(void)
{
    watch();
    atomic_store(&A->watch.mine->any, 1);
}

/* B is dead. */
static void before_clear(void)
{
    wh_watch_add(&B->watch, BUCKET);
    B->dead = true;
}
static void clear(void) { wh_watch_clear(directory, ROWS, 1, 0); }

static void verdict_cleared(void)
{
    CHECK(atomic_load(wh_watch_word(&A->watch, BUCKET, 0)) == 1, "bits of the living and the dead");
}

static void verdict_seen(void)
{
    if (!A->sleeps || A->rung)
        look();
    CHECK(A->seen == atomic_load(&condition), "a check is missed");
}

/* -- A and B borrow ---------------------------------------------------------------------------- */

static bool change(worker *w, int64_t bytes)
{
    bool done = wh_budget_change(&w->budget, bytes);
    w->have += done ? bytes : 0;
    return done;
}

static void no_wake(wh_au32 *word) { (void)word; }

static void give_back(void)
{
    change(B, -LARGEST);
    if (!wh_wait_queue_empty(&B->budget))
        wh_wait_queue_wake(&B->budget, no_wake);
    if (wh_pool_is_dry(B->budget.pool))
        wh_pool_wet(B->budget.pool, 2);
}

static void wait_for(void)
{
    wh_wait_queue_show(&A->budget, wh_wait_queue_ticket(&A->budget), LARGEST);
    A->wake_seen = wh_load_seq(&A->budget.mine->wake);
    A->waits = !change(A, LARGEST);
}

/* A spell of which B, who gives back, may know nothing yet: then A ends it. */
static void refused(void)
{
    if (change(A, LARGEST))
        return;
    wh_pool_dry(A->budget.pool, 1);
    if (wh_pool_fits(A->budget.pool, wh_budget_used(&A->budget), LARGEST))
        wh_pool_wet(A->budget.pool, 2);
}

static void before_full(void)
{
    change(B, LARGEST);
    change(A, LARGEST);
    change(A, LARGEST);
    change(A, SIZE - 3 * LARGEST);
}

static int64_t used(void)
{
    return (int64_t)(atomic_load(&A->budget.pool->used) >> WH_USED_BYTES_AT);
}

static void verdict_exact(void)
{
    CHECK(used() == A->have + B->have, "%lld out; they have %lld and %lld", (long long)used(),
          (long long)A->have, (long long)B->have);
    CHECK(used() <= SIZE, "more out than there is");
}

static void verdict_line(void)
{
    bool woken = atomic_load(&A->budget.mine->wake) != A->wake_seen;
    verdict_exact();
    CHECK(!A->waits || woken || used() + LARGEST > SIZE, "A sleeps beside memory");
}

static void verdict_dry(void)
{
    verdict_exact();
    CHECK(!wh_pool_is_dry(A->budget.pool) || used() + LARGEST > SIZE, "dry beside memory");
}

static void a_allocates(void) { change(A, 50); }
static void b_changes(void) { change(B, variant ? -20 : 30); }
static void before_both(void)
{
    change(A, 100);
    change(B, 100);
}

/* B was killed between its compare-and-swap and its note: `used` names it. */
static void before_unnoted(void)
{
    before_both();
    atomic_fetch_sub(&B->budget.mine->made, 1);
    B->dead = true;
}

static void bury(void)
{
    wh_budget_reap(&supervisor, 1);
    B->have = 0;
    B->dead = false;
}

static void verdict_reaped(void)
{
    if (B->dead)
        bury();
    verdict_exact();
}

/* The supervisor dies at one point; its successor goes on. */
static void succeed(void)
{
    wh_budget_resume(&supervisor);
    bury();
}

int main(int argc, char **argv)
{
    /* clang-format off */
    static const race races[] = {
        {.name = "a watcher falls asleep as its key is checked", .before = watch, .operate = fall_asleep,
         .meanwhile = check, .verdict = verdict_seen, .hold = true},
        {.name = "a key is checked as its watcher falls asleep", .before = watch, .operate = check,
         .meanwhile = fall_asleep, .verdict = verdict_seen, .hold = true},
        {.name = "a key is watched as it is checked", .before = see, .operate = watch,
         .meanwhile = check, .verdict = verdict_seen, .hold = true},
        {.name = "a key is checked as it is watched", .before = see, .operate = check,
         .meanwhile = watch, .verdict = verdict_seen, .hold = true},
        {.name = "marks are taken up as the key is checked", .before = before_marked, .operate = look,
         .meanwhile = check, .verdict = verdict_seen, .hold = true},
        {.name = "a key is checked as marks are taken up", .before = before_marked, .operate = check,
         .meanwhile = look, .verdict = verdict_seen, .hold = true},
        {.name = "a look for nothing as the key is checked", .before = before_empty, .operate = look,
         .meanwhile = check, .verdict = verdict_seen, .hold = true},
        {.name = "a row is cleared as another watches", .before = before_clear, .operate = clear,
         .meanwhile = watch, .verdict = verdict_cleared, .hold = false},
        {.name = "one waits as memory returns", .before = before_full, .operate = wait_for,
         .meanwhile = give_back, .verdict = verdict_line, .hold = true},
        {.name = "memory returns as one waits", .before = before_full, .operate = give_back,
         .meanwhile = wait_for, .verdict = verdict_line, .hold = true},
        {.name = "a dry spell begins as memory returns", .before = before_full, .operate = refused,
         .meanwhile = give_back, .verdict = verdict_dry, .hold = true},
        {.name = "memory returns as a dry spell begins", .before = before_full, .operate = give_back,
         .meanwhile = refused, .verdict = verdict_dry, .hold = true},
        {.name = "two change the pool", .before = before_both, .operate = a_allocates,
         .meanwhile = b_changes, .verdict = verdict_exact, .variants = 2, .hold = true},
        {.name = "a dead one's name is overwritten as it is reaped", .before = before_unnoted,
         .operate = a_allocates, .meanwhile = bury, .verdict = verdict_reaped, .hold = true},
        {.name = "a dead one is reaped as its name is overwritten", .before = before_unnoted,
         .operate = bury, .meanwhile = a_allocates, .verdict = verdict_reaped, .hold = true},
        {.name = "a supervisor dies as it reaps", .before = before_unnoted, .operate = bury,
         .meanwhile = succeed, .verdict = verdict_exact, .dies = true},
    };
    /* clang-format on */
    options_read(argc, argv);
    return races_run(races, sizeof races / sizeof *races);
}
