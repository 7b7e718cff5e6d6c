/* Purgatory: Kafka's DelayedOperationPurgatory in C: watch under keys, check by key, expire.
 *
 * User code (try_complete, callbacks) never runs while a key's list is being walked: a walk first
 * takes references to the operations that are there, then checks each by itself. An operation that
 * is watched during a walk is checked by its own caller after it was linked. */

enum { FEW_KEYS = 8 }; /* keys of an operation that need no allocation */
enum { FEW = 32 }; /* operations of a walk that need no allocation */
enum { OVER_BEFORE = 2 }; /* another completed it before it was watched, and nothing was done */

typedef struct {
    OperationObject **ops; /* strong */
    size_t count, size;
    OperationObject *few[FEW];
} Walk;

/* `few` is left as it is: it is large for a call that finds nothing. */
static void walk_begin(Walk *walk)
{
    walk->ops = walk->few;
    walk->count = 0;
    walk->size = FEW;
}

static bool walk_add(Walk *walk, OperationObject *op)
{
    if (walk->count == walk->size) {
        OperationObject **more = malloc(2 * walk->size * sizeof *more);
        if (more == NULL) {
            PyErr_NoMemory();
            return false;
        }
        memcpy(more, walk->ops, walk->count * sizeof *more);
        if (walk->ops != walk->few)
            free(walk->ops);
        walk->ops = more;
        walk->size *= 2;
    }
    walk->ops[walk->count++] = (OperationObject *)Py_NewRef(op);
    return true;
}

static void walk_end(Walk *walk)
{
    for (size_t i = 0; i < walk->count; i++)
        Py_DECREF(walk->ops[i]);
    if (walk->ops != walk->few)
        free(walk->ops);
}

/* May this call begin? The worker must be open, and the purgatory this process's. */
static inline bool purgatory_usable(PurgatoryObject *p)
{
    if (wh_unlikely(p->worker == NULL)) {
        PyErr_SetString(PyExc_RuntimeError, "Purgatory.__init__ was not called");
        return false;
    }
    if (wh_unlikely(worker_is_closed(p->worker))) {
        worker_explain(p->worker);
        return false;
    }
    if (!p->lost && !worker_is_forked(p->worker) && !worker_usable(p->worker))
        return false;
    /* one that was shut down before its worker's wheel ended was left there: that is no fork */
    if (wh_unlikely((p->lost && !p->closed) || worker_is_forked(p->worker))) {
        PyErr_Format(errors.forked_client,
                     "purgatory %R belongs to the parent process; make one in the child", p->name);
        return false;
    }
    if (wh_likely(!p->closed)) {
        if (p->worker->watching)
            p->worker->watching->touched = true;
        return true;
    }
    PyErr_Format(errors.client_closed, "purgatory %R was shut down", p->name);
    return false;
}

/* Has the daemon not come back for so long that nothing new may wait for it? An error is set then.
 * A clock of another epoch is back, though we may not be connected yet. */
static bool purgatory_is_forsaken(const PurgatoryObject *p)
{
    const WorkerObject *w = p->worker;
    if (wh_likely(!w->given_up) || w->given_up != wh_load_relaxed(&w->client.wheel->epoch) + 1)
        return false;
    PyErr_Format(
        errors.daemon_not_running,
        "purgatory %R takes no operation: the wheeld daemon is gone and has not come back; "
        "`wheeld start` continues it",
        p->name);
    return true;
}

/* -- watch ------------------------------------------------------------------------------------- */

static void keys_drop(ParsedKey *keys, const ParsedKey *few, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        Py_DECREF(keys[i].key);
    if (keys != few)
        PyMem_Free(keys);
}

/* Check all keys before anything is done. NULL: an error is set. `few` has room for FEW_KEYS. */
static ParsedKey *keys_parse(PurgatoryObject *p, PyObject *given, ParsedKey *few, Py_ssize_t least,
                             Py_ssize_t *count)
{
    if (PyUnicode_Check(given) || PyBytes_Check(given))
        return raise_about(PyExc_TypeError, given,
                           "keys: got the single key {}, expected a list of keys"),
               NULL;
    PyObject *fast = PySequence_Tuple(given); /* a key's own code may change the list meanwhile */
    if (fast == NULL)
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(fast), done = 0;
    ParsedKey *keys = n < least       ? NULL
                      : n <= FEW_KEYS ? few
                                      : PyMem_Malloc((size_t)n * sizeof *keys);
    if (n < least)
        PyErr_SetString(PyExc_ValueError, "keys: got none, expected at least one key to watch");
    else if (keys == NULL)
        PyErr_NoMemory();
    while (keys && done < n && key_parse(PyTuple_GET_ITEM(fast, done), p->seed, &keys[done]))
        done++;
    Py_DECREF(fast);
    *count = n;
    if (keys == NULL || done == n)
        return keys;
    keys_drop(keys, few, done);
    return NULL;
}

/* 1: it may be watched; 0: it is completed, by another, before or after it was watched by whomever;
 * -1: an error is set. */
static int operation_is_new(PyObject *object)
{
    OperationObject *op = (OperationObject *)object;
    static const char *const where[] = {"", "", "already waits in a purgatory", "",
                                        "was cancelled"};
    if (op->state == OP_UNMADE)
        operation_explain_unmade(op);
    else if (op->state == OP_COMPLETED)
        return 0;
    else if (op->state != OP_NEW)
        raise_about(PyExc_ValueError, (PyObject *)op,
                    "{} %s: an operation can be watched only once", where[op->state]);
    else if (op->busy)
        raise_about(PyExc_ValueError, (PyObject *)op,
                    "{} is just being watched: an operation can be watched only once");
    else
        return 1;
    return -1;
}

/* It is not watched after all, as if it never had been; an error is set, and stays. */
static void operation_take_back(PurgatoryObject *p, OperationObject *op)
{
    PyObject *error = error_take();
    if (op->state == OP_WAITING) {
        operation_leave(op, OP_CANCELLED);
        op->state = OP_NEW;
    }
    if (op->state == OP_NEW) {
        operation_unlink(p, op); /* some may be linked, if a watch failed */
        purgatory_tell_size(p);
        Py_CLEAR(op->purgatory);
        if (op->watches != op->few)
            free(op->watches);
        memset(op->few, 0, sizeof op->few);
        op->watches = NULL;
        op->watch_count = 0;
    }
    error_raise(error);
}

static bool operation_watch(PurgatoryObject *p, OperationObject *op, const ParsedKey *keys,
                            Py_ssize_t count)
{
    op->watches = count <= FEW_WATCHES ? op->few : calloc((size_t)count, sizeof *op->watches);
    bool ok = op->watches != NULL;
    if (ok)
        op->watch_count = (uint32_t)count;
    for (Py_ssize_t i = 0; ok && i < count; i++)
        ok = watch_link(p, op, &op->watches[i], &keys[i]);
    if (ok)
        operation_enlist(p, op);
    else
        PyErr_NoMemory();
    purgatory_tell_size(p);
    return ok;
}

/* Start the timeout of an operation that waits. False: an error is set. */
static bool operation_arm(PurgatoryObject *p, OperationObject *op)
{
    WorkerObject *w = p->worker;
    if (op->timeout < 0)
        return true;
    if (!worker_still_usable(w))
        return false;
    Watching *g = w->watching;
    watching_shed(w);
    uint32_t place = timed_take(g);
    if (place == WH_NIL) {
        PyErr_NoMemory();
        return false;
    }
    int64_t now = wh_client_now(&w->client);
    wh_request r = {.deadline = wh_time_add(now, wh_delay_ns(op->timeout)),
                    .cookie = place,
                    .flags = WH_PRIVATE,
                    .interval = wh_once_from(now)};
    /* may let other threads run before it arms */
    uint64_t id = worker_arm_timer(w, &r, r.deadline, p->block);
    if (w->watching != g)
        return id != 0; /* closed meanwhile, and the operation was returned */
    if (id == 0) {
        timed_give(g, place);
        if (!operation_over(op) || !PyErr_ExceptionMatches(errors.wheel_error))
            return false;
        PyErr_Clear(); /* it needs no timer any more */
        return true;
    }
    g->timed[place] = (Timed){.id = id, .op = op};
    g->first_deadline = r.deadline < g->first_deadline ? r.deadline : g->first_deadline;
    op->place = place;
    if (operation_over(op))
        operation_drop_timer(p, op);
    return true;
}

/* Watch it, and call try_complete once more. 1: this call completed it; 0: not; -1: error. */
static int operation_wait(PurgatoryObject *p, OperationObject *op, const ParsedKey *keys,
                          Py_ssize_t count)
{
    int answer = operation_ask(op);
    if (answer != 0 || operation_over(op))
        return answer;
    if (!purgatory_usable(p)) /* try_complete may have closed it */
        return -1;
    if (!operation_watch(p, op, keys, count))
        return -1;
    return operation_ask_for_all(op);
}

/* 1: this call completed it; 0: it waits, or was completed by another; OVER_BEFORE; -1: error. */
static int purgatory_take(PurgatoryObject *p, PyObject *object, PyObject *given)
{
    Py_ssize_t count;
    ParsedKey few[FEW_KEYS];
    if (!PyObject_TypeCheck(object, operation_type)) {
        PyErr_Format(PyExc_TypeError, "op: got %s, expected a DelayedOperation",
                     Py_TYPE(object)->tp_name);
        return -1;
    }
    ParsedKey *keys = keys_parse(p, given, few, 1, &count);
    if (keys == NULL)
        return -1;
    bool usable = purgatory_usable(p) && !purgatory_is_forsaken(p); /* after the keys' own code */
    int fresh = usable ? operation_is_new(object) : -1;
    if (fresh <= 0) {
        keys_drop(keys, few, count);
        return fresh < 0 ? -1 : OVER_BEFORE;
    }
    OperationObject *op = (OperationObject *)Py_NewRef(object);
    op->purgatory = (PurgatoryObject *)Py_NewRef(p);
    op->busy = PyThread_get_thread_ident();
    int answer = operation_wait(p, op, keys, count);
    op->busy = 0;
    keys_drop(keys, few, count);
    if (answer >= 0 && op->state == OP_WAITING && !operation_arm(p, op))
        answer = -1;
    if (answer < 0)
        operation_take_back(p, op);
    Py_DECREF(op);
    return answer;
}

/* What both calls below take. */
static int purgatory_take_arguments(PurgatoryObject *p, PyObject *const *args, Py_ssize_t n,
                                    PyObject *kwnames)
{
    static const char *const names[] = {"op", "keys", NULL};
    PyObject *values[2] = {0};
    if (!parse_keywords("try_complete_else_watch", names, 2, args, n, kwnames, values))
        return -1;
    if (values[0] && values[1])
        return purgatory_take(p, values[0], values[1]);
    PyErr_Format(PyExc_TypeError, "try_complete_else_watch() needs op and keys");
    return -1;
}

/* try_complete_else_watch(op, keys) */
static PyObject *purgatory_watch(PurgatoryObject *p, PyObject *const *args, Py_ssize_t n,
                                 PyObject *kwnames)
{
    int answer = purgatory_take_arguments(p, args, n, kwnames);
    return answer < 0 ? NULL : PyBool_FromLong(answer == 1);
}

/* _take(op, keys): the same, but None when it was completed before: its hooks are not this
 * purgatory's */
static PyObject *purgatory_take_or_none(PurgatoryObject *p, PyObject *const *args, Py_ssize_t n,
                                        PyObject *kwnames)
{
    int answer = purgatory_take_arguments(p, args, n, kwnames);
    if (answer == OVER_BEFORE)
        Py_RETURN_NONE;
    return answer < 0 ? NULL : PyBool_FromLong(answer);
}
