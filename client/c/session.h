/* Session: what a client has of its daemon, from connect to close. */
#ifndef WHEELD_SESSION_H
#define WHEELD_SESSION_H

#include "internal.h"
#include "wheeld/worker/client.h"

#define MOST_EVENTS 256 /* of one poll */

/* A payload that was in the heap. */
struct arrival {
    uint64_t id;
    char *bytes;
};

struct wheeld {
    wh_client core;
    mapping wheel, slots, registry, worker;
    wh_fd bell;            /* our FIFO */
    connection *control;   /* to the supervisor; hung up while that is away */
    connection *attempt;   /* while it is: one that has asked to resume, or NULL */
    int64_t lost_at;       /* when it went, CLOCK_MONOTONIC; 0: it is there */
    int64_t look_at, try_at; /* when to look whether it is there; to try the next attempt */
    int ended;             /* not WHEELD_OK: why no call will succeed again */
    bool watched;          /* somebody has our FIFO in an event loop */
    volatile char *here;   /* 1; in a forked child 0 */
    int64_t timeout_ns;
    uint64_t incarnation, token, row;
    char path[PATH_MAX]; /* of the runtime directory */
    char name[64];
    char ended_because[1024];
    char *events; /* MOST_EVENTS as the core has them: their payloads */
    struct arrival *arrivals; /* payloads of the heap that came with them, MOST_EVENTS */
    size_t arrived;
};

/* The payloads of the last poll. */
void session_forget_payloads(wheeld *w);

/* Look after the connection, at most now and then; never waits. WHEELD_NOT_RUNNING: the supervisor
 * has been away for long, or has no place for this client. */
int session_look(wheeld *w);

#endif
