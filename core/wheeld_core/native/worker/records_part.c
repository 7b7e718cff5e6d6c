/* Records of pending timers, and calls for many keys: from lists to the calls of batch_keys.h. */

/* -- records ----------------------------------------------------------------------------------- */

static PyObject *name_or_none(bool there, const char *name, size_t most)
{
    return there ? PyUnicode_DecodeUTF8(name, (Py_ssize_t)strnlen(name, most), "replace")
                 : Py_NewRef(Py_None);
}

/* Name that tenant, which most timers that are read belong to. NULL: an error is set. */
static PyObject *record_tenant(WorkerObject *w, uint32_t row, uint64_t incarnation)
{
    char name[WH_ROW_NAME];
    if (wh_likely(w->known.name && w->known.row == row && w->known.incarnation == incarnation))
        return Py_NewRef(w->known.name);
    PyObject *text =
        name_or_none(wh_row_tenant(&w->rows[row], name) == incarnation, name, sizeof name);
    if (text == NULL || text == Py_None)
        return text;
    Py_XSETREF(w->known.name, Py_NewRef(text));
    w->known.row = row;
    w->known.incarnation = incarnation;
    return text;
}

static PyObject *record_worker(WorkerObject *w, const wh_timer_record *r)
{
    uint64_t tenant = r->row < w->row_count ? wh_row_incarnation(&w->rows[r->row]) : 0;
    bool same = tenant && (r->owner == WH_SPLIT || wh_owner_word(r->row, tenant) == r->owner);
    return same ? record_tenant(w, r->row, tenant) : Py_NewRef(Py_None);
}

/* The key as a record has it, if `given` is as good as what would be read. */
static PyObject *record_key_given(PyObject *given)
{
    bool plain = PyUnicode_CheckExact(given) || PyBytes_CheckExact(given) ||
                 PyLong_CheckExact(given) || key_is_plain_tuple(given);
    return plain ? given : NULL;
}

/* `given`: the key that it was looked up by, or NULL: as it was read. */
static PyObject *record_key(const wh_timer_record *r, PyObject *given)
{
    if (given)
        return Py_NewRef(given);
    return r->key_size ? key_decode(r->key, r->key_size) : Py_NewRef(Py_None);
}

static PyObject *record_to(const WorkerObject *w, const wh_timer_record *r)
{
    char name[WH_TARGET_NAME];
    bool there = r->target && wh_target_name(w->rows, w->row_count, w->groups, r->target, name);
    const char *own = "group:="; /* the group of one worker: see order_address() */
    bool one = there && strncmp(name, own, strlen(own)) == 0;
    return name_or_none(there, name + (one ? strlen(own) : 0), sizeof name - strlen(own));
}

/* When it is due next, and how long that is from now; if it is paused, as if it went on now.
 * `base`: now on the base clock. */
static int64_t record_due(const WorkerObject *w, const wh_timer_record *r, int64_t base,
                          double *remaining)
{
    int64_t due = r->deadline;
    int64_t now = r->clock == WH_CLOCK_BASE ? base : wh_client_now_of(&w->client, r->clock);
    if (wh_is_paused(r->state, due))
        due = wh_resumed_due(due, r->interval, now);
    else if (r->interval)
        due = wh_periodic_due(due, r->interval, now);
    int64_t rest = wh_time_sub(due, now);
    *remaining = rest > 0 ? (double)rest / 1e9 : 0.0;
    return due;
}

static PyObject *seconds_or_none(int64_t interval)
{
    return interval ? PyFloat_FromDouble((double)interval / 1e9) : Py_NewRef(Py_None);
}

/* Read the timer `id`, and its key if that is wanted. False, with *payload NULL: it has ended, or
 * an error is set. */
static bool record_read(WorkerObject *w, uint64_t id, bool key, wh_timer_record *r,
                        PyObject **payload)
{
    *payload = NULL;
    do {
        Py_CLEAR(*payload);
        if (!wh_record_read(&w->client, &w->keys, id, key, r))
            return false;
        *payload = PyBytes_FromStringAndSize(NULL, r->payload_size);
        if (*payload == NULL)
            return false;
        /* a payload that is gone, of a timer that stands, was overwritten by others */
        if (!wh_record_payload(&w->client, r, PyBytes_AS_STRING(*payload)))
            Py_SETREF(*payload, PyBytes_FromStringAndSize(NULL, 0));
    } while (!wh_record_stands(&w->client, r));
    return *payload != NULL;
}

/* A TimerRecord. NULL: the timer has ended, or an error is set. All is read before the first object
 * is made that the garbage collector knows: that may run code of the user. `given`: its key, or
 * NULL; `base`: now on the base clock. */
static PyObject *record_of(WorkerObject *w, uint64_t id, PyObject *given, int64_t base)
{
    wh_timer_record r;
    PyObject *payload;
    double remaining;
    if (!record_read(w, id, given == NULL, &r, &payload))
        return NULL;
    int64_t due = record_due(w, &r, base, &remaining);
    PyObject *worker = record_worker(w, &r), *to = record_to(w, &r);
    PyObject *fields[] = {PyLong_FromUnsignedLongLong(r.id),
                          record_key(&r, given),
                          PyLong_FromLongLong(due),
                          PyFloat_FromDouble(remaining),
                          worker,
                          to,
                          seconds_or_none(r.interval),
                          PyLong_FromUnsignedLongLong(r.cookie),
                          payload};
    Py_ssize_t count = sizeof fields / sizeof *fields;
    bool whole = true;
    for (Py_ssize_t i = 0; i < count; i++)
        whole &= fields[i] != NULL;
    /* as tuple.__new__() makes an object of a subclass */
    PyObject *record = whole ? errors.timer_record->tp_alloc(errors.timer_record, count) : NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (record)
            PyTuple_SET_ITEM(record, i, fields[i]);
        else
            Py_XDECREF(fields[i]);
    }
    return record;
}

/* The TimerRecord of the timer that has a key; None: there is none. NULL: an error is set. */
static PyObject *record_of_key(WorkerObject *w, const wh_key *key, PyObject *given)
{
    uint64_t id;
    int64_t base = wh_client_now(&w->client); /* while its places are fetched */
    PyObject *plain = record_key_given(given);
    while ((id = wh_key_holder(&w->keys, key)) != 0) {
        PyObject *record = record_of(w, id, plain, base);
        if (record || PyErr_Occurred())
            return record;
    }
    Py_RETURN_NONE;
}

/* The one argument of a call, `key`. NULL: an error is set. */
static PyObject *take_key(const char *function, WorkerObject *w, PyObject *const *args,
                          Py_ssize_t n, PyObject *kwnames, EncodedKey *e)
{
    static const char *const names[] = {"key", NULL};
    PyObject *key = NULL;
    if (n == 1 && kwnames == NULL)
        key = args[0];
    else if (!parse_keywords(function, names, 1, args, n, kwnames, &key) ||
             !parse_needed(function, names, 1, &key))
        return NULL;
    return worker_take_places(w, key, e) ? key : NULL;
}

static PyObject *worker_find_record(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                    PyObject *kwnames)
{
    EncodedKey e;
    PyObject *key = take_key("find", w, args, n, kwnames, &e);
    return key ? record_of_key(w, &e.key, key) : NULL;
}

static PyObject *worker_remaining(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                  PyObject *kwnames)
{
    EncodedKey e;
    uint64_t id;
    if (!take_key("remaining", w, args, n, kwnames, &e))
        return NULL;
    int64_t base = wh_client_now(&w->client); /* while its places are fetched */
    while ((id = wh_key_holder(&w->keys, &e.key)) != 0) {
        wh_timer_record r;
        double remaining;
        if (!wh_record_read(&w->client, &w->keys, id, false, &r))
            continue;
        record_due(w, &r, base, &remaining);
        if (wh_record_stands(&w->client, &r))
            return PyFloat_FromDouble(remaining);
    }
    Py_RETURN_NONE;
}

/* -- many keys --------------------------------------------------------------------------------- */

/* The encoded keys of a tuple. */
typedef struct {
    wh_key_rows rows;
    char *bytes;
    size_t used, room;
    PyObject *objects; /* borrowed */
} KeyRows;

static void key_rows_drop(KeyRows *keys)
{
    PyMem_Free(keys->rows.keys);
    PyMem_Free(keys->rows.states);
    PyMem_Free(keys->bytes);
}

static bool key_rows_append(KeyRows *keys, const EncodedKey *e, uint64_t i)
{
    if (keys->room - keys->used < e->size) {
        size_t room = 2 * keys->room + e->size;
        char *bytes = PyMem_Realloc(keys->bytes, room);
        if (bytes == NULL) {
            PyErr_NoMemory();
            return false;
        }
        keys->bytes = bytes;
        keys->room = room;
    }
    memcpy(keys->bytes + keys->used, e->bytes, e->size);
    keys->rows.keys[i].size = e->size;
    keys->used += e->size;
    return true;
}

/* Encode the keys of a tuple. False: an error is set; key_rows_drop() in any case. */
static bool key_rows_get(KeyRows *keys, PyObject *tuple)
{
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "keys must be a tuple");
        return false;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    keys->objects = tuple;
    keys->room = 32 * (size_t)n + 1;
    keys->rows.keys = PyMem_Malloc(((size_t)n + 1) * sizeof(wh_key));
    keys->rows.states = PyMem_Malloc((size_t)n + 1);
    keys->bytes = PyMem_Malloc(keys->room);
    if (keys->rows.keys == NULL || keys->rows.states == NULL || keys->bytes == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (keys->rows.n = 0; keys->rows.n < (uint64_t)n; keys->rows.n++) {
        EncodedKey e;
        if (!key_encode(PyTuple_GET_ITEM(tuple, (Py_ssize_t)keys->rows.n), &e) ||
            !key_rows_append(keys, &e, keys->rows.n))
            return false;
    }
    const char *at = keys->bytes;
    for (uint64_t i = 0; i < keys->rows.n; at += keys->rows.keys[i].size, i++)
        keys->rows.keys[i].bytes = at;
    return true;
}

static PyObject *key_rows_object(const KeyRows *keys, uint64_t row)
{
    return PyTuple_GET_ITEM(keys->objects, (Py_ssize_t)row);
}

/* _find_many(keys) -> a list of TimerRecord or None; keys: a tuple */
static PyObject *worker_find_records(WorkerObject *w, PyObject *tuple)
{
    KeyRows keys = {0};
    PyObject *found = NULL;
    if (key_rows_get(&keys, tuple) && worker_may_begin(w, false) &&
        (found = PyList_New((Py_ssize_t)keys.rows.n)) != NULL)
        wh_keys_hash(&w->client, &keys.rows);
    for (uint64_t i = 0; found && i < keys.rows.n; i++) {
        const wh_key *key = &keys.rows.keys[i];
        PyObject *record = NULL;
        if (worker_still_usable(w)) {
            wh_keys_ahead(&w->keys, &keys.rows, i);
            if (wh_words_there(&w->keys, &key->word) || keys_refuse(w, key_rows_object(&keys, i)))
                record = record_of_key(w, key, key_rows_object(&keys, i));
        }
        if (record)
            PyList_SET_ITEM(found, (Py_ssize_t)i, record);
        else
            Py_CLEAR(found);
    }
    key_rows_drop(&keys);
    return found;
}

/* _cancel_keys(keys, won, block): keys: a tuple; won: n bools, written */
static PyObject *worker_cancel_keys(WorkerObject *w, PyObject *args)
{
    PyObject *tuple, *won_object;
    int wait;
    KeyRows keys = {0};
    Array won = {0};
    uint64_t stopped = 0, *ids = NULL;
    if (!PyArg_ParseTuple(args, "OOp", &tuple, &won_object, &wait))
        return NULL;
    bool ok =
        key_rows_get(&keys, tuple) && array_get(&won, won_object, 1, (Py_ssize_t)keys.rows.n, true);
    if (ok && (ids = PyMem_Calloc(keys.rows.n + 1, sizeof *ids)) == NULL) {
        PyErr_NoMemory();
        ok = false;
    }
    ok = ok && worker_may_begin(w, wait);
    if (ok)
        memset(won.view.buf, 0, (size_t)won.view.len);
    enum wh_call call = ok ? wh_call_cancel_keys(&w->client, &w->keys, &keys.rows, ids,
                                                 won.view.buf, wait, &stopped)
                           : WH_CALL_OK;
    WaitingObject *handles = ok && call != WH_CALL_GONE ? worker_handles(w) : NULL;
    for (uint64_t i = 0; handles && i < keys.rows.n; i++)
        if (((const bool *)won.view.buf)[i])
            handle_drop(handles, ids[i], true);
    Py_XDECREF(handles);
    if (call == WH_CALL_KEYS_FULL)
        keys_refuse(w, key_rows_object(&keys, stopped));
    else if (call != WH_CALL_OK)
        worker_raise(w, call);
    PyMem_Free(ids);
    PyBuffer_Release(&won.view);
    key_rows_drop(&keys);
    if (!ok || call != WH_CALL_OK)
        return NULL;
    Py_RETURN_NONE;
}

/* Set the error that says which row was refused. A row that met the timer of an earlier one has had
 * that undone. */
static wh_seldom bool keys_batch_refuse(WorkerObject *w, const KeyRows *keys, const wh_batch *b,
                                        uint64_t id, enum wh_call call)
{
    bool twice = false;
    for (uint64_t i = 0; i < b->stopped && call == WH_CALL_TAKEN && !twice; i++)
        twice = keys->rows.states[i] == WH_ROW_KEY_CLAIMED && b->ids[i] == id;
    if (twice)
        raise_key_in_use_as(key_rows_object(keys, b->stopped), id,
                            "key {} is there twice, and timer %llu of the first row was "
                            "cancelled again, so nothing of the batch is scheduled; give each key "
                            "once, or say by on_conflict= what to do");
    else if (call == WH_CALL_TAKEN || call == WH_CALL_KEY_HELD)
        raise_key_in_use(w, key_rows_object(keys, b->stopped), id);
    else if (call == WH_CALL_KEYS_FULL)
        keys_refuse(w, key_rows_object(keys, b->stopped));
    else
        batch_refuse(w, b, call);
    return false;
}

/* _schedule_keys(times, clock, keys, conflict, cookies, ids, payloads, places, *, interval, to,
 * block) As _schedule_batch(), if clock is None, or _schedule_at_batch(); each under its key; keys:
 * a tuple of n, conflict: as on_conflict. */
static PyObject *worker_schedule_keys(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                      PyObject *kwnames)
{
    static const char *const names[] = {"times", "clock", "keys", "conflict", ROWS_NAMES};
    PyObject *values[4 + ROWS_VALUES] = {0};
    Order o = {0};
    Rows rows = {0};
    KeyRows keys = {0};
    wh_batch b = {0};
    uint64_t id = 0;
    if (!parse_keywords("schedule_many", names, 4 + ROWS_OPTIONS, args, n, kwnames, values) ||
        !parse_needed("schedule_many", names, 4 + ROWS_OPTIONS, values))
        return NULL;
    bool done = parse_conflict(values[3], &keys.rows.conflict) && key_rows_get(&keys, values[2]) &&
                rows_get(&rows, values[0], values[1], values + 4, &b, &o) &&
                order_parse_until(&o, values[4 + ROWS_OPTIONS + KEY_UNTIL], true);
    if (done && b.n != keys.rows.n) {
        PyErr_SetString(PyExc_ValueError, "keys and times differ in length");
        done = false;
    }
    done = done && order_begin(&o, w, 0, o.wait);
    if (done) {
        enum wh_call call =
            wh_call_schedule_keys(&w->client, &w->keys, &b, &keys.rows, &o.request, o.wait, &id);
        done = call == WH_CALL_OK || keys_batch_refuse(w, &keys, &b, id, call);
    }
    rows_drop(&rows);
    key_rows_drop(&keys);
    if (!done)
        return NULL;
    Py_RETURN_NONE;
}
