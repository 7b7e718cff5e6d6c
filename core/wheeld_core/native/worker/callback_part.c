/* Timers of callbacks and waiters: who receives the expiration finds them, however soon that is.
 *
 * Between the arming of a timer and its entry in their table no other thread runs, no
 * signal handler and no destructor: the GIL is held, and no Python code is called. A lock would do
 * for other threads only: a destructor that cancels its timer may run in the thread that holds it.
 * Without a GIL to put it there may wait for the table's own lock, and lets others in: so it stands
 * there first, under the id that the timer in its slot will have.
 */

/* Set *own, where the entry keeps its timer's id, and table[id]. False: an error is set. */
static inline bool callback_place(WaitingObject *table, PyObject *entry, uint64_t id, uint64_t *own)
{
    *own = id;
    return waiting_put(table, id, entry);
}

static wh_request callback_request(const WorkerObject *w, int64_t delay)
{
    int64_t now = wh_client_now(&w->client);
    return (wh_request){
        .deadline = wh_time_add(now, delay), .flags = WH_PRIVATE, .interval = wh_once_from(now)};
}

/* callback_place() of a timer that is armed. */
static bool callback_enter(WorkerObject *w, WaitingObject *table, PyObject *entry, uint64_t id,
                           bool wait, uint64_t *own)
{
    if (wh_likely(callback_place(table, entry, id, own)))
        return true;
    PyObject *error = error_take(); /* no memory: the expiration would find nobody */
    if (worker_cancel_timer(w, id, wait) < 0)
        PyErr_Clear();
    error_raise(error);
    return false;
}

#ifdef Py_GIL_DISABLED

static bool callback_arm(WorkerObject *w, WaitingObject *table, PyObject *entry, int64_t delay,
                         bool wait, uint64_t *own)
{
    uint32_t slot;
    wh_client *c = &w->client;
    enum wh_call call = wh_client_have_slot(c, 1, wait, &slot);
    if (call != WH_CALL_OK) {
        worker_raise(w, call);
        return false;
    }
    const wh_worker_seg *seg = c->seg;
    uint64_t id = wh_id(wh_client_next_gen(c, slot), slot), me = c->me;
    c->slabs.busy++; /* the slot's slab is not parked while others are let in */
    bool ok = callback_place(table, entry, id, own);
    if (!worker_is_open(w) || c->seg != seg || c->me != me) { /* the slot is no longer ours */
        if (ok)
            worker_raise(w, WH_CALL_GONE);
        ok = false;
    } else {
        c->slabs.busy--;
        if (!ok)
            wh_slabs_give(&c->slabs, slot);
        else if (!wh_client_fits(c, 1) &&
                 (call = wh_client_wait_room_with(c, slot, 1, wait)) != WH_CALL_OK) {
            worker_raise(w, call);
            ok = false;
        }
    }
    if (ok) {
        const wh_request r = callback_request(w, delay);
        wh_client_submit(c, slot, &r, r.deadline);
        return true;
    }
    PyObject *error = error_take(), *placed = waiting_look(table, id, true);
    Py_XDECREF(placed);
    error_raise(error);
    return false;
}

#else

static bool callback_arm(WorkerObject *w, WaitingObject *table, PyObject *entry, int64_t delay,
                         bool wait, uint64_t *own)
{
    const wh_request r = callback_request(w, delay);
    uint64_t id = worker_arm_timer(w, &r, r.deadline, wait);
    return wh_likely(id) && callback_enter(w, table, entry, id, wait, own);
}

#endif

/* The same under a key. WH_CALL_TAKEN: *own has the key, and the entry is not in the table.
 * WH_CALL_OVER: an error is set. Without a GIL the caller keeps those away who look into the table:
 * there is no slot yet whose next id it could be. */
static enum wh_call callback_arm_key(WorkerObject *w, WaitingObject *table, PyObject *entry,
                                     KeyOrder *k, int64_t delay, bool wait, uint64_t *own)
{
    uint64_t id = 0;
    key_hash_for(w, &k->encoded);
    const wh_request r = callback_request(w, delay);
    enum wh_call call =
        worker_claim_key(w, k->object, &k->encoded, k->conflict, &r, delay, wait, &id);
    if (call == WH_CALL_TAKEN)
        *own = id;
    return call != WH_CALL_OK || callback_enter(w, table, entry, id, wait, own) ? call
                                                                                : WH_CALL_OVER;
}

/* _schedule_into_key(handles, handle, delay, block, key, on_conflict): _schedule_into() by key.
 * False: another timer has the key; handle.id is its id, and the handle is not in the table. */
static PyObject *worker_schedule_into_key(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    int64_t delay;
    bool wait;
    KeyOrder k;
    PyObject *values[TIMER_VALUES] = {0};
    if (n != 6 || !is_waiting(args[0]) || !PyObject_TypeCheck(args[1], handle_type))
        return PyErr_Format(PyExc_TypeError, "_schedule_into_key() takes a Waiting, a handle, ...");
    values[KEY] = args[4], values[ON_CONFLICT] = args[5];
    if (!parse_block(args[3], &wait) || !parse_delay(args[2], &delay, "delay") ||
        !order_parse_key(&k, values) || !worker_still_usable(w))
        return NULL;
    uint64_t *own = &((HandleObject *)args[1])->id;
    enum wh_call call =
        callback_arm_key(w, (WaitingObject *)args[0], args[1], &k, delay, wait, own);
    return call == WH_CALL_OVER ? NULL : PyBool_FromLong(call == WH_CALL_OK);
}

/* _schedule_into(handles, handle, delay, block=True): handle.id, and handles[id] = handle. */
static PyObject *worker_schedule_into(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    int64_t delay;
    bool wait;
    if (n < 3 || n > 4 || !is_waiting(args[0]) || !PyObject_TypeCheck(args[1], handle_type))
        return PyErr_Format(PyExc_TypeError,
                            "_schedule_into() takes a Waiting, a handle and a delay");
    if (!parse_block(n > 3 ? args[3] : NULL, &wait))
        return NULL;
    /* no refork: a child has a table of its own, which the caller has not passed */
    if (!parse_delay(args[2], &delay, "delay") || !worker_still_usable(w) ||
        !callback_arm(w, (WaitingObject *)args[0], args[1], delay, wait,
                      &((HandleObject *)args[1])->id))
        return NULL;
    Py_RETURN_NONE;
}

/* _schedule_waiter(waiters, waiter, delay): arm a timer, and waiters[id] = waiter; the id. Waits
 * for no room. */
static PyObject *worker_schedule_waiter(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    int64_t delay;
    uint64_t id;
    if (n != 3 || !is_waiting(args[0]))
        return PyErr_Format(PyExc_TypeError,
                            "_schedule_waiter() takes a Waiting, a waiter and a delay");
    if (!parse_delay(args[2], &delay, "delay") || !worker_usable(w) ||
        !callback_arm(w, (WaitingObject *)args[0], args[1], delay, false, &id))
        return NULL;
    return PyLong_FromUnsignedLongLong(id);
}

/* _call_later(handles, type, callbacks, delay, callback, args, block): _schedule_into() with a new
 * handle, which it returns; None: _check() first, as this client may be a forked child's. */
static PyObject *worker_call_later(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    int64_t delay;
    bool wait;
    PyTypeObject *type = n == 7 && PyType_Check(args[1]) ? (PyTypeObject *)args[1] : NULL;
    if (!type || !is_waiting(args[0]) || !PyType_IsSubtype(type, handle_type))
        return PyErr_Format(PyExc_TypeError,
                            "_call_later() takes a Waiting, a type of handles, ...");
    if (!PyCallable_Check(args[4]))
        return raise_about(PyExc_TypeError, args[4],
                           "callback: got {}, expected a callable object");
    if (!parse_delay(args[3], &delay, "delay") || !parse_block(args[6], &wait))
        return NULL;
    PyObject *handle = handle_new(type, args[2], args[4], args[5], wait);
    if (handle == NULL)
        return NULL;
    if (wh_unlikely(!worker_is_open(w))) {
        Py_DECREF(handle);
        Py_RETURN_NONE;
    }
    if (!callback_arm(w, (WaitingObject *)args[0], handle, delay, wait,
                      &((HandleObject *)handle)->id))
        Py_CLEAR(handle);
    return handle;
}
