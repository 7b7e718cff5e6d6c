/* Telling: how a check reaches the watchers of its key in other workers, whatever becomes of the
 * checking process.
 *
 * All of them are marked before the first is rung, which may be slow; and a note stays in this
 * worker's row until all were rung, so that the supervisor continues where this one was killed. */

/* The FIFO of the tenant of a row; -1: it has gone. One that was removed is where it sleeps as long
 * as there is no other. False: an error is set. */
static bool watching_bell(WorkerObject *w, uint32_t row, uint64_t tenant, int *fd)
{
    Bell *bell = &w->watching->bells[row];
    int names = bell->tenant == tenant ? wh_fd_names(&bell->fifo) : -1;
    *fd = names < 0 ? -1 : bell->fifo.number;
    if (names > 0)
        return true;
    PyObject *opened = PyObject_CallMethod((PyObject *)w, "_open_bell", "I", row);
    if (opened == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_FileNotFoundError))
            return false;
        PyErr_Clear();
        if (w->watching == NULL || w->watching->bells[row].tenant != tenant) /* closed meanwhile */
            *fd = -1;
        return true;
    }
    *fd = (int)PyLong_AsLong(opened);
    Py_DECREF(opened);
    if (w->watching == NULL) { /* closed meanwhile */
        close(*fd);
        *fd = -1;
        return true;
    }
    bell = &w->watching->bells[row];
    if (bell->tenant)
        wh_fd_close(&bell->fifo);
    *bell =
        (Bell){.tenant = tenant, .fifo = wh_fd_of(*fd), .wanted = bell->wanted, .wait = bell->wait};
    return true;
}

/* Mark the key for the worker in `row`. True: it sleeps, and we have not rung in this sleep. */
static bool watching_mark(Watching *g, uint32_t row, uint64_t hash)
{
    Bell *bell = &g->bells[row];
    /* pairs: watch-tenant - before the mark: else the next tenant's bell could be noted as rung for
     * the wait_seq of this one */
    bell->wanted = wh_load_acquire(&g->watch.rows[row].tenant);
    bell->wait = wh_watch_mark(&g->watch, row, hash);
    return bell->wait & 1 && bell->wanted != 0 &&
           (bell->tenant != bell->wanted || bell->rung != bell->wait);
}

/* Ring for the worker in `row`, by its last mark. False: an error is set. */
static bool watching_ring(WorkerObject *w, uint32_t row)
{
    int fd;
    if (!watching_bell(w, row, w->watching->bells[row].wanted, &fd))
        return false;
    if (fd < 0 || w->watching == NULL)
        return true;
    /* another thread may have marked it since: this ring counts for that, too */
    Bell *bell = &w->watching->bells[row];
    bell->rung = bell->wait;
    wh_fd_ring(&bell->fifo);
    if (watching_has_row(w))
        wh_count(&w->watching->watch.mine->rings, 1);
    return true;
}

typedef struct { /* of a change that is under way */
    uint64_t tenant; /* ours when it began */
    uint32_t place;
} Note;

static inline Note watching_change(Watching *g, uint64_t hash)
{
    return (Note){.tenant = g->tenant, .place = wh_watch_change(&g->watch, hash)};
}

/* End it, unless the row now belongs to another worker or a forked parent. */
static inline void watching_done(WorkerObject *w, Note note)
{
    if (watching_has_row(w) && w->watching->tenant == note.tenant && !worker_is_forked(w))
        wh_watch_done(&w->watching->watch, note.place);
}

typedef struct { /* of a check: a bit per row that sleeps and is to be rung for */
    uint64_t rows[WH_MAX_WORKERS / 64 + 1], any;
    uint32_t words;
} Asleep;

static inline void asleep_begin(Asleep *asleep, uint32_t words)
{
    asleep->any = 0;
    asleep->words = words;
    for (uint32_t i = 0; i < words; i++)
        asleep->rows[i] = 0;
}

/* Does another worker watch the bucket? */
static inline bool watching_has_others(const Watching *g, uint32_t bucket)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < g->watch.words; i++)
        rows |= wh_watch_others(&g->watch, bucket, i);
    return rows != 0;
}

/* Mark the key for whoever watches its bucket in other workers. */
static inline void watching_mark_others(Watching *g, uint64_t hash, Asleep *asleep)
{
    uint32_t bucket = wh_hash_bucket(hash);
    for (uint32_t i = 0; i < asleep->words; i++)
        for (uint64_t rows = wh_watch_others(&g->watch, bucket, i); wh_unlikely(rows);
             rows &= rows - 1)
            if (watching_mark(g, 64 * i + (uint32_t)__builtin_ctzll(rows), hash))
                asleep->any |= asleep->rows[i] |= rows & -rows;
}

/* Ring for those that sleep. False: an error is set, after all were tried. */
static bool watching_ring_all(WorkerObject *w, const Asleep *asleep)
{
    PyObject *failed = NULL;
    for (uint32_t i = 0; i < asleep->words; i++)
        for (uint64_t rows = asleep->rows[i]; rows && watching_has_row(w); rows &= rows - 1)
            if (!watching_ring(w, 64 * i + (uint32_t)__builtin_ctzll(rows)))
                errors_keep(&failed);
    return errors_none(failed);
}

/* Reach the watchers of the key in other workers: mark all, then ring for those that sleep. False:
 * an error is set, after all were tried. */
static bool watching_tell(WorkerObject *w, uint64_t hash)
{
    Watching *g = w->watching;
    wh_watch_barrier(&g->watch);
    if (wh_likely(!watching_has_others(g, wh_hash_bucket(hash))))
        return true;
    Asleep asleep;
    asleep_begin(&asleep, g->watch.words);
    /* before the first mark: killed earlier, it has notified nobody */
    Note note = watching_change(g, hash);
    watching_mark_others(g, hash, &asleep);
    bool ok = wh_likely(!asleep.any) || watching_ring_all(w, &asleep);
    watching_done(w, note);
    return ok;
}

/* The same for many keys: each sleeper is rung for once, after all its keys were marked. */
static bool watching_tell_many(WorkerObject *w, const ParsedKey *keys, Py_ssize_t count)
{
    Watching *g = w->watching;
    if (count == 0)
        return true;
    Asleep asleep;
    asleep_begin(&asleep, g->watch.words);
    Note note = {.tenant = g->tenant, .place = wh_watch_change_everything(&g->watch)};
    wh_watch_barrier(&g->watch);
    for (Py_ssize_t i = 0; i < count; i++)
        watching_mark_others(g, keys[i].hash, &asleep);
    bool ok = !asleep.any || watching_ring_all(w, &asleep);
    watching_done(w, note);
    return ok;
}
