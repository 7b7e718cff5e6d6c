/* Single: everything in one thread, under virtual time, so that a case is exact; and a runner that
 * gives each case a process of its own: one that fails or hangs does not hide the others. */
#ifndef HARNESS_SINGLE_H
#define HARNESS_SINGLE_H

#include <sys/time.h>
#include <sys/wait.h>

#include "crew.h"

#include "wheeld/loop/recover.h"

#define CASE_SECONDS 60 /* a case that sleeps longer hangs */
#define FAR_NS (100000000 * MS)

/* Let the clock look, and the hands take what came, until nothing moves any more. */
static inline void settle_all(world *w, hand **hands, uint32_t count)
{
    for (int turn = 0; turn < 64; turn++) {
        uint64_t got = 0;
        world_settle(w);
        for (uint32_t i = 0; i < count; i++)
            if (hands[i])
                got += hand_receive(hands[i]);
        if (got == 0 && turn > 8)
            return;
    }
    FAIL("64 passes and still events");
}

/* The worker is gone, from one instruction to the next; passes until the row is free. */
static inline void kill_hand(hand *h)
{
    world *w = h->world;
    uint32_t before = wh_load_acquire(&w->reaped[h->row]);
    wh_clock_detach(&w->peers[h->row], WH_LEAVE_DROP);
    for (int turn = 0; turn < 64 && wh_load_acquire(&w->reaped[h->row]) == before; turn++)
        world_settle(w);
    CHECK(wh_load_acquire(&w->reaped[h->row]) == before + 1, "row %u is never reaped", h->row);
    for (uint64_t i = h->next - 1; i + 1 > 0 && i < h->account->size; i--) {
        if (i * h->world->config.max_workers / h->account->size != h->row)
            break;
        entry *e = &h->account->entries[i];
        if (wh_load_relaxed(&e->id) && !entry_over(e))
            entry_add(&e->dropped);
    }
}

/* How many slots a newcomer can get hold of: all that nobody holds. They stay armed, far away. */
static inline uint32_t count_claimable(hand *newcomer)
{
    uint32_t count = 0, slot;
    wh_client *c = &newcomer->client;
    for (;;) {
        slot = wh_slabs_take(&c->slabs);
        if (slot == WH_NIL && wh_client_claim(c))
            slot = wh_slabs_take(&c->slabs);
        if (slot == WH_NIL)
            return count;
        count++;
    }
}

static inline void single_make(world *w, account *a, hand *hands, uint32_t count,
                               const wh_config *config)
{
    wh_config c = *config;
    c.max_workers = count;
    c.virtual_clock = 1;
    world_make(w, &c);
    account_make(a, 8192 * count);
    for (uint32_t i = 0; i < count; i++) {
        hand_attach(&hands[i], w, a, i, i + 1);
        hands[i].next = 8192 * i;
        hands[i].last = 8192 * (i + 1);
    }
}

/* The clock dies between two passes; another one recovers. Passes are the caller's. */
static inline void single_new_clock(world *w, const hand *hands, uint32_t count, int64_t now)
{
    for (uint32_t i = 0; i < count; i++)
        free(w->peers[i].returns);
    wh_clock_free(&w->clock);
    wh_clock_bind(&w->clock, w->wheel, w->slots, w->peers);
    for (int kind = 0; kind < WH_CLOCK_KINDS; kind++)
        w->clock.now[kind] = now;
    for (uint32_t i = 0; i < count; i++)
        wh_clock_attach(&w->clock, i, wh_owner_incarnation(hands[i].client.me), w->memories[i],
                        w->bells[i][1]);
    CHECK(wh_clock_recover(&w->clock), "out of memory");
    world_ask(w, request_check, NULL);
}

typedef struct single_case {
    const char *name;
    void (*play)(void);
} single_case;

/* True: the case passed. */
static inline bool case_run(const single_case *c)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0) {
        struct itimerval spins = {.it_value.tv_sec = (time_t)opt.spin};
        signal(SIGPROF, on_alarm);
        CHECK(setitimer(ITIMER_PROF, &spins, NULL) == 0, "setitimer");
        alarm(CASE_SECONDS);
        c->play();
        fflush(stdout);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    printf("  %s: %s\n", c->name, status == 0 ? "ok" : "FAILED");
    return status == 0;
}

static inline int cases_run(const single_case *cases, size_t count)
{
    size_t failed = 0;
    for (size_t i = 0; i < count && !(failed && opt.first); i++)
        failed += !case_run(&cases[i]);
    if (failed)
        printf("FAIL: %zu of %zu cases\n", failed, count);
    else
        printf("ok\n");
    return failed != 0;
}

#endif
