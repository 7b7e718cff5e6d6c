/* Interleaving: one operation, and the other side's whole operation at each of its atomics; and
 * each of its stores held back for as long as C11 allows it to. All in one thread: see orders.c. */
#ifndef HARNESS_INTERLEAVING_H
#define HARNESS_INTERLEAVING_H

#include "wheeld/shared/atomics.h"

#include <setjmp.h>
#include <stddef.h>

enum strength { RELAXED, ORDERED, SEQ }; /* ORDERED: release, or acquire */

static void trial_point(void);
static void trial_store(void *p, size_t size, uint64_t value, enum strength strength);
static void trial_cas(void);
static void trial_load(const void *p, enum strength strength);

#undef wh_load_relaxed
#undef wh_load_acquire
#undef wh_load_seq
#undef wh_store_relaxed
#undef wh_store_release
#undef wh_store_seq
#undef wh_cas_acq_rel
#undef wh_cas_seq
#undef wh_fetch_or_seq
#undef wh_fetch_and_seq
#undef wh_fetch_add_seq
#undef wh_exchange_seq
#undef wh_step
#define LOAD(p, strength) (trial_load((const void *)(p), strength), atomic_load(p))
#define STORE(p, v, strength) trial_store((p), sizeof *(p), (uint64_t)(v), strength)
#define wh_load_relaxed(p) LOAD(p, RELAXED)
#define wh_load_acquire(p) LOAD(p, ORDERED)
#define wh_load_seq(p) LOAD(p, SEQ)
#define wh_store_relaxed(p, v) STORE(p, v, RELAXED)
#define wh_store_release(p, v) STORE(p, v, ORDERED)
#define wh_store_seq(p, v) STORE(p, v, SEQ)
#define wh_step() trial_point()
#define wh_cas_acq_rel(p, expected, desired)                                                       \
    (trial_cas(), atomic_compare_exchange_strong((p), (expected), (desired)))
#define wh_cas_seq wh_cas_acq_rel
#define wh_fetch_or_seq(p, bits) (trial_cas(), atomic_fetch_or((p), (bits)))
#define wh_fetch_and_seq(p, bits) (trial_cas(), atomic_fetch_and((p), (bits)))
#define wh_fetch_add_seq(p, n) (trial_cas(), atomic_fetch_add((p), (n)))
#define wh_exchange_seq(p, v) (trial_cas(), atomic_exchange((p), (v)))

#include "wheeld/worker/client.h"
#include "wheeld/loop/pass.h"
#include "wheeld/sharing/pool.h"
#include "wheeld/worker/batch_change.h"
#include "wheeld/loop/recover.h"
#include "wheeld/sharing/watch.h"

#include "cases.h"

/* The program puts these around each trial. */
static void begin(void);
static void end(void);

/* -- one trial --------------------------------------------------------------------------------- */

#define NEVER UINT64_MAX
#define MOST_VICTIMS 64
#define MOST_HELD 256

typedef struct held {
    void *p;
    size_t size;
    uint64_t value;
} held;

static struct trial {
    bool on, other; /* the operation runs; the other side's runs within it */
    bool dies;      /* the operation goes no further; the other side's comes then */
    uint64_t points, at, stores, victim;
    void (*meanwhile)(void);
    held held[MOST_HELD]; /* the victim, and what must not be seen before it, in order */
    uint32_t count;
    bool seq; /* one of them is sequentially consistent */
    jmp_buf death;
} trial;

static void store_now(const held *h)
{
    if (h->size == 8)
        atomic_store((wh_au64 *)h->p, h->value);
    else if (h->size == 4)
        atomic_store((wh_au32 *)h->p, (uint32_t)h->value);
    else
        atomic_store((wh_au16 *)h->p, (uint16_t)h->value);
}

static void trial_land(void)
{
    for (uint32_t i = 0; i < trial.count; i++)
        store_now(&trial.held[i]);
    trial.count = 0;
    trial.seq = false;
}

static void trial_meanwhile(void)
{
    trial.other = true;
    trial.meanwhile();
    trial.other = false;
}

static void trial_point(void)
{
    if (!trial.on || trial.other || trial.points++ != trial.at)
        return;
    if (trial.dies)
        longjmp(trial.death, 1);
    trial_meanwhile();
}

static bool trial_holds(const void *p)
{
    for (uint32_t i = 0; i < trial.count; i++)
        if (trial.held[i].p == p)
            return true;
    return false;
}

static void trial_load(const void *p, enum strength strength)
{
    trial_point();
    if (!trial.on || trial.other)
        return;
    if ((strength == SEQ && trial.seq) || trial_holds(p)) /* its own stores it sees at once */
        trial_land();
}

static void trial_cas(void)
{
    trial_point();
    if (trial.on && !trial.other)
        trial_land();
}

static void trial_store(void *p, size_t size, uint64_t value, enum strength strength)
{
    held now = {p, size, value};
    trial_point();
    if (!trial.on || trial.other) {
        store_now(&now);
        return;
    }
    if (trial_holds(p) || trial.count == MOST_HELD)
        trial_land();
    bool victim = trial.stores++ == trial.victim;
    if (victim || (trial.count && strength != RELAXED)) {
        trial.seq |= strength == SEQ;
        trial.held[trial.count++] = now;
    } else {
        store_now(&now);
    }
}

/* -- races: what stands before, the operation, what comes in between, the verdict -------------- */

typedef struct race {
    const char *name;
    void (*before)(void), (*operate)(void), (*meanwhile)(void), (*verdict)(void);
    uint32_t variants; /* of what comes in between; 0: one */
    bool hold;         /* its stores, too */
    bool dies;
} race;

static uint64_t variant;

static void race_operate(const race *r)
{
    trial.on = true;
    if (setjmp(trial.death) == 0)
        r->operate();
    trial.on = false;
}

static void race_once(const race *r, uint64_t at, uint64_t victim)
{
    begin();
    r->before();
    trial.dies = r->dies;
    trial.at = at;
    trial.victim = victim;
    trial.meanwhile = r->meanwhile;
    trial.points = trial.stores = 0;
    race_operate(r);
    if (r->dies || at >= trial.points)
        trial_meanwhile();
    trial_land();
    r->verdict();
    end();
}

#define POINTS_IN_ALL 256 /* of an operation without a long loop */

/* All points near the beginning and the end; of a long loop in between, some. */
static uint64_t race_step(uint64_t at, uint64_t points)
{
    if (points <= POINTS_IN_ALL || at <= 24 || at + 48 >= points)
        return 1;
    uint64_t rest = points - 48 - at, far = points / 8;
    return points < 10000 ? 23 : far < rest ? far : rest;
}

static const race *racing;

static void race_play(void)
{
    const race *r = racing;
    race_once(r, NEVER, NEVER);
    uint64_t points = trial.points, stores = r->hold ? trial.stores : 0, trials = 0;
    stores = stores < MOST_VICTIMS ? stores : MOST_VICTIMS;
    for (variant = 0; variant < (r->variants ? r->variants : 1); variant++)
        for (uint64_t victim = 0; victim <= stores; victim++)
            for (uint64_t at = 0; at <= points; at += race_step(at, points), trials++)
                race_once(r, at, victim == stores ? NEVER : victim);
    printf("  %llu trials, %llu points\n", (ull)trials, (ull)points);
}

static int races_run(const race *races, size_t count)
{
    int failed = 0;
    opt.jitter = 0; /* one thread */
    for (size_t i = 0; i < count && !(failed && opt.first); i++) {
        racing = &races[i];
        failed += !case_run(&(single_case){races[i].name, race_play});
    }
    printf(failed ? "FAIL: %d races\n" : "ok\n", failed);
    return failed != 0;
}

#endif
