/* Waiting: a worker's sleep on its FIFO, and what ends it. */

static bool worker_is_marked(const WorkerObject *w); /* in watching_part.c */
static PyObject *worker_unbind(WorkerObject *w, enum life then); /* in worker_type.c */

/* Wake whoever waits on this worker's FIFO. */
static void worker_ring(WorkerObject *w)
{
    if (wh_fd_is_ours(&w->bell))
        wh_bell_ring(w->bell.number);
    else
        wh_client_lose_fds(&w->client);
}

/* Is this worker's FIFO still its own to read? False: an error is set. */
static bool worker_hears(WorkerObject *w)
{
    int names = wh_fd_names(&w->bell);
    w->heard.removed = names == 0;
    if (wh_likely(names >= 0))
        return true;
    wh_client_lose_fds(&w->client);
    worker_explain(w);
    return false;
}

/* Have another FIFO under the number of `fd`, which event loops know. -1: an error is set; 0: it is
 * the same FIFO, or that number is not ours. */
static int worker_exchange(wh_fd *fd, int other)
{
    wh_fd next = wh_fd_of(other);
    if (!wh_fd_is_ours(fd) || (next.inode == fd->inode && next.device == fd->device))
        return 0;
    if (!fd->rings_only)
        /* a forked child may keep it: event loops must not see it as readable */
        wh_bell_clear(fd->number);
    if (dup3(other, fd->number, O_CLOEXEC) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    next.number = fd->number;
    *fd = next;
    return 1;
}

/* _hear(clock_bell, bell): the FIFOs as they stand in the runtime directory. Where ours were
 * removed, these take their place and are rung: of what was rung meanwhile nobody has heard. */
static PyObject *worker_hear(WorkerObject *w, PyObject *args)
{
    int clock_bell, bell;
    if (!PyArg_ParseTuple(args, "ii", &clock_bell, &bell))
        return NULL;
    if (worker_life(w) != OPEN && worker_life(w) != ENDED)
        Py_RETURN_NONE;
    int clocks = worker_exchange(&w->clock_bell, clock_bell),
        ours = worker_exchange(&w->bell, bell);
    w->client.clock_bell = w->clock_bell;
    if (clocks > 0)
        wh_fd_ring(&w->clock_bell);
    if (ours > 0)
        worker_ring(w);
    return clocks < 0 || ours < 0 ? NULL : Py_NewRef(Py_None);
}

/* The result of a look, from a worker whose FIFO was removed: have _come_back() see whether the
 * next daemon is there, with another. A worker that looks only now and then would not learn of it
 * in another way. */
static PyObject *worker_come_back(WorkerObject *w, PyObject *events)
{
    w->heard.removed = false;
    PyObject *done = PyObject_CallMethod((PyObject *)w, "_come_back", NULL);
    if (done == NULL)
        Py_CLEAR(events);
    Py_XDECREF(done);
    return events;
}

/* The control socket has hung up: have _reconnect() go on to open another, which takes it no time.
 * Until it has: what to watch for its sake, and for how long at most. False: an error is set. */
static bool worker_reconnect(WorkerObject *w, struct pollfd *watch, int64_t *until)
{
    double seconds = 0;
    PyObject *found = PyObject_CallMethod((PyObject *)w, "_reconnect", NULL);
    bool ok = found && (found == Py_None || PyArg_ParseTuple(found, "id", &watch->fd, &seconds));
    if (ok && found != Py_None) {
        int64_t look = wh_clock_read(CLOCK_MONOTONIC) + wh_delay_ns(seconds);
        *until = look < *until ? look : *until;
        watch->events = POLLIN;
    }
    Py_XDECREF(found);
    return ok && (worker_is_renewable(w) || worker_usable(w));
}

static wh_au32 gevent_was_seen; /* for those who look often */

/* Nothing is patched by gevent while that is not loaded. -1: an error is set. */
static int gevent_is_loaded(void)
{
    PyObject *monkey = PyImport_GetModule(name_monkey);
    if (wh_likely(monkey == NULL))
        return PyErr_Occurred() ? -1 : 0;
    Py_DECREF(monkey);
    wh_store_relaxed(&gevent_was_seen, 1);
    return 1;
}

/* The result of a method that waits in the hub: 1, it has waited; 0, there is no hub to wait
 * in; -1: an error is set. */
static int hub_waited(PyObject *waited)
{
    int truth = waited ? PyObject_IsTrue(waited) : -1;
    Py_XDECREF(waited);
    return truth;
}

/* Under gevent a thread is many greenlets: have it wait for the descriptors (-1: none) while the
 * others go on. As hub_waited(). `rest`: ns; INT64_MAX: no end. */
static int worker_wait_in_hub(WorkerObject *w, int fd, int other, int64_t rest)
{
    int loaded = gevent_is_loaded();
    if (wh_likely(loaded <= 0))
        return loaded;
    return hub_waited(PyObject_CallMethod((PyObject *)w, "_wait_in_hub", "iid", fd, other,
                                          rest == INT64_MAX ? -1.0 : (double)rest / 1e9));
}

/* The same for a short while, also where the hub itself runs, which must not wait for itself: 0. */
static int worker_nap_in_hub(WorkerObject *w, int64_t ns)
{
    int loaded = gevent_is_loaded();
    if (wh_likely(loaded <= 0))
        return loaded;
    return hub_waited(PyObject_CallMethod((PyObject *)w, "_nap_in_hub", "d", (double)ns / 1e9));
}

/* As ppoll(); -2: an error is set. */
static int worker_await_bell(WorkerObject *w, struct pollfd fds[2], int64_t until)
{
    int64_t rest = wh_time_sub(until, wh_clock_read(CLOCK_MONOTONIC));
    rest = until == INT64_MAX ? until : rest > 0 ? rest : 0;
    int error = 0;
    uint32_t forks = w->forks;
    w->sleepers++;
    int polled = worker_wait_in_hub(w, fds[0].fd, fds[1].fd, rest);
    if (polled >= 0) {
        bool wait = polled == 0;
        struct timespec timeout = {wait ? rest / 1000000000 : 0, wait ? rest % 1000000000 : 0};
        Py_BEGIN_ALLOW_THREADS polled =
            ppoll(fds, 2, wait && rest == INT64_MAX ? NULL : &timeout, NULL);
        error = errno;
        Py_END_ALLOW_THREADS
    } else {
        polled = -2;
    }
    if (forks == w->forks && --w->sleepers == 0 && w->life == CLOSING)
        worker_unbind(w, CLOSED);
    errno = error;
    return polled;
}

/* Sleep on our FIFO until rung, or `until`, or until there is a reason to look around; `heed`:
 * marks of other workers are one. False: an error is set. The wheel may be over then, and
 * renewable. */
static bool worker_sleep(WorkerObject *w, int64_t until, bool heed)
{
    wh_client *c = &w->client;
    struct pollfd fds[2] = {{.events = POLLIN}, {.fd = -1, .events = POLLRDHUP}};
    uint64_t connections = w->connections;
    int polled = 0;
    if (w->heard.lost && !worker_reconnect(w, &fds[1], &until))
        return false;
    if (!worker_is_open(w))
        return worker_is_renewable(w) || worker_usable(w);
    if (!worker_hears(w))
        return false;
    fds[0].fd = w->bell.number;
    if (!w->heard.lost)
        fds[1].fd = w->daemon.number, connections = w->connections;
    int64_t unheard = wh_client_unheard_at(c);
    if (wh_unlikely(unheard != INT64_MAX) && wh_clock_read(CLOCK_MONOTONIC) >= unheard)
        wh_client_report_unheard(c, wh_clock_read(CLOCK_MONOTONIC));
    else
        until = unheard < until ? unheard : until;
    if (wh_client_may_sleep(c) && !(heed && worker_is_marked(w)))
        polled = worker_await_bell(w, fds, until);
    if (polled == -2)
        return false;
    if (polled < 0 && errno != EINTR) {
        PyErr_SetFromErrno(PyExc_OSError);
        return false;
    }
    if (polled > 0 && !w->heard.lost && fds[1].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))
        w->heard.lost =
            connections == w->connections; /* another thread may already have opened a new one */
    return PyErr_CheckSignals() >= 0 && (worker_is_renewable(w) || worker_usable(w));
}
