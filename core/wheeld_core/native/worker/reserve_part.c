/* Reserving: ids that are known before their timers are armed (batch.h). */

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
        worker_raise(w, call, 0);
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

/* _arm_batch(deadlines, clock, cookies, ids, data, offsets, to, block=True)
 * deadlines: n int64 ns on `clock`; cookies: n uint64 or an int; ids: n uint64, reserved; data,
 * offsets: None, or bytes and n + 1 int64 that say where each payload begins and the last one
 * ends. */
static PyObject *worker_arm_batch(WorkerObject *w, PyObject *args)
{
    PyObject *deadlines, *cookies, *ids, *data, *offsets;
    Extras extras = {0};
    wh_request r = {0};
    Array arrays[4] = {0};
    Py_buffer bytes = {0};
    int wait = 1;
    if (!PyArg_ParseTuple(args, "OIOOOOO|p", &deadlines, &r.flags, &cookies, &ids, &data, &offsets,
                          &extras.to, &wait))
        return NULL;
    if (r.flags >= WH_CLOCK_KINDS)
        return PyErr_Format(PyExc_ValueError, "no such clock");
    bool each_cookie = !PyLong_Check(cookies), each_payload = data != Py_None;
    extras.cookie = each_cookie ? NULL : cookies;
    Py_ssize_t n = PyObject_Length(deadlines);
    bool ok = n >= 0 && parse_extras(&extras, &r) &&
              array_get(&arrays[0], deadlines, 8, n, false) &&
              array_get(&arrays[1], ids, 8, n, false) &&
              (!each_cookie || array_get(&arrays[2], cookies, 8, n, false)) &&
              (!each_payload || (array_get(&arrays[3], offsets, 8, n + 1, false) &&
                                 PyObject_GetBuffer(data, &bytes, PyBUF_SIMPLE) == 0));
    wh_batch batch = {.n = (uint64_t)n,
                      .ids = arrays[1].view.buf,
                      .reserved = true,
                      .deadlines = arrays[0].view.buf,
                      .cookies = arrays[2].view.buf,
                      .payloads = bytes.buf,
                      .bytes = bytes.len,
                      .offsets = arrays[3].view.buf};
    ok = ok && worker_usable(w) && place_extras(w, &extras, &r) && batch_do(w, &batch, &r, wait);
    for (int i = 0; i < 4; i++)
        PyBuffer_Release(&arrays[i].view);
    PyBuffer_Release(&bytes);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}
