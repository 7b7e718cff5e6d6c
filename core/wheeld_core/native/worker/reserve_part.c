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
