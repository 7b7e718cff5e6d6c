/* Worker: the client's hot calls, one native call each. wheeld_client.Timers is its subclass.
 *
 * The GIL keeps other threads out of a call; where a call waits, or runs code of the user, it lets the
 * GIL go. Meanwhile another thread may have closed this client, and what it held may be others': so
 * whoever comes back asks worker_still_usable() before it touches anything shared, and if the answer
 * is no leaves all of it alone. What it had taken is then the supervisor's to clear up.
 */

#define WAIT_ROOM_NS 5000000000ll /* for the clock, perhaps a new one, to drain the submission ring */
#define SPIN_ROOM_NS 10000        /* before the first nap: a clock that is awake needs no longer */
#define AWAIT_BACKLOG_NS 50000    /* for the clock to go on filling our return ring */

/* One load that a call needs anyway, and two of lines that are hardly ever written. */
static inline bool worker_is_open(WorkerObject *w)
{
    return wh_likely(*w->alive == OPEN && wh_client_has_row(&w->client) &&
                     /* pairs: daemon-state */
                     wh_load_acquire(&w->client.wheel->daemon_state) == 1);
}

static inline bool worker_is_forked(const WorkerObject *w)
{
    return w->detached || (w->bound && *w->alive == FORKED);
}

/* Say why a call may not go on. */
static void worker_explain(WorkerObject *w)
{
    if (w->closed)
        PyErr_SetString(errors.client_closed, "this client is closed; connect() again");
    else if (worker_is_forked(w))
        PyErr_SetString(errors.forked_client,
                        "this client belongs to the parent process; connect() in the child, or "
                        "have it done with connect(..., after_fork=\"reconnect\")");
    else if (!w->bound)
        PyErr_SetString(errors.client_closed, "this client was never connected");
    else if (*w->alive == ENDED && w->ended)
        PyErr_SetObject(errors.daemon_not_running, w->ended);
    else if (*w->alive == OPEN && /* pairs: daemon-state */
             wh_load_acquire(&w->client.wheel->daemon_state) == 1)
        PyErr_SetString(errors.daemon_not_running,
                        w->client.deaf
                            ? "the descriptors of this client were closed by somebody else "
                              "(os.closerange, a library that makes a daemon of this process); "
                              "close() it, and connect() again after that"
                            : "the daemon has no place for this worker any more: its connection was "
                              "closed, but not by close() (os.closerange, a library that makes a "
                              "daemon of this process?), or it was taken for dead; close() it, and "
                              "connect() again after that");
    else
        PyErr_SetString(errors.daemon_not_running, "the wheeld daemon has stopped");
}

/* The rare cases. True: a forked child's client that is connected now as a worker of its own. */
static bool worker_refuse(WorkerObject *w)
{
    if (!w->closed && w->refork && worker_is_forked(w)) {
        PyObject *done = PyObject_CallMethod((PyObject *)w, "_refork", NULL);
        if (done == NULL)
            return false;
        Py_DECREF(done);
        if (worker_is_open(w))
            return true;
    }
    worker_explain(w);
    return false;
}

/* May this call begin? Asked once its arguments are read: to read them may run code of the user. */
static inline bool worker_usable(WorkerObject *w)
{
    return worker_is_open(w) || worker_refuse(w);
}

/* May a call that has waited, and holds slots, go on? */
static bool worker_still_usable(WorkerObject *w)
{
    if (worker_is_open(w))
        return true;
    worker_explain(w);
    return false;
}

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

/* There is no slot at all, but the clock may have some for us: wait until it has looked at all that
 * we submitted and has shown what came of it, which it has when it sleeps or begins its next pass. */
static void worker_await_returns(WorkerObject *w)
{
    wh_client *c = &w->client;
    int64_t give_up = wh_clock_read(CLOCK_MONOTONIC) + w->patience_ns;
    uint64_t met_in = 0; /* the pass by which all was met, plus one */
    for (;;) {
        uint64_t pass = wh_load_acquire(&c->wheel->passes); /* pairs: pass */
        bool asleep = wh_load_seq(&c->wheel->sleep_until) != INT64_MIN; /* pairs: sleep */
        bool met_all = wh_client_room(c) == c->sub_size && !wh_client_backlogged(c);
        bool shown = met_all && (asleep || (met_in && pass >= met_in));
        if (met_all && !met_in)
            met_in = wh_load_acquire(&c->wheel->passes) + 1; /* pairs: pass */
        if (wh_client_returns_ready(c))
            return;
        wh_client_ring(c); /* what other workers cancelled of ours is worth a look, too */
        if (shown || wh_clock_read(CLOCK_MONOTONIC) > give_up)
            return;
        Py_BEGIN_ALLOW_THREADS
        pause_ns(20000);
        Py_END_ALLOW_THREADS
        if (!worker_is_open(w))
            return;
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
    return wh_slabs_claim(&w->client.slabs) ? wh_slabs_take(&w->client.slabs) : WH_NIL;
}

/* A slot of ours, or WH_NIL with an error set. */
static uint32_t worker_find_slot(WorkerObject *w)
{
    wh_client *c = &w->client;
    uint32_t slot = worker_returned_slot(w);
    if (slot == WH_NIL && wh_client_backlogged(c)) {
        worker_await_backlog(w);
        slot = worker_returned_slot(w);
    }
    if (slot == WH_NIL)
        slot = worker_claimed_slot(w);
    if (slot == WH_NIL) {
        worker_await_returns(w);
        if (!worker_still_usable(w))
            return WH_NIL;
        slot = worker_returned_slot(w);
    }
    if (slot == WH_NIL)
        slot = worker_claimed_slot(w);
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

/* Arm a timer; returns its id. 0: an error is set. */
static uint64_t worker_arm_timer(WorkerObject *w, wh_request *r, int64_t base_deadline)
{
    wh_client *c = &w->client;
    uint32_t slot = wh_slabs_take(&c->slabs);
    if (wh_unlikely(slot == WH_NIL) && (slot = worker_find_slot(w)) == WH_NIL)
        return 0;
    if (wh_unlikely(!wh_client_fits(c, 1)) && !worker_wait_room(w, 1)) {
        worker_give_slot(w, slot);
        return 0;
    }
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
