/* Peer: the clock's side of one worker: whether it lives, its rings, what is owed to it. */
#ifndef WHEELD_PEER_H
#define WHEELD_PEER_H

#include "wheeld/shared/agreed.h"
#include "wheeld/shared/ring.h"

/* Whether a row's worker lives, as the clock knows it.
 *
 *     GONE             -> PRESENT   attach
 *     PRESENT          <-> ABSENT   presence
 *     PRESENT, ABSENT  -> DYING     detach: drop
 *     PRESENT, ABSENT  -> LEAVING   detach: keep, reroute
 *     LEAVING          -> ABSENT    swept, and kept
 *     LEAVING          -> DYING     swept, and taken over by others: its lists are to be reaped
 *     DYING            -> GONE      swept
 *
 * A recovery begins with PRESENT or ABSENT, and detaches the leaving workers again. */
enum wh_life {
    WH_PEER_GONE = 0, /* no worker is attached to this row */
    WH_PEER_DYING,    /* nothing more goes to it, and its timers end with it */
    WH_PEER_LEAVING,  /* it is being swept under `leave`; groups do not use it */
    WH_PEER_ABSENT,     /* fenced, or its row waits for a successor; groups do not use it */
    WH_PEER_PRESENT
};

/* The parts of its rings that are not published yet: nothing; records that wake no worker; records
 * that wake a waiting one. */
enum wh_news { WH_NEWS_NONE = 0, WH_NEWS_QUIET, WH_NEWS_WAKES };

typedef struct wh_peer {
    wh_worker_seg *seg;
    wh_port *port;
    wh_histogram *lateness, *to_fire; /* of what went to it */
    wh_au64 *subs;
    wh_completion *comps;
    wh_au32 *rets;
    uint64_t incarnation;
    uint64_t sub_head, comp_tail, ret_tail;
    uint64_t comp_head, ret_head; /* as last read from the worker */
    uint64_t rung;                           /* the wait_seq that was answered with a byte */
    uint32_t *returns; /* slots to return when there is room: capacity entries, a ring */
    uint64_t returns_head, returns_tail;
    uint64_t groups; /* a bit each */
    enum wh_life life;
    enum wh_leave leave; /* LEAVING, DYING: the policy it is swept under; else WH_STAYS */
    enum wh_news news;
    uint32_t reap_slab, next_successor;
    int bell;
    bool behind; /* its backlog is not empty: new events wait behind it; likewise for returns */
    uint64_t asked, answered;      /* its requests (grant.h); the last one that was handled */
    uint32_t ask_left, look_slab;  /* slots still to hand over; where to search for them */
    uint64_t freed_before; /* slabs that had been freed from the free list when it asked */
    int64_t held_look; /* the next look at what it holds for long, ns; 0: none (unclaimed.h) */
    uint64_t stale_until; /* below it its return ring may name slots that were taken over since */
    /* [i]: of that group's members that a pass found, the one in place i */
    uint16_t roster[WH_GROUPS];
} wh_peer;

/* Whether a kept row has its successor. */
static inline void wh_clock_presence(wh_peer *peer, bool present)
{
    if (peer->life >= WH_PEER_ABSENT)
        peer->life = present ? WH_PEER_PRESENT : WH_PEER_ABSENT;
}

/* The worker has died: the passes sweep its slots. */
static inline void wh_clock_detach(wh_peer *peer, enum wh_leave leave)
{
    peer->leave = leave;
    peer->life = leave == WH_LEAVE_DROP ? WH_PEER_DYING : WH_PEER_LEAVING;
    peer->reap_slab = 0;
}

#endif
