/* Waits: how a call lets other threads run while it waits for the clock (room.h): a binding
 * releases its language's lock, a test drives the clock by hand. */
#ifndef WHEELD_WAITS_H
#define WHEELD_WAITS_H

#include <stdint.h>
#include <time.h>

typedef struct wh_client wh_client;

/* The duty of a call after it has let other threads run. */
enum wh_nap {
    WH_NAP_OVER,    /* it goes on */
    WH_NAP_STOPPED, /* give back what it holds, and end */
    WH_NAP_GONE, /* the worker has left: touch no shared memory any more, and end */
};

/* How a call waits for the clock (room.h). */
typedef struct wh_waits {
    int64_t (*now)(void); /* of a clock that runs, ns */
    enum wh_nap (*nap)(wh_client *c); /* let others run for a moment, the clock above all */
    /* sleep until rung, or for that many ns: no longer than wh_client_may_sleep() allows */
    enum wh_nap (*doze)(wh_client *c, int64_t ns);
} wh_waits;

static inline int64_t wh_clock_read(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#define WH_NAP_NS 20000

/* The waits of a worker with one thread. */
static inline int64_t wh_thread_now(void) { return wh_clock_read(CLOCK_MONOTONIC); }
static inline enum wh_nap wh_thread_nap(wh_client *c)
{
    struct timespec t = {0, WH_NAP_NS};
    (void)c;
    nanosleep(&t, NULL);
    return WH_NAP_OVER;
}
static inline enum wh_nap wh_thread_doze(wh_client *c, int64_t ns)
{
    (void)ns; /* it has no bell to sleep on */
    return wh_thread_nap(c);
}
static const wh_waits wh_thread_waits = {wh_thread_now, wh_thread_nap, wh_thread_doze};

#endif
