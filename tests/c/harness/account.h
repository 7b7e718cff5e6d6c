/* Account: what became of each timer, kept outside the wheel's memory.
 *
 * A timer's cookie is the index of its entry. `wanted` is the deadline that its owner was last told
 * to have (schedule, or a reschedule that won), `before` the one before that, `tried` that of the
 * last reschedule: a timer that fires while its owner is inside reschedule() may do so for any.
 * Relaxed throughout: the account must not order what the wheel itself has to.
 */
#ifndef HARNESS_ACCOUNT_H
#define HARNESS_ACCOUNT_H

#include "harness.h"

typedef struct entry {
    wh_au64 id; /* 0: not scheduled */
    wh_ai64 wanted, before, tried;
    wh_au32 cancels, events, dropped;
    wh_au32 moved; /* a periodic timer that was rescheduled: its grid is another */
    bool lost; /* its last reschedule came too late: `tried` is settled */
    int64_t interval;
    int64_t next_tick; /* what its receiver expects; INT64_MIN: nothing yet */
} entry;

typedef struct account {
    entry *entries;
    uint64_t size;
    bool tolerant; /* a hostile worker may send events of its own to others */
} account;

/* Is this event of a timer that is not in the account? */
static inline bool account_foreign(const account *a, const wh_completion *event)
{
    return a->tolerant && (event->cookie >= a->size ||
                           wh_load_relaxed(&a->entries[event->cookie].id) != event->id);
}

static inline void account_make(account *a, uint64_t size)
{
    a->size = size;
    a->entries = calloc(size, sizeof *a->entries);
    CHECK(a->entries, "out of memory");
}

static inline void account_free(account *a) { free(a->entries); }

#define entry_add(counter) atomic_fetch_add_explicit((counter), 1, memory_order_relaxed)

static inline bool entry_over(entry *e)
{
    return wh_load_relaxed(&e->cancels) + wh_load_relaxed(&e->events) +
               wh_load_relaxed(&e->dropped) !=
           0;
}

/* A tick follows the one before it on the grid, less what that one said to have skipped. */
static inline void entry_tick(entry *e, const wh_completion *event, uint64_t cookie)
{
    CHECK(event->fired >= event->deadline, "tick of %llu is early by %lld ns", (ull)cookie,
          (long long)(event->deadline - event->fired));
    if (!wh_load_relaxed(&e->moved))
        CHECK(e->next_tick == event->deadline, "tick of %llu due at %lld, expected %lld",
              (ull)cookie, (long long)event->deadline, (long long)e->next_tick);
    e->next_tick = event->deadline + ((int64_t)event->missed + 1) * e->interval;
}

/* An event came in. False: a tick, which ends nothing. */
static inline bool account_event(account *a, const wh_completion *event)
{
    uint64_t cookie = event->cookie;
    CHECK(cookie < a->size, "event with cookie %llu", (ull)cookie);
    entry *e = &a->entries[cookie];
    uint64_t id = wh_load_relaxed(&e->id);
    if (e->interval) {
        entry_tick(e, event, cookie);
        return false;
    }
    CHECK(id == 0 || id == event->id, "event of id %llx, but %llu has %llx", (ull)event->id,
          (ull)cookie, (ull)id);
    CHECK(event->fired >= event->deadline, "%llu is early by %lld ns", (ull)cookie,
          (long long)(event->deadline - event->fired));
    int64_t wanted = wh_load_relaxed(&e->wanted), tried = wh_load_relaxed(&e->tried);
    CHECK(event->deadline == wanted || event->deadline == tried ||
              event->deadline == wh_load_relaxed(&e->before),
          "%llu fired for deadline %lld, but %lld was asked for", (ull)cookie,
          (long long)event->deadline, (long long)wanted);
    CHECK(entry_add(&e->events) == 0, "%llu was received twice", (ull)cookie);
    CHECK(wh_load_relaxed(&e->cancels) == 0, "%llu was cancelled and received", (ull)cookie);
    return true;
}

static inline void account_cancelled(account *a, uint64_t cookie)
{
    entry *e = &a->entries[cookie];
    CHECK(entry_add(&e->cancels) == 0, "%llu was cancelled twice", (ull)cookie);
    CHECK(wh_load_relaxed(&e->events) == 0, "%llu was received and then cancelled", (ull)cookie);
}

/* How many of the entries have not ended yet. */
static inline uint64_t account_open(account *a, uint64_t from, uint64_t to)
{
    uint64_t open = 0;
    for (uint64_t i = from; i < to; i++)
        open += wh_load_relaxed(&a->entries[i].id) != 0 && !entry_over(&a->entries[i]);
    return open;
}

/* Every timer that was scheduled ended exactly once. Returns how many there were. */
static inline uint64_t account_balance(account *a)
{
    uint64_t scheduled = 0;
    for (uint64_t i = 0; i < a->size; i++) {
        entry *e = &a->entries[i];
        uint32_t ends = wh_load_relaxed(&e->cancels) + wh_load_relaxed(&e->events) +
                        wh_load_relaxed(&e->dropped);
        bool was = wh_load_relaxed(&e->id) != 0;
        CHECK(ends == was, "%llu (id %llx) ended %u times", (ull)i, (ull)e->id, ends);
        scheduled += was;
    }
    return scheduled;
}

#endif
