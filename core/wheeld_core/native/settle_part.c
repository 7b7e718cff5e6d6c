/* What a worker does for its purgatories between polls, for the cycle collector, and at its end; and purge
 * mode. */

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
                    ok = walk_gather(walk, watch->op);
    return ok;
}

/* Look at what other workers checked: all marks first, then each operation once. */
static void watching_answer(WorkerObject *w, PyObject **fatal)
{
    if (w->watching == NULL || !watching_has_row(w) || !wh_watch_drain(&w->watching->watch))
        return;
    Walk walk;
    walk_begin(&walk);
    for (uint32_t i = 0; i < WH_BUCKETS / 64; i++)
        for (uint64_t marks = wh_watch_take(&w->watching->watch, i); marks; marks &= marks - 1)
            if (!walk_bucket(&walk, w->watching, 64 * i + (uint32_t)__builtin_ctzll(marks)))
                errors_keep(fatal);
    walk_gathered(&walk);
    walk_try(&walk, NULL, fatal);
    walk_end(&walk);
}

/* _settle(): complete what other workers triggered, and expire; purge where that is a mode. */
static PyObject *worker_settle(WorkerObject *w, PyObject *unused)
{
    PyObject *fatal = NULL;
    (void)unused;
    if (!w->watching || worker_is_forked(w))
        Py_RETURN_NONE;
    watching_answer(w, &fatal); /* first: what was true before the timeout was over is not reported as expired */
    watching_expire(w, &fatal);
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
