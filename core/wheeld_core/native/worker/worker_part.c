/* Worker: the client's hot calls, one native call each. wheeld_client.Timers is its subclass.
 * Whoever waits asks worker_still_usable() afterwards (usable_part.c). `wait`: the call may sleep
 * for room (room_part.c). */

/* -- the calls --------------------------------------------------------------------------------- */

/* Arm a timer; returns its id. 0: an error is set. */
static uint64_t worker_arm_timer(WorkerObject *w, wh_request *r, int64_t base_deadline, bool wait)
{
    wh_client *c = &w->client;
    uint32_t slot = wh_slabs_take(&c->slabs);
    if (wh_unlikely(slot == WH_NIL) && (slot = worker_find_slot(w, 0, wait)) == WH_NIL)
        return 0;
    if (wh_unlikely(!wh_client_fits(c, 1)) && !worker_wait_room_with(w, slot, wait))
        return 0;
    uint64_t id = wh_client_arm(c, slot, r);
    wh_client_push(c, id);
    wh_count(&c->seg->scheduled, 1);
    wh_client_publish(c, base_deadline);
    return id;
}

static PyObject *worker_arm(WorkerObject *w, wh_request *r, int64_t base_deadline, bool wait)
{
    uint64_t id = worker_arm_timer(w, r, base_deadline, wait);
    return wh_likely(id) ? PyLong_FromUnsignedLongLong(id) : NULL;
}

static PyObject *worker_schedule_kw(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                    PyObject *kwnames)
{
    static const char *const names[] = {"delay", "cookie", "payload", "interval",
                                        "to",    "block",  NULL};
    PyObject *values[6] = {0};
    Extras extras = {0};
    wh_request r = {0};
    int64_t delay;
    bool wait;
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
    if (parse_delay(values[0], &delay, "delay") && parse_extras(&extras, &r) &&
        parse_block(values[5], &wait) && worker_may_begin(w, wait) &&
        place_extras(w, &extras, &r)) {
        r.now = wh_client_now(&w->client);
        r.deadline = wh_time_add(r.now, delay);
        id = worker_arm(w, &r, r.deadline, wait);
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
    if (!worker_may_begin(w, true))
        return NULL;
    r.now = wh_client_now(&w->client);
    r.deadline = wh_time_add(r.now, delay);
    return worker_arm(w, &r, r.deadline, true);
}

/* _schedule_private(delay): as schedule(delay, block=False), for what nobody can do in this
 * process's stead. */
static PyObject *worker_schedule_private(WorkerObject *w, PyObject *delay_object)
{
    wh_request r = {.flags = WH_PRIVATE};
    int64_t delay;
    if (!parse_delay(delay_object, &delay, "delay") || !worker_usable(w))
        return NULL;
    r.now = wh_client_now(&w->client);
    r.deadline = wh_time_add(r.now, delay);
    return worker_arm(w, &r, r.deadline, false);
}

static const clockid_t clock_ids[WH_CLOCK_KINDS] = {CLOCK_MONOTONIC, CLOCK_REALTIME,
                                                    CLOCK_BOOTTIME};

/* Now on one of the clocks; a virtual clock is all of them. */
static int64_t worker_now(const wh_client *c, uint32_t kind)
{
    return c->virtual_clock ? wh_client_now(c) : wh_clock_read(clock_ids[kind]);
}

/* schedule_ns(deadline_ns, clock, cookie, payload, interval, to, block): schedule_at, arguments in
 * place */
static PyObject *worker_schedule_ns(WorkerObject *w, PyObject *args)
{
    long long deadline;
    unsigned int kind;
    int wait = 1;
    Extras extras = {0};
    wh_request r = {0};
    if (!PyArg_ParseTuple(args, "LIOy*OO|p", &deadline, &kind, &extras.cookie, &extras.payload,
                          &extras.interval, &extras.to, &wait))
        return NULL;
    PyObject *id = NULL;
    if (kind >= WH_CLOCK_KINDS) {
        PyErr_SetString(PyExc_ValueError, "no such clock");
    } else if (parse_extras(&extras, &r) && worker_may_begin(w, wait) &&
               place_extras(w, &extras, &r)) {
        r.now = wh_client_now(&w->client);
        r.deadline = deadline;
        r.flags = kind;
        int64_t rest = wh_time_sub(deadline, worker_now(&w->client, kind));
        id = worker_arm(w, &r, wh_time_add(r.now, rest), wait);
    }
    PyBuffer_Release(&extras.payload);
    return id;
}

/* Room comes before the cancel: once that is decided the clock has to be told. 1: there is some; 0:
 * it needs none, the timer is over; -1: an error is set. */
static wh_seldom int worker_room_to_cancel(WorkerObject *w, uint64_t id, bool wait)
{
    if (!wh_client_is_armed(&w->client, id))
        return 0;
    return worker_wait_room(w, 1, wait) ? 1 : -1;
}

/* 1: it is never delivered; 0: it was, or will be; -1: an error is set. */
static inline int worker_cancel_timer(WorkerObject *w, uint64_t id, bool wait)
{
    wh_client *c = &w->client;
    if (wh_unlikely(!wh_client_fits(c, 1))) {
        int room = worker_room_to_cancel(w, id, wait);
        if (room <= 0)
            return room;
    }
    if (!wh_client_cancel(c, id))
        return 0;
    wh_count(&c->seg->cancelled, 1);
    wh_client_publish_lazily(c);
    return 1;
}

static inline PyObject *worker_cancel_one(WorkerObject *w, PyObject *const *args, bool wait)
{
    uint64_t id;
    if (!parse_id(args[0], &id) || !worker_may_begin(w, wait))
        return NULL;
    int won = worker_cancel_timer(w, id, wait);
    return won < 0 ? NULL : PyBool_FromLong(won);
}

static wh_seldom PyObject *worker_cancel_kw(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                            PyObject *kwnames)
{
    bool wait;
    return parse_call("cancel", 1, args, n, kwnames, &wait) ? worker_cancel_one(w, args, wait)
                                                            : NULL;
}

static PyObject *worker_cancel(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                               PyObject *kwnames)
{
    if (wh_unlikely(n != 1 || kwnames != NULL))
        return worker_cancel_kw(w, args, n, kwnames);
    return worker_cancel_one(w, args, true);
}

/* True, with an error set: an armed timer of another worker. */
static bool worker_refuses_move(WorkerObject *w, uint64_t id)
{
    wh_client *c = &w->client;
    if (!wh_client_is_armed(c, id) || wh_client_owns(c, id))
        return false;
    PyErr_Format(PyExc_ValueError,
                 "timer %llu is another worker's; cancel it and schedule a new one",
                 (unsigned long long)id);
    return true;
}

/* Room for a move to `delay` from `now`, if that needs any. Returns now, which is later if it
 * waited; -1: an error is set. */
static wh_seldom int64_t worker_room_to_move(WorkerObject *w, uint64_t id, uint32_t kind,
                                             int64_t now, int64_t delay, bool wait)
{
    if (!wh_client_tells(&w->client, id, wh_time_add(now, delay)))
        return now;
    return worker_wait_room(w, 1, wait) ? worker_now(&w->client, kind) : -1;
}

/* Move a timer to `delay` from now. 1: moved; 0: it has ended; -1: error. What the clock has to be
 * told is in the ring then, and *earliest lowered: the caller publishes. */
static int worker_move(WorkerObject *w, uint64_t id, int64_t delay, int64_t *earliest, bool wait)
{
    wh_client *c = &w->client;
    bool earlier;
    if (wh_likely(wh_id_slot(id) < c->capacity))
        wh_client_prefetch(c, wh_id_slot(id)); /* while the owner word and the time are read */
    if (wh_unlikely(!wh_client_owns(c, id)))
        return worker_refuses_move(w, id) ? -1 : 0;
    uint32_t kind = wh_load_relaxed(&c->slots[wh_id_slot(id)].flags) & 3;
    kind = kind < WH_CLOCK_KINDS ? kind : 0;
    int64_t now = worker_now(c, kind);
    if (wh_unlikely(!wh_client_fits(c, 1)) &&
        (now = worker_room_to_move(w, id, kind, now, delay, wait)) < 0)
        return -1;
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

static inline PyObject *worker_reschedule_one(WorkerObject *w, PyObject *const *args, bool wait)
{
    uint64_t id;
    int64_t delay, earliest = INT64_MAX;
    if (!parse_id(args[0], &id) || !parse_delay(args[1], &delay, "delay") ||
        !worker_may_begin(w, wait))
        return NULL;
    int moved = worker_move(w, id, delay, &earliest, wait);
    if (earliest != INT64_MAX)
        wh_client_publish(&w->client, earliest);
    return moved < 0 ? NULL : PyBool_FromLong(moved);
}

static wh_seldom PyObject *worker_reschedule_kw(WorkerObject *w, PyObject *const *args,
                                                Py_ssize_t n, PyObject *kwnames)
{
    bool wait;
    return parse_call("reschedule", 2, args, n, kwnames, &wait)
               ? worker_reschedule_one(w, args, wait)
               : NULL;
}

static PyObject *worker_reschedule(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                   PyObject *kwnames)
{
    if (wh_unlikely(n != 2 || kwnames != NULL))
        return worker_reschedule_kw(w, args, n, kwnames);
    return worker_reschedule_one(w, args, true);
}
