/* The type of Purgatory; purge mode; and what a worker does for its purgatories between polls. */

/* Unlink what is over from all keys of the purgatory: the seeds' purge. */
static void purgatory_purge(PurgatoryObject *p)
{
    Watching *g = p->worker->watching;
    Walk over; /* what their destructors run comes after all lists are whole again */
    bool ok = true;
    walk_begin(&over);
    p->estimated = p->delayed;
    p->purges++;
    for (uint64_t i = 0; i < g->table.size; i++)
        for (KeyEntry *entry = g->table.heads[i], *chain; ok && entry; entry = chain) {
            chain = entry->chain;
            uint64_t rest = entry->purgatory == p ? entry->count : 0;
            for (Watch *watch = entry->first, *next; ok && rest; rest--, watch = next) {
                next = watch->next;
                if (operation_over(watch->op) && (ok = walk_add(&over, watch->op)))
                    Py_DECREF(watch_unlink(p->worker, watch));
            }
        }
    if (!ok)
        PyErr_Clear(); /* no memory: the next purge goes on */
    walk_end(&over);
}

static void purgatories_purge(Watching *g)
{
    for (PurgatoryObject *p = g->purgatories; p; p = p->sibling)
        if (p->purge_interval && p->estimated > p->delayed &&
            p->estimated - p->delayed > p->purge_interval)
            purgatory_purge(p);
}

/* Expire what _take_due() put aside. */
static void watching_expire(WorkerObject *w, PyObject **fatal)
{
    for (Watching *g; (g = w->watching) && g->due_first < g->due_count;) {
        OperationObject *op = g->due[g->due_first++];
        if (operation_complete(op, true) < 0)
            errors_keep(fatal);
        Py_DECREF(op);
    }
}

/* All that waits under keys of a bucket. */
static bool walk_bucket(Walk *walk, Watching *g, uint32_t bucket)
{
    bool ok = true;
    for (uint64_t i = bucket; ok && i < g->table.size; i += WH_BUCKETS)
        for (KeyEntry *entry = g->table.heads[i]; ok && entry; entry = entry->chain)
            for (Watch *watch = entry->first; ok && watch; watch = watch->next)
                if (!operation_over(watch->op))
                    ok = walk_add(walk, watch->op);
    return ok;
}

/* Look at what other workers checked. */
static void watching_answer(WorkerObject *w, PyObject **fatal)
{
    if (w->watching == NULL || !watching_has_row(w) || !wh_watch_drain(&w->watching->watch))
        return;
    for (uint32_t i = 0; watching_has_row(w) && i < WH_BUCKETS / 64; i++) {
        Walk walk;
        walk_begin(&walk);
        for (uint64_t marks = wh_watch_take(&w->watching->watch, i); marks; marks &= marks - 1)
            if (!walk_bucket(&walk, w->watching, 64 * i + (uint32_t)__builtin_ctzll(marks)))
                errors_keep(fatal);
        walk_try(&walk, NULL, fatal);
        walk_end(&walk);
    }
}

/* _settle(): expire, and complete what other workers triggered; purge where that is a mode. */
static PyObject *worker_settle(WorkerObject *w, PyObject *unused)
{
    PyObject *fatal = NULL;
    (void)unused;
    if (!w->watching || worker_is_forked(w))
        Py_RETURN_NONE;
    watching_expire(w, &fatal);
    watching_answer(w, &fatal);
    if (w->watching) {
        watching_shed(w);
        purgatories_purge(w->watching);
    }
    if (w->notify_always && watching_has_row(w) &&
        wh_watch_ready(&w->watching->watch))
        worker_ring(w);
    if (!errors_none(fatal))
        return NULL;
    Py_RETURN_NONE;
}

/* Is there more for _settle() than a poll will tell? */
static PyObject *worker_get_unsettled(WorkerObject *w, void *unused)
{
    (void)unused;
    return PyBool_FromLong(w->watching && w->watching->due_first < w->watching->due_count);
}

/* Drop every link and list, without a word to shared memory: see watching_drop. */
static void watching_release_operations(Watching *g)
{
    Walk all; /* destructors come after nothing is linked any more */
    walk_begin(&all);
    for (PurgatoryObject *p = g->purgatories; p; p = p->sibling)
        p->lost = true;
    for (uint64_t i = 0; g->table.heads && i < g->table.size; i++)
        for (KeyEntry *entry; (entry = g->table.heads[i]) != NULL;) {
            OperationObject *op = entry->first->op;
            PurgatoryObject *p = entry->purgatory;
            entry_unlink(entry->first);
            p->watched--;
            if (op->state == OP_WAITING) {
                operation_delist(p, op);
                op->state = OP_CANCELLED;
                op->place = WH_NIL;
            }
            if (entry->count == 0)
                table_remove(&g->table, entry);
            if (walk_add(&all, op))
                Py_DECREF(op);
            else
                PyErr_Clear(); /* no memory: it is never freed */
        }
    walk_end(&all);
    while (g->due_first < g->due_count)
        Py_DECREF(g->due[g->due_first++]);
}

/* How many references its keys hold. */
static Py_ssize_t operation_links(const OperationObject *op)
{
    Py_ssize_t links = 0;
    for (uint32_t i = 0; i < op->watch_count; i++)
        links += op->watches[i].entry != NULL;
    return links;
}

/* Those that wait are not tracked (operation_enlist): what one holds is visited from here, if nobody but
 * its keys holds it. If somebody does, it is as alive as that somebody, as far as one can see. */
static int watching_traverse_waiting(Watching *g, visitproc visit, void *arg)
{
    for (PurgatoryObject *p = g ? g->purgatories : NULL; p; p = p->sibling) {
        if (p->delayed)
            Py_VISIT(p); /* theirs, as one */
        for (OperationObject *op = p->first; op; op = op->next)
            if (Py_REFCNT(op) == operation_links(op)) {
                int stop = Py_TYPE(op)->tp_traverse((PyObject *)op, visit, arg);
                if (stop)
                    return stop;
            }
    }
    return 0;
}

static int watching_traverse(Watching *g, visitproc visit, void *arg)
{
    int stop = watching_traverse_waiting(g, visit, arg);
    if (stop)
        return stop;
    for (uint64_t i = 0; g && i < g->table.size && g->table.entries; i++)
        for (KeyEntry *entry = g->table.heads[i]; entry; entry = entry->chain)
            for (Watch *watch = entry->first; watch; watch = watch->next)
                if (watch->op->state != OP_WAITING)
                    Py_VISIT(watch->op);
    for (size_t i = g ? g->due_first : 0; g && i < g->due_count; i++)
        Py_VISIT(g->due[i]);
    return 0;
}

/* -- the type --------------------------------------------------------------------------------------- */

static bool purgatory_name_is_free(Watching *g, PyObject *name)
{
    for (PurgatoryObject *p = g->purgatories; p; p = p->sibling)
        if (!p->closed && PyUnicode_Compare(p->name, name) == 0) {
            PyErr_Format(PyExc_ValueError,
                         "this worker has a purgatory %R already: share it, or shut it down", name);
            return false;
        }
    return true;
}

/* Purgatory(worker, name, submit, purge_interval) */
static int purgatory_init(PurgatoryObject *p, PyObject *args, PyObject *kwargs)
{
    PyObject *worker, *name, *submit;
    unsigned long long interval;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(args, "O!UOK:Purgatory", worker_type, &worker, &name, &submit, &interval))
        return -1;
    (void)kwargs;
    WorkerObject *w = (WorkerObject *)worker;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (p->worker) {
        PyErr_SetString(PyExc_TypeError, "a purgatory is made once");
        return -1;
    }
    if (text == NULL || !worker_usable(w))
        return -1;
    Watching *g = watching_of(w);
    if (g == NULL || !purgatory_name_is_free(g, name))
        return -1;
    p->worker = (WorkerObject *)Py_NewRef(w);
    p->name = Py_NewRef(name);
    p->submit = submit == Py_None ? NULL : Py_NewRef(submit);
    p->purge_interval = interval;
    p->block = 1;
    purgatory_settle_in(p, g);
    return 0;
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
    PyObject_GC_UnTrack(p);
    if (p->worker && p->worker->watching)
        for (PurgatoryObject **at = &p->worker->watching->purgatories; *at; at = &(*at)->sibling)
            if (*at == p) {
                *at = p->sibling;
                break;
            }
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
    if (p->purge_interval && p->worker->watching)
        purgatory_purge(p);
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
    return Py_BuildValue("{sK sK sK sK sK sK sK sK}", N(watched), N(delayed), N(completed), N(expired),
                         N(cancelled), N(purges), "estimated",
                         (unsigned long long)(p->purge_interval ? p->estimated : p->delayed),
                         "expired_lately", (unsigned long long)purgatory_expired_lately(p));
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
    {"try_complete_else_watch", FAST(purgatory_watch), METH_FASTCALL | METH_KEYWORDS,
     "try_complete_else_watch(op, keys)\n--\n\n"
     "Complete an operation now, or have it wait under all its keys and for its timeout.\n\n"
     "Parameters\n----------\n"
     "op : DelayedOperation\n    A new one.\n"
     "keys : sequence of str, bytes, int, or flat tuples of those\n    At least one.\n\n"
     "Returns\n-------\nbool\n    True: this call completed it. False: it waits; or another has completed it, perhaps\n"
     "    before this call, and it is not watched.\n\n"
     "Raises\n------\nValueError\n    No keys; or it was watched before, here or elsewhere.\n"
     "TypeError\n    A key of another type.\n"
     "WheelFull\n    There is no slot for its timeout.\n"
     "Whatever `try_complete` raises\n    As after the others the operation does not wait, and is new.\n\n"
     "Notes\n-----\nAsks `op.try_complete()` twice if it is not ready: before and after it is watched. Any\n"
     "thread. Kafka's DelayedOperationPurgatory.tryCompleteElseWatch."},
    {"_take", FAST(purgatory_take_or_none), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"check_and_complete", (PyCFunction)purgatory_check, METH_O,
     "check_and_complete(key)\n--\n\n"
     "Have all operations under the key looked at, here and in the daemon's other workers.\n\n"
     "Returns\n-------\nint\n    How many this call completed; other workers complete theirs.\n\n"
     "Raises\n------\nTypeError\n    A key of another type.\n"
     "Whatever a `try_complete` raises\n    After all others were looked at; several: ExceptionGroup.\n\n"
     "Notes\n-----\nMake the condition true first. In shared memory wait-free; a system call only for\n"
     "workers that sleep and watch the key, or one with the same hash. Any thread."},
    {"cancel_for_key", (PyCFunction)purgatory_cancel_for_key, METH_O,
     "cancel_for_key(key)\n--\n\n"
     "Take this worker's operations under a key out of everything.\n\n"
     "Returns\n-------\nlist of DelayedOperation\n    They are cancelled: no callback of theirs runs."},
    {"_shutdown", (PyCFunction)purgatory_shutdown, METH_O, NULL},
    {"_renew", (PyCFunction)purgatory_renew, METH_NOARGS, NULL},
    {"_numbers", (PyCFunction)purgatory_numbers, METH_NOARGS, NULL},
    {NULL}};

static PyGetSetDef purgatory_getset[] = {
    {"name", (getter)purgatory_get_name, NULL, "The kind of request that waits here.", NULL},
    {"watched", (getter)purgatory_get_watched, NULL,
     "Operations under keys; one under three keys counts three times.", NULL},
    {"num_delayed", (getter)purgatory_get_delayed, NULL, "Operations that wait.", NULL},
    {"_closed", (getter)purgatory_get_closed, NULL, NULL, NULL},
    {NULL}};

static PyMemberDef purgatory_members[] = {
    {"_block", T_BOOL, offsetof(PurgatoryObject, block), 0, NULL}, {NULL}};

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
