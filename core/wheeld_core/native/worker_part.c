/* Worker: the client's hot calls, one native call each. wheeld_client.Timers is its subclass. Whoever waits
 * asks worker_still_usable() afterwards (usable_part.c). */

#define WAIT_ROOM_NS 5000000000ll /* for the clock, perhaps a new one, to drain the submission ring */
#define SPIN_ROOM_NS 10000        /* before the first nap: a clock that is awake needs no longer */
#define AWAIT_BACKLOG_NS 50000    /* for the clock to go on filling our return ring */

static void pause_ns(long ns)
{
    struct timespec t = {0, ns};
    nanosleep(&t, NULL);
}

/* Wait until the ring takes `n` submissions: a moment if the clock is busy, some seconds while the
 * supervisor replaces it, or for nothing. Signals wait, too: what a handler does (a fork!) must not
 * happen while a call holds slots. */
static bool worker_wait_room(WorkerObject *w, uint64_t n)
{
    wh_client *c = &w->client;
    int64_t began = wh_clock_read(CLOCK_MONOTONIC);
    wh_client_publish_lazily(c);
    wh_client_ring(c);
    while (!wh_client_fits(c, n)) {
        if (wh_clock_read(CLOCK_MONOTONIC) - began < SPIN_ROOM_NS)
            continue;
        Py_BEGIN_ALLOW_THREADS
        pause_ns(20000);
        Py_END_ALLOW_THREADS
        if (!worker_still_usable(w))
            return false;
        wh_client_publish_lazily(c);
        wh_client_ring(c);
        if (wh_clock_read(CLOCK_MONOTONIC) - began > WAIT_ROOM_NS) {
            PyErr_SetString(errors.daemon_not_running,
                            "the clock process has not drained this worker's ring for 5 s; is it "
                            "stopped? see `wheeld status`");
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

/* There is no slot at all: ask the clock for `n`, of which one will do, or for all of a batch. It looks at
 * what all workers submitted first, and then at what lies idle in their hands. True: it has, and gave
 * nothing into our return ring; or we were closed meanwhile. */
static bool worker_ask(WorkerObject *w, uint64_t n, bool all)
{
    wh_client *c = &w->client;
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + w->patience_ns;
    wh_client_ask(c, n, all);
    for (;;) {
        bool answered = wh_client_answered(c);
        if (wh_client_returns_ready(c))
            return false;
        wh_client_ring(c);
        if (answered)
            return true;
        if (wh_clock_read(CLOCK_MONOTONIC) > give_up) {
            wh_client_ask(c, 0, false); /* no more */
            return true;
        }
        Py_BEGIN_ALLOW_THREADS
        pause_ns(20000);
        Py_END_ALLOW_THREADS
        if (!worker_is_open(w))
            return true;
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
    if (!wh_client_claim(&w->client))
        return WH_NIL;
    w->quota.held += WH_SLAB_SLOTS;
    return wh_slabs_take(&w->client.slabs);
}

/* How many slots to ask for when one is needed: each time more, so that asking costs little for each. */
static uint64_t worker_ask_size(WorkerObject *w)
{
    uint32_t share = w->client.capacity / (8 * w->client.wheel->max_workers);
    uint32_t most = share < WH_MAGAZINE ? WH_MAGAZINE : share < 4096 ? share : 4096;
    uint32_t size = w->ask_size < WH_MAGAZINE ? WH_MAGAZINE : w->ask_size;
    w->ask_size = 2 * size < most ? 2 * size : most;
    return wh_quota_cut(&w->quota, size);
}

/* WH_NIL: it holds what it may, and needs more. */
static uint32_t worker_over_quota(WorkerObject *w)
{
    wh_count(&w->client.seg->fulls, 1);
    PyErr_Format(errors.wheel_full,
                 "this worker holds %llu slots, and a worker may hold %llu (--max-per-worker); %llu of them "
                 "are events that wait for its poll(); cancel or poll, or start wheeld with another cap",
                 (unsigned long long)w->quota.held, (unsigned long long)w->quota.most,
                 (unsigned long long)wh_client_ready(&w->client));
    return WH_NIL;
}

/* A slot of ours, or WH_NIL with an error set; `batch`: so many are needed, or 0. */
static uint32_t worker_find_slot(WorkerObject *w, uint64_t batch)
{
    wh_client *c = &w->client;
    uint32_t slot = worker_returned_slot(w);
    if (slot == WH_NIL && wh_client_backlogged(c)) {
        worker_await_backlog(w);
        slot = worker_returned_slot(w);
    }
    uint64_t n = batch ? batch : 1;
    if (slot == WH_NIL && !wh_quota_allows(&w->quota, &c->slabs, n, wh_clock_read(CLOCK_MONOTONIC)))
        return worker_over_quota(w);
    if (slot == WH_NIL)
        slot = worker_claimed_slot(w);
    for (bool none = false; slot == WH_NIL && !none;) {
        n = batch ? batch : worker_ask_size(w);
        w->quota.held += n;
        none = worker_ask(w, n, batch != 0);
        if (!worker_still_usable(w))
            return WH_NIL;
        if ((slot = worker_returned_slot(w)) == WH_NIL) /* what came may have been taken over since */
            slot = worker_claimed_slot(w);
    }
    if (slot != WH_NIL)
        return slot;
    wh_count(&c->seg->fulls, 1);
    PyErr_Format(errors.wheel_full,
                 "all %u slots are taken (%llu by pending timers of all workers, %llu by events that "
                 "wait for this worker's poll()); cancel or poll, or start wheeld with a larger "
                 "--capacity; `wheeld status` says who holds how many",
                 c->capacity, (unsigned long long)wh_load_relaxed(&c->wheel->linked),
                 (unsigned long long)wh_client_ready(c));
    return WH_NIL;
}

/* Give a slot back that a call took and does not need after all. */
static void worker_give_slot(WorkerObject *w, uint32_t slot)
{
    if (worker_is_open(w))
        wh_slabs_give(&w->client.slabs, slot);
}

/* -- the calls ----------------------------------------------------------------------------------- */

/* A call that has slots in hand and may wait: no slab is parked before it lets go, which it does not if
 * the client was closed meanwhile. */
static void worker_hold(WorkerObject *w)
{
    w->client.slabs.busy++;
}

static void worker_let_go(WorkerObject *w)
{
    if (!worker_is_open(w))
        return;
    w->client.slabs.busy--;
    wh_slabs_park(&w->client.slabs);
}

/* Wait for room for one submission, with a slot in hand. False: it is given back. */
static bool worker_wait_with(WorkerObject *w, uint32_t slot)
{
    worker_hold(w);
    bool room = worker_wait_room(w, 1);
    if (worker_is_open(w))
        w->client.slabs.busy--;
    if (!room)
        worker_give_slot(w, slot);
    return room;
}

/* Arm a timer; returns its id. 0: an error is set. */
static uint64_t worker_arm_timer(WorkerObject *w, wh_request *r, int64_t base_deadline)
{
    wh_client *c = &w->client;
    uint32_t slot = wh_slabs_take(&c->slabs);
    if (wh_unlikely(slot == WH_NIL) && (slot = worker_find_slot(w, 0)) == WH_NIL)
        return 0;
    if (wh_unlikely(!wh_client_fits(c, 1)) && !worker_wait_with(w, slot))
        return 0;
    uint64_t id = wh_client_arm(c, slot, r);
    wh_client_push(c, id);
    wh_count(&c->seg->scheduled, 1);
    wh_client_publish(c, base_deadline);
    return id;
}

static PyObject *worker_arm(WorkerObject *w, wh_request *r, int64_t base_deadline)
{
    uint64_t id = worker_arm_timer(w, r, base_deadline);
    return wh_likely(id) ? PyLong_FromUnsignedLongLong(id) : NULL;
}

static PyObject *worker_schedule_kw(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                    PyObject *kwnames)
{
    static const char *const names[] = {"delay", "cookie", "payload", "interval", "to", NULL};
    PyObject *values[5] = {0};
    Extras extras = {0};
    wh_request r = {0};
    int64_t delay;
    if (!parse_keywords("schedule", names, 2, args, n, kwnames, values))
        return NULL;
    if (values[0] == NULL)
        return PyErr_Format(PyExc_TypeError, "schedule() needs a delay, in seconds");
    if (values[2] && PyObject_GetBuffer(values[2], &extras.payload, PyBUF_SIMPLE) < 0)
        return NULL;
    extras.cookie = values[1];
    extras.interval = values[3];
    extras.to = values[4];
    PyObject *id = NULL;
    if (parse_delay(values[0], &delay, "delay") && parse_extras(&extras, &r) && worker_usable(w) &&
        place_extras(w, &extras, &r)) {
        r.now = wh_client_now(&w->client);
        r.deadline = wh_time_add(r.now, delay);
        id = worker_arm(w, &r, r.deadline);
    }
    PyBuffer_Release(&extras.payload);
    return id;
}

static PyObject *worker_schedule(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                 PyObject *kwnames)
{
    if (wh_unlikely(kwnames != NULL || n < 1 || n > 2))
        return worker_schedule_kw(w, args, n, kwnames);
    wh_request r = {0};
    int64_t delay;
    if (!parse_delay(args[0], &delay, "delay"))
        return NULL;
    if (n == 2 && !parse_u64(args[1], &r.cookie, "cookie"))
        return NULL;
    if (!worker_usable(w))
        return NULL;
    r.now = wh_client_now(&w->client);
    r.deadline = wh_time_add(r.now, delay);
    return worker_arm(w, &r, r.deadline);
}

/* _schedule_private(delay): as schedule(delay), for what nobody can do in this process's stead. */
static PyObject *worker_schedule_private(WorkerObject *w, PyObject *delay_object)
{
    wh_request r = {.flags = WH_PRIVATE};
    int64_t delay;
    if (!parse_delay(delay_object, &delay, "delay") || !worker_usable(w))
        return NULL;
    r.now = wh_client_now(&w->client);
    r.deadline = wh_time_add(r.now, delay);
    return worker_arm(w, &r, r.deadline);
}

static const clockid_t clock_ids[WH_CLOCK_KINDS] = {CLOCK_MONOTONIC, CLOCK_REALTIME,
                                                    CLOCK_BOOTTIME};

/* Now on one of the clocks; a virtual clock is all of them. */
static int64_t worker_now(const wh_client *c, uint32_t kind)
{
    return c->virtual_clock ? wh_client_now(c) : wh_clock_read(clock_ids[kind]);
}

/* schedule_ns(deadline_ns, clock, cookie, payload, interval, to): schedule_at, arguments in place */
static PyObject *worker_schedule_ns(WorkerObject *w, PyObject *args)
{
    long long deadline;
    unsigned int kind;
    Extras extras = {0};
    wh_request r = {0};
    if (!PyArg_ParseTuple(args, "LIOy*OO", &deadline, &kind, &extras.cookie, &extras.payload,
                          &extras.interval, &extras.to))
        return NULL;
    PyObject *id = NULL;
    if (kind >= WH_CLOCK_KINDS) {
        PyErr_SetString(PyExc_ValueError, "no such clock");
    } else if (parse_extras(&extras, &r) && worker_usable(w) && place_extras(w, &extras, &r)) {
        r.now = wh_client_now(&w->client);
        r.deadline = deadline;
        r.flags = kind;
        int64_t rest = wh_time_sub(deadline, worker_now(&w->client, kind));
        id = worker_arm(w, &r, wh_time_add(r.now, rest));
    }
    PyBuffer_Release(&extras.payload);
    return id;
}

/* 1: it is never delivered; 0: it was, or will be; -1: an error is set. */
static int worker_cancel_timer(WorkerObject *w, uint64_t id)
{
    wh_client *c = &w->client;
    if (wh_unlikely(!wh_client_fits(c, 1)) && !worker_wait_room(w, 1))
        return -1;
    if (!wh_client_cancel(c, id))
        return 0;
    wh_count(&c->seg->cancelled, 1);
    wh_client_publish_lazily(c);
    return 1;
}

static PyObject *worker_cancel(WorkerObject *w, PyObject *id_object)
{
    uint64_t id;
    if (!parse_id(id_object, &id) || !worker_usable(w))
        return NULL;
    int won = worker_cancel_timer(w, id);
    return won < 0 ? NULL : PyBool_FromLong(won);
}

/* True, with an error set: an armed timer of another worker. */
static bool worker_refuses_move(WorkerObject *w, uint64_t id)
{
    wh_client *c = &w->client;
    uint64_t slot = id & 0xffffffffu;
    uint64_t state = slot < c->capacity ? wh_load_acquire(&c->states[slot]) : 0; /* pairs: arm */
    if (wh_state_gen(state) != wh_id_gen(id) || wh_state_phase(state) != WH_ARMED ||
        wh_client_owns(c, id))
        return false;
    PyErr_Format(PyExc_ValueError,
                 "timer %llu is another worker's; cancel it and schedule a new one",
                 (unsigned long long)id);
    return true;
}

/* Move a timer to `delay` from now. 1: moved; 0: it has ended; -1: error. What the clock has to be
 * told is in the ring then, and *earliest lowered: the caller publishes. */
static int worker_move(WorkerObject *w, uint64_t id, int64_t delay, int64_t *earliest)
{
    wh_client *c = &w->client;
    bool earlier;
    if (wh_unlikely(!wh_client_owns(c, id)))
        return worker_refuses_move(w, id) ? -1 : 0;
    if (wh_unlikely(!wh_client_fits(c, 1)) && !worker_wait_room(w, 1))
        return -1;
    uint32_t kind = wh_load_relaxed(&c->slots[wh_id_slot(id)].flags) & 3;
    int64_t now = worker_now(c, kind < WH_CLOCK_KINDS ? kind : 0);
    if (!wh_client_move(c, id, wh_time_add(now, delay), &earlier))
        return 0;
    wh_count(&c->seg->rescheduled, 1);
    if (earlier) {
        int64_t base = wh_time_add(kind == WH_CLOCK_BASE ? now : wh_client_now(c), delay);
        *earliest = base < *earliest ? base : *earliest;
        wh_client_push(c, wh_id_with(id, WH_OP_RESCHEDULE));
    }
    return 1;
}

static PyObject *worker_reschedule(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    uint64_t id;
    int64_t delay, earliest = INT64_MAX;
    if (n != 2)
        return PyErr_Format(PyExc_TypeError, "reschedule(id, delay) takes 2 arguments: got %zd", n);
    if (!parse_id(args[0], &id) || !parse_delay(args[1], &delay, "delay") || !worker_usable(w))
        return NULL;
    int moved = worker_move(w, id, delay, &earliest);
    if (earliest != INT64_MAX)
        wh_client_publish(&w->client, earliest);
    return moved < 0 ? NULL : PyBool_FromLong(moved);
}
