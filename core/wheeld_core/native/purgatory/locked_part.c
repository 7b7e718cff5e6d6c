/* Which locks the calls of purgatories and operations hold on a free-threaded Python: see
 * shared/locked_part.c. */

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
