/* Batches: arrays in, arrays out, one native call for all. wheeld_client.timers.timers checks
 * dtypes and shapes; here lengths are checked again, so that no call can write out of bounds. */

#define BATCH_PUBLISH 1024 /* the clock starts on a batch before it is complete */
#define BATCH_PIECE 64     /* for so many at once it looks for room in the ring */
#define BATCH_AHEAD 12     /* how far ahead slots are prefetched */

typedef struct {
    Py_buffer view;
} Array;

static bool array_get(Array *a, PyObject *object, Py_ssize_t itemsize, Py_ssize_t n, bool writable)
{
    if (PyObject_GetBuffer(object, &a->view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return false;
    if (a->view.len == itemsize * n)
        return true;
    PyErr_Format(PyExc_ValueError, "array of %zd bytes where %zd are needed", a->view.len,
                 itemsize * n);
    return false;
}

/* The payloads of a batch, all in a row. */
typedef struct {
    const char *data;
    Py_ssize_t size;
    const int64_t *offsets; /* where each begins and the last one ends */
} Payloads;

typedef struct {
    const double *delays;
    const uint64_t *cookies; /* or NULL: r.cookie for all */
    const char *rows; /* payloads of one width, r.payload_size; or NULL */
    Py_ssize_t width;
    Payloads payloads; /* with offsets: payloads of any width */
    uint64_t *ids; /* out; holds the claimed slots meanwhile */
    Py_ssize_t n;
    bool wait;
    uint64_t me; /* who holds them */
} Batch;

/* The payload of row i. False: an error is set that names the row. */
static bool payload_of_row(const WorkerObject *w, const Payloads *p, Py_ssize_t i, wh_request *r)
{
    if (p->offsets == NULL)
        return true;
    int64_t from = p->offsets[i], to = p->offsets[i + 1];
    if (from < 0 || to < from || to > p->size) {
        PyErr_Format(PyExc_ValueError, "payload offsets[%zd]: %lld to %lld of %zd bytes", i,
                     (long long)from, (long long)to, p->size);
        return false;
    }
    if ((uint64_t)(to - from) > w->client.payload_bytes) {
        PyErr_Format(errors.payload_too_large,
                     "payload %zd has %lld bytes; this wheel holds %u per timer (wheeld start "
                     "--payload-bytes); nothing of the batch was scheduled",
                     i, (long long)(to - from), w->client.payload_bytes);
        return false;
    }
    r->payload = p->data + from;
    r->payload_size = (uint32_t)(to - from);
    return true;
}

static bool batch_check_delays(const double *delays, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++)
        if (wh_unlikely(!(delays[i] >= 0) || isinf(delays[i]))) {
            PyObject *value = PyFloat_FromDouble(delays[i]);
            PyErr_Format(errors.invalid_delay,
                         "delays[%zd] must be a finite number of seconds, 0 or more: got %R; "
                         "nothing of the batch was done",
                         i, value);
            Py_XDECREF(value);
            return false;
        }
    return true;
}

static void batch_give_slots(WorkerObject *w, const Batch *b, Py_ssize_t from, Py_ssize_t to)
{
    for (Py_ssize_t i = from; i < to; i++)
        worker_give_slot(w, (uint32_t)b->ids[i], b->me);
}

/* A batch that may not wait is done whole or not at all: is there room in the ring for all of it?
 * False: an error is set. */
static bool batch_fits(WorkerObject *w, Py_ssize_t n, bool wait)
{
    return wait || wh_client_fits(&w->client, (uint64_t)n) ||
           worker_wait_room(w, (uint64_t)n, false);
}

/* Claim all slots, or none. */
static bool batch_claim(WorkerObject *w, Batch *b)
{
    Py_ssize_t i = 0;
    b->me = w->client.me;
    for (;;) {
        i += (Py_ssize_t)wh_slabs_take_many(&w->client.slabs, b->ids + i, (uint64_t)(b->n - i));
        if (i == b->n)
            return true;
        uint32_t slot = worker_find_slot(w, (uint64_t)(b->n - i), b->wait);
        if (slot == WH_NIL) {
            batch_give_slots(w, b, 0, i);
            return false;
        }
        b->ids[i++] = slot;
    }
}

/* The clock stopped draining half-way: take back what is armed, give back the rest. Of a client
 * that was closed meanwhile all of it is gone. */
static void batch_undo(WorkerObject *w, const Batch *b, Py_ssize_t armed)
{
    if (!worker_is(w, b->me))
        return;
    for (Py_ssize_t i = 0; i < armed; i++)
        if (wh_slot_cancel(&w->client.states[wh_id_slot(b->ids[i])], wh_id_gen(b->ids[i])))
            wh_count(&w->client.seg->cancelled, 1);
    batch_give_slots(w, b, armed, b->n);
}

/* Arm the timers from `i` to `end`, for which the ring has room. Returns where it stopped: at
 * `end`, or at a payload that is none any more; then an error is set. What all have alike stays in
 * registers: nothing here keeps the address of `r`. */
static Py_ssize_t batch_arm_some(WorkerObject *w, const Batch *b, wh_request r, Py_ssize_t i,
                                 Py_ssize_t end, int64_t *earliest)
{
    wh_client *c = &w->client;
    uint64_t *ids = b->ids;
    Py_ssize_t began = i;
    int64_t first = *earliest;
    for (; i < end; i++) {
        if (i + BATCH_AHEAD < b->n)
            wh_client_prefetch(c, (uint32_t)ids[i + BATCH_AHEAD]);
        r.deadline = wh_time_add(r.now, delay_ns(b->delays[i]));
        if (b->cookies)
            r.cookie = b->cookies[i];
        if (b->rows)
            r.payload = b->rows + i * b->width;
        if (wh_unlikely(b->payloads.offsets != NULL)) {
            wh_request one;
            if (!payload_of_row(w, &b->payloads, i, &one))
                break;
            r.payload = one.payload;
            r.payload_size = one.payload_size;
        }
        ids[i] = wh_client_arm(c, (uint32_t)ids[i], &r);
        wh_client_push(c, ids[i]);
        first = r.deadline < first ? r.deadline : first;
    }
    wh_count(&c->seg->scheduled, (uint64_t)(i - began));
    *earliest = first;
    return i;
}

static bool batch_arm(WorkerObject *w, const Batch *b, wh_request r)
{
    wh_client *c = &w->client;
    int64_t earliest = INT64_MAX;
    r.now = wh_client_now(c);
    for (Py_ssize_t i = 0, end; i < b->n; i = end) {
        end = b->n - i < BATCH_PIECE ? b->n : i + BATCH_PIECE;
        if (wh_unlikely(!wh_client_fits(c, (uint64_t)(end - i))) &&
            !worker_wait_room(w, (uint64_t)(end - i), b->wait)) {
            batch_undo(w, b, i);
            return false;
        }
        Py_ssize_t armed = batch_arm_some(w, b, r, i, end, &earliest);
        if (armed != end) {
            batch_undo(w, b, armed);
            return false;
        }
        if (end % BATCH_PUBLISH == 0)
            wh_client_publish(c, earliest);
    }
    wh_client_publish(c, earliest);
    return true;
}

/* A call that holds slots for long: none of its slabs is parked meanwhile. */
static bool batch_schedule(WorkerObject *w, Batch *b, wh_request r)
{
    uint64_t me = worker_hold(w);
    bool ok = batch_claim(w, b) && batch_arm(w, b, r);
    worker_let_go(w, me);
    return ok;
}

static bool batch_check_payloads(WorkerObject *w, const Batch *b)
{
    wh_request unused;
    for (Py_ssize_t i = 0; b->payloads.offsets && i < b->n; i++)
        if (!payload_of_row(w, &b->payloads, i, &unused))
            return false;
    return true;
}

/* schedule_batch(delays, cookies, ids, payloads, places, interval, to, block=True)
 * delays: n float64; cookies: n uint64 or an int; ids: n uint64, written; payloads: None, or all
 * bytes in a row; places: n + 1 int64, where each begins and the last one ends, or an int, the
 * width of all; interval, to, block: as in schedule(). */
static PyObject *worker_schedule_batch(WorkerObject *w, PyObject *args)
{
    int wait = 1;
    PyObject *delays, *cookies, *ids, *payloads, *places;
    Extras extras = {0};
    wh_request r = {0};
    Array arrays[4] = {0};
    Py_buffer bytes = {0};
    if (!PyArg_ParseTuple(args, "OOOOOOO|p", &delays, &cookies, &ids, &payloads, &places,
                          &extras.interval, &extras.to, &wait))
        return NULL;
    bool each_cookie = !PyLong_Check(cookies), rows = payloads != Py_None && PyLong_Check(places);
    Py_ssize_t n = PyObject_Length(delays), width = rows ? PyLong_AsSsize_t(places) : 0;
    extras.cookie = each_cookie ? NULL : cookies;
    if (rows && width < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "payloads of a negative width");
    bool ok = n >= 0 && width >= 0 && parse_extras(&extras, &r) &&
              array_get(&arrays[0], delays, 8, n, false) &&
              array_get(&arrays[1], ids, 8, n, true) &&
              (!each_cookie || array_get(&arrays[2], cookies, 8, n, false));
    Batch batch = {.delays = arrays[0].view.buf,
                   .cookies = arrays[2].view.buf,
                   .width = width,
                   .ids = arrays[1].view.buf,
                   .n = n,
                   .wait = wait};
    if (ok && rows) {
        ok = array_get(&arrays[3], payloads, width, n, false);
        extras.payload = (Py_buffer){.buf = arrays[3].view.buf, .len = width};
        batch.rows = arrays[3].view.buf;
    } else if (ok && payloads != Py_None) {
        ok = array_get(&arrays[3], places, 8, n + 1, false) &&
             PyObject_GetBuffer(payloads, &bytes, PyBUF_SIMPLE) == 0;
        batch.payloads = (Payloads){bytes.buf, bytes.len, arrays[3].view.buf};
    }
    ok = ok && worker_may_begin(w, wait) && place_extras(w, &extras, &r) &&
         batch_check_delays(batch.delays, n) && batch_check_payloads(w, &batch) &&
         batch_fits(w, n, wait) && batch_schedule(w, &batch, r);
    for (int i = 0; i < 4; i++)
        PyBuffer_Release(&arrays[i].view);
    PyBuffer_Release(&bytes);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* cancel_batch(ids, won, block=True): ids: n uint64; won: n bools, written. */
static PyObject *worker_cancel_batch(WorkerObject *w, PyObject *args)
{
    PyObject *ids_object, *won_object;
    wh_client *c = &w->client;
    Array ids = {0}, won = {0};
    int wait = 1;
    if (!PyArg_ParseTuple(args, "OO|p", &ids_object, &won_object, &wait))
        return NULL;
    Py_ssize_t n = PyObject_Length(ids_object);
    bool ok = n >= 0 && array_get(&ids, ids_object, 8, n, false) &&
              array_get(&won, won_object, 1, n, true) && worker_may_begin(w, wait) &&
              batch_fits(w, n, wait);
    uint64_t me = c->me;
    const uint64_t *id = ids.view.buf;
    uint8_t *out = won.view.buf;
    uint64_t cancelled = 0;
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        if (i + BATCH_AHEAD < n && (id[i + BATCH_AHEAD] & 0xffffffffu) < c->capacity)
            wh_prefetch_write(&c->states[id[i + BATCH_AHEAD] & 0xffffffffu]);
        if (wh_unlikely(!wh_client_fits(c, 1)) && !(ok = worker_wait_room(w, 1, wait)))
            break;
        out[i] = wh_client_cancel(c, id[i]);
        cancelled += out[i];
        if (i % BATCH_PUBLISH == BATCH_PUBLISH - 1)
            wh_client_publish_lazily(c);
    }
    if (ok || worker_is(w, me)) {
        wh_count(&c->seg->cancelled, cancelled);
        wh_client_publish_lazily(c);
    }
    PyBuffer_Release(&ids.view);
    PyBuffer_Release(&won.view);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* Move all, or none if one of them is another worker's. */
static bool batch_move(WorkerObject *w, const uint64_t *ids, const double *delays, uint8_t *moved,
                       Py_ssize_t n, bool wait)
{
    int64_t earliest = INT64_MAX;
    for (Py_ssize_t i = 0; i < n; i++)
        if (worker_refuses_move(w, ids[i]))
            return false;
    if (!batch_fits(w, n, wait))
        return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        int won = worker_move(w, ids[i], delay_ns(delays[i]), &earliest, wait);
        if (won < 0)
            return false;
        moved[i] = (uint8_t)won;
        if (i % BATCH_PUBLISH == BATCH_PUBLISH - 1)
            wh_client_publish(&w->client, earliest);
    }
    wh_client_publish(&w->client, earliest);
    return true;
}

/* reschedule_batch(ids, delays, moved, block=True): n uint64, n float64; moved: n bools,
 * written. */
static PyObject *worker_reschedule_batch(WorkerObject *w, PyObject *args)
{
    PyObject *objects[3];
    Array ids = {0}, delays = {0}, moved = {0};
    int wait = 1;
    if (!PyArg_ParseTuple(args, "OOO|p", &objects[0], &objects[1], &objects[2], &wait))
        return NULL;
    Py_ssize_t n = PyObject_Length(objects[0]);
    bool ok = n >= 0 && array_get(&ids, objects[0], 8, n, false) &&
              array_get(&delays, objects[1], 8, n, false) &&
              array_get(&moved, objects[2], 1, n, true) && worker_may_begin(w, wait) &&
              batch_check_delays(delays.view.buf, n) &&
              batch_move(w, ids.view.buf, delays.view.buf, moved.view.buf, n, wait);
    PyBuffer_Release(&ids.view);
    PyBuffer_Release(&delays.view);
    PyBuffer_Release(&moved.view);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}
