/* May a call go on? What every call of a worker asks before it touches anything shared.
 *
 * The GIL keeps other threads out of a call; where a call waits, or runs code of the user, it lets the
 * GIL go. Meanwhile another thread may have closed this client, and what it held may be others': so
 * whoever comes back asks worker_still_usable() before it touches anything shared, and if the answer
 * is no leaves all of it alone. What it had taken is then the supervisor's to clear up.
 */

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
