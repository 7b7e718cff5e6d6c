/* Watching: what a worker needs once it has a purgatory: the watch segment, its keys, the timers of
 * its operations, and the bells of other workers.
 *
 * Whoever runs user code from here on (try_complete, callbacks, destructors) holds its own
 * references and looks everything up again afterwards: anything may have changed. */

typedef struct OperationObject OperationObject;
typedef struct PurgatoryObject PurgatoryObject;
static OperationObject *operation_expired(OperationObject *op);
static void purgatory_publish_size(PurgatoryObject *p); /* in operation_part.c */

typedef struct { /* another worker's FIFO */
    uint64_t tenant; /* whose it is; 0: not open */
    uint64_t rung; /* its wait_seq at the last ring */
    uint64_t wanted, wait; /* the worker marked last, and its wait_seq then */
    wh_fd fifo;
} Bell;

typedef struct { /* a timer of an operation; the timer's cookie is its place */
    uint64_t id; /* 0: free */
    OperationObject *op; /* borrowed; NULL: over before it fired, its expiration is on the way */
    uint32_t next_free;
} Timed;

/* the timer of an operation that was over when the ring had no room for its cancel */
typedef struct {
    uint64_t id;
    uint32_t place;
} Unwanted;

typedef struct Watching {
    Mapping map;
    wh_watch watch;
    wh_sizes sizes;
    uint64_t tenant; /* our incarnation, while the row is ours */
    KeyTable table;
    Bell *bells;
    Timed *timed;
    uint32_t timed_size, free_timed; /* WH_NIL: none is free */
    int64_t first_deadline; /* no entry of `timed` is due earlier; INT64_MAX: there is none */
    Unwanted *unwanted;
    size_t unwanted_count, unwanted_size;
    OperationObject **due; /* strong; expired, but not yet handled */
    size_t due_first, due_count, due_size;
    PurgatoryObject *purgatories; /* borrowed, linked */
    struct Watching *sibling; /* another worker of this process */
    bool touched, presumed_alive; /* purgatory_part.c */
} Watching;

static void watching_release_operations(Watching *g);
static void watching_enter(Watching *g); /* in purgatory_part.c */
static void watching_leave(Watching *g);

/* -- from a worker's first purgatory to its end ------------------------------------------------ */

/* Give back memory, descriptors and references. Touches nothing that is shared: a forked child
 * drops what is its parent's, and of a worker that leaves the supervisor clears the row. */
static void watching_drop(WorkerObject *w)
{
    Watching *g = w->watching;
    if (g == NULL)
        return;
    w->watching = NULL;
    w->client.watched = NULL;
    watching_leave(g);
    watching_release_operations(g);
    for (uint32_t row = 0; g->bells && row < g->watch.row_count; row++)
        if (g->bells[row].tenant)
            wh_fd_close(&g->bells[row].fifo);
    free(g->bells);
    free(g->table.heads);
    free(g->watch.keys);
    free(g->timed);
    free(g->unwanted);
    free(g->due);
    mapping_drop(&g->map);
    free(g);
}

static bool watching_fill(WorkerObject *w, Watching *g, PyObject *memory)
{
    if (!mapping_get_kind(&g->map, memory, WH_KIND_WATCH, "watch"))
        return false;
    uint32_t row = w->client.worker;
    uint32_t rows = wh_watch_rows(g->map.view.buf, (uint64_t)g->map.view.len);
    if (row >= rows) {
        PyErr_Format(PyExc_ValueError, "row %u of a watch segment with %u", row, rows);
        return false;
    }
    g->tenant = wh_owner_incarnation(w->client.me);
    g->free_timed = WH_NIL;
    g->first_deadline = INT64_MAX;
    if (wh_watch_bind(&g->watch, g->map.view.buf, rows, row) && table_init(&g->table) &&
        (g->bells = calloc(rows, sizeof *g->bells))) {
        wh_sizes_bind(&g->sizes, &g->watch);
        return true;
    }
    PyErr_NoMemory();
    return false;
}

/* The worker's watching, made at its first purgatory. NULL: an error is set. */
static Watching *watching_of(WorkerObject *w)
{
    uint32_t forks = w->forks;
    w->inside++;
    PyObject *memory =
        w->watching ? NULL : PyObject_CallMethod((PyObject *)w, "_segment", "s", "watch");
    w->inside -= forks == w->forks;
    if (w->watching) { /* another thread may have made it meanwhile */
        Py_XDECREF(memory);
        return w->watching;
    }
    if (memory == NULL || !worker_still_usable(w)) {
        Py_XDECREF(memory);
        return NULL;
    }
    if ((w->watching = calloc(1, sizeof *w->watching)) == NULL)
        PyErr_NoMemory();
    else if (!watching_fill(w, w->watching, memory))
        watching_drop(w);
    Py_DECREF(memory);
    if (w->watching) {
        watching_enter(w->watching);
        w->client.watched = w->watching->watch.mine;
        wh_client_say_wait(&w->client, w->client.wait_seq);
    }
    return w->watching;
}

/* Is the row in the directory still this worker's? The supervisor takes it from a worker that it
 * has reaped. */
static bool watching_has_row(WorkerObject *w)
{
    Watching *g = w->watching;
    return g && worker_is_open(w) &&
           wh_load_acquire(&g->watch.mine->tenant) == g->tenant; /* pairs: watch-tenant */
}

/* -- timers of operations ---------------------------------------------------------------------- */

/* A free place in `timed`, or WH_NIL: no memory. */
static uint32_t timed_take(Watching *g)
{
    if (g->free_timed == WH_NIL) {
        uint32_t size = g->timed_size ? 2 * g->timed_size : 1024;
        Timed *more = size > g->timed_size ? realloc(g->timed, size * sizeof *more) : NULL;
        if (more == NULL)
            return WH_NIL;
        for (uint32_t i = size; i-- > g->timed_size; g->free_timed = i)
            more[i] = (Timed){.next_free = g->free_timed};
        g->timed = more;
        g->timed_size = size;
    }
    uint32_t place = g->free_timed;
    g->free_timed = g->timed[place].next_free;
    return place;
}

static void timed_give(Watching *g, uint32_t place)
{
    g->timed[place] = (Timed){.next_free = g->free_timed};
    g->free_timed = place;
}

/* Note a timer to cancel once there is room. Without memory it fires, which does no harm. */
static void unwanted_add(Watching *g, uint64_t id, uint32_t place)
{
    if (g->unwanted_count == g->unwanted_size) {
        size_t size = 2 * g->unwanted_size + 16;
        Unwanted *more = realloc(g->unwanted, size * sizeof *more);
        if (more == NULL)
            return;
        g->unwanted = more;
        g->unwanted_size = size;
    }
    g->unwanted[g->unwanted_count++] = (Unwanted){.id = id, .place = place};
}

/* Cancel the timers noted, as far as there is room. Never waits. */
static void watching_cancel_unwanted(WorkerObject *w)
{
    Watching *g = w->watching;
    while (wh_unlikely(g->unwanted_count) && worker_is_open(w) && wh_client_fits(&w->client, 1)) {
        const Unwanted *last = &g->unwanted[--g->unwanted_count];
        /* else whoever receives it frees its place */
        if (worker_cancel_timer(w, last->id, false) > 0)
            timed_give(g, last->place);
    }
}

/* Room for one more expired operation. */
static bool due_fits(Watching *g, size_t more)
{
    if (g->due_first && g->due_first == g->due_count)
        g->due_first = g->due_count = 0;
    if (g->due_count + more <= g->due_size)
        return true;
    size_t size = 2 * g->due_size + more;
    OperationObject **due = realloc(g->due, size * sizeof *due);
    if (due == NULL)
        return false;
    g->due = due;
    g->due_size = size;
    return true;
}

/* Is this event the timer of an operation? If so it is taken up: what expired goes to `due`. */
static bool watching_takes(Watching *g, const wh_completion *event)
{
    uint64_t place = event->cookie;
    if (place >= g->timed_size || g->timed[place].id != event->id)
        return false;
    OperationObject *op = g->timed[place].op;
    timed_give(g, (uint32_t)place);
    if (op)
        g->due[g->due_count++] = operation_expired(op);
    return true;
}

static bool worker_is_marked(const WorkerObject *w)
{
    return w->watching && wh_watch_ready(&w->watching->watch);
}

/* Has the daemon gone, perhaps for good? Then operations time out here: watching_expire_alone(). */
static bool watching_is_alone(WorkerObject *w)
{
    return w->watching && (w->heard.lost || !worker_is_open(w));
}

/* Is there work for _settle()? */
static bool worker_has_work(WorkerObject *w)
{
    Watching *g = w->watching;
    if (g == NULL)
        return false;
    return g->due_first < g->due_count || worker_is_marked(w) ||
           (w->heard.lost && wh_client_now(&w->client) >= g->first_deadline);
}

/* The events that are not timers of operations; the others wait for _settle(). */
static PyObject *worker_take_due(WorkerObject *w, PyObject *events)
{
    Watching *g = w->watching;
    Py_buffer in, out;
    if (PyObject_GetBuffer(events, &in, PyBUF_SIMPLE) < 0)
        return NULL;
    size_t bytes = wh_event_bytes(&w->client), n = (size_t)in.len / bytes, others = 0;
    char *kept = due_fits(g, n) ? malloc((size_t)in.len + 1) : NULL;
    for (size_t i = 0; kept && i < n; i++) {
        const char *event = (const char *)in.buf + i * bytes;
        wh_completion record;
        memcpy(&record, event, sizeof record);
        if (!watching_takes(g, &record))
            memcpy(kept + others++ * bytes, event, bytes);
    }
    PyBuffer_Release(&in);
    if (kept == NULL)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    if (others == n)
        result = Py_NewRef(events);
    else if (others == 0)
        result = empty_events(w);
    else if ((result = events_new(w, others, &out)) != NULL) {
        memcpy(out.buf, kept, others * bytes);
        PyBuffer_Release(&out);
        result = events_beside_those(w, result, events);
    }
    free(kept);
    return result;
}

/* -- notify the watchers of a key in other workers --------------------------------------------- */

/* A check reaches the watchers of its key in other workers, whatever becomes of the checking
 * process: all are marked before the first is rung, which may be slow, and a note stays in this
 * worker's row until all were rung, so that the supervisor continues where this one was killed. */

/* The FIFO of the tenant of a row; -1: it has gone. The tenant sleeps on a removed FIFO as long as
 * it has no other. False: an error is set. */
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
static bool watching_notify(WorkerObject *w, uint64_t hash)
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
static bool watching_notify_many(WorkerObject *w, const ParsedKey *keys, Py_ssize_t count)
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
