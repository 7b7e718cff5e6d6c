/* The supervisor's work in the watch, keys and pools segments: make them, let workers in, clear
 * up. */

/* Map a ready segment of a kind, writable. */
static wh_cold bool mapping_get_kind(Mapping *m, PyObject *object, enum wh_kind kind,
                                     const char *what)
{
    if (!mapping_get(m, object, true, sizeof(wh_head)))
        return false;
    if (wh_head_attach(m->view.buf, (uint64_t)m->view.len, kind) == WH_ATTACH_READY)
        return true;
    PyErr_Format(PyExc_ValueError, "not a ready %s segment of this layout", what);
    mapping_drop(m);
    return false;
}

/* watch_bytes(max_workers) -> size of the watch segment, bytes */
static wh_cold PyObject *native_watch_bytes(PyObject *module, PyObject *args)
{
    unsigned int rows;
    (void)module;
    if (!PyArg_ParseTuple(args, "I", &rows))
        return NULL;
    return PyLong_FromUnsignedLongLong(wh_watch_bytes(rows));
}

/* create_watch(segment, max_workers, token): fill a zeroed segment. */
static wh_cold PyObject *native_create_watch(PyObject *module, PyObject *args)
{
    PyObject *segment;
    unsigned int rows;
    unsigned long long token;
    Mapping map = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OIK", &segment, &rows, &token) ||
        !mapping_get(&map, segment, true, wh_watch_bytes(rows)))
        return NULL;
    wh_watch_create(map.view.buf, rows, token);
    mapping_drop(&map);
    Py_RETURN_NONE;
}

/* The rows of workers that sleep although a mark is set for them, as a list. */
static wh_cold PyObject *owed_rows(void *memory, uint32_t rows)
{
    PyObject *owed = PyList_New(0);
    for (uint32_t row = 0; owed && row < rows; row++) {
        if (!wh_watch_owed(memory, rows, row))
            continue;
        PyObject *number = PyLong_FromUnsignedLong(row);
        if (number == NULL || PyList_Append(owed, number) < 0)
            Py_CLEAR(owed);
        Py_XDECREF(number);
    }
    return owed;
}

/* owed_watchers(segment) -> whom a killed process may have left asleep */
static wh_cold PyObject *native_owed_watchers(PyObject *module, PyObject *segment)
{
    Mapping map = {0};
    (void)module;
    if (!mapping_get_kind(&map, segment, WH_KIND_WATCH, "watch"))
        return NULL;
    PyObject *owed = owed_rows(map.view.buf, wh_watch_rows(map.view.buf, (uint64_t)map.view.len));
    mapping_drop(&map);
    return owed;
}

/* seat_watcher(segment, row, incarnation) -> rows to ring for: what the row's last worker was
 * changing is marked, and nothing of it stays; 0: nobody comes. */
static wh_cold PyObject *native_seat_watcher(PyObject *module, PyObject *args)
{
    PyObject *segment, *owed = NULL;
    unsigned int row;
    unsigned long long incarnation;
    Mapping map = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OIK", &segment, &row, &incarnation) ||
        !mapping_get_kind(&map, segment, WH_KIND_WATCH, "watch"))
        return NULL;
    uint32_t rows = wh_watch_rows(map.view.buf, (uint64_t)map.view.len);
    if (row < rows) {
        bool some = wh_watch_finish(map.view.buf, rows, row);
        wh_watch_clear(map.view.buf, rows, row, incarnation);
        wh_sizes_clear(map.view.buf, rows, row);
        owed = some ? owed_rows(map.view.buf, rows) : PyList_New(0);
    } else {
        PyErr_Format(PyExc_ValueError, "no row %u in this table", row);
    }
    mapping_drop(&map);
    return owed;
}

/* keys_bytes(max_workers, capacity) -> (size of the keys segment, bytes of it before its holes) */
static wh_cold PyObject *native_keys_bytes(PyObject *module, PyObject *args)
{
    unsigned int rows, capacity;
    (void)module;
    if (!PyArg_ParseTuple(args, "II", &rows, &capacity))
        return NULL;
    wh_keys_parts p = wh_keys_parts_of(rows, capacity);
    return Py_BuildValue("KK", (unsigned long long)p.bytes, (unsigned long long)p.sets);
}

/* create_keys(segment, max_workers, capacity, token): fill the head of a zeroed segment, or of a
 * buffer that is as long as what stands before the holes. */
static wh_cold PyObject *native_create_keys(PyObject *module, PyObject *args)
{
    PyObject *segment;
    unsigned int rows, capacity;
    unsigned long long token;
    Mapping map = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OIIK", &segment, &rows, &capacity, &token) ||
        !mapping_get(&map, segment, true, wh_keys_parts_of(rows, capacity).sets))
        return NULL;
    wh_keys_create(map.view.buf, rows, capacity, token,
                   (uint64_t)wh_clock_read(CLOCK_REALTIME) / 1000);
    mapping_drop(&map);
    Py_RETURN_NONE;
}

static wh_cold void wake_all(wh_au32 *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Wake who sleeps for one of these places: lease_queue.h. */
static void wake_some(wh_au32 *word, uint32_t places)
{
    syscall(SYS_futex, word, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, places);
}

/* seat_keys(segment, max_workers, capacity, row, seated): the row's worker is gone, and what it had
 * is free; `seated`: another one is to come. */
static wh_cold PyObject *native_seat_keys(PyObject *module, PyObject *args)
{
    PyObject *segment;
    unsigned int row, rows, capacity;
    int seated;
    Mapping map = {0};
    wh_keys k;
    (void)module;
    if (!PyArg_ParseTuple(args, "OIIIp", &segment, &rows, &capacity, &row, &seated) ||
        !mapping_get(&map, segment, true, wh_keys_parts_of(rows, capacity).bytes))
        return NULL;
    bool bound = row < rows && wh_keys_bind(&k, map.view.buf, rows, capacity, NULL, NULL, row);
    if (bound) {
        wh_words_leave(&k);
        wh_leases_leave(&k, wake_some);
        if (seated)
            wh_leases_seat(&k);
    }
    if (row < rows)
        wh_keys_free(&k);
    mapping_drop(&map);
    if (!bound)
        return PyErr_Format(PyExc_ValueError, "no row %u in this table", row);
    Py_RETURN_NONE;
}

/* Bind the directory of a wheel of this size for row 0. False: an error is set. */
static wh_cold bool keys_open(wh_keys *k, Mapping *m, PyObject *segment, uint32_t rows,
                              uint32_t capacity)
{
    if (!mapping_get(m, segment, true, wh_keys_parts_of(rows, capacity).bytes))
        return false;
    if (rows > 0 && wh_keys_bind(k, m->view.buf, rows, capacity, NULL, NULL, 0))
        return true;
    mapping_drop(m);
    PyErr_NoMemory();
    return false;
}

/* wake_leases(segment, max_workers, capacity): have all who wait for leases look, because a killed
 * supervisor may have cleared a row and not said so */
static wh_cold PyObject *native_wake_leases(PyObject *module, PyObject *args)
{
    PyObject *segment;
    unsigned int rows, capacity;
    Mapping map = {0};
    wh_keys k;
    (void)module;
    if (!PyArg_ParseTuple(args, "OII", &segment, &rows, &capacity) ||
        !keys_open(&k, &map, segment, rows, capacity))
        return NULL;
    wh_lease_queue_wake_all(&k, wake_some);
    wh_keys_free(&k);
    mapping_drop(&map);
    Py_RETURN_NONE;
}

/* (key, whether its word names the timer) of an id; (None, False): there is no key. */
static PyObject *keys_read_one(wh_keys *k, uint64_t id)
{
    uint32_t size;
    const char *bytes = wh_key_in(k, wh_id_slot(id), &size);
    if (bytes == NULL)
        return Py_BuildValue("OO", Py_None, Py_False);
    return Py_BuildValue("y#O", bytes, (Py_ssize_t)size, wh_keys_name(k, id) ? Py_True : Py_False);
}

/* read_keys(segment, max_workers, capacity, ids) -> the encoded key of each timer that has one, and
 * whether the key's word names it */
static PyObject *native_read_keys(PyObject *module, PyObject *args)
{
    PyObject *segment, *numbers, *found = NULL;
    unsigned int rows, capacity;
    Mapping map = {0}, ids = {0};
    wh_keys k;
    (void)module;
    if (!PyArg_ParseTuple(args, "OIIO", &segment, &rows, &capacity, &numbers) ||
        !mapping_get(&ids, numbers, false, 0))
        return NULL;
    if (keys_open(&k, &map, segment, rows, capacity)) {
        found = PyList_New(0);
        for (Py_ssize_t i = 0; found && i < ids.view.len / 8; i++) {
            PyObject *one = keys_read_one(&k, ((const uint64_t *)ids.view.buf)[i]);
            if (one == NULL || PyList_Append(found, one) < 0)
                Py_CLEAR(found);
            Py_XDECREF(one);
        }
        wh_keys_free(&k);
        mapping_drop(&map);
    }
    mapping_drop(&ids);
    return found;
}

/* restore_keys(segment, max_workers, capacity, token, [(id, key, claims)]): give timers that are
 * armed later their keys. False: there is no room. */
static PyObject *native_restore_keys(PyObject *module, PyObject *args)
{
    PyObject *segment, *timers;
    unsigned int rows, capacity;
    unsigned long long token, id;
    Mapping map = {0};
    wh_keys k;
    bool room = true;
    (void)module;
    if (!PyArg_ParseTuple(args, "OIIKO!", &segment, &rows, &capacity, &token, &PyList_Type,
                          &timers) ||
        !keys_open(&k, &map, segment, rows, capacity))
        return NULL;
    for (Py_ssize_t i = 0; room && i < PyList_GET_SIZE(timers); i++) {
        const char *bytes;
        Py_ssize_t size;
        int claims;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(timers, i), "Ky#p", &id, &bytes, &size, &claims))
            break;
        wh_key key = wh_key_of(bytes, (uint32_t)size, token);
        room = size <= WH_LONG_KEY && wh_key_restore(&k, &key, id, claims);
    }
    wh_keys_free(&k);
    mapping_drop(&map);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(room);
}

/* pools_bytes(max_workers, pools) -> size of the pools segment, bytes */
static wh_cold PyObject *native_pools_bytes(PyObject *module, PyObject *args)
{
    unsigned int rows, pools;
    (void)module;
    if (!PyArg_ParseTuple(args, "II", &rows, &pools))
        return NULL;
    return PyLong_FromUnsignedLongLong(wh_pools_bytes(rows, pools));
}

static wh_cold bool parse_pool(PyObject *entry, wh_pool *pool)
{
    const char *name;
    Py_ssize_t length;
    unsigned long long size, largest;
    int strict;
    if (!PyArg_ParseTuple(entry, "s#KKp", &name, &length, &size, &largest, &strict))
        return false;
    if (length < 1 || length >= (Py_ssize_t)sizeof pool->name || size < 1 ||
        size > WH_MAX_POOL_BYTES || largest < 1 || largest > size) {
        PyErr_Format(PyExc_ValueError, "pool %s of %llu bytes, largest %llu", name, size, largest);
        return false;
    }
    memcpy(pool->name, name, (size_t)length);
    wh_pool_create(pool, size, largest, strict, wh_clock_read(CLOCK_MONOTONIC));
    return true;
}

/* create_pools(segment, max_workers, token, [(name, size, largest, strict)]): fill a zeroed
 * segment. */
static wh_cold PyObject *native_create_pools(PyObject *module, PyObject *args)
{
    PyObject *segment, *entries;
    unsigned int rows;
    unsigned long long token;
    Mapping map = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OIKO!", &segment, &rows, &token, &PyList_Type, &entries))
        return NULL;
    uint32_t count = (uint32_t)PyList_GET_SIZE(entries);
    if (count > WH_POOLS)
        return PyErr_Format(PyExc_ValueError, "%u pools: expected at most %u", count, WH_POOLS);
    uint64_t bytes = wh_pools_bytes(rows, count);
    if (!mapping_get(&map, segment, true, bytes))
        return NULL;
    wh_pool *pools = wh_pools_create(map.view.buf, rows, count);
    bool ok = true;
    for (uint32_t i = 0; ok && i < count; i++)
        ok = parse_pool(PyList_GET_ITEM(entries, i), &pools[i]);
    if (ok)
        wh_head_publish(map.view.buf, WH_KIND_POOLS, bytes, token);
    mapping_drop(&map);
    if (!ok)
        return NULL;
    Py_RETURN_NONE;
}

/* seat_borrower(segment, row, incarnation) -> bytes of the row's last worker that returned to the
 * pools. 0: nobody comes. */
static wh_cold PyObject *native_seat_borrower(PyObject *module, PyObject *args)
{
    PyObject *segment;
    unsigned int row;
    unsigned long long incarnation;
    long long returned = 0;
    Mapping map = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "OIK", &segment, &row, &incarnation) ||
        !mapping_get_kind(&map, segment, WH_KIND_POOLS, "pools"))
        return NULL;
    uint32_t pools, rows;
    bool known = wh_pools_shape(map.view.buf, (uint64_t)map.view.len, &pools, &rows) && row < rows;
    for (uint32_t i = 0; known && i < pools; i++) {
        wh_budget b;
        wh_budget_bind(&b, map.view.buf, pools, rows, i, rows);
        int64_t out = wh_budget_reap(&b, row);
        returned += out;
        if (out > 0 && wh_pool_is_dry(b.pool))
            wh_pool_wet(b.pool, wh_clock_read(CLOCK_MONOTONIC));
        wh_wait_queue_wake(&b,
                           wake_all); /* also if the dead worker only had a place in the queue */
        wh_store_release(&b.ledgers[row].tenant, incarnation); /* pairs: pool-tenant */
    }
    mapping_drop(&map);
    if (!known)
        return PyErr_Format(PyExc_ValueError, "no row %u in this table", row);
    return PyLong_FromLongLong(returned);
}

/* resume_pools(segment): end what a killed supervisor was doing. Before any seat_borrower. */
static wh_cold PyObject *native_resume_pools(PyObject *module, PyObject *segment)
{
    Mapping map = {0};
    (void)module;
    if (!mapping_get_kind(&map, segment, WH_KIND_POOLS, "pools"))
        return NULL;
    uint32_t pools, rows;
    bool sound = wh_pools_shape(map.view.buf, (uint64_t)map.view.len, &pools, &rows);
    for (uint32_t i = 0; sound && i < pools; i++) {
        wh_budget b;
        wh_budget_bind(&b, map.view.buf, pools, rows, i, rows);
        wh_budget_resume(&b);
        wh_wait_queue_wake(&b,
                           wake_all); /* the killed one may have returned bytes without waking */
    }
    mapping_drop(&map);
    Py_RETURN_NONE;
}
