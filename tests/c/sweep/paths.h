/* Paths: situations of the crew, for the operations in paths_worker.h and paths_clock.h. */
#ifndef SWEEP_PATHS_H
#define SWEEP_PATHS_H

#include "history.h"

/* rounds.h begins each path with these. */
static inline void round_world(uint64_t seed)
{
    crew_heap_chunks = strncmp(where.path, "heavy", 5) == 0 ? 5 : 0;
    if (crew_keyed)
        crew_keeps = strncmp(where.path, "detached", 8) == 0;
    crew_make(seed);
    if (!crew_keeps)
        crew_history(dice(3) * 25);
}

/* A is the worker that things happen to; B and C go on. */
#define A (&S->workers[0])
#define B (&S->workers[1])
#define C (&S->workers[2])

static uint32_t subject; /* the timer that it is about */

static inline uint32_t schedule(worker *w, plan p)
{
    uint32_t cookie;
    CHECK(worker_schedule(w, p, &cookie), "no slot");
    return cookie;
}
static inline void before_any(void) {}
static inline plan own(int64_t delay) { return (plan){.delay = delay, .to = 0}; }

/* `room` places are left in A's ring: ticks of a timer that is long gone fill it. */
static inline void fill_completions(uint64_t room)
{
    wh_peer *peer = &S->peers[0];
    wh_client *c = &A->client;
    S->bells[0]++;
    worker_receive(A);
    CHECK(wh_client_ready(c) == 0, "events");
    uint64_t fill = c->comp_size - room;
    for (uint64_t p = c->comp_head; p != c->comp_head + fill; p++)
        peer->comps[p & (c->comp_size - 1)] =
            (wh_completion){.id = wh_id_with(wh_id(0x7fffffff, 0), WH_EV_TICK)};
    peer->comp_tail = c->comp_head + fill;
    wh_store_relaxed(&peer->port->comp_tail, peer->comp_tail);
    peer->rung = wh_load_relaxed(&c->seg->wait_seq);
    S->bells[0]++;
}

/* The same for its return ring, with slots that are nobody's. */
static inline void fill_returns(uint64_t room)
{
    wh_peer *peer = &S->peers[0];
    wh_client *c = &A->client;
    wh_client_reclaim(c);
    uint64_t fill = c->ret_size - room;
    for (uint64_t p = c->ret_head; p != c->ret_head + fill; p++)
        wh_store_relaxed(&peer->rets[p & (c->ret_size - 1)], WH_NIL);
    peer->ret_tail = c->ret_head + fill;
    wh_store_relaxed(&peer->port->ret_tail, peer->ret_tail);
}

/* A leaves under any policy; B is a member of its group, as reroute wants. */
static inline enum wh_leave some_policy(void)
{
    enum wh_leave policy = (enum wh_leave)(WH_LEAVE_DROP + dice(3));
    if (policy == WH_LEAVE_REROUTE) {
        crew_joins(A), crew_joins(B);
    }
    return policy;
}

#endif
