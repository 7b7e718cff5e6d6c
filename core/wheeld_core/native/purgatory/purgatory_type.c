/* The type of Purgatory: what Python sees of it. */

static bool purgatory_name_is_free(Watching *g, PyObject *name)
{
    for (PurgatoryObject *p = g->purgatories; p; p = p->sibling)
        if (!p->closed && PyUnicode_Compare(p->name, name) == 0) {
            raise_about(PyExc_ValueError, name,
                        "this worker already has a purgatory {}: share it, or shut it down");
            return false;
        }
    return true;
}

/* The worker's locks are held. */
static int purgatory_begin(PurgatoryObject *p, WorkerObject *w, PyObject *name, PyObject *submit)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (p->worker) {
        PyErr_SetString(PyExc_TypeError, "this purgatory is already initialised");
        return -1;
    }
    if (text == NULL || !worker_usable(w))
        return -1;
    Watching *g = watching_of(w);
    if (g == NULL || !purgatory_name_is_free(g, name) || gevent_is_loaded() < 0 ||
        !collections_heeded())
        return -1;
    p->worker = (WorkerObject *)Py_NewRef(w);
    p->name = Py_NewRef(name);
    p->submit = submit == Py_None ? NULL : Py_NewRef(submit);
    p->block = 1;
    purgatory_settle_in(p, g);
    return 0;
}

/* Purgatory(worker, name, submit) */
static int purgatory_init(PurgatoryObject *p, PyObject *args, PyObject *kwargs)
{
    PyObject *worker, *name, *submit;
    Held held;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!UO:Purgatory", worker_type, &worker, &name, &submit))
        return -1;
    worker_lock(&held, (WorkerObject *)worker);
    int begun = purgatory_begin(p, (WorkerObject *)worker, name, submit);
    lock_end(&held);
    return begun;
}

static int purgatory_traverse(PurgatoryObject *p, visitproc visit, void *arg)
{
    Py_VISIT(p->worker);
    Py_VISIT(p->submit);
    Py_VISIT(Py_TYPE(p));
    return 0;
}

/* AsyncPurgatory gives a method of its own as `submit`. */
static int purgatory_clear(PurgatoryObject *p)
{
    Py_CLEAR(p->submit);
    return 0;
}

static void purgatory_dealloc(PurgatoryObject *p)
{
    Held held;
    PyObject_GC_UnTrack(p);
    purgatory_lock(&held, p);
    purgatory_end_telling(p);
    if (p->worker && p->worker->watching)
        for (PurgatoryObject **at = &p->worker->watching->purgatories; *at; at = &(*at)->sibling)
            if (*at == p) {
                *at = p->sibling;
                break;
            }
    lock_end(&held);
    Py_CLEAR(p->worker);
    Py_CLEAR(p->name);
    Py_CLEAR(p->submit);
    PyTypeObject *type = Py_TYPE(p);
    type->tp_free(p);
    Py_DECREF(type);
}

/* Complete the operations of a walk, and return those that did wait as a list. */
static PyObject *walk_complete(Walk *walk)
{
    PyObject *left = PyList_New(0), *failed = NULL;
    for (size_t i = 0; left && i < walk->count; i++) {
        bool waits = walk->ops[i]->state == OP_WAITING;
        if (waits && PyList_Append(left, (PyObject *)walk->ops[i]) < 0)
            errors_keep(&failed);
        if (operation_complete(walk->ops[i], false) < 0)
            errors_keep(&failed);
    }
    if (errors_none(failed))
        return left;
    Py_XDECREF(left);
    return NULL;
}

/* _shutdown(complete) -> those that waited; they are completed or cancelled. */
static PyObject *purgatory_shutdown(PurgatoryObject *p, PyObject *complete)
{
    int completes = PyObject_IsTrue(complete);
    if (completes < 0)
        return NULL;
    if (p->closed || p->lost || p->worker == NULL || p->worker->watching == NULL ||
        worker_is_forked(p->worker)) {
        p->closed = true;
        return PyList_New(0);
    }
    p->closed = true;
    Walk walk;
    walk_begin(&walk);
    bool ok = true;
    for (OperationObject *op = p->first; ok && op; op = op->next)
        ok = walk_add(&walk, op);
    PyObject *left = !ok ? NULL : completes ? walk_complete(&walk) : walk_cancel(&walk);
    walk_end(&walk);
    purgatory_end_telling(p);
    return left;
}

static uint64_t purgatory_expired_lately(const PurgatoryObject *p)
{
    int64_t now = wh_clock_read(CLOCK_MONOTONIC_COARSE) / 1000000000;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < 64; i++)
        if (p->expired_second[i] > now - 60)
            sum += p->expired_in[i];
    return sum;
}

/* _numbers() -> counts, and the expirations of the last 60 seconds */
static PyObject *purgatory_numbers(PurgatoryObject *p, PyObject *unused)
{
    (void)unused;
#define N(name) #name, (unsigned long long)p->name
    return Py_BuildValue("{sK sK sK sK sK sK}", N(watched), N(delayed), N(completed), N(expired),
                         N(cancelled), "expired_lately",
                         (unsigned long long)purgatory_expired_lately(p));
#undef N
}

static PyObject *purgatory_get_watched(PurgatoryObject *p, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(p->watched);
}

static PyObject *purgatory_get_delayed(PurgatoryObject *p, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(p->delayed);
}

static PyObject *purgatory_get_name(PurgatoryObject *p, void *unused)
{
    (void)unused;
    return Py_NewRef(p->name ? p->name : Py_None);
}

static PyObject *purgatory_get_closed(PurgatoryObject *p, void *unused)
{
    (void)unused;
    return PyBool_FromLong(p->closed || p->lost);
}

static PyMethodDef purgatory_methods[] = {
    {"try_complete_else_watch", FAST(LOCKED(purgatory_watch)), METH_FASTCALL | METH_KEYWORDS,
     "try_complete_else_watch(op, keys)\n--\n\n"
     "Complete an operation now, or let it wait under all its keys until its timeout.\n\n"
     "Parameters\n----------\n"
     "op : DelayedOperation\n    A new one.\n"
     "keys : sequence of str, bytes, int, or flat tuples of those\n    At least one.\n\n"
     "Returns\n-------\nbool\n    True: this call completed it. False: it waits; or another caller has completed it,\n"
     "    perhaps before this call, and it is not watched.\n\n"
     "Raises\n------\nValueError\n    No keys; or it was watched before, here or elsewhere.\n"
     "TypeError\n    A key of another type.\n"
     "WheelFull\n    There is no slot for its timeout.\n"
     "Whatever `try_complete` raises\n    As with the other errors, the operation does not wait and can be used again.\n\n"
     "Notes\n-----\nCalls `op.try_complete()` twice if it is not ready: before and after it is watched. Any\n"
     "thread. Kafka's DelayedOperationPurgatory.tryCompleteElseWatch."},
    {"_take", FAST(LOCKED(purgatory_take_or_none)), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"check_and_complete", (PyCFunction)LOCKED(purgatory_check), METH_O,
     "check_and_complete(key)\n--\n\n"
     "Check all operations under the key, here and in the daemon's other workers.\n\n"
     "Returns\n-------\nint\n    How many this call completed; other workers complete theirs.\n\n"
     "Raises\n------\nTypeError\n    A key of another type.\n"
     "Whatever a `try_complete` raises\n    After all others were checked; several: ExceptionGroup.\n\n"
     "Notes\n-----\nMake the condition true first. Wait-free in shared memory; makes a system call only for\n"
     "workers that sleep and watch the key, or one with the same hash. Any thread."},
    {"check_and_complete_many", (PyCFunction)LOCKED(purgatory_check_many), METH_O,
     "check_and_complete_many(keys)\n--\n\n"
     "`check_and_complete` of many keys in one call: an operation under several is checked once,\n"
     "and another worker is woken once.\n\n"
     "Parameters\n----------\n"
     "keys : sequence of str, bytes, int, or flat tuples of those\n    May be empty.\n\n"
     "Returns\n-------\nint\n    How many this call completed; other workers complete theirs.\n\n"
     "Raises\n------\nTypeError\n    A key of another type; nothing was checked.\n"
     "Whatever a `try_complete` raises\n    As in `check_and_complete`."},
    {"cancel_for_key", (PyCFunction)LOCKED(purgatory_cancel_for_key), METH_O,
     "cancel_for_key(key)\n--\n\n"
     "Cancel this worker's operations under a key and remove them from all their keys.\n\n"
     "Returns\n-------\nlist of DelayedOperation\n    The cancelled operations; none of their callbacks runs."},
    {"_word", (PyCFunction)LOCKED(purgatory_word), METH_O, NULL},
    {"_grow", (PyCFunction)(void (*)(void))LOCKED(purgatory_grow), METH_FASTCALL, NULL},
    {"_forget", FAST(LOCKED(purgatory_forget)), METH_FASTCALL, NULL},
    {"_change", (PyCFunction)LOCKED(purgatory_change), METH_O, NULL},
    {"_done", (PyCFunction)LOCKED(purgatory_done), METH_VARARGS, NULL},
    {"_shutdown", (PyCFunction)LOCKED(purgatory_shutdown), METH_O, NULL},
    {"_renew", (PyCFunction)LOCKED(purgatory_renew), METH_NOARGS, NULL},
    {"_numbers", (PyCFunction)LOCKED(purgatory_numbers), METH_NOARGS, NULL},
    {NULL}};

static PyGetSetDef purgatory_getset[] = {
    {"name", (getter)purgatory_get_name, NULL, "The kind of request that waits here.", NULL},
    {"watched", (getter)LOCKED(purgatory_get_watched), NULL,
     "Waiting operations, each counted once per key; one under three keys counts three times.",
     NULL},
    {"num_delayed", (getter)LOCKED(purgatory_get_delayed), NULL, "Operations that wait.", NULL},
    {"_closed", (getter)LOCKED(purgatory_get_closed), NULL, NULL, NULL},
    {NULL}};

static PyMemberDef purgatory_members[] = {
    {"_block", T_BOOL, offsetof(PurgatoryObject, block), 0, NULL},
    {"_tells", T_BOOL, offsetof(PurgatoryObject, tells), 0, NULL},
    {"_thread", T_ULONG, offsetof(PurgatoryObject, thread), 0, NULL},
    {NULL}};

static PyType_Slot purgatory_slots[] = {{Py_tp_new, PyType_GenericNew},
                                        {Py_tp_init, purgatory_init},
                                        {Py_tp_dealloc, purgatory_dealloc},
                                        {Py_tp_traverse, purgatory_traverse},
                                        {Py_tp_clear, purgatory_clear},
                                        {Py_tp_methods, purgatory_methods},
                                        {Py_tp_getset, purgatory_getset},
                                        {Py_tp_members, purgatory_members},
                                        {Py_tp_doc, "The native half of wheeld_client.Purgatory."},
                                        {0, NULL}};
static PyType_Spec purgatory_spec = {"wheeld_core._native.Purgatory", sizeof(PurgatoryObject), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                     purgatory_slots};
