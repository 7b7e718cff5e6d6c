/* Operation: the native half of wheeld_client.DelayedOperation.
 *
 * States: NEW (not in a purgatory), WAITING (watched, in its purgatory's list), and over: COMPLETED
 * or CANCELLED. `state` leaves NEW or WAITING once; whoever does that runs what follows. The GIL,
 * or the gate, makes each step here one; user code runs between steps only.
 *
 * try_complete() is never run by two threads at once: a thread that finds another in it sets
 * `again` and goes on, and the other one calls it once more. So no lock is held over user code,
 * and no trigger is lost. */

enum operation_state { OP_UNMADE, OP_NEW, OP_WAITING, OP_COMPLETED, OP_CANCELLED };
enum { FEW_WATCHES = 3 }; /* watches that need no allocation */
enum { MOST_AGAIN = 1000 }; /* checks in a row that a try_complete may cause by itself */
enum again { AGAIN_OTHERS = 1, AGAIN_ITSELF = 2 };

struct OperationObject {
    PyObject_HEAD PurgatoryObject
        *purgatory; /* strong until all is done, but borrowed while it waits */
    Watch *watches;             /* one per key */
    OperationObject *prev, *next; /* in its purgatory's list while it waits */
    double timeout;               /* seconds; negative: none */
    unsigned long busy;           /* the thread that runs try_complete(); 0: none */
    uint32_t watch_count, links; /* how many of `links` are linked; each holds a reference */
    uint32_t place; /* of its timer in `timed`; WH_NIL: it has none */
    uint8_t state;
    uint8_t again; /* the thread in try_complete() is to check once more: bits of enum again */
    bool expired : 1;
    bool gathered : 1; /* in a walk that is just being put together */
    bool settled : 1; /* its callbacks were begun */
    bool spilled : 1; /* errors that nobody took */
    Watch few[FEW_WATCHES];
};

struct PurgatoryObject {
    PyObject_HEAD WorkerObject *worker; /* strong */
    PyObject *name;
    PyObject *submit; /* runs callbacks: submit(callable); NULL: the completing thread runs them */
    PurgatoryObject *sibling;
    OperationObject *first, *last; /* those that wait, in the order in which they came */
    wh_size *published; /* where its size is published; NULL: nowhere */
    uint64_t seed;
    uint64_t delayed, watched;
    uint64_t completed, expired, cancelled;
    uint32_t expired_in[64]; /* by second, for the rate */
    int64_t expired_second[64];
    uint32_t forks; /* of its worker, when it was made */
    unsigned long thread; /* of its event loop; 0: it has none */
    char block; /* may its calls wait for the clock? */
    char tells; /* have _cancelled() called when an operation is */
    bool closed, lost; /* its worker's binding is gone, or belongs to a forked parent */
};

static inline bool operation_over(const OperationObject *op) { return op->state > OP_WAITING; }

/* -- links ------------------------------------------------------------------------------------- */

/* Unlink one watch; its reference goes to the caller. */
static OperationObject *watch_unlink(WorkerObject *w, Watch *watch)
{
    KeyEntry *entry = watch->entry;
    Watching *g = w->watching;
    OperationObject *op = watch->op;
    entry_unlink(watch);
    op->links--;
    entry->purgatory->watched--;
    if (entry->count == 0) {
        if (watching_has_row(w))
            wh_watch_remove(&g->watch, wh_hash_bucket(entry->hash));
        else
            g->watch.keys[wh_hash_bucket(entry->hash)]--;
        table_remove(&g->table, entry);
    }
    return op;
}

/* Link an operation under a key. False: no memory. */
static bool watch_link(PurgatoryObject *p, OperationObject *op, Watch *watch, const ParsedKey *key)
{
    Watching *g = p->worker->watching;
    KeyEntry *entry = table_find(&g->table, p, key);
    if (entry && entry->last->op == op)
        return true; /* the same key twice */
    bool fresh = entry == NULL;
    if (fresh && (entry = table_add(&g->table, p, key)) == NULL)
        return false;
    watch->op = (OperationObject *)Py_NewRef(op);
    entry_append(entry, watch);
    op->links++;
    p->watched++;
    if (fresh && !watching_has_row(p->worker))
        g->watch.keys[wh_hash_bucket(key->hash)]++; /* given up: the row may be another worker's */
    else if (fresh)
        wh_watch_add(&g->watch, wh_hash_bucket(key->hash));
    return true;
}

/* Unlink it from every key. The caller holds a reference of its own. */
static void operation_unlink(PurgatoryObject *p, OperationObject *op)
{
    for (uint32_t i = 0; i < op->watch_count; i++)
        if (op->watches[i].entry)
            Py_DECREF(watch_unlink(p->worker, &op->watches[i]));
}

static void operation_append(PurgatoryObject *p, OperationObject *op)
{
    op->state = OP_WAITING;
    op->prev = p->last;
    op->next = NULL;
    *(p->last ? &p->last->next : &p->first) = op;
    p->last = op;
    /* Its keys hold it: the collector need not visit each waiting operation again and again.
     * watching_traverse() visits those that only their keys hold; and one reference to the
     * purgatory, the worker's, represents all of theirs. */
    PyObject_GC_UnTrack(op);
    if (p->delayed++ != 0)
        Py_DECREF(p);
}

static void operation_unlist(PurgatoryObject *p, OperationObject *op)
{
    *(op->prev ? &op->prev->next : &p->first) = op->next;
    *(op->next ? &op->next->prev : &p->last) = op->prev;
    op->prev = op->next = NULL;
    if (--p->delayed != 0)
        Py_INCREF(p);
    PyObject_GC_Track(op);
}

/* Cancel its timer, or, if there is no room for that now, later: completing an operation never
 * waits for the clock. */
static void operation_drop_timer(PurgatoryObject *p, OperationObject *op)
{
    uint32_t place = op->place;
    WorkerObject *w = p->worker;
    if (place == WH_NIL || w->watching == NULL)
        return;
    uint64_t id = w->watching->timed[place].id;
    op->place = WH_NIL;
    w->watching->timed[place].op = NULL;
    int won = worker_is_open(w) ? worker_cancel_timer(w, id, false) : 0;
    if (won < 0) {
        PyErr_Clear();
        unwanted_add(w->watching, id, place);
    } else if (won) {
        timed_give(w->watching, place);
    }
}

/* Take over an operation whose timer has fired. Returns a new reference. */
static OperationObject *operation_expired(OperationObject *op)
{
    op->place = WH_NIL;
    return (OperationObject *)Py_NewRef(op);
}

/* -- the end of an operation ------------------------------------------------------------------- */

static bool operation_run_hooks(OperationObject *op);

static void purgatory_count_expiry(PurgatoryObject *p)
{
    int64_t second = wh_clock_read(CLOCK_MONOTONIC_COARSE) / 1000000000;
    uint32_t i = (uint32_t)(second % 64);
    if (p->expired_second[i] != second) {
        p->expired_second[i] = second;
        p->expired_in[i] = 0;
    }
    p->expired_in[i]++;
    p->expired++;
}

/* RuntimeError: a subclass forgot its base. */
static void operation_explain_unmade(const OperationObject *op)
{
    PyErr_Format(PyExc_RuntimeError, "%s.__init__ did not call DelayedOperation.__init__(timeout)",
                 Py_TYPE(op)->tp_name);
}

/* Many wait, and this one may have been cold for long: fetch all that is about to be touched at
 * once. */
static inline void operation_prefetch(const PurgatoryObject *p, const OperationObject *op)
{
    const Watching *g = p->worker->watching;
    wh_prefetch_write(op->prev);
    wh_prefetch_write(op->next);
    if (op->place != WH_NIL)
        wh_prefetch_write(&g->timed[op->place]);
    for (uint32_t i = 0; i < op->watch_count; i++) {
        wh_prefetch_write(op->watches[i].prev);
        wh_prefetch_write(op->watches[i].next);
    }
    if (op->place != WH_NIL)
        wh_prefetch_write(&p->worker->client.states[wh_id_slot(g->timed[op->place].id)]);
}

/* Take an operation out of everything. The caller holds a reference. */
static void operation_leave(OperationObject *op, enum operation_state state)
{
    PurgatoryObject *p = op->purgatory;
    bool waited = op->state == OP_WAITING;
    op->state = (uint8_t)state;
    if (!waited)
        return;
    operation_prefetch(p, op);
    operation_unlist(p, op);
    operation_unlink(p, op);
    purgatory_publish_size(p);
    operation_drop_timer(p, op);
}

/* Cancel a waiting operation: remove it from everything, without callbacks. */
static void operation_withdraw(OperationObject *op)
{
    op->purgatory->cancelled++;
    operation_leave(op, OP_CANCELLED);
    Py_CLEAR(op->purgatory);
}

/* Complete it, once. 1: this call did; 0: it was over; -1: an error is set (it is over all the
 * same). */
static int operation_complete(OperationObject *op, bool expired)
{
    if (operation_over(op))
        return 0;
    Py_INCREF(op);
    op->expired = expired;
    operation_leave(op, OP_COMPLETED);
    if (op->purgatory && expired)
        purgatory_count_expiry(op->purgatory);
    else if (op->purgatory)
        op->purgatory->completed++;
    bool ok = operation_run_hooks(op);
    Py_DECREF(op);
    return ok ? 1 : -1;
}

/* -- try_complete ------------------------------------------------------------------------------ */

/* One call. 1: it completed the operation; 0: not; -1: error. */
static int operation_ask(OperationObject *op)
{
    PyObject *answer = PyObject_CallMethodNoArgs((PyObject *)op, name_try_complete);
    int truth = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (truth == 1 && op->state == OP_CANCELLED)
        return 0; /* `return self.cancel()` */
    if (truth == 1 && !operation_over(op)) {
        raise_about(PyExc_RuntimeError, (PyObject *)op,
                    "try_complete of {} returned True but did not complete it: "
                    "`return self.force_complete()`");
        return -1;
    }
    return truth;
}

/* Call try_complete, and again for triggers that came meanwhile. The caller sets `busy`, and clears
 * it. */
static int operation_ask_for_all(OperationObject *op)
{
    int answer, rounds = 0, failures = 0;
    do {
        op->again = 0;
        answer = operation_ask(op);
        if (answer == 0 && op->again & AGAIN_ITSELF && ++rounds == MOST_AGAIN) {
            raise_about(PyExc_RuntimeError, (PyObject *)op,
                        "try_complete of {} checks its own key each time it is called: it would "
                        "never end");
            return -1;
        }
        if (answer < 0 && op->again && !operation_over(op) && failures++ == 0) {
            PyObject *first = error_take(); /* this caller's; the others' triggers are not lost */
            int later = operation_ask_for_all(op);
            if (later < 0)
                PyErr_Clear();
            error_raise(first);
            return -1;
        }
    } while (answer == 0 && op->again && !operation_over(op));
    return answer;
}

/* A trigger: check an operation. 1: this call completed it; 0: not; -1: error. The caller holds a
 * reference. */
static int operation_try(OperationObject *op)
{
    if (operation_over(op))
        return 0;
    unsigned long me = PyThread_get_thread_ident();
    if (op->busy) {
        op->again |= op->busy == me ? AGAIN_ITSELF : AGAIN_OTHERS;
        return 0;
    }
    op->busy = me;
    int answer = operation_ask_for_all(op);
    op->busy = 0;
    return answer;
}

/* -- locks on a free-threaded Python: see shared/locked_part.c --------------------------------- */

static inline void purgatory_lock(Held *held, PurgatoryObject *p)
{
    lock_with_gate(held, (PyObject *)p->worker);
}

/* For attributes that need no call of the worker. */
static inline void operation_lock_to_read(Held *held, OperationObject *op)
{
    (void)op;
    lock_with_gate(held, NULL);
}

/* The worker of the purgatory in which it waits, or is to be settled; NULL: it is in none. The gate
 * is held. */
static inline PyObject *operation_worker(const OperationObject *op)
{
    return op->purgatory ? (PyObject *)op->purgatory->worker : NULL;
}

/* Whose worker must be held is known only behind the gate. */
static inline void operation_lock(Held *held, OperationObject *op)
{
#ifdef Py_GIL_DISABLED
    for (;;) {
        lock_with_gate(held, NULL);
        PyObject *worker = Py_XNewRef(operation_worker(op));
        if (worker == NULL)
            return;
        lock_end(held);
        lock_with_gate(held, worker);
        bool same = operation_worker(op) == worker;
        Py_DECREF(worker);
        if (same)
            return;
        lock_end(held);
    }
#else
    (void)held, (void)op;
#endif
}

LOCKED_INIT(operation_lock_to_read, OperationObject, operation_init)
LOCKED_ONE(operation_lock, OperationObject, operation_force_complete)
LOCKED_ONE(operation_lock, OperationObject, operation_cancel)
LOCKED_ONE(operation_lock, OperationObject, operation_settle_method)
LOCKED_GET(operation_lock_to_read, OperationObject, operation_get_timeout)
LOCKED_GET(operation_lock_to_read, OperationObject, operation_get_state)
LOCKED_GET(operation_lock_to_read, OperationObject, operation_get_is_completed)
LOCKED_GET(operation_lock_to_read, OperationObject, operation_get_is_expired)

LOCKED_KEYWORDS(purgatory_lock, PurgatoryObject, purgatory_watch)
LOCKED_KEYWORDS(purgatory_lock, PurgatoryObject, purgatory_take_or_none)
LOCKED_ONE(purgatory_lock, PurgatoryObject, purgatory_check)
LOCKED_ONE(purgatory_lock, PurgatoryObject, purgatory_check_many)
LOCKED_ONE(purgatory_lock, PurgatoryObject, purgatory_cancel_for_key)
LOCKED_ONE(purgatory_lock, PurgatoryObject, purgatory_word)
LOCKED_FAST(purgatory_lock, PurgatoryObject, purgatory_grow)
LOCKED_FAST(purgatory_lock, PurgatoryObject, purgatory_forget)
LOCKED_ONE(purgatory_lock, PurgatoryObject, purgatory_change)
LOCKED_ONE(purgatory_lock, PurgatoryObject, purgatory_done)
LOCKED_ONE(purgatory_lock, PurgatoryObject, purgatory_shutdown)
LOCKED_ONE(purgatory_lock, PurgatoryObject, purgatory_renew)
LOCKED_ONE(purgatory_lock, PurgatoryObject, purgatory_numbers)
LOCKED_GET(purgatory_lock, PurgatoryObject, purgatory_get_watched)
LOCKED_GET(purgatory_lock, PurgatoryObject, purgatory_get_delayed)
LOCKED_GET(purgatory_lock, PurgatoryObject, purgatory_get_closed)

/* -- sizes: two plain stores whenever an operation begins or ends its wait --------------------- */

/* May we write into our row? */
static bool purgatory_is_published(PurgatoryObject *p)
{
    return p->published && p->worker->watching && watching_has_row(p->worker) &&
           !worker_is_forked(p->worker);
}

static void purgatory_publish_size(PurgatoryObject *p)
{
    if (purgatory_is_published(p))
        wh_sizes_show(p->published, p->delayed, p->watched);
}

static void purgatory_publish(PurgatoryObject *p, Watching *g, const char *name, Py_ssize_t length)
{
    p->published = watching_has_row(p->worker)
                       ? wh_sizes_open(&g->sizes, name, (size_t)length, g->tenant)
                       : NULL;
}

/* It was shut down, or is no longer referenced. */
static void purgatory_unpublish(PurgatoryObject *p)
{
    if (purgatory_is_published(p))
        wh_sizes_close(&p->worker->watching->sizes, p->published);
    p->published = NULL;
}

/* -- hooks ------------------------------------------------------------------------------------- */

/* on_complete and on_expiration of operations that are over; each runs once, whatever is
 * raised.
 *
 * Invariants
 *  1. `settled` is set before the first hook is called. Whoever finds it set calls none: an
 *     executor that ran them and raised all the same, one that runs them after it refused.
 *  2. An operation that a hook completes waits in the queue of the thread that runs the hook,
 * and its
 *     own hooks run after the outermost has returned, in the order of completion. So no chain of
 *     completions is too long for the stack. Their exceptions are raised when the queue is empty.
 *  3. A queue is left to whoever made it: under gevent each greenlet has its own, and in a forked
 *     child its contents are the parent's. */

typedef struct HookQueue {
    /* another greenlet's of this thread, which waits inside a hook */
    struct HookQueue *other;
    PyObject *greenlet; /* strong; NULL: there are none */
    OperationObject **ops; /* strong */
    size_t first, count, size;
} HookQueue;

/* Reached without a call, as each completion checks it. */
#define HOOKS_OF_THREAD static _Thread_local __attribute__((tls_model("initial-exec")))
HOOKS_OF_THREAD HookQueue *hook_queues;
HOOKS_OF_THREAD HookQueue first_hook_queue; /* the first takes no allocation */

/* Tells this greenlet from others of its thread: a new reference; NULL: there are none. */
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

/* The queue of the hook that runs here; NULL: none. */
static HookQueue *hook_queue_of(PyObject *greenlet)
{
    HookQueue *queue = hook_queues;
    while (queue && queue->greenlet != greenlet)
        queue = queue->other;
    return queue;
}

/* Takes over the reference. NULL: no memory. */
static HookQueue *hook_queue_begin(PyObject *greenlet)
{
    HookQueue *queue = hook_queues ? calloc(1, sizeof *queue) : &first_hook_queue;
    if (queue == NULL) {
        Py_XDECREF(greenlet);
        return NULL;
    }
    *queue = (HookQueue){.other = hook_queues, .greenlet = greenlet};
    hook_queues = queue;
    return queue;
}

static void hook_queue_end(HookQueue *queue)
{
    HookQueue **at = &hook_queues;
    while (*at != queue)
        at = &(*at)->other;
    *at = queue->other;
    PyObject *greenlet = queue->greenlet;
    if (wh_unlikely(queue->ops != NULL))
        free(queue->ops);
    if (queue != &first_hook_queue)
        free(queue);
    Py_XDECREF(greenlet);
}

static bool hook_queue_append(HookQueue *queue, OperationObject *op)
{
    if (queue->count == queue->size) {
        size_t size = 2 * queue->size + 8;
        OperationObject **more = realloc(queue->ops, size * sizeof *more);
        if (more == NULL)
            return false;
        queue->ops = more;
        queue->size = size;
    }
    queue->ops[queue->count++] = (OperationObject *)Py_NewRef(op);
    return true;
}

/* The next in the queue, a reference; NULL: there is none. */
static OperationObject *hook_queue_take(HookQueue *queue)
{
    if (queue->first == queue->count)
        return NULL;
    OperationObject *op = queue->ops[queue->first++];
    if (queue->first == queue->count)
        queue->first = queue->count = 0; /* a long chain takes no more room than a short one */
    return op;
}

/* Hand the error that is set to the purgatory's handler (`p` NULL: to the operation's own). An
 * exception of that, and one that is no Exception (KeyboardInterrupt), stays set. */
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
static bool operation_submit(OperationObject *op)
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

/* Is it in a queue that a fork has copied? The parent process runs it. */
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
    HookQueue *queue = hook_queue_of(greenlet);
    if (queue && hook_queue_append(queue, op)) {
        Py_XDECREF(greenlet);
        return true;
    }
    queue = hook_queue_begin(greenlet);
    if (!run(op))
        errors_keep(&failed);
    for (OperationObject *next; queue && (next = hook_queue_take(queue)) != NULL; Py_DECREF(next))
        if (!operation_was_forked(next) && !operation_submit(next))
            errors_keep(&failed);
    if (queue)
        hook_queue_end(queue);
    return errors_none(failed);
}

/* Handle an operation that has just ended. False: an error is set. */
static bool operation_run_hooks(OperationObject *op)
{
    return operation_take_turn(op, operation_submit);
}

/* _settle(): what an executor is given. In one that runs it at once we are in the queue already. */
static PyObject *operation_settle_method(OperationObject *op, PyObject *unused)
{
    (void)unused;
    PyObject *greenlet = greenlet_current();
    bool inside = hook_queue_of(greenlet) != NULL;
    Py_XDECREF(greenlet);
    bool ok = inside ? operation_settle(op) : operation_take_turn(op, operation_settle);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* -- the type ---------------------------------------------------------------------------------- */

static PyObject *operation_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    OperationObject *op = (OperationObject *)type->tp_alloc(type, 0);
    if (op) {
        op->timeout = -1;
        op->place = WH_NIL;
    }
    return (PyObject *)op;
}

static int operation_init(OperationObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", NULL};
    PyObject *timeout;
    double seconds = -1;
    if (wh_likely(kwargs == NULL && PyTuple_GET_SIZE(args) == 1)) /* one for each request */
        timeout = PyTuple_GET_ITEM(args, 0);
    else if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:DelayedOperation", names, &timeout))
        return -1;
    if (timeout != Py_None && !parse_seconds(timeout, &seconds, "timeout"))
        return -1;
    if (op->state > OP_NEW) { /* by now: reading it may have run code of its own */
        PyErr_SetString(PyExc_ValueError, "this operation is already in a purgatory");
        return -1;
    }
    op->timeout = seconds;
    op->state = OP_NEW;
    return 0;
}

static int operation_traverse(OperationObject *op, visitproc visit, void *arg)
{
    if (op->state != OP_WAITING)
        Py_VISIT(op->purgatory);
    Py_VISIT(Py_TYPE(op));
    return 0;
}

static int operation_clear(OperationObject *op)
{
    Held held;
    operation_lock_to_read(&held, op);
    if (op->state != OP_WAITING) /* else the links need it; the worker's clear unlinks */
        Py_CLEAR(op->purgatory);
    lock_end(&held);
    return 0;
}

static void operation_dealloc(OperationObject *op)
{
    PyObject_GC_UnTrack(op);
    Py_CLEAR(op->purgatory);
    if (op->watches != op->few)
        free(op->watches);
    PyTypeObject *type = Py_TYPE(op);
    type->tp_free(op);
    Py_DECREF(type);
}

/* Does the operation wait in the parent of this forked child? If so, an error is set. */
static bool operation_is_parents(OperationObject *op)
{
    if (op->purgatory == NULL || !(op->purgatory->lost || worker_is_forked(op->purgatory->worker)))
        return false;
    if (op->state != OP_WAITING)
        return false;
    PyErr_SetString(errors.forked_client, "this operation waits in the parent process");
    return true;
}

static PyObject *operation_force_complete(OperationObject *op, PyObject *unused)
{
    (void)unused;
    if (op->state == OP_UNMADE) {
        operation_explain_unmade(op);
        return NULL;
    }
    if (operation_is_parents(op))
        return NULL;
    int done = operation_complete(op, false);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *operation_cancel(OperationObject *op, PyObject *unused)
{
    (void)unused;
    if (operation_is_parents(op))
        return NULL;
    if (op->state != OP_WAITING)
        Py_RETURN_FALSE;
    PurgatoryObject *p = (PurgatoryObject *)Py_NewRef(op->purgatory);
    operation_withdraw(op);
    PyObject *told = p->tells
                         ? PyObject_CallMethodOneArg((PyObject *)p, name_cancelled, (PyObject *)op)
                         : Py_NewRef(Py_None);
    Py_DECREF(p);
    Py_XDECREF(told);
    return told ? Py_NewRef(Py_True) : NULL;
}

static PyObject *operation_get_state(OperationObject *op, void *unused)
{
    static const char *const names[] = {"new", "new", "waiting", "completed", "cancelled"};
    (void)unused;
    return PyUnicode_FromString(names[op->state]);
}

static PyObject *operation_get_timeout(OperationObject *op, void *unused)
{
    (void)unused;
    if (op->timeout < 0)
        Py_RETURN_NONE;
    return PyFloat_FromDouble(op->timeout);
}

static PyObject *operation_get_is_completed(OperationObject *op, void *unused)
{
    (void)unused;
    return PyBool_FromLong(op->state == OP_COMPLETED);
}

static PyObject *operation_get_is_expired(OperationObject *op, void *unused)
{
    (void)unused;
    return PyBool_FromLong(op->expired);
}

static PyMethodDef operation_methods[] = {
    {"force_complete", (PyCFunction)LOCKED(operation_force_complete), METH_NOARGS,
     "force_complete()\n--\n\n"
     "Complete the operation: it leaves the wheel and all its keys, and its callbacks run.\n\n"
     "Returns\n-------\nbool\n    True for exactly one caller; False: it was completed or cancelled "
     "before.\n\nNotes\n-----\nAny thread."},
    {"cancel", (PyCFunction)LOCKED(operation_cancel), METH_NOARGS,
     "cancel()\n--\n\n"
     "Take a waiting operation out of the wheel and all its keys; no callback of it runs.\n\n"
     "Returns\n-------\nbool\n    False: it does not wait (any more).\n\nNotes\n-----\nAny thread."},
    {"_settle", (PyCFunction)LOCKED(operation_settle_method), METH_NOARGS, NULL},
    {NULL}};

static PyGetSetDef operation_getset[] = {
    {"timeout", (getter)LOCKED(operation_get_timeout), NULL,
     "Seconds, or None: it waits without end.", NULL},
    {"state", (getter)LOCKED(operation_get_state), NULL,
     "'new', 'waiting', 'completed' or 'cancelled'.", NULL},
    {"is_completed", (getter)LOCKED(operation_get_is_completed), NULL,
     "Is it completed, by its condition or by its timeout?", NULL},
    {"is_expired", (getter)LOCKED(operation_get_is_expired), NULL,
     "Was it completed by its timeout?", NULL},
    {NULL}};

static PyType_Slot operation_slots[] = {{Py_tp_new, operation_new},
                                        {Py_tp_init, LOCKED(operation_init)},
                                        {Py_tp_dealloc, operation_dealloc},
                                        {Py_tp_traverse, operation_traverse},
                                        {Py_tp_clear, operation_clear},
                                        {Py_tp_methods, operation_methods},
                                        {Py_tp_getset, operation_getset},
                                        {Py_tp_doc, "The native half of DelayedOperation."},
                                        {0, NULL}};
static PyType_Spec operation_spec = {"wheeld_core._native.Operation", sizeof(OperationObject), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                     operation_slots};
