/* What the cycle collector sees of operations that wait.
 *
 * They are not tracked; what they hold is traversed here. With very many of them that would be a
 * pause, and for nothing: a worker that has been called since the last full collection is still
 * referenced. So it is taken for alive then, as are all operations in it, without a traversal; a
 * dropped worker with so many operations is found by the second full collection.
 *
 * Invariant: whether they are traversed changes between collections only. Within one, what was not
 * subtracted must not be found reachable either, and the other way round. */

enum { MANY_WAIT = 10000 }; /* fewer operations are always visited */

static Watching *watchings; /* of this process; the gate guards them */

static void watching_enter(Watching *g)
{
    g->sibling = watchings;
    watchings = g;
}

/* Also for one that was never entered. */
static void watching_leave(Watching *g)
{
    for (Watching **at = &watchings; *at; at = &(*at)->sibling)
        if (*at == g) {
            *at = g->sibling;
            return;
        }
}

/* gc.callbacks: called before and after each collection. */
static PyObject *collection_noted(PyObject *self, PyObject *args)
{
    const char *phase;
    PyObject *info, *generation;
    (void)self;
    if (!PyArg_ParseTuple(args, "sO!", &phase, &PyDict_Type, &info))
        return NULL;
    generation = PyDict_GetItemString(info, "generation");
    if (strcmp(phase, "start") == 0 && generation && PyLong_Check(generation) &&
        PyLong_AsLong(generation) == 2) {
        Held held;
        lock_with_gate(&held, NULL);
        for (Watching *g = watchings; g; g = g->sibling) {
            uint64_t waiting = 0;
            for (PurgatoryObject *p = g->purgatories; p; p = p->sibling)
                waiting += p->delayed;
            g->spoken_for = g->touched && waiting >= MANY_WAIT;
            g->touched = false;
        }
        lock_end(&held);
    }
    Py_RETURN_NONE;
}

/* Register it, with the first purgatory. False: an error is set. */
static bool collections_heeded(void)
{
    static bool heeded;
    static PyMethodDef method = {"wheeld_collection_noted", collection_noted, METH_VARARGS, NULL};
    if (heeded)
        return true;
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *callbacks = gc ? PyObject_GetAttrString(gc, "callbacks") : NULL;
    PyObject *call = callbacks ? PyCFunction_New(&method, NULL) : NULL;
    heeded = call && PyList_Check(callbacks) && PyList_Append(callbacks, call) == 0;
    Py_XDECREF(call);
    Py_XDECREF(callbacks);
    Py_XDECREF(gc);
    return heeded || PyErr_Occurred() == NULL;
}

/* Waiting operations are not tracked (operation_enlist): what one holds is visited from here, if
 * only its keys hold it. If anything else does, it is taken to be as alive as that. */
static int watching_traverse_waiting(Watching *g, visitproc visit, void *arg)
{
    for (PurgatoryObject *p = g ? g->purgatories : NULL; p; p = p->sibling) {
        if (p->delayed)
            Py_VISIT(p); /* theirs, as one */
        for (OperationObject *op = p->first, *next; op; op = next) {
            next = op->next;
            wh_prefetch_write(next);
            if (Py_REFCNT(op) == op->links) {
                int stop = Py_TYPE(op)->tp_traverse((PyObject *)op, visit, arg);
                if (stop)
                    return stop;
            }
        }
    }
    return 0;
}

static int watching_traverse(Watching *g, visitproc visit, void *arg)
{
    if (g && g->spoken_for)
        return 0;
    int stop = watching_traverse_waiting(g, visit, arg);
    if (stop)
        return stop;
    for (size_t i = g ? g->due_first : 0; g && i < g->due_count; i++)
        Py_VISIT(g->due[i]);
    return 0;
}
