/* The next daemon: a client whose wheel is over becomes a worker of another one, in the same
 * object.
 *
 * From the end of a wheel on no call begins, and each that waits comes back and goes to wait for
 * the next daemon, where it holds nothing of the old wheel. Only when nobody is inside any more
 * does _bind() put the new wheel in its place. Owner words and incarnations differ from wheel to
 * wheel (wheeld/tables/registry.py), so that what is remembered of the old one is not taken for
 * ours in the new.
 */

/* Wait until `until` for what a step of Python code waits for: `fd`, if it is one, or some seconds.
 * False: an error is set. */
static bool worker_pause(WorkerObject *w, int fd, double seconds, int64_t until)
{
    int64_t now = wh_clock_read(CLOCK_MONOTONIC), rest = wh_time_sub(until, now),
            most = wh_delay_ns(seconds);
    rest = rest < most ? rest : most;
    int waited = worker_wait_in_hub(w, fd, -1, rest);
    if (waited == 0) {
        struct pollfd watch = {.fd = fd, .events = POLLIN};
        struct timespec timeout = {rest / 1000000000, rest % 1000000000};
        Py_BEGIN_ALLOW_THREADS ppoll(&watch, 1, &timeout, NULL);
        Py_END_ALLOW_THREADS
    }
    return waited >= 0 && PyErr_CheckSignals() >= 0;
}

/* The daemon was stopped: have _renew() go on to bind this worker to the next one, which takes it
 * no time. As worker_ready(). */
static int worker_renew(WorkerObject *w, int64_t until)
{
    for (;;) {
        int fd = -1;
        double seconds = 0;
        PyObject *found = PyObject_CallMethod((PyObject *)w, "_renew", NULL);
        bool ok = found && (found == Py_None || PyArg_ParseTuple(found, "id", &fd, &seconds));
        Py_XDECREF(found);
        if (!ok)
            return -1;
        if (worker_is_open(w))
            return 1;
        if (!worker_is_renewable(w)) { /* closed meanwhile, or a forked child's by now */
            worker_explain(w);
            return -1;
        }
        if (wh_clock_read(CLOCK_MONOTONIC) >= until)
            return 0;
        if (!worker_pause(w, fd, seconds, until))
            return -1;
    }
}

/* _renews(): from now on the daemon's end is not ours: _renew() is called for the next one. */
static PyObject *worker_renews(WorkerObject *w, PyObject *unused)
{
    (void)unused;
    w->renews = true;
    Py_RETURN_NONE;
}

/* _end_wheel(reason) -> is nobody inside any more? Every call waits outside for the next daemon. */
static PyObject *worker_end_wheel(WorkerObject *w, PyObject *reason)
{
    if (worker_life(w) == OPEN) {
        Py_XSETREF(w->ended, Py_NewRef(reason));
        worker_become(w, ENDED);
    }
    if (worker_is_bound(w) && w->sleepers)
        worker_ring(w);
    return PyBool_FromLong(w->sleepers == 0 && w->inside == 0);
}

/* _end(reason): the daemon will not have this worker back; every call says so from now on. */
static PyObject *worker_end(WorkerObject *w, PyObject *reason)
{
    if (worker_life(w) == OPEN) {
        Py_XSETREF(w->ended, Py_NewRef(reason));
        worker_become(w, ENDED);
        worker_ring(w); /* this wakes the threads in poll() */
    }
    Py_RETURN_NONE;
}

/* _armed() -> the ids of our armed timers, as bytes; also of a wheel that is over. */
static PyObject *worker_armed(WorkerObject *w, PyObject *unused)
{
    (void)unused;
    if (!worker_is_bound(w) || worker_is_forked(w))
        return PyBytes_FromStringAndSize(NULL, 0);
    const wh_slabs *s = &w->client.slabs;
    size_t count = wh_slabs_armed(s);
    PyObject *ids = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(uint64_t)));
    if (ids == NULL)
        return NULL;
    uint64_t *out = (uint64_t *)PyBytes_AS_STRING(ids), *end = out + count;
    for (uint32_t slot = 0; slot < w->client.capacity && out < end; slot++) {
        uint64_t state = wh_load_relaxed(&w->client.states[slot]);
        if (wh_state_phase(state) == WH_ARMED && wh_slabs_own(s, slot))
            *out++ = wh_id(wh_state_gen(state), slot);
    }
    memset(out, 0, (size_t)((char *)end - (char *)out)); /* cancelled by others meanwhile */
    return ids;
}

/* _count_known(ids) -> how many of the ids that _armed() gave name timers that are ours now, fired
 * or not. */
static PyObject *worker_count_known(WorkerObject *w, PyObject *ids)
{
    unsigned long long known = 0;
    if (!PyBytes_Check(ids))
        return PyErr_Format(PyExc_TypeError, "_count_known() takes bytes");
    if (!worker_still_usable(w))
        return NULL;
    const uint64_t *id = (const uint64_t *)PyBytes_AS_STRING(ids);
    for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(ids) / (Py_ssize_t)sizeof *id; i++) {
        if (id[i] == 0 || !wh_client_owns(&w->client, id[i]))
            continue;
        uint64_t state = wh_load_relaxed(&w->client.states[wh_id_slot(id[i])]);
        known += wh_state_gen(state) == wh_id_gen(id[i]) && wh_state_phase(state) != WH_CANCELLED;
    }
    return PyLong_FromUnsignedLongLong(known);
}
