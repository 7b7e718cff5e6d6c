/* World: a wheel in plain memory, its clock and the thread that drives it. */
#ifndef HARNESS_WHEEL_WORLD_H
#define HARNESS_WHEEL_WORLD_H

#include "harness.h"

#define MAX_HANDS 16

typedef struct world world;
typedef void (*request_fn)(world *w, void *argument); /* runs in the clock's thread */

struct world {
    wh_config config;
    wh_geometry geometry;
    void *wheel, *slots, *trace; /* trace: NULL: none */
    void *memories[MAX_HANDS]; /* worker segments */
    int bells[MAX_HANDS][2];
    wh_clock clock;
    wh_peer peers[MAX_HANDS];
    wh_au32 reaped[MAX_HANDS]; /* counts the tenants of the row that are gone */
    int bell[2], control[2];
    pthread_t thread;
    bool running; /* a clock thread exists */
    pthread_mutex_t mutex;
    pthread_cond_t answered;
    request_fn request;
    void *argument;
    uint64_t asked, served;
    bool stop;
};

static inline void world_make(world *w, const wh_config *config)
{
    memset(w, 0, sizeof *w);
    w->config = *config;
    w->config.token = 1;
    w->geometry = wh_geometry_of(config);
    w->wheel = aligned_alloc(4096, w->geometry.wheel_bytes);
    w->slots = aligned_alloc(4096, w->geometry.slots_bytes);
    CHECK(w->wheel && w->slots, "out of memory");
    memset(w->wheel, 0, w->geometry.wheel_bytes);
    memset(w->slots, 0, w->geometry.slots_bytes);
    wh_create_slots(w->slots, &w->config);
    wh_create_wheel(w->wheel, &w->config);
    wh_clock_bind(&w->clock, w->wheel, w->slots, w->peers);
    pipe_make(w->bell);
    pipe_make(w->control);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->answered, NULL);
}

/* Record what happens, before the clock runs; nobody reads the ring. */
static inline void world_trace(world *w, uint32_t ring_bits)
{
    uint64_t bytes = wh_trace_bytes(w->config.capacity, ring_bits);
    w->trace = aligned_alloc(4096, bytes);
    CHECK(w->trace, "out of memory");
    memset(w->trace, 0, bytes);
    wh_trace_create(w->trace, w->config.capacity, ring_bits, w->config.token, 0);
    wh_trace_bind(&w->clock.trace, w->trace);
}

static inline void world_free(world *w)
{
    for (int row = 0; row < MAX_HANDS; row++)
        if (w->memories[row]) {
            free(w->peers[row].returns);
            free(w->memories[row]);
            close(w->bells[row][0]);
            close(w->bells[row][1]);
        }
    free(w->clock.queue);
    wh_clock_free(&w->clock);
    free(w->wheel);
    free(w->slots);
    free(w->trace);
    for (int end = 0; end < 2; end++) {
        close(w->bell[end]);
        close(w->control[end]);
    }
}

/* -- the clock thread: clock_part.c's clock_loop and clock_sleep ------------------------------- */

enum { FD_BELL, FD_CONTROL, FD_COUNT };

static inline void world_read_time(world *w)
{
    wh_clock *c = &w->clock;
    if (w->config.virtual_clock)
        return;
    c->now[WH_CLOCK_BASE] = wh_clock_read(CLOCK_MONOTONIC);
    c->now[WH_CLOCK_REALTIME] = wh_clock_read(CLOCK_REALTIME);
    c->now[WH_CLOCK_BOOTTIME] = wh_clock_read(CLOCK_BOOTTIME);
}

/* When the byte is taken out: before sleep_seq moves on, or a worker that rings in between would
 * take its byte, which is gone, for one that still wakes the next sleep. */
#ifdef HARNESS_CLEAR_LATE
#define CLEAR_EARLY 0
#else
#define CLEAR_EARLY 1
#endif

static inline void world_sleep(world *w, struct pollfd *fds)
{
    wh_clock *c = &w->clock;
    int64_t next = wh_wheel_next_ns(&c->wheel);
    int64_t until = w->config.virtual_clock ? INT64_MAX : next;
    fds[FD_BELL].revents = fds[FD_CONTROL].revents = 0;
    if (wh_may_sleep(c, next)) {
        int64_t rest = wh_time_sub(until, wh_clock_read(CLOCK_MONOTONIC));
        if (rest > 0) {
            struct timespec timeout = {rest / 1000000000, rest % 1000000000};
            ppoll(fds, FD_COUNT, until == INT64_MAX ? NULL : &timeout, NULL);
            wh_count(&c->seg->wakes, 1);
        }
    }
    if (CLEAR_EARLY && fds[FD_BELL].revents)
        wh_bell_clear(fds[FD_BELL].fd);
    wh_awake(c);
    if (!CLEAR_EARLY && fds[FD_BELL].revents) {
        jitter();
        wh_bell_clear(fds[FD_BELL].fd);
    }
}

static inline void world_serve(world *w)
{
    wh_bell_clear(w->control[0]);
    pthread_mutex_lock(&w->mutex);
    if (w->request) {
        w->request(w, w->argument);
        w->request = NULL;
        w->served++;
        pthread_cond_broadcast(&w->answered);
    }
    pthread_mutex_unlock(&w->mutex);
}

static inline void *world_clock_main(void *argument)
{
    world *w = argument;
    struct pollfd fds[FD_COUNT] = {{.fd = w->bell[0], .events = POLLIN},
                                   {.fd = w->control[0], .events = POLLIN}};
    int64_t control_seen = 0;
    jitter_seed(99);
    while (!w->stop) {
        uint32_t reaped;
        world_read_time(w);
        bool more = wh_pass(&w->clock, &reaped);
        if (reaped != WH_NIL)
            wh_store_release(&w->reaped[reaped], wh_load_relaxed(&w->reaped[reaped]) + 1);
        else if (!more)
            world_sleep(w, fds);
        int64_t now = wh_clock_read(CLOCK_MONOTONIC);
        if (fds[FD_CONTROL].revents || now - control_seen >= MS) {
            control_seen = now;
            world_serve(w);
        }
    }
    return NULL;
}

/* Have `fn` run in the clock's thread between two passes, and wait for it. */
static inline void world_ask(world *w, request_fn fn, void *argument)
{
    if (!w->running) {
        fn(w, argument);
        return;
    }
    struct timespec give_up;
    clock_gettime(CLOCK_REALTIME, &give_up);
    give_up.tv_sec += GIVE_UP_NS / 1000000000;
    pthread_mutex_lock(&w->mutex);
    while (w->request)
        CHECK(pthread_cond_timedwait(&w->answered, &w->mutex, &give_up) == 0, "the clock hangs");
    w->request = fn;
    w->argument = argument;
    uint64_t ticket = ++w->asked;
    wh_bell_ring(w->control[1]);
    while (w->served < ticket)
        CHECK(pthread_cond_timedwait(&w->answered, &w->mutex, &give_up) == 0, "the clock hangs");
    pthread_mutex_unlock(&w->mutex);
}

/* -- requests ---------------------------------------------------------------------------------- */

static inline void request_stop(world *w, void *unused)
{
    (void)unused;
    w->stop = true;
}

static inline void request_detach(world *w, void *row)
{
    wh_clock_detach(&w->peers[*(uint32_t *)row], WH_LEAVE_DROP);
}

/* Virtual time: go to *target, through all reaps on the way. */
static inline void request_advance(world *w, void *target)
{
    for (;;) {
        uint32_t reaped;
        wh_advance_virtual(&w->clock, *(int64_t *)target, &reaped);
        if (reaped == WH_NIL)
            return;
        wh_store_release(&w->reaped[reaped], wh_load_relaxed(&w->reaped[reaped]) + 1);
    }
}

/* The wheel holds, and each node stands in the list that it names or in none. */
static inline void request_check(world *w, void *linked)
{
    wh_check check;
    CHECK(wh_wheel_check(&w->clock.wheel, &check), "%s", check.message);
    check_lists(&w->clock, w->geometry.lists, check.linked);
    if (linked)
        *(uint64_t *)linked = check.linked;
}

static inline void world_start(world *w)
{
    w->running = true;
    CHECK(pthread_create(&w->thread, NULL, world_clock_main, w) == 0, "pthread_create");
}

static inline void world_stop(world *w)
{
    world_ask(w, request_stop, NULL);
    pthread_join(w->thread, NULL);
    w->running = false;
}

static inline int64_t world_now(const world *w)
{
    return w->config.virtual_clock ? wh_load_acquire(&w->clock.seg->virtual_now)
                                   : wh_clock_read(CLOCK_MONOTONIC);
}

/* Without a clock thread: advance by hand. */
static inline void world_advance_to(world *w, int64_t target)
{
    world_ask(w, request_advance, &target);
    world_ask(w, request_check, NULL);
}
static inline void world_settle(world *w) { world_advance_to(w, w->clock.now[WH_CLOCK_BASE]); }

#endif
