/* Check: have what waits under a key looked at, or taken out, here and in other workers. */

/* Add an operation to a walk over several keys, under some of which it may wait: it is looked at
 * once. Those marked are unmarked by walk_gathered(), whatever has failed. */
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

/* Ask what waits here under keys of which the other workers were told; `failed`: what that has
 * raised. */
static PyObject *purgatory_ask_keys(PurgatoryObject *p, const ParsedKey *keys, Py_ssize_t count,
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
    if (!watching_tell(p->worker, key.hash))
        errors_keep(&failed);
    Watching *g = p->worker->watching;
    if (wh_likely(failed == NULL && g && table_find(&g->table, p, &key) == NULL))
        completed = PyLong_FromLong(0);
    else
        completed = purgatory_ask_keys(p, &key, 1, failed);
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
        if (!watching_tell_many(p->worker, keys, count))
            errors_keep(&failed);
        completed = purgatory_ask_keys(p, keys, count, failed);
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
