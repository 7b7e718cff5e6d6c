/* Clock: the native loop of the clock process, and the same passes under a virtual clock. */

static wh_cold PyObject *clock_attach(ClockObject *self, PyObject *args)
{
    unsigned int row;
    unsigned long long incarnation, groups = 0;
    PyObject *segment;
    int bell;
    if (!PyArg_ParseTuple(args, "IKOi|K", &row, &incarnation, &segment, &bell, &groups) ||
        !clock_row(self, row))
        return NULL;
    if (self->peers[row].life)
        return PyErr_Format(PyExc_ValueError, "row %u is already attached", row);
    wh_config config = wh_config_of(self->clock.seg);
    mapping_drop(&self->workers[row]);
    if (!mapping_get(&self->workers[row], segment, true, wh_geometry_of(&config).worker_bytes))
        return NULL;
    if (!wh_clock_attach(&self->clock, row, incarnation, self->workers[row].view.buf, bell) ||
        !wh_clock_join(&self->clock, &self->peers[row], groups))
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static wh_cold PyObject *clock_detach(ClockObject *self, PyObject *args)
{
    unsigned int row, leave = WH_LEAVE_DROP;
    if (!PyArg_ParseTuple(args, "I|I", &row, &leave) || !clock_row(self, row))
        return NULL;
    if (!self->peers[row].life)
        return PyErr_Format(PyExc_ValueError, "row %u is not attached", row);
    if (leave < WH_LEAVE_DROP || leave > WH_LEAVE_REROUTE)
        return PyErr_Format(PyExc_ValueError, "unknown policy %u", leave);
    wh_clock_unkeep(&self->clock, &self->peers[row]);
    wh_clock_detach(&self->peers[row], leave);
    Py_RETURN_NONE;
}

/* keep(row, ns): the row, which is attached and has no process, keeps detached timers, and their
 * ends for so long */
static wh_cold PyObject *clock_keep(ClockObject *self, PyObject *args)
{
    unsigned int row;
    long long ns;
    if (!PyArg_ParseTuple(args, "IL", &row, &ns) || !clock_row(self, row))
        return NULL;
    if (!self->peers[row].life)
        return PyErr_Format(PyExc_ValueError, "row %u is not attached", row);
    if (!wh_clock_keep(&self->clock, &self->peers[row], ns))
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* presence(row, present, groups): a kept row has its successor, or none (after a recovery) */
static wh_cold PyObject *clock_presence(ClockObject *self, PyObject *args)
{
    unsigned int row;
    int present;
    unsigned long long groups;
    if (!PyArg_ParseTuple(args, "IpK", &row, &present, &groups) || !clock_row(self, row))
        return NULL;
    if (!self->peers[row].life)
        return PyErr_Format(PyExc_ValueError, "row %u is not attached", row);
    wh_clock_presence(&self->peers[row], present);
    wh_reoffer_left(&self->clock, &self->peers[row]); /* of the groups that it leaves, if any */
    if (!wh_clock_join(&self->clock, &self->peers[row], groups))
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *clock_attached(ClockObject *self, PyObject *args)
{
    unsigned int row;
    if (!PyArg_ParseTuple(args, "I", &row) || !clock_row(self, row))
        return NULL;
    return PyBool_FromLong(self->peers[row].life != WH_PEER_GONE);
}

static void clock_read_time(wh_clock *c)
{
    for (uint32_t kind = 0; kind < WH_CLOCK_KINDS; kind++)
        c->now[kind] = clock_time_of(kind);
    wh_store_relaxed(&c->seg->heartbeat, c->now[WH_CLOCK_BASE]);
}

static wh_cold PyObject *clock_recover(ClockObject *self, PyObject *unused)
{
    (void)unused;
    if (!clock_made(self))
        return NULL;
    bool recovered;
    Py_BEGIN_ALLOW_THREADS if (!self->clock.seg->virtual_clock)
        clock_read_time(&self->clock); /* timers of the wall clock are placed by the difference */
    recovered = wh_clock_recover(&self->clock);
    Py_END_ALLOW_THREADS if (!recovered) return PyErr_NoMemory();
    return PyLong_FromUnsignedLongLong(wh_wheel_linked(&self->clock.wheel));
}

/* back(slabs): have memory for so many of the first slabs; False: there is no room for all */
static PyObject *clock_back(ClockObject *self, PyObject *args)
{
    unsigned int slabs;
    if (!PyArg_ParseTuple(args, "I", &slabs) || !clock_made(self))
        return NULL;
    while (self->clock.backed < slabs && self->clock.backed < self->clock.shared_slabs)
        if (!wh_back_some(&self->clock))
            Py_RETURN_FALSE;
    Py_RETURN_TRUE;
}

static wh_cold PyObject *clock_forget(ClockObject *self, PyObject *args)
{
    unsigned int row;
    if (!PyArg_ParseTuple(args, "I", &row) || !clock_row(self, row))
        return NULL;
    if (self->peers[row].life)
        return PyErr_Format(PyExc_ValueError, "row %u is still attached", row);
    mapping_drop(&self->workers[row]);
    Py_RETURN_NONE;
}

static PyObject *reaped_or_none(uint32_t reaped)
{
    if (reaped == WH_NIL)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLong(reaped);
}

enum { FD_BELL, FD_CONTROL, FD_CLOCK_SET, FD_COUNT };
/* how often a busy clock checks its control socket and the wall clock */
#define LOOK_UP_EVERY_NS 1000000

#define LONG_SLEEP_NS 100000000
/* Tell the supervisor that a sleep which was meant to be long is over: it looks at the clock seldom
 * while that sleeps, and has to look often again (docs/decisions/0007). */
static void clock_tell_awake(int control)
{
    static const char news[] = "{\"op\":\"awake\"}\n";
    ssize_t sent = send(control, news, sizeof news - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)sent; /* a supervisor that is that far behind will notice by itself */
}

/* Sleep until timers are due or a doorbell rings. */
static void clock_sleep(wh_clock *c, struct pollfd *fds)
{
    int64_t next = wh_next_ns(c);
    int64_t until = c->seg->virtual_clock ? INT64_MAX : next;
    for (int i = 0; i < FD_COUNT; i++)
        fds[i].revents = 0; /* also if it does not sleep: nothing was polled */
    if (wh_may_sleep(c, next)) {
        int64_t rest = wh_time_sub(until, wh_clock_read(CLOCK_MONOTONIC));
        if (rest > 0) {
            struct timespec timeout = {rest / 1000000000, rest % 1000000000};
            ppoll(fds, FD_COUNT, until == INT64_MAX ? NULL : &timeout, NULL);
            wh_count(&c->seg->wakes, 1);
            if (rest >= LONG_SLEEP_NS)
                clock_tell_awake(fds[FD_CONTROL].fd);
            int64_t late = wh_clock_read(CLOCK_MONOTONIC) - until;
            if (late > 0)
                wh_clock_counts(c, WH_COUNTS_OVERSLEPT, late);
            if (late > 0 && (uint64_t)late > wh_load_relaxed(&c->seg->wake_late_ns))
                wh_store_relaxed(&c->seg->wake_late_ns, (uint64_t)late);
        }
    }
    /* First the FIFO, then sleep_seq, then the rings: a byte that is rung in the new sleep_seq must
     * stay, for its worker does not ring again in it. */
    if (fds[FD_BELL].revents)
        wh_bell_clear(fds[FD_BELL].fd);
    wh_awake(c);
}

/* The wall clock was set (or the host resumed): the timerfd says so with ECANCELED. */
static void clock_was_set(wh_clock *c, int fd)
{
    uint64_t expirations;
    if (read(fd, &expirations, sizeof expirations) < 0 && errno == ECANCELED)
        c->relink_slot = 0;
}

/* A busy clock checks this in place of a sleep. True: the control socket is readable. */
static bool clock_looks_up(wh_clock *c, const struct pollfd *fds, int64_t *seen)
{
    struct pollfd looks[] = {fds[FD_CONTROL], fds[FD_CLOCK_SET]};
    int64_t now = wh_clock_read(CLOCK_MONOTONIC);
    if (now - *seen < LOOK_UP_EVERY_NS)
        return false;
    *seen = now;
    if (poll(looks, 2, 0) <= 0)
        return false;
    if (looks[1].revents)
        clock_was_set(c, fds[FD_CLOCK_SET].fd);
    return looks[0].revents != 0;
}

/* After a pass, before the next sleep. */
static void clock_wake_recorder(wh_clock *c)
{
    if (wh_unlikely(wh_trace_wakes(&c->trace)))
        wake_all(&c->trace.seg->rings);
}

/* Run until the control socket is readable, or a worker was reaped. Called without the GIL. */
static uint32_t clock_loop(wh_clock *c, struct pollfd *fds)
{
    int64_t seen = 0;
    uint32_t reaped;
    for (;;) {
        if (c->seg->virtual_clock)
            wh_store_relaxed(&c->seg->heartbeat, wh_clock_read(CLOCK_MONOTONIC));
        else
            clock_read_time(c);
        bool more = wh_pass(c, &reaped);
        clock_wake_recorder(c);
        wh_clock_counts(c, WH_COUNTS_PASS,
                        wh_clock_read(CLOCK_MONOTONIC) - wh_load_relaxed(&c->seg->heartbeat));
        if (reaped != WH_NIL)
            return reaped;
        if (!more) {
            clock_sleep(c, fds);
            if (fds[FD_CLOCK_SET].revents)
                clock_was_set(c, fds[FD_CLOCK_SET].fd);
            if (fds[FD_CONTROL].revents || fds[FD_BELL].revents & ~POLLIN)
                return WH_NIL;
        }
        if (clock_looks_up(c, fds, &seen))
            return WH_NIL;
    }
}

static PyObject *clock_run(ClockObject *self, PyObject *args)
{
    int bell, control, clock_set;
    uint32_t reaped;
    if (!PyArg_ParseTuple(args, "iii", &bell, &control, &clock_set) || !clock_made(self))
        return NULL;
    struct pollfd fds[FD_COUNT] = {[FD_BELL] = {.fd = bell, .events = POLLIN},
                                   [FD_CONTROL] = {.fd = control, .events = POLLIN},
                                   [FD_CLOCK_SET] = {.fd = clock_set, .events = POLLIN}};
    Py_BEGIN_ALLOW_THREADS reaped = clock_loop(&self->clock, fds);
    Py_END_ALLOW_THREADS return reaped_or_none(reaped);
}

static PyObject *clock_advance(ClockObject *self, PyObject *args)
{
    long long target;
    uint32_t reaped;
    if (!PyArg_ParseTuple(args, "L", &target) || !clock_made(self))
        return NULL;
    if (!self->clock.seg->virtual_clock) {
        PyErr_SetString(PyExc_ValueError, "this wheel runs on the real clock");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS wh_advance_virtual(&self->clock, target, &reaped);
    clock_wake_recorder(&self->clock);
    Py_END_ALLOW_THREADS return reaped_or_none(reaped);
}

static wh_cold PyObject *clock_check(ClockObject *self, PyObject *args)
{
    int slots = 1;
    wh_check check;
    if (!PyArg_ParseTuple(args, "|p", &slots) || !clock_made(self))
        return NULL;
    if (!(slots ? wh_clock_check(&self->clock, &check)
                : wh_wheel_check(&self->clock.wheel, &check))) {
        PyErr_SetString(errors.wheel_error, check.message);
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(check.linked);
}

static PyObject *clock_set_state(ClockObject *self, PyObject *args)
{
    unsigned int state;
    if (!PyArg_ParseTuple(args, "I", &state) || !clock_made(self))
        return NULL;
    wh_store_release(&self->clock.seg->daemon_state, state); /* pairs: daemon-state */
    Py_RETURN_NONE;
}

/* prepare_clock_process() -> fd: exact sleeps; SIGKILL when the parent dies; a descriptor that is
 * readable when the wall clock was set or the host resumed. */
static PyObject *native_prepare_clock_process(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    struct itimerspec far = {.it_value = {.tv_sec = INT64_MAX / 1000000000}};
    int fd = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK | TFD_CLOEXEC);
    if (fd < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    /* a stopped or hanging clock must not outlive its supervisor: the next one starts a clock,
     * too */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0) < 0 ||
        timerfd_settime(fd, TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &far, NULL) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        close(fd);
        return NULL;
    }
    return PyLong_FromLong(fd);
}

static PyMethodDef clock_methods[] = {
    /* trace(segment): record every event there, before any worker is attached. */
    {"trace", (PyCFunction)clock_trace, METH_O, NULL},
    /* groups(registry): their table, which the supervisor may change. */
    {"groups", (PyCFunction)clock_groups, METH_O, NULL},
    /* keys(segment): the words of keys, which name the timers that may fire. */
    {"keys", (PyCFunction)clock_keys, METH_O, NULL},
    /* attach(row, incarnation, segment, bell_fd, groups=0): serve the worker in that row. */
    {"attach", (PyCFunction)clock_attach, METH_VARARGS, NULL},
    /* detach(row, leave=1): the worker is gone; passes sweep what it left. 1 drop, 2 keep, 3
     * reroute. */
    {"detach", (PyCFunction)clock_detach, METH_VARARGS, NULL},
    /* presence(row, present, groups): a kept row has a successor, or has none. */
    {"presence", (PyCFunction)clock_presence, METH_VARARGS, NULL},
    {"keep", (PyCFunction)clock_keep, METH_VARARGS, NULL},
    /* attached(row): False once its worker was reaped. */
    {"attached", (PyCFunction)clock_attached, METH_VARARGS, NULL},
    /* Set how many of the first slabs have memory. */
    {"back", (PyCFunction)clock_back, METH_VARARGS, NULL},
    /* recover(): rebuild the wheel from the slots, after all workers were attached and before the
     * first pass. Returns the timers linked. */
    {"recover", (PyCFunction)clock_recover, METH_NOARGS, NULL},
    /* forget(row): drop the mapping of a reaped worker. */
    {"forget", (PyCFunction)clock_forget, METH_VARARGS, NULL},
    /* run(bell_fd, control_fd, clock_set_fd): drive the wheel, without the GIL, until the control
     * socket is readable (returns None) or a worker's sweep is over (returns its row). */
    {"run", (PyCFunction)clock_run, METH_VARARGS, NULL},
    /* advance(now_ns): move a virtual clock, bucket by bucket, each at its own time. Returns the
     * row of a worker that was reaped on the way (call again), or None. */
    {"advance", (PyCFunction)clock_advance, METH_VARARGS, NULL},
    /* check(slots=True): check the wheel's invariants by brute force, and that each armed slot is
     * linked where it belongs; returns the timers linked, raises WheelError. */
    {"check", (PyCFunction)clock_check, METH_VARARGS, NULL},
    /* set_state(state): 1 running, 2 stopping. */
    {"set_state", (PyCFunction)clock_set_state, METH_VARARGS, NULL},
    {NULL}};

static PyType_Slot clock_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, clock_init},
    {Py_tp_dealloc, clock_dealloc},
    {Py_tp_methods, clock_methods},
    {Py_tp_doc, "Clock(wheel, slots): the single writer of the wheel."},
    {0, NULL}};
static PyType_Spec clock_spec = {"wheeld_core._native.Clock", sizeof(ClockObject), 0,
                                 Py_TPFLAGS_DEFAULT, clock_slots};
