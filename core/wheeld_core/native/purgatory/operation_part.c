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
    wh_size *told; /* where its size is published; NULL: nowhere */
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

static void operation_enlist(PurgatoryObject *p, OperationObject *op)
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

static void operation_delist(PurgatoryObject *p, OperationObject *op)
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

static bool operation_run_hooks(OperationObject *op); /* in hooks_part.c */

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
    operation_delist(p, op);
    operation_unlink(p, op);
    purgatory_tell_size(p);
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
