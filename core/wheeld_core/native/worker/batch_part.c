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

/* A row was refused, or the whole: say which, and why. */
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
                     "--payload-bytes); nothing in the batch was scheduled",
                     row, (long long)(b->offsets[row + 1] - b->offsets[row]),
                     w->client.payload_bytes);
    else
        worker_raise(w, call, b->n ? b->ids[row] : 0);
    return false;
}

/* Do what a batch asks for. False: an error is set. */
static bool batch_do(WorkerObject *w, wh_batch *b, const wh_request *r, bool wait)
{
    enum wh_call call = b->reserved ? wh_call_arm_reserved(&w->client, b, r, wait)
                                    : wh_call_schedule_batch(&w->client, b, r, wait);
    return call == WH_CALL_OK || batch_refuse(w, b, call);
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
        PyErr_SetString(PyExc_ValueError, "payloads have a negative width");
    bool ok = n >= 0 && width >= 0 && parse_extras(&extras, &r) &&
              array_get(&arrays[0], delays, 8, n, false) &&
              array_get(&arrays[1], ids, 8, n, true) &&
              (!each_cookie || array_get(&arrays[2], cookies, 8, n, false));
    wh_batch batch = {.n = (uint64_t)n,
                      .ids = arrays[1].view.buf,
                      .delays = arrays[0].view.buf,
                      .cookies = arrays[2].view.buf};
    if (ok && rows) {
        ok = array_get(&arrays[3], payloads, width, n, false);
        extras.payload = (Py_buffer){.buf = arrays[3].view.buf, .len = width};
        batch.payloads = arrays[3].view.buf;
        batch.width = (uint64_t)width;
    } else if (ok && payloads != Py_None) {
        ok = array_get(&arrays[3], places, 8, n + 1, false) &&
             PyObject_GetBuffer(payloads, &bytes, PyBUF_SIMPLE) == 0;
        batch.payloads = bytes.buf;
        batch.bytes = bytes.len;
        batch.offsets = arrays[3].view.buf;
    }
    ok = ok && worker_may_begin(w, wait) && place_extras(w, &extras, &r) &&
         batch_do(w, &batch, &r, wait);
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
    Array ids = {0}, won = {0};
    int wait = 1;
    if (!PyArg_ParseTuple(args, "OO|p", &ids_object, &won_object, &wait))
        return NULL;
    Py_ssize_t n = PyObject_Length(ids_object);
    bool ok = n >= 0 && array_get(&ids, ids_object, 8, n, false) &&
              array_get(&won, won_object, 1, n, true) && worker_may_begin(w, wait);
    enum wh_call call =
        ok ? wh_call_cancel_batch(&w->client, ids.view.buf, won.view.buf, (uint64_t)n, wait)
           : WH_CALL_OK;
    if (call != WH_CALL_OK)
        worker_raise(w, call, 0);
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
