/* What a worker does for its purgatories between polls, and at its end. */

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
 * What the clock still fires when it is back belongs to no operation. Returns the next deadline;
 * INT64_MAX: there is none. */
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
static void watching_answer(WorkerObject *w, PyObject **fatal)
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
    watching_answer(w, &fatal);
    watching_expire(w, &fatal);
    int64_t next = watching_is_alone(w) ? watching_expire_alone(w, &fatal) : INT64_MAX;
    if (w->watching)
        watching_shed(w);
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
