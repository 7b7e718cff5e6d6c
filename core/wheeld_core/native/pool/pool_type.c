/* The type of Pool: the hot calls, sensors, the method table. wheeld_client.MemoryPool is its
 * subclass. */

static PyObject *pool_try_allocate(PoolObject *p, PyObject *size)
{
    uint64_t n;
    if (!pool_parse_size(p, size, &n))
        return NULL;
    if (wh_likely(pool_take(p, n)))
        return pool_buffer_new(p, n);
    wh_count(&p->b.mine->refusals, 1);
    pool_dry(p, n);
    Py_RETURN_NONE;
}

static PyObject *pool_release(PoolObject *p, PyObject *object)
{
    PoolBufferObject *buffer = (PoolBufferObject *)object;
    if (wh_unlikely(!Py_IS_TYPE(object, pool_buffer_type)))
        return PyErr_Format(PyExc_TypeError, "expected a PoolBuffer: got %.200s",
                            Py_TYPE(object)->tp_name);
    if (wh_unlikely(buffer->pool != p) && (buffer->pool->worker != p->worker ||
                                           PyUnicode_Compare(buffer->pool->name, p->name) != 0)) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "this buffer is %s pool %R, not of this one",
                         buffer->pool->worker == p->worker ? "of" : "another worker's, of",
                         buffer->pool->name);
        return NULL;
    }
    if (!pool_buffer_release(buffer))
        return NULL;
    Py_RETURN_NONE;
}

/* -- sensors ----------------------------------------------------------------------------------- */

static uint64_t pool_used(const PoolObject *p) { return wh_budget_used(&p->b); }

static int64_t pool_available(const PoolObject *p) { return (int64_t)(p->size - pool_used(p)); }

/* ns in dry spells since the pool was made; *all: ns since then, at least 1. */
static int64_t pool_depleted(const PoolObject *p, int64_t *all)
{
    wh_pool *pool = p->b.pool;
    int64_t since = wh_load_seq(&pool->dry_since);               /* pairs: pool-dry */
    int64_t over = (int64_t)wh_load_acquire(&pool->dry_ns);      /* pairs: pool-dry */
    int64_t now = wh_clock_read(CLOCK_MONOTONIC);
    *all = wh_time_sub(now, pool->created);
    *all = *all > 1 ? *all : 1;
    int64_t lasts = since > 0 && since < now ? now - since : 0;
    over = over > 0 ? wh_time_add(over, lasts) : lasts;
    return over < *all ? over : *all;
}

static double pool_depleted_share(const PoolObject *p)
{
    int64_t all, dry = pool_depleted(p, &all);
    return 100.0 * (double)dry / (double)all;
}

/* For all workers, since the daemon started. */
static uint64_t pool_sum(const PoolObject *p, size_t counter)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->b.ledger_count; i++)
        sum += wh_load_relaxed((wh_au64 *)((char *)&p->b.ledgers[i] + counter));
    return sum;
}

enum sensor { USED, AVAILABLE, OUT_OF_MEMORY, OUTSTANDING, HAS_WAITERS, DEPLETED };

static PyObject *pool_sensor(PoolObject *p, void *which)
{
    if (!pool_usable(p))
        return NULL;
    switch ((enum sensor)(intptr_t)which) {
    case USED:
        return PyLong_FromUnsignedLongLong(pool_used(p));
    case AVAILABLE:
        return PyLong_FromLongLong(pool_available(p));
    case OUT_OF_MEMORY:
        return PyBool_FromLong(pool_available(p) <= 0);
    case OUTSTANDING:
        return PyLong_FromLongLong(wh_budget_out(&p->b, p->b.me));
    case HAS_WAITERS:
        return PyBool_FromLong(!wh_wait_queue_empty(&p->b));
    default:
        return PyFloat_FromDouble(pool_depleted_share(p));
    }
}

static PyObject *pool_stats(PoolObject *p, PyObject *unused)
{
    int64_t all;
    (void)unused;
    if (!pool_usable(p))
        return NULL;
#define COUNTER(name) #name, (unsigned long long)pool_sum(p, offsetof(wh_ledger, name))
    uint64_t used = pool_used(p);
    return Py_BuildValue("{sK sK sL sL sK sK sK sK sd sd}", "size", (unsigned long long)p->size,
                         "used", (unsigned long long)used, "available", (long long)(p->size - used),
                         "outstanding", (long long)wh_budget_out(&p->b, p->b.me),
                         COUNTER(allocations), COUNTER(refusals), COUNTER(waits), COUNTER(timeouts),
                         "depleted_percent", pool_depleted_share(p), "depleted_seconds",
                         (double)pool_depleted(p, &all) / 1e9);
#undef COUNTER
}

static PyObject *pool_constant(PoolObject *p, void *offset)
{
    if (p->name == NULL)
        return PyErr_Format(PyExc_ValueError, "this pool was never initialised");
    return PyLong_FromUnsignedLongLong(*(uint64_t *)((char *)p + (size_t)offset));
}

static PyObject *pool_name(PoolObject *p, void *unused)
{
    (void)unused;
    return Py_NewRef(p->name ? p->name : Py_None);
}

static PyObject *pool_is_strict(PoolObject *p, void *unused)
{
    (void)unused;
    return PyBool_FromLong(p->strict);
}

/* -- the object -------------------------------------------------------------------------------- */

/* The worker's locks are held. */
static int pool_begin(PoolObject *p, PyObject *worker, PyObject *segment, PyObject *name)
{
    if (p->worker) {
        PyErr_SetString(PyExc_TypeError, "this pool is already initialised");
        return -1;
    }
    if (!worker_usable((WorkerObject *)worker))
        return -1;
    p->patience_ns = 1000000000;
    p->slice_ns = 250000000; /* how soon signals, close() and a stopped head are noticed */
    p->worker = (WorkerObject *)Py_NewRef(worker);
    p->name = Py_NewRef(name);
    if (pool_bind(p, segment))
        return 0;
    pool_unbind(p);
    Py_CLEAR(p->worker);
    Py_CLEAR(p->name);
    return -1;
}

/* Pool(worker, segment, name) */
static int pool_init(PoolObject *p, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"worker", "segment", "name", NULL};
    PyObject *worker, *segment, *name;
    Held held;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OU:Pool", names, worker_type, &worker,
                                     &segment, &name))
        return -1;
    worker_lock(&held, (WorkerObject *)worker);
    int begun = pool_begin(p, worker, segment, name);
    lock_end(&held);
    return begun;
}

static int pool_traverse(PoolObject *p, visitproc visit, void *arg)
{
    Py_VISIT(p->worker);
    Py_VISIT(Py_TYPE(p));
    return 0;
}

static void pool_dealloc(PoolObject *p)
{
    Held held;
    PyObject_GC_UnTrack(p);
    pool_lock(&held, p);
    pool_unbind(p);
    lock_end(&held);
    Py_CLEAR(p->worker);
    Py_CLEAR(p->name);
    PyTypeObject *type = Py_TYPE(p);
    type->tp_free(p);
    Py_DECREF(type);
}

static PyMethodDef pool_methods[] = {
    {"try_allocate", (PyCFunction)LOCKED(pool_try_allocate), METH_O,
     "try_allocate(size)\n--\n\n"
     "Take memory if enough is available.\n\n"
     "Parameters\n----------\nsize : int\n    Bytes, from 1 to `largest`.\n\n"
     "Returns\n-------\nPoolBuffer or None\n    None: refused, the pool has less than that left.\n\n"
     "Raises\n------\nValueError\n    The size is out of range.\n"
     "DaemonNotRunning, ClientClosed, ForkedClient\n\n"
     "Notes\n-----\nLock-free, no system call unless a dry spell begins or ends. Any thread. Does not\n"
     "queue behind callers of `allocate`."},
    {"allocate", FAST(LOCKED(pool_allocate)), METH_FASTCALL | METH_KEYWORDS,
     "allocate(size, timeout=None)\n--\n\n"
     "Take memory, waiting for it in one queue with all workers of the daemon.\n\n"
     "Parameters\n----------\nsize : int\n    Bytes, from 1 to `largest`.\n"
     "timeout : float, optional\n    Longest wait in seconds; None: no limit.\n\n"
     "Returns\n-------\nPoolBuffer\n\n"
     "Raises\n------\nTimeoutError\n    Nothing was taken.\nValueError\n    The size is out of range.\n"
     "DaemonNotRunning, ClientClosed, ForkedClient\n    Also in the middle of the wait.\n\n"
     "Notes\n-----\nFirst come, first served. Signals are handled while it waits. Any thread; not for\n"
     "event loops."},
    {"wait_available", FAST(LOCKED(pool_wait_available)), METH_FASTCALL | METH_KEYWORDS,
     "wait_available(timeout=None, size=1)\n--\n\n"
     "Wait until `try_allocate(size)` would succeed, without taking anything.\n\n"
     "Returns\n-------\nbool\n    False: the timeout has passed.\n\n"
     "Raises\n------\nDaemonNotRunning, ClientClosed, ForkedClient\n    Also in the middle of the wait.\n\n"
     "Notes\n-----\nWaits in the same queue as `allocate` and leaves it when its turn comes: it blocks\n"
     "nobody, and the memory it saw may be gone when it returns. Any thread."},
    {"release", (PyCFunction)LOCKED(pool_release), METH_O,
     "release(buffer)\n--\n\n"
     "Give a buffer's bytes back.\n\n"
     "Raises\n------\nValueError\n    It was already released, or belongs to another pool or worker.\n"
     "ForkedClient\n    It was lent to the parent of this process.\n\n"
     "Notes\n-----\nAfter `close()` of the worker it only frees the memory; the daemon already has the bytes."},
    {"stats", (PyCFunction)LOCKED(pool_stats), METH_NOARGS,
     "stats()\n--\n\n"
     "All sensors as a dict. `outstanding` is this worker's, everything else the pool's, since the\n"
     "daemon started."},
    {NULL}};

#define SENSOR(which) (void *)(intptr_t)which
#define MEMBER(name) (void *)offsetof(PoolObject, name)
static PyGetSetDef pool_getset[] = {
    {"name", (getter)pool_name, NULL, "As given to the daemon.", NULL},
    {"size", (getter)pool_constant, NULL, "Bytes of the whole pool.", MEMBER(size)},
    {"largest", (getter)pool_constant, NULL, "Bytes of the largest single request.",
     MEMBER(largest)},
    {"strict", (getter)pool_is_strict, NULL, "Whether at most `size` bytes are ever taken.", NULL},
    {"has_waiters", (getter)LOCKED(pool_sensor), NULL,
     "Whether any caller, in any worker, waits for memory.", SENSOR(HAS_WAITERS)},
    {"used", (getter)LOCKED(pool_sensor), NULL, "Bytes that all workers have taken.", SENSOR(USED)},
    {"available", (getter)LOCKED(pool_sensor), NULL,
     "`size - used`; may be negative in a lenient pool.", SENSOR(AVAILABLE)},
    {"is_out_of_memory", (getter)LOCKED(pool_sensor), NULL, "Whether nothing is available.",
     SENSOR(OUT_OF_MEMORY)},
    {"outstanding", (getter)LOCKED(pool_sensor), NULL, "Bytes that this worker has taken.",
     SENSOR(OUTSTANDING)},
    {"depleted_percent", (getter)LOCKED(pool_sensor), NULL,
     "Share of the time since the daemon's start in which the pool was dry, 0 to 100; a dry spell "
     "lasts from a refusal to the next success or release.",
     SENSOR(DEPLETED)},
    {NULL}};

static PyMemberDef pool_members[] = {
    {"_patience_ns", T_LONGLONG, offsetof(PoolObject, patience_ns), 0, NULL},
    {"_slice_ns", T_LONGLONG, offsetof(PoolObject, slice_ns), 0, NULL},
    {NULL}};

static PyType_Slot pool_slots[] = {{Py_tp_new, PyType_GenericNew},
                                   {Py_tp_init, pool_init},
                                   {Py_tp_dealloc, pool_dealloc},
                                   {Py_tp_traverse, pool_traverse},
                                   {Py_tp_methods, pool_methods},
                                   {Py_tp_getset, pool_getset},
                                   {Py_tp_members, pool_members},
                                   {Py_tp_doc, "The native half of wheeld_client.MemoryPool."},
                                   {0, NULL}};
static PyType_Spec pool_spec = {"wheeld_core._native.Pool", sizeof(PoolObject), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                pool_slots};
