/* Sharing: watchers and checkers, borrowers and their reaper, each a thread, with jitter.
 *
 * Watchers go in lockstep: in each round checkers move keys on and check them at once, and each
 * watcher sleeps, with a real FIFO, until it has seen the last number of its keys; a check that is
 * missed is a hang. Borrowers go as they like: they wait in the queue on real futexes, and die at
 * rest and are reaped while the others go on; the account is exact at each reaping and in the
 * end. */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>

#include "harness.h"

#include "wheeld/sharing/pool.h"
#include "wheeld/sharing/watch.h"

enum { THREADS = 4, KEYS = 3, SIZE = 1000, LARGEST = 400 };

static const uint64_t hashes[KEYS] = {0x906030000009, 0xf06030000009, 0xc08040204000};

typedef struct actor {
    wh_watch watch;
    wh_budget budget;
    pthread_t thread;
    uint64_t rng, wait_seq, seen[KEYS], rung[THREADS], slept;
    int64_t have;
    int bell[2];
    uint32_t row;
} actor;

static actor actors[THREADS];
static void *directory, *pools;
static wh_au64 condition[KEYS];
static pthread_barrier_t lockstep;
static uint64_t rounds;

/* -- watchers and checkers --------------------------------------------------------------------- */

static void see(actor *a, int key) { a->seen[key] = atomic_load(&condition[key]); }

static void look(actor *a)
{
    for (uint64_t parts = wh_watch_drain(&a->watch); parts; parts &= parts - 1)
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t word = 64 * (uint32_t)__builtin_ctzll(parts) + i;
            uint64_t marks = wh_watch_take(&a->watch, word);
            for (int key = 0; key < KEYS; key++)
                if (wh_hash_mark_word(hashes[key]) == word && wh_hash_is_marked(hashes[key], marks))
                    see(a, key);
        }
}

static void check(actor *a, int key)
{
    atomic_fetch_add_explicit(&condition[key], 1, memory_order_relaxed);
    wh_watch_barrier(&a->watch);
    uint32_t bucket = wh_hash_bucket(hashes[key]);
    for (uint64_t others = wh_watch_others(&a->watch, bucket, 0); others; others &= others - 1) {
        uint32_t row = (uint32_t)__builtin_ctzll(others);
        uint64_t wait = wh_watch_mark(&a->watch, row, hashes[key]);
        if ((wait & 1) && a->rung[row] != wait) {
            a->rung[row] = wait;
            wh_bell_ring(actors[row].bell[1]);
        }
    }
    see(a, key);
}

static void nap(actor *a)
{
    wh_watch_say_wait(a->watch.mine, ++a->wait_seq);
    if (!wh_watch_ready(&a->watch)) {
        struct pollfd fd = {.fd = a->bell[0], .events = POLLIN};
        a->slept++;
        CHECK(poll(&fd, 1, GIVE_UP_NS / MS) == 1, "row %u sleeps on a key that was checked",
              a->row);
    }
    wh_watch_say_wait(a->watch.mine, ++a->wait_seq);
    wh_bell_clear(a->bell[0]);
}

/* One key each is watched anew in each round, now before it is checked, now after. */
static void watch_round(actor *a, uint64_t round)
{
    int own = (int)((round + a->row) % KEYS);
    bool checks = rng_below(&a->rng, 2);
    if (checks)
        check(a, (int)rng_below(&a->rng, KEYS));
    wh_watch_add(&a->watch, wh_hash_bucket(hashes[own]));
    see(a, own);
    if (!checks)
        check(a, (int)rng_below(&a->rng, KEYS));
    /* each round makes THREADS checks, of whichever keys */
    for (;;) {
        uint64_t sum = 0;
        look(a);
        for (int key = 0; key < KEYS; key++)
            sum += a->seen[key];
        if (sum == THREADS * (round + 1))
            break;
        nap(a);
    }
    pthread_barrier_wait(&lockstep);
    wh_watch_remove(&a->watch, wh_hash_bucket(hashes[own]));
}

static void *watcher_main(void *argument)
{
    actor *a = argument;
    jitter_seed(a->row + 1);
    for (int key = 0; key < KEYS; key++)
        wh_watch_add(&a->watch, wh_hash_bucket(hashes[key]));
    pthread_barrier_wait(&lockstep);
    for (uint64_t round = 0; round < rounds; round++)
        watch_round(a, round);
    return NULL;
}

/* -- borrowers --------------------------------------------------------------------------------- */

static void futex_wake(wh_au32 *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static bool change(actor *a, int64_t bytes)
{
    bool done = wh_budget_change(&a->budget, bytes);
    a->have += done ? bytes : 0;
    CHECK(wh_budget_used(&a->budget) <= SIZE, "more out than there is");
    return done;
}

static void stir(actor *a)
{
    if (!wh_wait_queue_empty(&a->budget))
        wh_wait_queue_wake(&a->budget, futex_wake);
}

/* The first in the queue takes; the next one is told. */
static void wait_for(actor *a, int64_t bytes)
{
    struct timespec most = {GIVE_UP_NS / 1000000000, 0};
    uint64_t ticket = wh_wait_queue_ticket(&a->budget), wants;
    wh_wait_queue_show(&a->budget, ticket, (uint64_t)bytes);
    for (;;) {
        uint32_t seen = wh_load_seq(&a->budget.mine->wake);
        if (wh_wait_queue_first_other(&a->budget, 0, &wants) > ticket && change(a, bytes))
            break;
        if (syscall(SYS_futex, &a->budget.mine->wake, FUTEX_WAIT, seen, &most, NULL, 0) < 0)
            CHECK(errno != ETIMEDOUT, "row %u waits beside memory", a->row);
    }
    wh_wait_queue_show(&a->budget, 0, 0);
    stir(a);
}

static void borrow(actor *a)
{
    int64_t bytes = 1 + (int64_t)rng_below(&a->rng, LARGEST);
    if (a->have) {
        change(a, -a->have);
        stir(a);
    } else if (rng_below(&a->rng, 3)) {
        change(a, bytes);
    } else {
        wait_for(a, bytes);
    }
}

static pthread_mutex_t one_reaper = PTHREAD_MUTEX_INITIALIZER; /* there is one supervisor */

/* As if it had been killed here: all of it returns, whoever changes the pool meanwhile. */
static void die(actor *a)
{
    wh_budget supervisor;
    pthread_mutex_lock(&one_reaper);
    wh_budget_bind(&supervisor, pools, 1, THREADS, 0, THREADS);
    int64_t out = wh_budget_reap(&supervisor, a->row);
    CHECK(out == a->have, "row %u had %lld, and %lld returned", a->row, (long long)a->have,
          (long long)out);
    wh_wait_queue_wake(&supervisor, futex_wake);
    pthread_mutex_unlock(&one_reaper);
    a->have = 0;
}

static void *borrower_main(void *argument)
{
    actor *a = argument;
    jitter_seed(a->row + 1);
    for (uint64_t i = 0; i < rounds * 4; i++) {
        borrow(a);
        if (rng_below(&a->rng, 16) == 0)
            die(a);
    }
    if (a->have)
        change(a, -a->have);
    stir(a);
    return NULL;
}

/* -- both -------------------------------------------------------------------------------------- */

static void play(void *(*act)(void *))
{
    for (uint32_t row = 0; row < THREADS; row++)
        CHECK(pthread_create(&actors[row].thread, NULL, act, &actors[row]) == 0, "thread");
    for (uint32_t row = 0; row < THREADS; row++)
        pthread_join(actors[row].thread, NULL);
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    rounds = 1000 * opt.scale;
    directory = calloc(1, wh_watch_bytes(THREADS));
    pools = calloc(1, wh_pools_bytes(THREADS, 1));
    CHECK(directory && pools, "memory");
    wh_watch_create(directory, THREADS, 1);
    wh_pool_create(wh_pools_create(pools, THREADS, 1), SIZE, LARGEST, true, 0);
    pthread_barrier_init(&lockstep, NULL, THREADS);
    for (uint32_t row = 0; row < THREADS; row++) {
        actors[row].row = row;
        actors[row].rng = rng_seeded(row);
        pipe_make(actors[row].bell);
        CHECK(wh_watch_bind(&actors[row].watch, directory, THREADS, row), "memory");
        wh_budget_bind(&actors[row].budget, pools, 1, THREADS, 0, row);
    }
    play(watcher_main);
    play(borrower_main);
    CHECK(wh_budget_used(&actors[0].budget) == 0, "bytes are lost");
    uint64_t slept = 0;
    for (uint32_t row = 0; row < THREADS; row++) {
        slept += actors[row].slept;
        free(actors[row].watch.keys);
    }
    printf("  %llu rounds, %llu sleeps of watchers\nok\n", (ull)rounds, (ull)slept);
    free(directory);
    free(pools);
    return 0;
}
