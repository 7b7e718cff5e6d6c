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
static bool purgatory_has_no_daemon(const PurgatoryObject *p)
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
    if (Py_TYPE(given)->tp_iter == NULL && !PySequence_Check(given))
        return raise_about(PyExc_TypeError, given, "keys: got {}, expected a list of keys"), NULL;
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

/* Roll back a failed watch; keeps the pending error. */
static void operation_unwatch(PurgatoryObject *p, OperationObject *op)
{
    PyObject *error = error_take();
    if (op->state == OP_WAITING) {
        operation_leave(op, OP_CANCELLED);
        op->state = OP_NEW;
    }
    if (op->state == OP_NEW) {
        operation_unlink(p, op); /* some may be linked, if a watch failed */
        purgatory_publish_size(p);
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
        operation_append(p, op);
    else
        PyErr_NoMemory();
    purgatory_publish_size(p);
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
    watching_cancel_unwanted(w);
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
    bool usable = purgatory_usable(p) && !purgatory_has_no_daemon(p); /* after the keys' own code */
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
        operation_unwatch(p, op);
    Py_DECREF(op);
    return answer;
}

/* The arguments of both calls below. */
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

/* -- check: what waits under a key, here and in other workers ---------------------------------- */

/* Add an operation to a walk over several keys, under some of which it may wait: it is looked at
 * once. walk_gathered() unmarks the marked ones, whatever has failed. */
static bool walk_gather(Walk *walk, OperationObject *op)
{
    if (op->gathered)
        return true;
    op->gathered = walk_add(walk, op);
    return op->gathered;
}

static void walk_gathered(Walk *walk)
{
    for (size_t i = 0; i < walk->count; i++)
        walk->ops[i]->gathered = false;
}

/* The operations under a key. */
static bool walk_entry(Walk *walk, KeyEntry *entry)
{
    bool ok = true;
    for (Watch *watch = entry->first; ok && watch; watch = watch->next)
        ok = walk_gather(walk, watch->op);
    return ok;
}

/* Check all operations of a walk. Returns how many this call completed; errors go to `failed`, or
 * if that is NULL to the purgatories' handlers. */
static uint64_t walk_try(Walk *walk, PyObject **failed, PyObject **fatal)
{
    uint64_t completed = 0;
    for (size_t i = 0; i < walk->count; i++) {
        OperationObject *op = walk->ops[i];
        PurgatoryObject *p = (PurgatoryObject *)Py_XNewRef(op->purgatory);
        int answer = operation_try(op);
        if (answer > 0)
            completed++;
        else if (answer < 0 && failed)
            errors_keep(failed);
        else if (answer < 0 && !operation_report(p, op))
            errors_keep(fatal);
        Py_XDECREF(p);
    }
    return completed;
}

/* Parse the key of a call that may begin. The key's own code runs before that check. */
static bool purgatory_parse_key(PurgatoryObject *p, PyObject *object, ParsedKey *key)
{
    if (!key_parse(object, p->seed, key))
        return false;
    if (wh_likely(purgatory_usable(p)))
        return true;
    Py_DECREF(key->key);
    return false;
}

/* Check the operations that wait here under keys whose watchers elsewhere were notified; `failed`:
 * the errors of that. */
static PyObject *purgatory_check_keys(PurgatoryObject *p, const ParsedKey *keys, Py_ssize_t count,
                                      PyObject *failed)
{
    Walk walk;
    walk_begin(&walk);
    for (Py_ssize_t i = 0; p->worker->watching && i < count; i++) {
        KeyEntry *entry = table_find(&p->worker->watching->table, p, &keys[i]);
        if (wh_unlikely(entry != NULL) && !walk_entry(&walk, entry))
            errors_keep(&failed);
    }
    walk_gathered(&walk);
    uint64_t completed = walk_try(&walk, &failed, &failed);
    walk_end(&walk);
    return errors_none(failed) ? PyLong_FromUnsignedLongLong(completed) : NULL;
}

/* check_and_complete(key) */
static PyObject *purgatory_check(PurgatoryObject *p, PyObject *key_object)
{
    ParsedKey key;
    PyObject *failed = NULL, *completed;
    if (!purgatory_parse_key(p, key_object, &key))
        return NULL;
    if (!watching_notify(p->worker, key.hash))
        errors_keep(&failed);
    Watching *g = p->worker->watching;
    if (wh_likely(failed == NULL && g && table_find(&g->table, p, &key) == NULL))
        completed = PyLong_FromLong(0);
    else
        completed = purgatory_check_keys(p, &key, 1, failed);
    Py_DECREF(key.key);
    return completed;
}

/* check_and_complete_many(keys) */
static PyObject *purgatory_check_many(PurgatoryObject *p, PyObject *given)
{
    Py_ssize_t count;
    ParsedKey few[FEW_KEYS], *keys = keys_parse(p, given, few, 0, &count);
    PyObject *failed = NULL, *completed = NULL;
    if (keys == NULL)
        return NULL;
    if (purgatory_usable(p)) {
        if (!watching_notify_many(p->worker, keys, count))
            errors_keep(&failed);
        completed = purgatory_check_keys(p, keys, count, failed);
    }
    keys_drop(keys, few, count);
    return completed;
}

/* Take the operations of a walk out of everything, and return those that did wait as a list. */
static PyObject *walk_cancel(Walk *walk)
{
    PyObject *left = PyList_New(0);
    for (size_t i = 0; left && i < walk->count; i++) {
        OperationObject *op = walk->ops[i];
        if (op->state != OP_WAITING)
            continue;
        if (PyList_Append(left, (PyObject *)op) < 0) {
            Py_CLEAR(left);
            break;
        }
        operation_withdraw(op);
    }
    return left;
}

static PyObject *purgatory_cancel_for_key(PurgatoryObject *p, PyObject *key_object)
{
    ParsedKey key;
    if (!purgatory_parse_key(p, key_object, &key))
        return NULL;
    KeyEntry *entry = table_find(&p->worker->watching->table, p, &key);
    Py_DECREF(key.key);
    if (entry == NULL)
        return PyList_New(0);
    Walk walk;
    walk_begin(&walk);
    bool ok = walk_entry(&walk, entry);
    walk_gathered(&walk);
    PyObject *left = ok ? walk_cancel(&walk) : NULL;
    walk_end(&walk);
    return left;
}

/* -- poll and expire: what a worker does for its purgatories between polls, and at its end ----- */

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

/* Without a daemon no timer fires, though the wheel may be there: expire by this process's clock.
 * Timers that the clock still fires when it is back belong to no operation. Returns the next
 * deadline; INT64_MAX: there is none. */
static int64_t watching_expire_alone(WorkerObject *w, PyObject **fatal)
{
    Watching *g = w->watching;
    int64_t now = wh_client_now(&w->client), next = INT64_MAX;
    Walk walk;
    if (now < g->first_deadline)
        return g->first_deadline;
    walk_begin(&walk);
    for (uint32_t i = 0; i < g->timed_size; i++) {
        const Timed *timed = &g->timed[i];
        if (timed->op == NULL)
            continue;
        int64_t deadline = wh_load_relaxed(&w->client.slots[wh_id_slot(timed->id)].deadline);
        if (deadline > now || !walk_add(&walk, timed->op))
            next = deadline < next ? deadline : next;
    }
    PyErr_Clear(); /* no memory: retried with the next check */
    g->first_deadline = next;
    for (size_t i = 0; i < walk.count; i++)
        if (operation_complete(walk.ops[i], true) < 0)
            errors_keep(fatal);
    walk_end(&walk);
    return w->watching ? w->watching->first_deadline : INT64_MAX;
}

/* Collect all that waits under keys of a bucket that may be marked. */
static bool walk_bucket(Walk *walk, Watching *g, uint32_t bucket, uint64_t marks)
{
    bool ok = true;
    for (uint64_t i = bucket; ok && i < g->table.size; i += WH_BUCKETS)
        for (KeyEntry *entry = g->table.heads[i]; ok && entry; entry = entry->chain)
            if (wh_hash_is_marked(entry->hash, marks))
                ok = walk_entry(walk, entry);
    return ok;
}

/* The same of all buckets with a bit in one word of marks. */
static bool walk_marks(Walk *walk, Watching *g, uint32_t word)
{
    uint64_t marks = wh_watch_take(&g->watch, word);
    bool ok = true;
    for (uint64_t buckets = marks & 0xffff; ok && buckets; buckets &= buckets - 1)
        ok = walk_bucket(walk, g, 16 * word + (uint32_t)__builtin_ctzll(buckets), marks);
    return ok;
}

/* Handle the checks of other workers: all marks first, then each operation once. */
static void watching_poll(WorkerObject *w, PyObject **fatal)
{
    uint64_t parts = w->watching && watching_has_row(w) ? wh_watch_drain(&w->watching->watch) : 0;
    if (parts == 0)
        return;
    Walk walk;
    walk_begin(&walk);
    for (; parts; parts &= parts - 1)
        for (uint32_t i = 0; i < 64; i++)
            if (!walk_marks(&walk, w->watching, 64 * (uint32_t)__builtin_ctzll(parts) + i))
                errors_keep(fatal);
    walk_gathered(&walk);
    walk_try(&walk, NULL, fatal);
    walk_end(&walk);
}

/* Seconds until the next deadline here, for waiting without a daemon; None: there is none. */
static PyObject *worker_seconds_until(WorkerObject *w, int64_t deadline)
{
    if (deadline == INT64_MAX)
        Py_RETURN_NONE;
    int64_t rest = wh_time_sub(deadline, wh_client_now(&w->client));
    return PyFloat_FromDouble(rest > 0 ? (double)rest / 1e9 : 0);
}

/* _settle(): complete what other workers triggered, and expire. Returns None; but
 * while the daemon is away, and there is a timeout to be kept, the seconds until it. */
static PyObject *worker_settle(WorkerObject *w, PyObject *unused)
{
    PyObject *fatal = NULL;
    (void)unused;
    if (!w->watching || worker_is_forked(w))
        Py_RETURN_NONE;
    w->watching->touched = true;
    /* first: what was true before the timeout was over is not reported as expired */
    watching_poll(w, &fatal);
    watching_expire(w, &fatal);
    int64_t next = watching_is_alone(w) ? watching_expire_alone(w, &fatal) : INT64_MAX;
    if (w->watching)
        watching_cancel_unwanted(w);
    if (w->notify_always && watching_has_row(w) && wh_watch_ready(&w->watching->watch))
        worker_ring(w);
    return errors_none(fatal) ? worker_seconds_until(w, next) : NULL;
}

/* Is there work for _settle() that a poll does not show? */
static PyObject *worker_get_unsettled(WorkerObject *w, void *unused)
{
    (void)unused;
    return PyBool_FromLong(w->watching && w->watching->due_first < w->watching->due_count);
}

/* Drop every link and list, without touching shared memory: see watching_drop. */
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
            op->links--;
            p->watched--;
            if (op->state == OP_WAITING) {
                operation_unlist(p, op);
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

/* -- the cycle collector ----------------------------------------------------------------------- */

/* Operations that wait are not tracked; what they hold is traversed here. With very many of them
 * that would be a pause, and for nothing: a worker that has been called since the last full
 * collection is still referenced. So it and all its operations are presumed alive then, without a
 * traversal; a dropped worker with so many operations is found by the second full collection.
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
            g->presumed_alive = g->touched && waiting >= MANY_WAIT;
            g->touched = false;
        }
        lock_end(&held);
    }
    Py_RETURN_NONE;
}

/* Register it, with the first purgatory. False: an error is set. */
static bool collections_registered(void)
{
    static bool registered;
    static PyMethodDef method = {"wheeld_collection_noted", collection_noted, METH_VARARGS, NULL};
    if (registered)
        return true;
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *callbacks = gc ? PyObject_GetAttrString(gc, "callbacks") : NULL;
    PyObject *call = callbacks ? PyCFunction_New(&method, NULL) : NULL;
    registered = call && PyList_Check(callbacks) && PyList_Append(callbacks, call) == 0;
    Py_XDECREF(call);
    Py_XDECREF(callbacks);
    Py_XDECREF(gc);
    return registered || PyErr_Occurred() == NULL;
}

/* Waiting operations are not tracked (operation_append): what one holds is visited from here, if
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
    if (g && g->presumed_alive)
        return 0;
    int stop = watching_traverse_waiting(g, visit, arg);
    if (stop)
        return stop;
    for (size_t i = g ? g->due_first : 0; g && i < g->due_count; i++)
        Py_VISIT(g->due[i]);
    return 0;
}

/* -- shared words of keys, and changes that are noted before they are made --------------------- */

/* The shared word of a key: 92 bits of hash, from two seeds that nobody outside of the daemon
 * knows. */
static bool word_key(PurgatoryObject *p, const ParsedKey *key, wh_word_key *word)
{
    ParsedKey other;
    if (!key_parse(key->key, wh_hash_add(p->seed, 'w'), &other))
        return false;
    *word = wh_words_key(key->hash, other.hash, WH_WORD_LIVE);
    Py_DECREF(other.key);
    return true;
}

/* May this worker still touch shared memory? If not, an error is set. */
static bool purgatory_has_row(PurgatoryObject *p)
{
    if (watching_has_row(p->worker))
        return true;
    PyErr_Format(errors.daemon_not_running,
                 "the daemon has taken this worker's row back: connect() again");
    return false;
}

/* A key for a call that may begin and touch what is shared, and its word. */
static bool purgatory_parse_word(PurgatoryObject *p, PyObject *object, ParsedKey *key,
                                 wh_word_key *word)
{
    if (!purgatory_parse_key(p, object, key))
        return false;
    if (word_key(p, key, word) && purgatory_has_row(p) &&
        (wh_words_there(&p->worker->keys, word) || keys_refuse(p->worker, object)))
        return true;
    Py_DECREF(key->key);
    return false;
}

/* _word(key) -> its word; 0: it has none */
static PyObject *purgatory_word(PurgatoryObject *p, PyObject *object)
{
    ParsedKey key;
    wh_word_key word;
    if (!purgatory_parse_word(p, object, &key, &word))
        return NULL;
    Py_DECREF(key.key);
    return PyLong_FromUnsignedLongLong(wh_words_read(&p->worker->keys, &word));
}

/* Complete what waits under a key whose condition has changed, here and elsewhere. -1: an error is
 * set. */
static int64_t purgatory_check_key(PurgatoryObject *p, const ParsedKey *key)
{
    PyObject *count = purgatory_check(p, key->key);
    int64_t completed = count ? PyLong_AsLongLong(count) : -1;
    Py_XDECREF(count);
    return completed;
}

static bool parse_word_value(PyObject *object, uint64_t *value)
{
    if (integer_u64(object, value, "value"))
        return true;
    if (PyErr_ExceptionMatches(PyExc_OverflowError))
        raise_about(PyExc_OverflowError, object, "value: got {}, expected 0 to 2**64 - 1");
    return false;
}

/* _grow(key, value, least=0, most=2**64-1) -> did the key's word, which was from `least` to `most`,
 * grow? If so the key was checked. */
static PyObject *purgatory_grow(PurgatoryObject *p, PyObject *const *args, Py_ssize_t n)
{
    ParsedKey key;
    wh_word_key word;
    uint64_t value, least = 0, most = UINT64_MAX;
    if (n < 2 || n > 4)
        return PyErr_Format(PyExc_TypeError, "_grow() takes a key and two to four numbers");
    if (!parse_word_value(args[1], &value) || (n > 2 && !parse_word_value(args[2], &least)) ||
        (n > 3 && !parse_word_value(args[3], &most)) ||
        !purgatory_parse_word(p, args[0], &key, &word))
        return NULL;
    int64_t checked = 0;
    Watching *g = p->worker->watching;
    Note note = watching_change(g, key.hash);
    enum wh_grown grown = wh_words_grow(&p->worker->keys, &word, value, least, most);
    if (grown == WH_GREW)
        checked = purgatory_check_key(p, &key);
    watching_done(p->worker, note);
    Py_DECREF(key.key);
    if (checked < 0)
        return NULL;
    if (grown != WH_GREW_NO_ROOM)
        return PyBool_FromLong(grown == WH_GREW);
    return raise_about(
        errors.words_full, args[0],
        "no room for the word of key {}: %u places, and both sets of this key are full; forget() "
        "keys that are no longer needed",
        wh_words_places(&p->worker->keys));
}

/* _forget(key, least=0) -> had it a word, of `least` or more? */
static PyObject *purgatory_forget(PurgatoryObject *p, PyObject *const *args, Py_ssize_t n)
{
    ParsedKey key;
    wh_word_key word;
    uint64_t least = 0;
    if (n < 1 || n > 2)
        return PyErr_Format(PyExc_TypeError, "_forget() takes a key and a number");
    if ((n > 1 && !parse_word_value(args[1], &least)) ||
        !purgatory_parse_word(p, args[0], &key, &word))
        return NULL;
    Py_DECREF(key.key);
    return PyBool_FromLong(wh_words_forget(&p->worker->keys, &word, least));
}

/* _change(key) -> (tenant, place): its condition is about to change; for _done() */
static PyObject *purgatory_change(PurgatoryObject *p, PyObject *object)
{
    ParsedKey key;
    if (!purgatory_parse_key(p, object, &key))
        return NULL;
    Py_DECREF(key.key);
    if (!purgatory_has_row(p))
        return NULL;
    Note note = watching_change(p->worker->watching, key.hash);
    return Py_BuildValue("KI", (unsigned long long)note.tenant, note.place);
}

/* _done(tenant, place): the key was checked, or is not to be any more. */
static PyObject *purgatory_done(PurgatoryObject *p, PyObject *args)
{
    unsigned long long tenant;
    Note note;
    if (!PyArg_ParseTuple(args, "KI", &tenant, &note.place))
        return NULL;
    note.tenant = tenant;
    if (p->worker)
        watching_done(p->worker, note);
    Py_RETURN_NONE;
}

/* -- the type ---------------------------------------------------------------------------------- */

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

/* Take our place among the worker's purgatories, in the wheel that it has now. */
static void purgatory_settle_in(PurgatoryObject *p, Watching *g)
{
    Py_ssize_t length;
    /* it was made before: never NULL */
    const char *text = PyUnicode_AsUTF8AndSize(p->name, &length);
    p->seed = wh_hash_piece(g->watch.seg->head.token, 'p', text, (size_t)length);
    p->closed = p->lost = false;
    p->forks = p->worker->forks;
    p->sibling = g->purgatories;
    g->purgatories = p;
    purgatory_publish(p, g, text, length);
}

/* _renew(): it was shut down for the end of a wheel; the worker has another one. */
static PyObject *purgatory_renew(PurgatoryObject *p, PyObject *unused)
{
    (void)unused;
    Watching *g = worker_still_usable(p->worker) ? watching_of(p->worker) : NULL;
    if (g == NULL || !purgatory_name_is_free(g, p->name))
        return NULL;
    purgatory_settle_in(p, g);
    Py_RETURN_NONE;
}

/* The worker's locks are held. */
static int purgatory_begin(PurgatoryObject *p, WorkerObject *w, PyObject *name, PyObject *submit)
{
    Py_ssize_t length;
    const char *text = text_utf8(name, &length, "name ");
    if (p->worker) {
        PyErr_SetString(PyExc_TypeError, "this purgatory is already initialised");
        return -1;
    }
    if (text == NULL || !worker_usable(w))
        return -1;
    Watching *g = watching_of(w);
    if (g == NULL || !purgatory_name_is_free(g, name) || gevent_is_loaded() < 0 ||
        !collections_registered())
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
    purgatory_unpublish(p);
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
    purgatory_unpublish(p);
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
