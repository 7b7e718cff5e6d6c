/* May a call go on? What every call of a worker asks before it touches anything shared.
 *
 * The GIL keeps other threads out of a call, or the locks that stand in for it
 * (shared/locked_part.c); where a call waits, or runs code of the user, it lets them go. Meanwhile
 * another thread may have closed this client, and what it held may be others': so whoever comes
 * back asks worker_still_usable() before it touches anything shared, and if the answer is no leaves
 * all of it alone. The supervisor then clears up what it had taken.
 */

/* One load that a call needs anyway, and two of lines that are hardly ever written. */
static inline bool worker_is_open(WorkerObject *w)
{
    return wh_likely(*w->page == OPEN && wh_client_has_row(&w->client) &&
                     /* pairs: daemon-state */
                     wh_load_acquire(&w->client.wheel->daemon_state) == 1);
}

/* Set the error that says why a call may not continue. */
static void worker_explain(WorkerObject *w)
{
    if (worker_is_closed(w))
        PyErr_SetString(errors.client_closed, "this client is closed; connect() again");
    else if (worker_is_forked(w))
        PyErr_SetString(errors.forked_client,
                        "this client belongs to the parent process; connect() in the child, or "
                        "have it done with connect(..., after_fork=\"reconnect\")");
    else if (w->life == UNBOUND && !w->renews)
        PyErr_SetString(errors.client_closed, "this client was never connected");
    else if (w->life == ENDED && w->ended)
        PyErr_SetObject(errors.daemon_not_running, w->ended);
    else if (w->life == OPEN && /* pairs: daemon-state */
             wh_load_acquire(&w->client.wheel->daemon_state) == 1)
        PyErr_SetString(
            errors.daemon_not_running,
            w->client.fds_lost
                ? "the descriptors of this client were closed by other code "
                  "(os.closerange, or a library that daemonizes this process); "
                  "close() it, and connect() again after that"
                : "the daemon no longer serves this worker: its connection was "
                  "closed, but not by close() (os.closerange, or a library that "
                  "daemonizes this process?), or it was taken for dead; close() it, and "
                  "connect() again after that");
    else
        PyErr_SetString(errors.daemon_not_running,
                        w->renews
                            ? "the wheeld daemon was stopped; this client waits for the next one"
                            : "the wheeld daemon has stopped");
}

/* Has this wheel ended, with the next one awaited? */
static bool worker_is_renewable(const WorkerObject *w)
{
    if (!w->renews || worker_is_closed(w) || worker_is_forked(w))
        return false;
    return w->life != OPEN ||
           wh_load_acquire(&w->client.wheel->daemon_state) == 2; /* pairs: daemon-state */
}

static int worker_renew(WorkerObject *w, int64_t until); /* in renew_part.c */

/* The rare cases. 1: it may go on, a forked child's client that is connected now as a worker of its
 * own, or one that is connected to the next daemon; 0: `until` is over, and there is no next daemon
 * yet; -1: an error is set. */
static wh_seldom int worker_ready(WorkerObject *w, int64_t until)
{
    if (!worker_is_closed(w) && w->refork && worker_is_forked(w)) {
        PyObject *done = PyObject_CallMethod((PyObject *)w, "_refork", NULL);
        if (done == NULL)
            return -1;
        Py_DECREF(done);
    }
    if (worker_is_open(w))
        return 1;
    if (worker_is_renewable(w))
        return worker_renew(w, until);
    worker_explain(w);
    return -1;
}

static wh_seldom bool worker_refuse(WorkerObject *w, bool wait)
{
    int ready = worker_ready(w, wait ? INT64_MAX : 0);
    if (ready == 0)
        worker_explain(w);
    return ready > 0;
}

/* May this call begin? Asked once its arguments are read: to read them may run code of the user.
 * `wait`: it may wait for the next daemon. */
static inline bool worker_may_begin(WorkerObject *w, bool wait)
{
    return worker_is_open(w) || worker_refuse(w, wait);
}

static inline bool worker_usable(WorkerObject *w) { return worker_may_begin(w, false); }

/* May a call that has waited, and holds slots, continue? */
static bool worker_still_usable(WorkerObject *w)
{
    if (worker_is_open(w))
        return true;
    worker_explain(w);
    return false;
}
