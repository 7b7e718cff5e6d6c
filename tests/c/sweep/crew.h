/* Crew: a clock and workers over one wheel, driven by hand under virtual time, all in the arena.
 *
 * The acts of a process under test stand between step_begin and step_end; the ledger's part around
 * it does not. Doorbells are counters: a worker that said it sleeps takes nothing from its ring
 * until it is rung, so a wake-up that was lost shows as an event that never came. */
#ifndef SWEEP_CREW_H
#define SWEEP_CREW_H

#include "ledger.h"

#define ROWS 4
#define EVENTS 512
#define NO_ROW 0xfdu
#define FIRST_GROUP 5u /* each member is a member of both groups */
#define SECOND_GROUP 9u
#define KEEPER (ROWS - 1) /* the row that keeps detached timers, in a crew that has some */
#define KEEP_NS (40 * MS)
#define MOST_DETACHED 24u
#define FAR_NS (100000000 * MS)

/* In place of doorbell.h: nothing here leaves the arena. */
#define WHEELD_DOORBELL_H
typedef struct wh_fd {
    int number;
} wh_fd;
static inline wh_fd wh_fd_of(int number) { return (wh_fd){number}; }
static inline bool wh_fd_is_ours(const wh_fd *fd) { return fd->number >= 0; }
static inline void wh_bell_ring(int fd);
static inline void wh_fd_ring(const wh_fd *fd) { wh_bell_ring(fd->number); }
static inline void wh_bell_clear(int fd);

#include "wheeld/worker/client.h"
#include "wheeld/loop/pass.h"
#include "wheeld/worker/batch_change.h"
#include "wheeld/worker/keys.h"
#include "wheeld/loop/recover.h"
#include "wheeld/loop/clock_check.h"

#include "../common/checks.h"

typedef struct worker {
    wh_client client;
    wh_keys keys; /* if there is a directory */
    char *events;
    uint64_t incarnation, head; /* head: of the completion ring when it last began to receive */
    uint32_t row;
    bool alive, sleeps, member; /* member: of the group */
    bool still; /* stopped in the middle of a call */
    bool holds; /* hangs with events in its hands */
    bool waits; /* its calls may wait for the clock */
} worker;

typedef struct crew {
    wh_config config;
    wh_geometry geometry;
    void *wheel, *slots, *segments[ROWS], *trace, *directory; /* NULL: none */
    wh_clock clock;
    wh_peer peers[ROWS];
    worker workers[ROWS];
    uint32_t bells[ROWS + 1]; /* the last one is the clock's */
    uint8_t policy[ROWS];     /* how a dead worker leaves */
    bool leaving[ROWS];       /* dead, and its sweep is not over */
    bool clockless;           /* the clock is dead, too */
    bool advancing;           /* a clock goes on from `since`, or died on its way */
    int64_t since, looks, look; /* looks: at the time, while a call waits, each `look` later */
    uint32_t naps; /* of the call that waits */
    uint64_t dropped[ROWS], deaths; /* the counter when the row's worker left; of clocks */
    uint64_t unnamed[ROWS]; /* timers that a dead worker had armed, and no key named */
    uint64_t rng, incarnations;
    ledger book;
    void *own; /* the program's */
} crew;

static crew *S; /* the first thing in the arena */
static uint32_t crew_heap_chunks;  /* of a payload heap, which then has most payloads */
static uint32_t crew_trace_bits; /* log2 of the records of a trace, if there is to be one */
static bool crew_keyed; /* there is to be a directory of keys */
static bool crew_keeps; /* there is to be a keeper of detached timers */
static char *crew_directory_end; /* where it is to end; NULL: it stands in the arena */
/* somebody writes what no client does: slots and links may differ */
static bool crew_scribbled;
static void (*crew_account)(void); /* looks at the ledger in the end, before it is used anew */

static inline void wh_bell_ring(int fd) { S->bells[fd]++; }
static inline void wh_bell_clear(int fd) { S->bells[fd] = 0; }

static inline uint64_t dice(uint64_t limit) { return rng_next(&S->rng) % limit; }
static inline int64_t crew_now(void) { return S->clock.now[WH_CLOCK_BASE]; }

/* -- the clock --------------------------------------------------------------------------------- */

/* Nobody stands in the middle of a call, and of each death the clock knows. */
static bool crew_whole(void)
{
    for (uint32_t row = 0; row < ROWS; row++)
        if (S->workers[row].still || (S->leaving[row] && !S->policy[row]))
            return false;
    return !crew_scribbled;
}

static void crew_check_lists(void)
{
    wh_wheel *w = &S->clock.wheel;
    wh_check check;
    bool holds = crew_whole() ? wh_clock_check(&S->clock, &check) : wh_wheel_check(w, &check);
    CHECK(holds, "%s", check.message);
    check_lists(&S->clock, S->geometry.lists, check.linked);
}

/* A sweep is over: the worker is gone, or kept. */
static void crew_swept(uint32_t row)
{
    S->leaving[row] = false;
    if (!S->peers[row].life)
        S->workers[row].incarnation = 0;
}

/* Is a ring full? Nobody reads while the clock is at work, so it is to the end if it ever was. */
static bool crew_jammed(void)
{
    for (uint32_t row = 0; row < ROWS; row++) {
        const wh_peer *peer = &S->peers[row];
        if (peer->life && peer != S->clock.keeper &&
            (wh_list_first(&S->clock.wheel, wh_backlog_list(&S->clock, peer)) != WH_NIL ||
             wh_ring_room(peer->comp_tail, wh_load_relaxed(&peer->seg->comp_head),
                          S->clock.comp_size) == 0))
            return true;
    }
    return false;
}

/* Time goes to `target`, from bucket to bucket. */
static void clock_advance(int64_t target)
{
    if (!S->advancing)
        S->since = crew_now();
    S->advancing = true;
    for (int turn = 0;; turn++) {
        uint32_t reaped;
        CHECK(turn < 64, "the clock reaps for ever");
        step_begin();
        wh_advance_virtual(&S->clock, target, &reaped);
        step_end();
        if (reaped == WH_NIL)
            break;
        crew_swept(reaped);
    }
    S->advancing = false;
    ledger_trouble(&S->book, crew_jammed(), S->since, crew_now());
}

/* Do all that is due now, in one pass or several. */
static void clock_work(void) { clock_advance(crew_now()); }

static void crew_groups(uint32_t row, uint64_t groups)
{
    CHECK(wh_clock_join(&S->clock, &S->peers[row], groups), "join: out of memory");
}

static void clock_attach(uint32_t row)
{
    worker *w = &S->workers[row];
    step_begin();
    bool made = wh_clock_attach(&S->clock, row, w->incarnation, S->segments[row], (int)row);
    step_end();
    CHECK(made, "attach: out of memory");
    crew_groups(row, w->member ? 1ull << FIRST_GROUP | 1ull << SECOND_GROUP : 0);
}

/* The row without a process is the keeper. */
static void clock_keeps(void)
{
    clock_attach(KEEPER);
    step_begin();
    bool made = wh_clock_keep(&S->clock, &S->peers[KEEPER], KEEP_NS);
    step_end();
    CHECK(made, "keep: out of memory");
}

/* A worker that is gone joins nothing. */
static inline void crew_joins(worker *w)
{
    if (!S->peers[w->row].life)
        return;
    w->member = true;
    crew_groups(w->row, 1ull << FIRST_GROUP); /* then one more */
    crew_groups(w->row, 1ull << FIRST_GROUP | 1ull << SECOND_GROUP);
}

/* The clock is dead, and its private memory with it. */
static inline void clock_dies(void)
{
    if (!S->clockless && crew_jammed())
        ledger_trouble(&S->book, true, S->since, 0);
    memset(&S->clock, 0xee, sizeof S->clock);
    memset(S->peers, 0xee, sizeof S->peers);
    S->clockless = true;
    S->deaths++;
}

static inline void clock_binds_keys(void)
{
    CHECK(wh_keys_bind(&S->clock.keys, S->directory, ROWS, S->config.capacity, S->clock.states,
                       S->clock.slots, WH_NIL),
          "no memory");
}

/* A new one over the same memory: to it, a worker that is kept and one being swept are the same. */
static inline void clock_begins(void)
{
    memset(S->peers, 0, sizeof S->peers);
    step_begin();
    wh_clock_bind(&S->clock, S->wheel, S->slots, S->peers);
    if (S->trace)
        wh_trace_bind(&S->clock.trace, S->trace);
    if (S->directory)
        clock_binds_keys();
    step_end();
    S->clockless = false;
    for (uint32_t row = 0; row < ROWS; row++) {
        worker *w = &S->workers[row];
        if (!w->incarnation)
            continue;
        if (crew_keeps && row == KEEPER) {
            clock_keeps();
            continue;
        }
        clock_attach(row);
        if (!w->alive && S->policy[row]) {
            S->leaving[row] = true;
            wh_clock_detach(&S->peers[row], (enum wh_leave)S->policy[row]);
        }
    }
}

static inline void clock_recovers(void)
{
    step_begin();
    bool made = wh_clock_recover(&S->clock);
    step_end();
    CHECK(made, "recover: out of memory");
}

#endif
