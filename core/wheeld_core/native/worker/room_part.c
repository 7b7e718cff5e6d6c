/* Room: a slot to arm, and a place in the submission ring; and the waits for either.
 *
 * Room comes from the clock: it drains the ring, and gives slots back. A call that may `wait`
 * sleeps for it, a moment if the clock is busy, some seconds while the supervisor replaces it. One
 * that may not looks for as long as a clock that is awake needs, some microseconds, is refused
 * then, has done nothing, and has rung the clock: when its caller tries again there is room, unless
 * the clock does not run or nothing comes free.
 *
 * A wait lets others go on: other threads, and under gevent other greenlets, which may fork. So who
 * waited asks whether the client is still the one that it was (worker_is) before it touches what it
 * holds.
 */

#define ROOM_SECONDS 5 /* for the clock, perhaps a new one, to drain the submission ring */
#define SPIN_ROOM_NS 10000     /* before the first nap: a clock that is awake needs no longer */
#define AWAIT_BACKLOG_NS 50000 /* for the clock to go on filling our return ring */
#define NAP_NS 20000
#define HUB_NAP_NS 500000 /* under gevent: a turn of its loop costs more than a nap */

static const char not_drained[] =
    "the clock process has not drained this worker's ring for 5 s; is it "
    "stopped? see `wheeld status`";

/* Is it open, and still the worker whose owner word is `me`? A forked child's is another one. */
static bool worker_is(WorkerObject *w, uint64_t me)
{
    return worker_is_open(w) && w->client.me == me;
}

static void pause_ns(long ns)
{
    struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

/* A nap of a call that waits for the clock. False: an error is set, the call may not go on. */
static bool worker_nap(WorkerObject *w)
{
    uint64_t me = w->client.me;
    uint32_t forks = w->forks;
    w->inside++;
    int napped = worker_nap_in_hub(w, HUB_NAP_NS);
    if (napped == 0) {
        Py_BEGIN_ALLOW_THREADS pause_ns(NAP_NS);
        Py_END_ALLOW_THREADS
    }
    w->inside -= forks == w->forks;
    if (napped < 0)
        return false;
    /* a greenlet's copy in a forked child, bound anew */
    if (worker_is_open(w) && !worker_is(w, me)) {
        PyErr_SetString(errors.forked_client, "this call belongs to the parent process");
        return false;
    }
    return worker_still_usable(w);
}

/* Say that a call that may not wait has no room in the ring. */
static wh_seldom void worker_refuse_ring(wh_client *c, uint64_t n)
{
    if (n > c->sub_size)
        PyErr_Format(PyExc_ValueError,
                     "block=False: %llu at once are more than this worker's ring holds (%llu); use "
                     "smaller batches, or block=True; nothing was done",
                     (unsigned long long)n, (unsigned long long)c->sub_size);
    else
        PyErr_Format(
            errors.ring_full,
            "block=False: the clock process has not taken up yet what this worker submitted: "
            "room for %llu, needed %llu; nothing was done; try again in a moment",
            (unsigned long long)wh_client_room(c), (unsigned long long)n);
}

/* Have the ring take `n` more submissions. False: an error is set. Signals wait, too: what a
 * handler does (a fork!) must not happen while a call holds slots. */
static bool worker_wait_room(WorkerObject *w, uint64_t n, bool wait)
{
    wh_client *c = &w->client;
    int64_t began = wh_clock_read(CLOCK_MONOTONIC);
    wh_client_publish_lazily(c);
    wh_client_ring(c);
    while (!wh_client_fits(c, n)) {
        if (wh_clock_read(CLOCK_MONOTONIC) - began < SPIN_ROOM_NS)
            continue;
        if (!wait) {
            worker_refuse_ring(c, n);
            return false;
        }
        if (!worker_nap(w))
            return false;
        wh_client_publish_lazily(c);
        wh_client_ring(c);
        if (wh_clock_read(CLOCK_MONOTONIC) - began > ROOM_SECONDS * 1000000000ll) {
            PyErr_SetString(errors.daemon_not_running, not_drained);
            return false;
        }
    }
    return true;
}

/* Slots of ours are behind our return ring, which was emptied just now: the clock refills it in
 * microseconds. Better than to claim ever more slabs. */
static void worker_await_backlog(WorkerObject *w)
{
    wh_client *c = &w->client;
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + AWAIT_BACKLOG_NS;
    wh_client_ring(c);
    while (wh_client_backlogged(c) && !wh_client_returns_ready(c))
        if (wh_clock_read(CLOCK_MONOTONIC) > give_up)
            return;
}

/* Wait for the answer. 1: there was one, or none in time, and nothing came into our return ring; 0:
 * something did; -1: an error is set. */
static int worker_await_answer(WorkerObject *w)
{
    wh_client *c = &w->client;
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + w->patience_ns;
    for (;;) {
        bool answered = wh_client_answered(c);
        if (wh_client_returns_ready(c))
            return 0;
        wh_client_ring(c);
        if (answered)
            return 1;
        if (wh_clock_read(CLOCK_MONOTONIC) > give_up) {
            wh_client_ask(c, 0, false); /* no more */
            return 1;
        }
        if (!worker_nap(w))
            return -1;
    }
}

/* A slot from what came back. WH_NIL: nothing did, or whole slabs that went back to all. */
static uint32_t worker_returned_slot(WorkerObject *w)
{
    wh_client_reclaim(&w->client);
    return wh_slabs_take(&w->client.slabs);
}

static uint32_t worker_claimed_slot(WorkerObject *w)
{
    wh_client *c = &w->client;
    if (!wh_client_claim(c) &&
        !(wh_quota_needs_home(&w->quota, &c->slabs, wh_clock_read(CLOCK_MONOTONIC)) &&
          wh_client_claim_home(c)))
        return WH_NIL;
    w->quota.held += WH_SLAB_SLOTS;
    return wh_slabs_take(&w->client.slabs);
}

/* How many slots to ask for when one is needed: each time more, so that asking costs little for
 * each. */
static uint64_t worker_ask_size(WorkerObject *w)
{
    uint32_t share = w->client.capacity / (8 * w->client.wheel->max_workers);
    uint32_t most = share < WH_MAGAZINE ? WH_MAGAZINE : share < 4096 ? share : 4096;
    uint32_t size = w->ask_size < WH_MAGAZINE ? WH_MAGAZINE : w->ask_size;
    w->ask_size = 2 * size < most ? 2 * size : most;
    return wh_quota_cut(&w->quota, size);
}

/* There is no slot at all: ask the clock, for all that a batch needs, or, if that is 0, for some of
 * which one will do. It looks at what all workers submitted first, and then at what lies idle in
 * their hands. A call that may not wait leaves it at that: what the clock finds is there for the
 * next try. */
static void worker_ask(WorkerObject *w, uint64_t batch)
{
    uint64_t n = batch ? batch : worker_ask_size(w);
    wh_client_ask(&w->client, n, batch != 0);
    w->quota.held += n;
}

/* WH_NIL: it holds what it may, and needs more. */
static uint32_t worker_over_quota(WorkerObject *w)
{
    wh_count(&w->client.seg->fulls, 1);
    PyErr_Format(
        errors.wheel_full,
        "this worker holds %llu slots, and a worker may hold %llu (--max-per-worker); %llu of them "
        "are events that wait for its poll(); cancel or poll, or start wheeld with another cap",
        (unsigned long long)w->quota.held, (unsigned long long)w->quota.most,
        (unsigned long long)wh_client_ready(&w->client));
    return WH_NIL;
}

/* WH_NIL: there is no slot for anybody, or there are not so many as a batch still needs. */
static uint32_t worker_over_capacity(const WorkerObject *w, uint64_t batch)
{
    const wh_client *c = &w->client;
    uint32_t backed = wh_load_acquire(&c->wheel->backed); /* pairs: backed */
    bool short_of_memory = backed < c->slabs.shared_count;
    uint32_t slots = (short_of_memory ? backed : c->slabs.shared_count) * WH_SLAB_SLOTS;
    char begin[96];
    if (batch > 1)
        snprintf(begin, sizeof begin, "%llu more slots at once are not free: of all %u slots",
                 (unsigned long long)batch, slots);
    else
        snprintf(begin, sizeof begin, "all %u slots are taken:", slots);
    wh_count(&c->seg->fulls, 1);
    PyErr_Format(errors.wheel_full,
                 "%s %llu have pending timers of all workers, %llu have events that wait for this "
                 "worker's poll(); cancel or poll, or %s; `wheeld status` says who holds how many",
                 begin, (unsigned long long)wh_load_relaxed(&c->wheel->linked),
                 (unsigned long long)wh_client_ready(c),
                 short_of_memory
                     ? "enlarge /dev/shm, which has no room for the rest of the capacity "
                       "(mount -o remount,size=...; in a container --shm-size)"
                     : "start wheeld with a larger --capacity");
    return WH_NIL;
}

/* A slot of ours, or WH_NIL with an error set; `batch`: so many are needed, or 0. */
static uint32_t worker_find_slot(WorkerObject *w, uint64_t batch, bool wait)
{
    wh_client *c = &w->client;
    uint32_t slot = worker_returned_slot(w);
    if (slot == WH_NIL && wait && wh_client_backlogged(c)) {
        worker_await_backlog(w);
        slot = worker_returned_slot(w);
    }
    if (slot == WH_NIL &&
        !wh_quota_allows(&w->quota, &c->slabs, batch ? batch : 1, wh_clock_read(CLOCK_MONOTONIC)))
        return worker_over_quota(w);
    if (slot == WH_NIL)
        slot = worker_claimed_slot(w);
    if (slot == WH_NIL && !wait) {
        if (wh_client_answered(c)) /* else it is asked already */
            worker_ask(w, batch);
        wh_client_ring(c);
    }
    for (int none = !wait; slot == WH_NIL && !none;) {
        worker_ask(w, batch);
        if ((none = worker_await_answer(w)) < 0)
            return WH_NIL;
        wh_client_populate(c);
        /* what came may have been taken over since */
        if ((slot = worker_returned_slot(w)) == WH_NIL)
            slot = worker_claimed_slot(w);
    }
    return slot != WH_NIL ? slot : worker_over_capacity(w, batch);
}

/* Give a slot back that a call took and does not need after all. */
static void worker_give_slot(WorkerObject *w, uint32_t slot, uint64_t me)
{
    if (worker_is(w, me))
        wh_slabs_give(&w->client.slabs, slot);
}

/* A call that has slots in hand and may wait: no slab is parked before it lets go, which it does
 * not if the client is another one by then. Returns who it is. */
static uint64_t worker_hold(WorkerObject *w)
{
    w->client.slabs.busy++;
    return w->client.me;
}

/* The end of that, with slots in hand still. False: the client is another one. */
static bool worker_unhold(WorkerObject *w, uint64_t me)
{
    if (!worker_is(w, me))
        return false;
    w->client.slabs.busy--;
    return true;
}

static void worker_let_go(WorkerObject *w, uint64_t me)
{
    if (worker_unhold(w, me))
        wh_slabs_park(&w->client.slabs);
}

/* As worker_wait_room(), for a call that has a slot in hand, which goes back if it fails. */
static bool worker_wait_room_with(WorkerObject *w, uint32_t slot, bool wait)
{
    uint64_t me = worker_hold(w);
    bool room = worker_wait_room(w, 1, wait);
    if (worker_unhold(w, me) && !room)
        wh_slabs_give(&w->client.slabs, slot);
    return room;
}
