/* wheeld.h: timers of a wheeld daemon from C. docs/how-to/other-languages.md has an example.
 *
 * A client is one worker of the daemon. One thread at a time uses a client; a process may have
 * several clients. After fork() the child gets WHEELD_FORKED and connects a client of its own.
 *
 * All times are in ns. Functions return WHEELD_OK or another enum wheeld_result; wheeld_message()
 * says more of the last one that failed in this thread. A call that fails has changed nothing.
 */
#ifndef WHEELD_H
#define WHEELD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WHEELD_API __attribute__((visibility("default")))

enum wheeld_result {
    WHEELD_OK = 0,
    WHEELD_OVER,         /* the timer has fired or was cancelled, or no timer has that id */
    WHEELD_INVALID,      /* an argument is not allowed */
    WHEELD_FULL,         /* no slot is free, or this worker holds as many as it may */
    WHEELD_NOT_RUNNING,  /* the daemon has stopped, is away, or no longer serves this client */
    WHEELD_MISMATCH,     /* the daemon has another version of wheeld */
    WHEELD_NOT_PERMITTED, /* files or daemon belong to a user who need not be believed */
    WHEELD_REFUSED,      /* by the daemon: wheeld_message() has its reason */
    WHEELD_FORKED,       /* the client belongs to the parent process */
    WHEELD_NO_MEMORY,
    WHEELD_SYSTEM,       /* the operating system refused something */
};

typedef struct wheeld wheeld;

/* Options of connect; start with {0}, which means the defaults. */
typedef struct wheeld_options {
    const char *worker;      /* name, up to 63 bytes of UTF-8; NULL: the daemon makes one up */
    const char *group;       /* also receive what is for this group; NULL: none */
    const char *on_death; /* "drop" (NULL), "keep" (needs `worker`) or "reroute" (needs `group`) */
    const char *runtime_dir; /* where the daemon's directory is; NULL: the usual places */
    int64_t timeout_ns; /* for the daemon's answer; 0: 10 s */
} wheeld_options;

typedef struct wheeld_timer {
    int64_t delay_ns; /* from now, not negative */
    int64_t interval_ns; /* again and again until cancelled; 0: once */
    uint64_t cookie; /* comes back with the event */
    const void *payload; /* so does a copy of this */
    uint32_t payload_size; /* at most wheeld_payload_room() */
} wheeld_timer;

typedef struct wheeld_event {
    uint64_t id;
    uint64_t cookie;
    int64_t deadline_ns; /* when it was due, as wheeld_now_ns() */
    int64_t fired_ns; /* when it fired: never before its deadline */
    uint32_t missed; /* intervals skipped until it fired; above 2^32 - 1 in further events */
    uint32_t payload_size;
    const void *payload; /* valid until the next poll of this client */
} wheeld_event;

/* Connect to the daemon `name` ("default", say), or to the one whose runtime directory `name` is,
 * if there is a slash in it. `options` may be NULL. */
WHEELD_API int wheeld_connect(const char *name, const wheeld_options *options, wheeld **client);

/* Leave the daemon and free the client. Its timers go the way of `on_death`. NULL is allowed. */
WHEELD_API void wheeld_close(wheeld *client);

/* Arm a timer that fires once. *id is never 0 and never used again. */
WHEELD_API int wheeld_schedule(wheeld *client, int64_t delay_ns, uint64_t cookie, uint64_t *id);

/* The same, with all that a timer can have. */
WHEELD_API int wheeld_schedule_timer(wheeld *client, const wheeld_timer *timer, uint64_t *id);

/* WHEELD_OK: the timer, of whichever worker, is never delivered. WHEELD_OVER: it was delivered or
 * will be, once, or was cancelled before. */
WHEELD_API int wheeld_cancel(wheeld *client, uint64_t id);

/* Move a timer, of whichever worker, to `delay_ns` from now; it keeps its id. */
WHEELD_API int wheeld_reschedule(wheeld *client, uint64_t id, int64_t delay_ns);

/* Receive up to `most` events into `events`; *got says how many. Waits for the first one for up to
 * `timeout_ns` (0: not at all; -1: without end). WHEELD_OK with *got == 0: none came in time, or a
 * signal handler has run. One call returns at most 256 events. */
WHEELD_API int wheeld_poll(wheeld *client, int64_t timeout_ns, wheeld_event *events, size_t most,
                           size_t *got);

/* A descriptor for poll() or epoll, readable when wheeld_poll(client, 0, ...) may have events. -1:
 * the client cannot be used. Poll at least once a second: that notices a daemon's restart, too. */
WHEELD_API int wheeld_fd(wheeld *client);

/* The wheel's time: CLOCK_MONOTONIC, or the daemon's virtual clock. */
WHEELD_API int64_t wheeld_now_ns(const wheeld *client);

/* How many bytes the payload of a timer can have. */
WHEELD_API uint32_t wheeld_payload_room(const wheeld *client);

/* The name of this worker. */
WHEELD_API const char *wheeld_worker(const wheeld *client);

/* The meaning of a result, in a few words. */
WHEELD_API const char *wheeld_result_text(int result);

/* Why the last call that failed in this thread did; "" if none has. */
WHEELD_API const char *wheeld_message(void);

#ifdef __cplusplus
}
#endif
#endif
