/* Timers of callbacks: who receives the expiration finds the callback, however soon that is.
 *
 * Between the arming of a timer and its place in the table of callbacks no other thread runs, no
 * signal handler and no destructor: the GIL is held, and no Python code is called. A lock would do
 * for other threads only: a destructor that cancels its timer may run in the thread that holds it.
 * Without a GIL to put it there may wait for the table's own lock, and lets others in: so it stands
 * there first, under an id that is reserved.
 */

/* Set handle.id, and handles[id]. */
static bool callback_place(PyObject *handles, PyObject *handle, PyObject *id)
{
    return id && PyObject_SetAttr(handle, name_id, id) == 0 &&
           PyDict_SetItem(handles, id, handle) == 0;
}

#ifdef Py_GIL_DISABLED

static PyObject *callback_arm(WorkerObject *w, PyObject *handles, PyObject *handle, int64_t delay,
                              bool wait)
{
    uint64_t id;
    wh_client *c = &w->client;
    enum wh_call call = wh_call_reserve(c, &id, 1, wait);
    if (call != WH_CALL_OK) {
        worker_raise(w, call, 0);
        return NULL;
    }
    PyObject *number = PyLong_FromUnsignedLongLong(id);
    bool ok = callback_place(handles, handle, number) && worker_still_usable(w);
    int64_t now = ok ? wh_client_now(c) : 0, deadline = wh_time_add(now, delay);
    const wh_request r = {.flags = WH_PRIVATE, .begun = wh_begun_at(now)};
    wh_batch batch = {.n = 1, .ids = &id, .deadlines = &deadline};
    if (ok && (call = wh_call_arm_reserved(c, &batch, &r, wait)) == WH_CALL_OK) {
        Py_DECREF(number);
        Py_RETURN_NONE;
    }
    if (ok)
        worker_raise(w, call, id);
    PyObject *error = error_take();
    if (call != WH_CALL_GONE && worker_is_open(w))
        wh_call_release(c, &id, 1);
    if (number && PyDict_DelItem(handles, number) < 0)
        PyErr_Clear(); /* it never came there */
    Py_XDECREF(number);
    error_raise(error);
    return NULL;
}

#else

static PyObject *callback_arm(WorkerObject *w, PyObject *handles, PyObject *handle, int64_t delay,
                              bool wait)
{
    int64_t now = wh_client_now(&w->client);
    wh_request r = {
        .deadline = wh_time_add(now, delay), .flags = WH_PRIVATE, .begun = wh_begun_at(now)};
    PyObject *id = worker_arm(w, &r, r.deadline, wait);
    if (id == NULL)
        return NULL;
    if (callback_place(handles, handle, id)) {
        Py_DECREF(id);
        Py_RETURN_NONE;
    }
    PyObject *error = error_take(); /* no memory: the expiration would find no callback */
    if (worker_cancel_timer(w, PyLong_AsUnsignedLongLong(id), wait) < 0)
        PyErr_Clear();
    Py_DECREF(id);
    error_raise(error);
    return NULL;
}

#endif

/* _schedule_into(handles, handle, delay, block=True): handle.id, and handles[id] = handle. */
static PyObject *worker_schedule_into(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    int64_t delay;
    bool wait;
    if (n < 3 || n > 4 || !PyDict_CheckExact(args[0]))
        return PyErr_Format(PyExc_TypeError, "_schedule_into() takes a dict, a handle and a delay");
    if (!parse_block(n > 3 ? args[3] : NULL, &wait))
        return NULL;
    /* no refork: a child has a table of its own, which the caller has not passed */
    if (!parse_delay(args[2], &delay, "delay") || !worker_still_usable(w))
        return NULL;
    return callback_arm(w, args[0], args[1], delay, wait);
}
