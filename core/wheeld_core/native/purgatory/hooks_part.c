/* Hooks: on_complete and on_expiration of operations that are over; each runs once, whatever is
 * raised.
 *
 * Invariants
 *  1. `settled` is set before the first hook is called. Whoever finds it set calls none: an
 *     executor that ran them and raised all the same, one that runs them after it refused.
 *  2. What is completed by a hook is queued in the line of the thread that runs the hook, and its
 *     own hooks run after the outermost has returned, in the order of completion. So no chain of
 *     completions is too long for the stack. What any of them raises is raised when the line is
 *     empty.
 *  3. A line is left to whoever made it: under gevent each greenlet has its own, and in a forked
 *     child its contents are the parent's. */

typedef struct HookLine {
    /* another greenlet's of this thread, which waits inside a hook */
    struct HookLine *other;
    PyObject *greenlet;    /* strong; NULL: there are none */
    OperationObject **ops; /* strong */
    size_t first, count, size;
} HookLine;

/* Reached without a call, as each completion checks it. */
#define HOOKS_OF_THREAD static _Thread_local __attribute__((tls_model("initial-exec")))
HOOKS_OF_THREAD HookLine *hook_lines;
HOOKS_OF_THREAD HookLine first_hook_line; /* the first takes no allocation */

/* What tells this greenlet from others of its thread: a new reference; NULL: there are none. */
static PyObject *greenlet_current(void)
{
    if (wh_likely(!wh_load_relaxed(&gevent_was_seen)))
        return NULL;
    PyObject *module = PyImport_GetModule(name_greenlet);
    PyObject *current = module ? PyObject_CallMethodNoArgs(module, name_getcurrent) : NULL;
    Py_XDECREF(module);
    if (current == NULL)
        PyErr_Clear();
    return current;
}

/* The line of the hook that runs here; NULL: none. */
static HookLine *hook_line_of(PyObject *greenlet)
{
    HookLine *line = hook_lines;
    while (line && line->greenlet != greenlet)
        line = line->other;
    return line;
}

/* Takes over the reference. NULL: no memory. */
static HookLine *hook_line_begin(PyObject *greenlet)
{
    HookLine *line = hook_lines ? calloc(1, sizeof *line) : &first_hook_line;
    if (line == NULL) {
        Py_XDECREF(greenlet);
        return NULL;
    }
    *line = (HookLine){.other = hook_lines, .greenlet = greenlet};
    hook_lines = line;
    return line;
}

static void hook_line_end(HookLine *line)
{
    HookLine **at = &hook_lines;
    while (*at != line)
        at = &(*at)->other;
    *at = line->other;
    PyObject *greenlet = line->greenlet;
    if (wh_unlikely(line->ops != NULL))
        free(line->ops);
    if (line != &first_hook_line)
        free(line);
    Py_XDECREF(greenlet);
}

static bool hook_line_append(HookLine *line, OperationObject *op)
{
    if (line->count == line->size) {
        size_t size = 2 * line->size + 8;
        OperationObject **more = realloc(line->ops, size * sizeof *more);
        if (more == NULL)
            return false;
        line->ops = more;
        line->size = size;
    }
    line->ops[line->count++] = (OperationObject *)Py_NewRef(op);
    return true;
}

/* The next in line, a reference; NULL: there is none. */
static OperationObject *hook_line_take(HookLine *line)
{
    if (line->first == line->count)
        return NULL;
    OperationObject *op = line->ops[line->first++];
    if (line->first == line->count)
        line->first = line->count = 0; /* a long chain takes no more room than a short one */
    return op;
}

/* Hand the error that is set to the purgatory's handler (`p` NULL: to the operation's own). What
 * that raises, and what is no Exception (KeyboardInterrupt), stays set. */
static bool operation_report(PurgatoryObject *p, OperationObject *op)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return false;
    PyObject *error = error_take(), *handler = p ? (PyObject *)p : (PyObject *)op;
    PyObject *done = PyObject_CallMethodObjArgs(handler, name_report, op, error, NULL);
    Py_DECREF(error);
    Py_XDECREF(done);
    return done != NULL;
}

static void operation_call(OperationObject *op, PyObject *name, PyObject **failed)
{
    PyObject *done = PyObject_CallMethodNoArgs((PyObject *)op, name);
    Py_XDECREF(done);
    if (done == NULL && !operation_report(op->purgatory, op))
        errors_keep(failed);
}

/* Run the hooks of an operation that is over. False: an error is set that no handler took. */
static bool operation_settle(OperationObject *op)
{
    PyObject *failed = NULL;
    if (op->settled)
        return true;
    op->settled = true;
    operation_call(op, name_on_complete, &failed);
    if (op->expired)
        operation_call(op, name_on_expiration, &failed);
    Py_CLEAR(op->purgatory);
    op->spilled = failed != NULL;
    return errors_none(failed);
}

/* In the thread of the purgatory's event loop: whoever awaits it goes on when its hooks have
 * run. */
static bool operation_settle_in_loop(OperationObject *op)
{
    PurgatoryObject *p = (PurgatoryObject *)Py_NewRef(op->purgatory);
    PyObject *failed = NULL;
    if (!operation_settle(op))
        errors_keep(&failed);
    PyObject *done = PyObject_CallMethodOneArg((PyObject *)p, name_wake, (PyObject *)op);
    Py_XDECREF(done);
    if (done == NULL)
        errors_keep(&failed);
    Py_DECREF(p);
    return errors_none(failed);
}

/* Run the hooks in the user's executor. */
static bool operation_hand_on(OperationObject *op)
{
    PurgatoryObject *p = op->purgatory;
    if (p == NULL || p->submit == NULL)
        return operation_settle(op);
    if (p->thread == PyThread_get_thread_ident())
        return operation_settle_in_loop(op);
    PyObject *settle = PyObject_GetAttr((PyObject *)op, name_settle), *failed = NULL;
    Py_INCREF(p); /* it may be settled, and freed, before the call returns */
    PyObject *done = settle ? PyObject_CallOneArg(p->submit, settle) : NULL;
    Py_XDECREF(settle);
    Py_XDECREF(done);
    /* An error of the hooks was passed to the handler before. Any other is the executor's own, such
     * as one that was shut down: if the hooks have not run they run here, rather than never. */
    if (done == NULL && (op->spilled || !operation_report(p, op)))
        errors_keep(&failed);
    if (done == NULL && !operation_settle(op))
        errors_keep(&failed);
    Py_DECREF(p);
    return errors_none(failed);
}

/* Is it in a line that a fork has copied? The parent process runs it. */
static bool operation_was_forked(const OperationObject *op)
{
    const PurgatoryObject *p = op->purgatory;
    return p && (worker_is_forked(p->worker) || p->forks != p->worker->forks);
}

/* Run an operation's hooks, and then those of all that they complete; or, in a hook, have it wait
 * for its turn. False: an error is set. */
static inline bool operation_take_turn(OperationObject *op, bool (*run)(OperationObject *))
{
    PyObject *failed = NULL, *greenlet = greenlet_current();
    HookLine *line = hook_line_of(greenlet);
    if (line && hook_line_append(line, op)) {
        Py_XDECREF(greenlet);
        return true;
    }
    line = hook_line_begin(greenlet);
    if (!run(op))
        errors_keep(&failed);
    for (OperationObject *next; line && (next = hook_line_take(line)) != NULL; Py_DECREF(next))
        if (!operation_was_forked(next) && !operation_hand_on(next))
            errors_keep(&failed);
    if (line)
        hook_line_end(line);
    return errors_none(failed);
}

/* Handle an operation that has just ended. False: an error is set. */
static bool operation_run_hooks(OperationObject *op)
{
    return operation_take_turn(op, operation_hand_on);
}

/* _settle(): what an executor is given. In one that runs it at once we are in line already. */
static PyObject *operation_settle_method(OperationObject *op, PyObject *unused)
{
    (void)unused;
    PyObject *greenlet = greenlet_current();
    bool inside = hook_line_of(greenlet) != NULL;
    Py_XDECREF(greenlet);
    bool ok = inside ? operation_settle(op) : operation_take_turn(op, operation_settle);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}
