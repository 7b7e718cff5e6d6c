/* Timers of callbacks: who receives the expiration finds the callback, however soon that is.
 *
 * Between the arming of a timer and its place in the table of callbacks no other thread runs, no
 * signal handler and no destructor: the GIL is held, and no Python code is called. A lock would do
 * for other threads only: a destructor that cancels its timer may run in the thread that holds it.
 */

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
    int64_t now = wh_client_now(&w->client);
    wh_request r = {
        .deadline = wh_time_add(now, delay), .flags = WH_PRIVATE, .begun = wh_begun_at(now)};
    PyObject *id = worker_arm(w, &r, r.deadline, wait);
    if (id == NULL)
        return NULL;
    if (PyObject_SetAttrString(args[1], "id", id) == 0 &&
        PyDict_SetItem(args[0], id, args[1]) == 0) {
        Py_DECREF(id);
        Py_RETURN_NONE;
    }
    PyObject *error = error_take(); /* no memory: nobody would know what fires */
    if (worker_cancel_timer(w, PyLong_AsUnsignedLongLong(id), wait) < 0)
        PyErr_Clear();
    Py_DECREF(id);
    error_raise(error);
    return NULL;
}
