/* Batches: arrays in, arrays out, one native call for all (batch.h). wheeld_client.timers.timers
 * checks dtypes and shapes; here lengths are checked again, so that no call can write out of
 * bounds. */

typedef struct {
    Py_buffer view;
} Array;

static bool array_get(Array *a, PyObject *object, Py_ssize_t itemsize, Py_ssize_t n, bool writable)
{
    if (PyObject_GetBuffer(object, &a->view, writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
        return false;
    if (a->view.len == itemsize * n)
        return true;
    PyErr_Format(PyExc_ValueError, "array of %zd bytes, expected %zd", a->view.len, itemsize * n);
    return false;
}

/* Set the error that says which row was refused, or the whole batch, and why. */
static wh_seldom bool batch_refuse(WorkerObject *w, const wh_batch *b, enum wh_call call)
{
    unsigned long long row = b->stopped;
    if (call == WH_CALL_BAD_DELAY && b->delays) {
        PyObject *value = PyFloat_FromDouble(b->delays[row]);
        PyErr_Format(errors.invalid_delay,
                     "delays[%llu] must be a finite number of seconds, 0 or more: got %R; "
                     "nothing in the batch was done",
                     row, value);
        Py_XDECREF(value);
    } else if (call == WH_CALL_BAD_DELAY)
        PyErr_Format(errors.invalid_delay, "deadlines[%llu] must be 0 or more ns: got %lld", row,
                     (long long)b->deadlines[row]);
    else if (call == WH_CALL_NOT_RESERVED)
        PyErr_Format(
            PyExc_ValueError,
            "id %llu is not reserved: it was already armed or released, or belongs to another worker",
            (unsigned long long)b->ids[row]);
    else if (call == WH_CALL_BAD_OFFSETS)
        PyErr_Format(PyExc_ValueError, "payload offsets[%llu]: %lld to %lld of %lld bytes", row,
                     (long long)b->offsets[row], (long long)b->offsets[row + 1],
                     (long long)b->bytes);
    else if (call == WH_CALL_LONG_PAYLOAD)
        PyErr_Format(errors.payload_too_large,
                     "payload %llu has %lld bytes; this wheel holds %u per timer (wheeld start "
                     "--max-payload, --payload-bytes); nothing in the batch was scheduled",
                     row, (long long)(b->offsets[row + 1] - b->offsets[row]),
                     wh_client_most_payload(&w->client));
    else
        worker_raise(w, call);
    return false;
}

/* Do what a batch asks for. False: an error is set. */
static bool batch_do(WorkerObject *w, wh_batch *b, const wh_request *r, bool wait)
{
    enum wh_call call = b->reserved ? wh_call_arm_reserved(&w->client, b, r, wait)
                                    : wh_call_schedule_batch(&w->client, b, r, wait);
    return call == WH_CALL_OK || batch_refuse(w, b, call);
}

/* The arguments of a call that arms many timers: their options, and what each has of its own. */
#define ROWS_NAMES "cookies", "ids", "payloads", "places", OPTION_NAMES
enum { COOKIES, IDS, PAYLOADS, PLACES, ROWS_OPTIONS, ROWS_VALUES = ROWS_OPTIONS + OPTIONS };

/* The arrays of a batch, while they are held. */
typedef struct {
    Array times, ids, cookies, places;
    Py_buffer bytes;
} Rows;

static void rows_drop(Rows *rows)
{
    PyBuffer_Release(&rows->times.view);
    PyBuffer_Release(&rows->ids.view);
    PyBuffer_Release(&rows->cookies.view);
    PyBuffer_Release(&rows->places.view);
    PyBuffer_Release(&rows->bytes);
}

/* Payloads of one width each, or of the widths that `places` says. */
static bool rows_get_payloads(Rows *rows, PyObject *const *values, Py_ssize_t n, wh_batch *b,
                              Order *o)
{
    if (values[PAYLOADS] == Py_None)
        return true;
    if (PyLong_Check(values[PLACES])) {
        Py_ssize_t width = PyLong_AsSsize_t(values[PLACES]);
        if (width < 0 && !PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "payloads have a negative width");
        if (width < 0 || !array_get(&rows->places, values[PAYLOADS], width, n, false))
            return false;
        b->payloads = rows->places.view.buf;
        b->width = (uint64_t)width;
        o->payload = (Py_buffer){.buf = rows->places.view.buf, .len = width};
        return true;
    }
    if (!array_get(&rows->places, values[PLACES], 8, n + 1, false) ||
        PyObject_GetBuffer(values[PAYLOADS], &rows->bytes, PyBUF_SIMPLE) < 0)
        return false;
    b->payloads = rows->bytes.buf;
    b->bytes = rows->bytes.len;
    b->offsets = rows->places.view.buf;
    return true;
}

/* Read what ROWS_NAMES names. False: an error is set. */
static bool rows_get(Rows *rows, PyObject *times, PyObject *const *values, wh_batch *b, Order *o)
{
    bool each_cookie = !PyLong_Check(values[COOKIES]);
    Py_ssize_t n = PyObject_Length(times);
    if (n < 0 || !order_parse(o, values + ROWS_OPTIONS) ||
        !array_get(&rows->times, times, 8, n, false) ||
        !array_get(&rows->ids, values[IDS], 8, n, !b->reserved) ||
        !(each_cookie ? array_get(&rows->cookies, values[COOKIES], 8, n, false)
                      : parse_u64(values[COOKIES], &o->request.cookie, "cookie")))
        return false;
    b->n = (uint64_t)n;
    b->ids = rows->ids.view.buf;
    b->cookies = rows->cookies.view.buf;
    if (b->reserved)
        b->deadlines = rows->times.view.buf;
    else
        b->delays = rows->times.view.buf;
    return rows_get_payloads(rows, values, n, b, o);
}

/* Arm a timer per row. Reserved ids belong to this wheel, so the call does not wait for another
 * one. */
static PyObject *worker_arm_rows(WorkerObject *w, PyObject *times, PyObject *const *values,
                                 bool reserved, Order *o)
{
    Rows rows = {0};
    wh_batch b = {.reserved = reserved};
    bool done = rows_get(&rows, times, values, &b, o) &&
                order_begin(o, w, b.n, o->wait && !reserved) &&
                batch_do(w, &b, &o->request, o->wait);
    rows_drop(&rows);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}

/* _schedule_batch(delays, cookies, ids, payloads, places, *, interval, to, block)
 * delays: n float64; cookies: n uint64 or an int; ids: n uint64, written; payloads: None, or all
 * bytes in a row; places: n + 1 int64, where each begins and the last one ends, or an int, the
 * width of all; the options: as in schedule(). */
static PyObject *worker_schedule_batch(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                       PyObject *kwnames)
{
    static const char *const names[] = {"delays", ROWS_NAMES};
    PyObject *values[1 + ROWS_VALUES] = {0};
    Order o = {0};
    if (!parse_keywords("schedule_many", names, 1 + ROWS_OPTIONS, args, n, kwnames, values) ||
        !parse_needed("schedule_many", names, 1 + ROWS_OPTIONS, values))
        return NULL;
    return worker_arm_rows(w, values[0], values + 1, false, &o);
}

/* _arm_batch(deadlines, clock, cookies, ids, payloads, places, *, interval, to, block)
 * The same for ids that are reserved, which are read; deadlines: n int64 ns on `clock`. */
static PyObject *worker_arm_batch(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                  PyObject *kwnames)
{
    static const char *const names[] = {"deadlines", "clock", ROWS_NAMES};
    PyObject *values[2 + ROWS_VALUES] = {0};
    Order o = {0};
    if (!parse_keywords("schedule_at_many", names, 2 + ROWS_OPTIONS, args, n, kwnames, values) ||
        !parse_needed("schedule_at_many", names, 2 + ROWS_OPTIONS, values) ||
        !order_parse_clock(&o, values[1]))
        return NULL;
    return worker_arm_rows(w, values[0], values + 2, true, &o);
}

/* cancel_batch(ids, won, block=True): ids: n uint64; won: n bools, written. */
static PyObject *worker_cancel_batch(WorkerObject *w, PyObject *args)
{
    PyObject *ids_object, *won_object;
    Array ids = {0}, won = {0};
    int wait = 1;
    if (!PyArg_ParseTuple(args, "OO|p", &ids_object, &won_object, &wait))
        return NULL;
    Py_ssize_t n = PyObject_Length(ids_object);
    bool ok = n >= 0 && array_get(&ids, ids_object, 8, n, false) &&
              array_get(&won, won_object, 1, n, true) && worker_may_begin(w, wait);
    PyObject *handles = ok ? worker_handles(w) : NULL;
    if (handles) /* an error in the middle leaves the rest as it is */
        memset(won.view.buf, 0, (size_t)n);
    enum wh_call call =
        ok ? wh_call_cancel_batch(&w->client, ids.view.buf, won.view.buf, (uint64_t)n, wait)
           : WH_CALL_OK;
    for (Py_ssize_t i = 0; handles && i < n; i++) {
        if (((const bool *)won.view.buf)[i])
            handle_drop(handles, ((const uint64_t *)ids.view.buf)[i], true);
    }
    Py_XDECREF(handles);
    if (call != WH_CALL_OK)
        worker_raise(w, call);
    PyBuffer_Release(&ids.view);
    PyBuffer_Release(&won.view);
    if (!ok || call != WH_CALL_OK)
        return NULL;
    Py_RETURN_NONE;
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
              array_get(&moved, objects[2], 1, n, true) && worker_may_begin(w, wait);
    wh_batch batch = {.n = (uint64_t)n, .ids = ids.view.buf, .delays = delays.view.buf};
    enum wh_call call =
        ok ? wh_call_reschedule_batch(&w->client, &batch, moved.view.buf, wait) : WH_CALL_OK;
    ok = ok && (call == WH_CALL_OK || batch_refuse(w, &batch, call));
    PyBuffer_Release(&ids.view);
    PyBuffer_Release(&delays.view);
    PyBuffer_Release(&moved.view);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* -- reserved ids ------------------------------------------------------------------------------ */

/* _reserve_batch(ids, block=True): n uint64, written. All or none. */
static PyObject *worker_reserve_batch(WorkerObject *w, PyObject *args)
{
    PyObject *ids_object;
    Array ids = {0};
    int wait = 1;
    if (!PyArg_ParseTuple(args, "O|p", &ids_object, &wait))
        return NULL;
    Py_ssize_t n = PyObject_Length(ids_object);
    bool ok = n >= 0 && array_get(&ids, ids_object, 8, n, true) && worker_usable(w);
    enum wh_call call =
        ok ? wh_call_reserve(&w->client, ids.view.buf, (uint64_t)n, wait) : WH_CALL_OK;
    if (call != WH_CALL_OK)
        worker_raise(w, call);
    PyBuffer_Release(&ids.view);
    if (!ok || call != WH_CALL_OK)
        return NULL;
    Py_RETURN_NONE;
}

/* _release_batch(ids): n uint64; those that are reserved go back. */
static PyObject *worker_release_batch(WorkerObject *w, PyObject *ids_object)
{
    Array ids = {0};
    Py_ssize_t n = PyObject_Length(ids_object);
    bool ok = n >= 0 && array_get(&ids, ids_object, 8, n, false) && worker_usable(w);
    if (ok)
        wh_call_release(&w->client, ids.view.buf, (uint64_t)n);
    PyBuffer_Release(&ids.view);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* _were_armed(ids, armed): ids: n uint64; armed: n bools, written. */
static PyObject *worker_were_armed(WorkerObject *w, PyObject *args)
{
    PyObject *ids_object, *armed_object;
    Array ids = {0}, armed = {0};
    if (!PyArg_ParseTuple(args, "OO", &ids_object, &armed_object))
        return NULL;
    Py_ssize_t n = PyObject_Length(ids_object);
    bool ok = n >= 0 && array_get(&ids, ids_object, 8, n, false) &&
              array_get(&armed, armed_object, 1, n, true) && worker_usable(w);
    const uint64_t *id = ids.view.buf;
    uint8_t *out = armed.view.buf;
    for (Py_ssize_t i = 0; ok && i < n; i++)
        out[i] = wh_client_was_armed(&w->client, id[i]);
    PyBuffer_Release(&ids.view);
    PyBuffer_Release(&armed.view);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}
