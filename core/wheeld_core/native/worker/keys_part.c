/* Keys: from Python objects to bytes and back, and the calls that find a timer by its key.
 *
 * Encoded, a key is the same bytes in every process and version: a letter, then its content:
 *
 *     s    a str, as UTF-8
 *     b    bytes
 *     i    an int that fits: 8 bytes, the lowest first
 *     I    any other int, as Python's hex()
 *     t    a tuple: of each piece its length in 2 bytes, the lower first, then the piece
 */

typedef struct {
    char bytes[WH_LONG_KEY];
    uint32_t size;
    wh_key key;
} EncodedKey;

/* Append. False: it is too long; no error is set. */
static bool key_put(EncodedKey *e, const void *from, size_t n)
{
    if (n > sizeof e->bytes - e->size)
        return false;
    memcpy(e->bytes + e->size, from, n);
    e->size += (uint32_t)n;
    return true;
}

static bool key_put_as(EncodedKey *e, char letter, const void *from, size_t n)
{
    if (n >= sizeof e->bytes - e->size)
        return false;
    e->bytes[e->size] = letter;
    memcpy(e->bytes + e->size + 1, from, n);
    e->size += (uint32_t)n + 1;
    return true;
}

/* False: it is too long, or an error is set. */
static bool key_put_plain(EncodedKey *e, PyObject *plain)
{
    if (wh_likely(PyUnicode_CheckExact(plain) && PyUnicode_IS_COMPACT_ASCII(plain)))
        return key_put_as(e, 's', PyUnicode_1BYTE_DATA(plain), /* its UTF-8 as it stands */
                          (size_t)PyUnicode_GET_LENGTH(plain));
    if (PyUnicode_CheckExact(plain)) {
        Py_ssize_t length;
        const char *text = text_utf8(plain, &length, "key ");
        return text && key_put_as(e, 's', text, (size_t)length);
    }
    if (PyBytes_CheckExact(plain))
        return key_put_as(e, 'b', PyBytes_AS_STRING(plain), (size_t)PyBytes_GET_SIZE(plain));
    int beyond;
    int64_t value = PyLong_AsLongLongAndOverflow(plain, &beyond);
    if (beyond == 0)
        return key_put_as(e, 'i', &value, sizeof value);
    Py_ssize_t length;
    PyObject *digits = PyNumber_ToBase(plain, 16);
    const char *text = digits ? PyUnicode_AsUTF8AndSize(digits, &length) : NULL;
    bool put = text && key_put_as(e, 'I', text, (size_t)length);
    Py_XDECREF(digits);
    return put;
}

static bool key_put_tuple(EncodedKey *e, PyObject *tuple)
{
    bool put = key_put(e, "t", 1);
    for (Py_ssize_t i = 0; put && i < PyTuple_GET_SIZE(tuple); i++) {
        uint16_t size = 0;
        uint32_t at = e->size;
        put = key_put(e, &size, sizeof size) && key_put_plain(e, PyTuple_GET_ITEM(tuple, i));
        size = (uint16_t)(e->size - at - sizeof size);
        memcpy(e->bytes + at, &size, put ? sizeof size : 0);
    }
    return put;
}

/* Is it a bool, or has it one? As a key True would be 1. */
static bool key_has_bool(PyObject *object)
{
    bool found = PyBool_Check(object);
    for (Py_ssize_t i = 0; !found && PyTuple_Check(object) && i < PyTuple_GET_SIZE(object); i++)
        found = PyBool_Check(PyTuple_GET_ITEM(object, i));
    return found;
}

/* Check and encode a key. False: an error is set. */
static bool key_encode(PyObject *object, EncodedKey *e)
{
    e->size = 0;
    if (wh_likely(PyUnicode_CheckExact(object)) && key_put_plain(e, object))
        return true;
    if (key_has_bool(object)) {
        raise_about(
            PyExc_TypeError, object,
            "key {}: got a bool, which would be the same key as 0 or 1: use int() or str()");
        return false;
    }
    e->size = 0;
    PyObject *plain = PyErr_Occurred()                                    ? NULL
                      : PyTuple_Check(object) && PyTuple_GET_SIZE(object) ? key_plain_tuple(object)
                      : PyTuple_Check(object)                             ? Py_NewRef(object)
                                                                          : key_plain(object);
    bool put = plain && (PyTuple_Check(plain) ? key_put_tuple(e, plain) : key_put_plain(e, plain));
    Py_XDECREF(plain);
    if (!put && !PyErr_Occurred())
        raise_about(PyExc_ValueError, object,
                    "key {} is too long: expected at most %u bytes, encoded: a letter for its "
                    "type, and 3 more for each piece of a tuple",
                    WH_LONG_KEY);
    return put;
}

static PyObject *native_encoded_key(PyObject *module, PyObject *key)
{
    (void)module;
    EncodedKey e;
    return key_encode(key, &e) ? PyBytes_FromStringAndSize(e.bytes, e.size) : NULL;
}

/* The same, hashed for this worker's wheel. After worker_may_begin(). */
static void key_hash_for(const WorkerObject *w, EncodedKey *e)
{
    e->key = wh_key_of(e->bytes, e->size, w->client.wheel->head.token);
    wh_words_prefetch(&w->keys, &e->key.word);
}

static PyObject *key_decode_plain(const char *bytes, size_t size)
{
    int64_t value;
    switch (size ? bytes[0] : 0) {
    case 's':
        return PyUnicode_DecodeUTF8(bytes + 1, (Py_ssize_t)size - 1, NULL);
    case 'b':
        return PyBytes_FromStringAndSize(bytes + 1, (Py_ssize_t)size - 1);
    case 'i':
        if (size != 1 + sizeof value)
            break;
        memcpy(&value, bytes + 1, sizeof value);
        return PyLong_FromLongLong(value);
    case 'I': {
        PyObject *text = PyUnicode_DecodeASCII(bytes + 1, (Py_ssize_t)size - 1, NULL);
        PyObject *number = text ? PyLong_FromUnicodeObject(text, 16) : NULL;
        Py_XDECREF(text);
        return number;
    }
    default:
        break;
    }
    PyErr_SetString(PyExc_ValueError, "not an encoded key: a worker has overwritten it");
    return NULL;
}

/* The key of these bytes, which others may have written. NULL: an error is set. */
static PyObject *key_decode(const char *bytes, size_t size)
{
    if (size == 0 || bytes[0] != 't')
        return key_decode_plain(bytes, size);
    PyObject *pieces = PyList_New(0);
    for (size_t at = 1; pieces && at < size;) {
        uint16_t length = 0;
        if (size - at >= sizeof length)
            memcpy(&length, bytes + at, sizeof length);
        at += sizeof length;
        PyObject *piece =
            at + length <= size ? key_decode_plain(bytes + at, length) : key_decode_plain(NULL, 0);
        at += length;
        if (piece == NULL || PyList_Append(pieces, piece) < 0)
            Py_CLEAR(pieces);
        Py_XDECREF(piece);
    }
    PyObject *tuple = pieces ? PyList_AsTuple(pieces) : NULL;
    Py_XDECREF(pieces);
    return tuple;
}

static bool keys_refuse(WorkerObject *w, PyObject *key)
{
    raise_about(errors.keys_full, key,
                "no room for key {}: both sets of places that it may be in are full of keys in "
                "use (%u places in all), or /dev/shm is full; cancel timers, or start wheeld with "
                "a larger --capacity",
                wh_words_places(&w->keys));
    return false;
}

/* -- keys of events ---------------------------------------------------------------------------- */

#define KEYS_READ 65536 /* of the latest events, so many or twice as many */

/* wh_client.keyed: keep the key of an event that is being received, for key_of(). */
static void keep_key(wh_client *c, uint64_t id)
{
    WorkerObject *w = (WorkerObject *)((char *)c - offsetof(WorkerObject, client));
    uint32_t size;
    const char *bytes = wh_key_in(&w->keys, wh_id_slot(id), &size);
    if (bytes == NULL)
        return;
    if (w->keys_read[0] == NULL || PyDict_GET_SIZE(w->keys_read[0]) >= KEYS_READ) {
        Py_XSETREF(w->keys_read[1], w->keys_read[0]);
        w->keys_read[0] = PyDict_New();
    }
    PyObject *number = PyLong_FromUnsignedLongLong(id);
    PyObject *key = PyBytes_FromStringAndSize(bytes, size);
    if (!w->keys_read[0] || !number || !key || PyDict_SetItem(w->keys_read[0], number, key) < 0)
        PyErr_Clear(); /* the event is received all the same */
    Py_XDECREF(number);
    Py_XDECREF(key);
}

/* _key_of(id) -> the key of an event that was received, or of a timer; None: it has none. */
static PyObject *worker_key_of(WorkerObject *w, PyObject *number)
{
    uint64_t id;
    if (!parse_id(number, &id))
        return NULL;
    PyObject *exact = PyLong_FromUnsignedLongLong(id);
    PyObject *found = NULL;
    for (int i = 0; exact && !found && i < 2; i++)
        found = w->keys_read[i] ? PyDict_GetItem(w->keys_read[i], exact) : NULL;
    Py_XDECREF(exact);
    if (found)
        return key_decode(PyBytes_AS_STRING(found), (size_t)PyBytes_GET_SIZE(found));
    if (exact == NULL || !worker_may_begin(w, false))
        return NULL;
    uint32_t size, slot = wh_id_slot(id);
    char copy[WH_LONG_KEY];
    if (!wh_client_is_armed(&w->client, id) ||
        !(wh_load_relaxed(&w->client.slots[slot].flags) & WH_KEYED))
        Py_RETURN_NONE;
    const char *bytes = wh_key_in(&w->keys, slot, &size);
    if (bytes == NULL)
        Py_RETURN_NONE;
    memcpy(copy, bytes, size);
    if (!wh_client_is_armed(&w->client, id)) /* else it may be of the slot's next tenant */
        Py_RETURN_NONE;
    return key_decode(copy, size);
}

/* -- calls ------------------------------------------------------------------------------------- */

static bool parse_conflict(PyObject *word, enum wh_conflict *conflict)
{
    static const char *const words[] = {"raise", "keep", "replace", "later", "earlier"};
    for (int i = 0; i < 5; i++)
        if (PyUnicode_Check(word) && name_is(word, words[i])) {
            *conflict = (enum wh_conflict)i;
            return true;
        }
    raise_about(PyExc_ValueError, word,
                "on_conflict={}: expected 'raise', 'keep', 'replace', 'later' or 'earlier'");
    return false;
}

/* `format`: the message, with %llu for the id. */
static void raise_key_in_use_as(PyObject *key, uint64_t id, const char *format)
{
    raise_about(errors.key_in_use, key, format, (unsigned long long)id);
    PyObject *type, *value, *trace, *number = PyLong_FromUnsignedLongLong(id);
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (number == NULL || value == NULL || PyObject_SetAttrString(value, "id", number) < 0)
        PyErr_Clear();
    Py_XDECREF(number);
    PyErr_Restore(type, value, trace);
}

static void raise_key_in_use(WorkerObject *w, PyObject *key, uint64_t id)
{
    bool held = wh_keys_taken(&w->keys, id) && !wh_keys_pending(&w->keys, id);
    raise_key_in_use_as(
        key, id,
        held ? "key {} belongs to timer %llu, which has fired, until its event is acknowledged "
               "(key_until='acknowledged'); try again then, or give on_conflict='keep'"
             : "key {} has a pending timer, %llu; on_conflict= says what to do then: 'keep', "
               "'replace', 'later' or 'earlier'");
}

/* Arm a timer under `object`, which is encoded and hashed in `e`; `rest`: ns until it is due.
 * WH_CALL_OK: *id is that timer; WH_CALL_TAKEN: *id has the key, as it had; otherwise an error is
 * set. */
static enum wh_call worker_claim_key(WorkerObject *w, PyObject *object, EncodedKey *e,
                                     enum wh_conflict conflict, const wh_request *r, int64_t rest,
                                     bool wait, uint64_t *id)
{
    enum wh_call call =
        wh_call_schedule_key(&w->client, &w->keys, &e->key, r, rest, conflict, wait, id);
    if (wh_likely(call == WH_CALL_OK || (call == WH_CALL_TAKEN && conflict != WH_KEY_RAISE)))
        return call;
    if (call == WH_CALL_TAKEN || call == WH_CALL_KEY_HELD)
        raise_key_in_use(w, object, *id);
    else if (call == WH_CALL_KEYS_FULL)
        keys_refuse(w, object);
    else
        worker_raise(w, call);
    return WH_CALL_OVER;
}

static PyObject *worker_arm_key(WorkerObject *w, PyObject *object, EncodedKey *e,
                                enum wh_conflict conflict, const wh_request *r, int64_t rest,
                                bool wait, bool *stays)
{
    uint64_t id = 0;
    enum wh_call call = worker_claim_key(w, object, e, conflict, r, rest, wait, &id);
    *stays = call == WH_CALL_TAKEN;
    return call == WH_CALL_OVER ? NULL : PyLong_FromUnsignedLongLong(id);
}

/* A key for a call that has begun. */
static bool worker_take_key(WorkerObject *w, PyObject *object, EncodedKey *e, bool wait)
{
    if (!key_encode(object, e) || !worker_may_begin(w, wait))
        return false;
    key_hash_for(w, e);
    return true;
}

/* The same, with memory for its places, which the calls of keys.h see to by themselves. */
static bool worker_take_places(WorkerObject *w, PyObject *object, EncodedKey *e)
{
    return worker_take_key(w, object, e, false) &&
           (wh_words_there(&w->keys, &e->key.word) || keys_refuse(w, object));
}

/* _find(key) -> the id of the timer that has it; 0: there is none */
static PyObject *worker_find(WorkerObject *w, PyObject *object)
{
    EncodedKey e;
    if (!worker_take_places(w, object, &e))
        return NULL;
    return PyLong_FromUnsignedLongLong(wh_key_holder(&w->keys, &e.key));
}

/* The end of a call by key: True, False, or an error. */
static PyObject *worker_by_key(WorkerObject *w, PyObject *object, enum wh_call call)
{
    if (wh_likely(call <= WH_CALL_OVER))
        return PyBool_FromLong(call == WH_CALL_OK);
    if (call == WH_CALL_KEYS_FULL)
        keys_refuse(w, object);
    else
        worker_raise(w, call);
    return NULL;
}

static PyObject *worker_reschedule_key(WorkerObject *w, PyObject *object, int64_t delay,
                                       int64_t interval, bool wait)
{
    EncodedKey e;
    uint64_t id;
    if (!worker_take_key(w, object, &e, wait))
        return NULL;
    return worker_by_key(
        w, object,
        wh_call_reschedule_key(&w->client, &w->keys, &e.key, delay, interval, wait, &id));
}

/* _extend(key, timeout, block): let its timer be due no earlier than that from now. False: the key
 * is free. */
static PyObject *worker_extend(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    EncodedKey e;
    uint64_t id;
    int64_t delay;
    bool wait;
    if (n != 3)
        return PyErr_Format(PyExc_TypeError, "_extend() takes a key, a delay and block");
    if (!parse_interval_as("timeout", args[1], &delay) || !parse_block(args[2], &wait) ||
        !worker_take_key(w, args[0], &e, wait))
        return NULL;
    return worker_by_key(w, args[0],
                         wh_call_extend_key(&w->client, &w->keys, &e.key, delay, wait, &id));
}

/* _is_unread(key): has its last timer fired, and is nobody done with its event yet? */
static PyObject *worker_is_unread(WorkerObject *w, PyObject *object)
{
    EncodedKey e;
    if (!worker_take_places(w, object, &e))
        return NULL;
    return PyBool_FromLong(wh_key_unread(&w->keys, &e.key));
}

static PyObject *worker_pause_key(WorkerObject *w, PyObject *object)
{
    EncodedKey e;
    if (!worker_take_key(w, object, &e, false))
        return NULL;
    return worker_by_key(w, object, wh_call_pause_key(&w->client, &w->keys, &e.key));
}

static PyObject *worker_resume_key(WorkerObject *w, PyObject *object, bool wait)
{
    EncodedKey e;
    if (!worker_take_key(w, object, &e, wait))
        return NULL;
    return worker_by_key(w, object, wh_call_resume_key(&w->client, &w->keys, &e.key, wait));
}
