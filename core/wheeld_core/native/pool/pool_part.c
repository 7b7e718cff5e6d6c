/* Pool: a worker's way to one of the daemon's byte budgets (wheeld/sharing/pool.h), and the two hot
 * calls.
 *
 * The worker's locks, or the GIL, are held in every call of pool.h: of each worker one thread at a
 * time is in there. All state of a pool is in shared memory, but for the threads that wait in this
 * process: Pool objects of one worker and one pool share a PoolQueue for them.
 */

/* The threads of one worker that wait for memory of one pool. */
typedef struct PoolQueue {
    struct PoolQueue *next;
    const WorkerObject *worker; /* alive while any Pool is: each holds it */
    uint64_t incarnation;
    uint32_t pool, users;
    struct Waiter *first; /* by ticket */
    uint64_t past; /* tickets up to this one are passed: their owners are stopped */
} PoolQueue;

static PoolQueue *queues; /* of this process; the gate guards them */

typedef struct {
    PyObject_HEAD WorkerObject *worker; /* NULL: never initialised */
    Mapping segment;
    wh_budget b;
    PoolQueue *queue;
    uint64_t incarnation; /* of the worker, whose binding this is: another one after a fork */
    uint64_t size, largest;
    /* For a thread that waits: with the head of the queue, and how long it sleeps before it looks
     * around. Tests of order and of wake-ups have more. */
    long long patience_ns, slice_ns;
    uint32_t index;
    bool strict;
    PyObject *name;
} PoolObject;

typedef struct {
    PyObject_HEAD PoolObject *pool;
    char *data;
    Py_ssize_t size;
    uint64_t incarnation; /* who has to give it back */
    uint32_t forks; /* of that worker when it was lent */
    Py_ssize_t exports;
    bool released;
} PoolBufferObject;

static PyTypeObject *pool_buffer_type;

/* -- binding ----------------------------------------------------------------------------------- */

static PoolQueue *queue_join(const WorkerObject *worker, uint64_t incarnation, uint32_t pool)
{
    PoolQueue *queue = queues;
    while (queue &&
           (queue->worker != worker || queue->incarnation != incarnation || queue->pool != pool))
        queue = queue->next;
    if (queue == NULL && (queue = calloc(1, sizeof *queue)) != NULL) {
        *queue =
            (PoolQueue){.next = queues, .worker = worker, .incarnation = incarnation, .pool = pool};
        queues = queue;
    }
    if (queue)
        queue->users++;
    return queue;
}

static void queue_leave(PoolQueue *queue)
{
    if (queue == NULL || --queue->users)
        return;
    PoolQueue **at = &queues;
    while (*at != queue)
        at = &(*at)->next;
    *at = queue->next;
    free(queue);
}

/* Set ValueError: there is no such pool. It lists those that exist. */
static void pool_unknown(PyObject *name, const wh_pool *all, uint32_t count)
{
    PyObject *names = PyList_New(0);
    for (uint32_t i = 0; names && i < count; i++) {
        size_t length = strnlen(all[i].name, sizeof all[i].name);
        PyObject *one = PyUnicode_DecodeUTF8(all[i].name, (Py_ssize_t)length, "replace");
        if (one == NULL || PyList_Append(names, one) < 0)
            Py_CLEAR(names);
        Py_XDECREF(one);
    }
    if (names && count)
        raise_about(PyExc_ValueError, name, "this daemon has no pool {}: expected one of %R",
                    names);
    else if (names)
        raise_about(PyExc_ValueError, name,
                    "this daemon has no pool {}: it has no pools (wheeld start --pool NAME=BYTES)");
    Py_XDECREF(names);
}

/* The index of the pool with this name in the segment. -1: none, with an error set. */
static int pool_find(PoolObject *p, uint32_t pools)
{
    Py_ssize_t length;
    const char *name = text_utf8(p->name, &length, "name ");
    wh_budget first;
    if (name == NULL)
        return -1;
    wh_budget_bind(&first, p->segment.view.buf, pools, 1, 0, 0);
    for (uint32_t i = 0; i < pools; i++)
        if (length > 0 && length < (Py_ssize_t)sizeof first.pool->name &&
            strnlen(first.pool[i].name, (size_t)length + 1) == (size_t)length &&
            memcmp(first.pool[i].name, name, (size_t)length) == 0)
            return (int)i;
    pool_unknown(p->name, first.pool, pools);
    return -1;
}

static void pool_unbind(PoolObject *p)
{
    queue_leave(p->queue);
    p->queue = NULL;
    p->incarnation = 0;
    mapping_drop(&p->segment);
}

/* Bind the pool of this name in `segment`, for the worker that p->worker is now. */
static bool pool_bind(PoolObject *p, PyObject *segment)
{
    uint32_t pools, rows, row = p->worker->client.worker;
    int index;
    pool_unbind(p);
    if (!mapping_get_kind(&p->segment, segment, WH_KIND_POOLS, "pools"))
        return false;
    if (!wh_pools_shape(p->segment.view.buf, (uint64_t)p->segment.view.len, &pools, &rows) ||
        row >= rows) {
        PyErr_SetString(PyExc_ValueError,
                        "the pools segment belongs to another daemon than this worker's");
        return false;
    }
    if ((index = pool_find(p, pools)) < 0)
        return false;
    p->index = (uint32_t)index;
    wh_budget_bind(&p->b, p->segment.view.buf, pools, rows, p->index, row);
    p->size = p->b.pool->size, p->largest = p->b.pool->largest, p->strict = p->b.pool->strict;
    if (p->size > WH_MAX_POOL_BYTES || p->largest - 1 >= p->size) {
        PyErr_Format(errors.wheel_error, "pool %R is damaged: %llu bytes, largest %llu", p->name,
                     (unsigned long long)p->size, (unsigned long long)p->largest);
        return false;
    }
    uint64_t incarnation = wh_owner_incarnation(p->worker->client.me);
    if ((p->queue = queue_join(p->worker, incarnation, p->index)) == NULL) {
        PyErr_NoMemory();
        return false;
    }
    p->incarnation = incarnation;
    return true;
}

/* -- who may go on ----------------------------------------------------------------------------- */

/* Does the ledger still belong to this worker? */
static inline bool pool_is_ours(const PoolObject *p, uint64_t incarnation)
{
    WorkerObject *w = p->worker;
    return wh_likely(w != NULL && worker_is_open(w) && p->incarnation == incarnation &&
                     wh_owner_incarnation(w->client.me) == incarnation &&
                     /* pairs: pool-tenant */
                     wh_load_acquire(&p->b.mine->tenant) == incarnation);
}

static inline bool pool_is_open(const PoolObject *p)
{
    return p->incarnation != 0 && pool_is_ours(p, p->incarnation);
}

/* Set the error that says why a call may not continue. */
static void pool_explain(PoolObject *p)
{
    if (p->worker == NULL)
        PyErr_SetString(PyExc_ValueError, "this pool was never initialised");
    else if (!worker_is_open(p->worker))
        worker_explain(p->worker);
    else
        PyErr_SetString(errors.daemon_not_running,
                        "the daemon has declared this worker gone and taken its pools' bytes back; "
                        "connect() again");
}

/* The rare cases. True: the pool of a forked child that is now a worker of its own. */
static bool pool_refuse(PoolObject *p)
{
    if (p->worker && !worker_usable(p->worker))
        return false;
    if (p->worker && p->incarnation != wh_owner_incarnation(p->worker->client.me)) {
        PyObject *segment = PyObject_CallMethod((PyObject *)p->worker, "_segment", "s", "pools");
        bool bound = segment && pool_bind(p, segment);
        Py_XDECREF(segment);
        if (!bound)
            return false;
    }
    if (pool_is_open(p))
        return true;
    pool_explain(p);
    return false;
}

static inline bool pool_usable(PoolObject *p) { return pool_is_open(p) || pool_refuse(p); }

/* -- bytes ------------------------------------------------------------------------------------- */

/* Memory came back, or the queue moved: end a dry spell, and have the waiters check. */
static inline void pool_stir(PoolObject *p)
{
    if (wh_unlikely(!wh_wait_queue_empty(&p->b)))
        wh_wait_queue_wake(&p->b, wake_all);
}

static inline void pool_wet(PoolObject *p)
{
    if (wh_unlikely(wh_pool_is_dry(p->b.pool)))
        wh_pool_wet(p->b.pool, wh_clock_read(CLOCK_MONOTONIC));
}

static inline bool pool_fits(const PoolObject *p, uint64_t n)
{
    return wh_pool_fits(p->b.pool, wh_budget_used(&p->b), n);
}

/* Begin a dry spell, unless memory has come back since the refusal. */
static void pool_dry(PoolObject *p, uint64_t n)
{
    wh_pool_dry(p->b.pool, wh_clock_read(CLOCK_MONOTONIC));
    if (pool_fits(p, n))
        pool_wet(p);
}

static inline bool pool_take(PoolObject *p, uint64_t n)
{
    if (!wh_budget_change(&p->b, (int64_t)n))
        return false;
    wh_count(&p->b.mine->allocations, 1);
    pool_wet(p);
    return true;
}

static inline void pool_give(PoolObject *p, uint64_t n)
{
    wh_budget_change(&p->b, -(int64_t)n);
    pool_wet(p);
    pool_stir(p);
}

/* Read a size argument; true: the call may begin. `__index__` runs before that check. */
static bool pool_parse_size(PoolObject *p, PyObject *object, uint64_t *n)
{
    if (!integer_u64(object, n, "size")) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return false;
        PyErr_Clear();
        *n = 0;
    }
    if (!pool_usable(p))
        return false;
    if (wh_likely(*n - 1 < p->largest))
        return true;
    raise_about(PyExc_ValueError, object,
                "size: got {}, expected 1 to %llu, the largest request of pool %R",
                (unsigned long long)p->largest, p->name);
    return false;
}
