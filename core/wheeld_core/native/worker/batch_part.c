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
    enum wh_call call = wh_call_schedule_batch(&w->client, b, r, wait);
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

/* Read what ROWS_NAMES names, and the times: n float64, s from now, if `clock` is NULL or None; or
 * n int64, ns on that clock. False: an error is set. */
static bool rows_get(Rows *rows, PyObject *times, PyObject *clock, PyObject *const *values,
                     wh_batch *b, Order *o)
{
    bool at = clock && clock != Py_None;
    bool each_cookie = !PyLong_Check(values[COOKIES]);
    Py_ssize_t n = PyObject_Length(times);
    if (n < 0 || !order_parse(o, values + ROWS_OPTIONS) || (at && !order_parse_clock(o, clock)) ||
        !array_get(&rows->times, times, 8, n, false) ||
        !array_get(&rows->ids, values[IDS], 8, n, true) ||
        !(each_cookie ? array_get(&rows->cookies, values[COOKIES], 8, n, false)
                      : parse_u64(values[COOKIES], &o->request.cookie, "cookie")))
        return false;
    b->n = (uint64_t)n;
    b->ids = rows->ids.view.buf;
    b->cookies = rows->cookies.view.buf;
    if (at)
        b->deadlines = rows->times.view.buf;
    else
        b->delays = rows->times.view.buf;
    return rows_get_payloads(rows, values, n, b, o);
}

/* Arm a timer per row. */
static PyObject *worker_arm_rows(WorkerObject *w, PyObject *times, PyObject *clock,
                                 PyObject *const *values)
{
    Rows rows = {0};
    wh_batch b = {0};
    Order o = {0};
    bool done = rows_get(&rows, times, clock, values, &b, &o) &&
                order_parse_until(&o, values[ROWS_OPTIONS + KEY_UNTIL], false) &&
                order_begin(&o, w, b.n, o.wait) && batch_do(w, &b, &o.request, o.wait);
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
    if (!parse_keywords("schedule_many", names, 1 + ROWS_OPTIONS, args, n, kwnames, values) ||
        !parse_needed("schedule_many", names, 1 + ROWS_OPTIONS, values))
        return NULL;
    return worker_arm_rows(w, values[0], NULL, values + 1);
}

/* _schedule_at_batch(deadlines, clock, cookies, ids, payloads, places, *, interval, to, block)
 * The same for n int64 `deadlines`, ns on `clock`. */
static PyObject *worker_schedule_at_batch(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                          PyObject *kwnames)
{
    static const char *const names[] = {"deadlines", "clock", ROWS_NAMES};
    PyObject *values[2 + ROWS_VALUES] = {0};
    if (!parse_keywords("schedule_at_many", names, 2 + ROWS_OPTIONS, args, n, kwnames, values) ||
        !parse_needed("schedule_at_many", names, 2 + ROWS_OPTIONS, values))
        return NULL;
    return worker_arm_rows(w, values[0], values[1], values + 2);
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
    WaitingObject *handles = ok ? worker_handles(w) : NULL;
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

/* reschedule_batch(ids, delays, moved, block=True, at=False): n uint64, n float64; moved: n bools,
 * written. `at`: n int64 in place of delays, ns on the clock of each timer. */
static PyObject *worker_reschedule_batch(WorkerObject *w, PyObject *args)
{
    PyObject *objects[3], *interval = NULL;
    Array ids = {0}, times = {0}, moved = {0};
    wh_batch batch = {0};
    int wait = 1, at = 0;
    if (!PyArg_ParseTuple(args, "OOO|ppO", &objects[0], &objects[1], &objects[2], &wait, &at,
                          &interval) ||
        !parse_interval(interval, &batch.interval))
        return NULL;
    Py_ssize_t n = PyObject_Length(objects[0]);
    bool ok = n >= 0 && array_get(&ids, objects[0], 8, n, false) &&
              array_get(&times, objects[1], 8, n, false) &&
              array_get(&moved, objects[2], 1, n, true) && worker_may_begin(w, wait);
    batch.n = (uint64_t)n;
    batch.ids = ids.view.buf;
    if (at)
        batch.deadlines = times.view.buf;
    else
        batch.delays = times.view.buf;
    enum wh_call call =
        ok ? wh_call_reschedule_batch(&w->client, &batch, moved.view.buf, wait) : WH_CALL_OK;
    ok = ok && (call == WH_CALL_OK || batch_refuse(w, &batch, call));
    PyBuffer_Release(&ids.view);
    PyBuffer_Release(&times.view);
    PyBuffer_Release(&moved.view);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}
