/* Ledger: what became of each timer. It stands outside the wheel's memory; a timer's cookie is the
 * index of its entry. Intent is written before a call and the outcome after it, so what was in
 * flight when a process died is known. */
#ifndef SWEEP_LEDGER_H
#define SWEEP_LEDGER_H

#include "step.h"

#define MOST_ENTRIES 640
#define MOST_TROUBLES 64
#define TO_GROUP 0xfeu

/* In flight. */
enum flight { LANDED, SCHEDULING, CANCELLING, MOVING, FINISHING, GIVING_BACK };

typedef struct entry {
    uint64_t id;           /* 0: not known */
    int64_t wanted, tried; /* the deadlines that it may fire for */
    int64_t interval, next; /* next: the tick to come of a periodic timer */
    /* when a move to `tried` had come too late: until then it may fire by that deadline, though in
     * its old place */
    int64_t refused;
    int64_t asked; /* when the clock could last be told of it; INT64_MAX: nobody has told it yet */
    uint8_t owner, to; /* rows; to: whom it was sent to */
    uint8_t flight, flier; /* what is being done to it, and the row that does it */
    bool used;
    bool raced; /* cancelled while somebody stood in the middle of a call: it may hold a tick */
    bool moved; /* ticks are not compared with the grid: it is another one by now */
    bool floats; /* it is due by when a call looked at the time: at `tried`, or later */
    bool loose; /* some ticks went with their reader, or several read them in any order */
    bool barred; /* its key's word names another one: it must not fire */
    bool stood; /* it was armed when keys were noted last */
    bool fluid; /* any worker may have moved it by its key: its deadline is not known */
    uint8_t key; /* the number of its key + 1; 0: it has none */
    bool detached, lasting; /* lasting: its end waits for ever */
    uint8_t holder; /* the row + 1 that has its end in hand; 0: none */
    int64_t until; /* by when that row is done with it; INT64_MAX: as long as it lives */
    int64_t left; /* of a paused timer: what it has left; -1: it is not paused */
    uint16_t takes; /* how often its end was in somebody's hand */
    uint8_t events, cancels, dropped;
} entry;

/* From then to then something was in the way of time or of deliveries: a full ring, a clock that
 * stood. */
typedef struct trouble {
    int64_t from, to; /* to: INT64_MAX: it lasts */
} trouble;

typedef struct ledger {
    entry entries[MOST_ENTRIES];
    trouble troubles[MOST_TROUBLES];
    uint32_t troubles_count;
    uint32_t count;
    uint64_t ticks;
    bool racing;
    bool memberless; /* the groups have no member */
    bool tolerant; /* a hostile worker may send events of its own to others */
} ledger;

static inline entry *ledger_add(ledger *l, uint32_t owner, uint32_t to, int64_t wanted,
                                int64_t interval)
{
    CHECK(l->count < MOST_ENTRIES, "the ledger is full");
    entry *e = &l->entries[l->count++];
    *e = (entry){.wanted = wanted,
                 .tried = wanted,
                 .interval = interval,
                 .next = wanted,
                 .owner = (uint8_t)owner,
                 .to = (uint8_t)to,
                 .flight = SCHEDULING,
                 .flier = (uint8_t)owner,
                 .used = true,
                 .asked = INT64_MAX,
                 .left = -1,
                 .loose = to == TO_GROUP}; /* its members read in any order */
    return e;
}

static inline bool entry_over(const entry *e) { return e->events || e->cancels || e->dropped; }

/* It stands, and nobody is in the middle of changing that. */
static inline bool entry_open(const entry *e)
{
    return e->used && e->flight != SCHEDULING && !entry_over(e);
}

/* -- lateness ---------------------------------------------------------------------------------- */

/* Something is in the way, or nothing any more. */
static inline void ledger_trouble(ledger *l, bool lasts, int64_t from, int64_t to)
{
    trouble *last = l->troubles_count ? &l->troubles[l->troubles_count - 1] : NULL;
    bool open = last && last->to == INT64_MAX;
    if (lasts && !open) {
        CHECK(l->troubles_count < MOST_TROUBLES, "no end of troubles");
        l->troubles[l->troubles_count++] = (trouble){from, INT64_MAX};
    } else if (open && !lasts) {
        last->to = to;
    }
}

/* Until when what was due then may fire: the end of its tick, or what it had to wait for. */
static inline int64_t ledger_latest(const ledger *l, const entry *e, int64_t deadline)
{
    int64_t latest = deadline > 0 ? ((deadline - 1) / MS + 1) * MS : 0;
    latest = e->asked > latest ? e->asked : latest;
    if (deadline == e->tried && deadline != e->wanted && e->refused > latest)
        latest = e->refused;
    for (uint32_t i = 0; i < l->troubles_count; i++)
        if (l->troubles[i].from <= latest && latest < l->troubles[i].to)
            latest = l->troubles[i].to;
    return latest;
}

static inline void ledger_punctual(const ledger *l, const entry *e, uint32_t cookie,
                                   int64_t deadline, int64_t fired)
{
    int64_t latest = ledger_latest(l, e, deadline);
    CHECK(
        fired <= latest || l->tolerant || e->fluid,
        "%u (row %u to %u, every %lld) was due at %lld and asked for at %lld, it fired at %lld: late by %lld",
        cookie, e->owner, e->to, (long long)e->interval, (long long)deadline, (long long)e->asked,
        (long long)fired, (long long)(fired - latest));
}

/* -- events ------------------------------------------------------------------------------------ */

/* The next on its grid; or, where ticks were lost with their reader, one that is due after its
 * sweep, and no earlier one again. A group's members read in any order. */
static inline void ledger_tick(ledger *l, entry *e, uint32_t cookie, int64_t deadline,
                               uint32_t missed)
{
    bool lost = e->loose && deadline > e->next && deadline - e->interval <= e->asked;
    bool grid = (deadline - e->wanted) % e->interval == 0;
    CHECK(e->moved || (grid && (e->to == TO_GROUP || lost || deadline == e->next)),
          "tick of %u (row %u to %u, every %lld) due at %lld, expected %lld", cookie, e->owner,
          e->to, (long long)e->interval, (long long)deadline, (long long)e->next);
    CHECK((!e->cancels || e->raced) && !e->dropped, "tick of %u, which is over", cookie);
    e->next = deadline + ((int64_t)missed + 1) * e->interval;
    l->ticks++;
}

static inline void ledger_event(ledger *l, uint64_t cookie, uint64_t id, int64_t deadline,
                                int64_t fired, uint32_t missed)
{
    CHECK(cookie < l->count, "event with cookie %llu", (ull)cookie);
    entry *e = &l->entries[cookie];
    uint32_t c = (uint32_t)cookie;
    CHECK(e->used, "event of %u, which was never armed", c);
    CHECK(!e->id || e->id == id, "event of id %llx, but %u has %llx", (ull)id, c, (ull)e->id);
    CHECK(fired >= deadline, "%u is early by %lld ns", c, (long long)(deadline - fired));
    ledger_punctual(l, e, c, deadline, fired);
    if (e->interval) {
        ledger_tick(l, e, c, deadline, missed);
        return;
    }
    bool floated = e->fluid || (e->floats && deadline > e->tried);
    CHECK(!e->barred, "%u fired, and its key's word named another one", c);
    CHECK(deadline == e->wanted || deadline == e->tried || floated, "%u fired for %lld, not %lld",
          c, (long long)deadline, (long long)e->wanted);
    CHECK(!e->events, "%u was received twice", c);
    CHECK(!e->cancels, "%u was cancelled and received", c);
    CHECK(!e->dropped, "%u was dropped and received", c);
    e->events = 1;
}

static inline void ledger_cancelled(ledger *l, entry *e, uint32_t cookie)
{
    CHECK(!e->cancels, "%u was cancelled twice", cookie);
    CHECK(!e->events, "%u was received and then cancelled", cookie);
    CHECK(!e->dropped, "%u was dropped and then cancelled", cookie);
    e->cancels = 1;
    e->raced = l->racing;
}

/* May an end come to somebody now? It may be in the hands of one only. */
static inline bool entry_free(const ledger *l, const entry *e, int64_t now)
{
    return !e->holder || e->until <= now || e->flight != LANDED || l->racing;
}

/* An end has come into the hands of `row`, which is to be done with it by `until`; the record says
 * that it was delivered `before` times. Once more for each of `deaths` of clocks, perhaps. */
static inline void ledger_taken(ledger *l, uint32_t cookie, uint32_t row, int64_t until,
                                uint32_t before, uint64_t deaths)
{
    entry *e = &l->entries[cookie];
    CHECK(l->racing || (before >= e->takes && before <= e->takes + deaths),
          "%u says that it was delivered %u times before, not %u", cookie, before, e->takes);
    e->takes++;
    e->holder = (uint8_t)(row + 1);
    e->until = until;
}

/* All that was due by `now` has been received. */
static inline void ledger_none_late(const ledger *l, int64_t now)
{
    for (uint32_t i = 0; i < l->count; i++) {
        const entry *e = &l->entries[i];
        bool waits =
            entry_open(e) && !e->fluid && !e->interval && e->wanted <= now && e->tried <= now;
        CHECK(!waits, "%u (row %u to %u, id %llx) was due at %lld, it is %lld: it is lost", i,
              e->owner, e->to, (ull)e->id, (long long)e->wanted, (long long)now);
    }
}

/* All is quiet, and everyone reads: what may fire no later than now has come, whoever held it
 * first. */
static inline void ledger_none_waits(const ledger *l, int64_t now)
{
    for (uint32_t i = 0; i < l->count; i++) {
        const entry *e = &l->entries[i];
        int64_t last = e->wanted > e->tried ? e->wanted : e->tried;
        bool waits = entry_open(e) && !e->fluid && e->flight == LANDED && !e->interval &&
                     !(e->detached && l->memberless) && !e->floats &&
                     ledger_latest(l, e, last) <= now;
        CHECK(!waits,
              "%u (row %u to %u, id %llx) was due at %lld, it is %lld, and everyone has looked", i,
              e->owner, e->to, (ull)e->id, (long long)last, (long long)now);
    }
}

/* Every timer ended, once. */
static inline void ledger_balance(const ledger *l)
{
    for (uint32_t i = 0; i < l->count; i++) {
        const entry *e = &l->entries[i];
        uint32_t ends = e->events + e->cancels + e->dropped;
        CHECK(e->flight != SCHEDULING || !e->used, "%u is in flight still", i);
        CHECK(ends == e->used, "%u (id %llx) ended %u times", i, (ull)e->id, ends);
    }
}

#endif
