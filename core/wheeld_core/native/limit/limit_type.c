/* Limit: a worker's way to a limit of the directory (wheeld/sharing/limits.h).
 * wheeld_client.RateLimit is its subclass. All state is in shared memory. */

enum limit_kind { LIMIT_RATE, LIMIT_WINDOW, LIMIT_LOG, LIMIT_KINDS };

typedef struct {
    PyObject_HEAD WorkerObject *worker; /* NULL: never initialised */
    PyObject *name;
    uint64_t token, seed, other; /* of the wheel whose directory it is in; and of its keys there */
    int64_t per, unit; /* ns: of the window; until one comes again */
    uint64_t most; /* what may be taken at once */
    enum limit_kind kind;
    bool seeded;
} LimitObject;

static inline void limit_lock(Held *held, LimitObject *l)
{
    lock_alone(held, (PyObject *)l->worker);
}
LOCKED_KEYWORDS(limit_lock, LimitObject, limit_try_acquire)
LOCKED_KEYWORDS(limit_lock, LimitObject, limit_test)
LOCKED_KEYWORDS(limit_lock, LimitObject, limit_remaining)
LOCKED_KEYWORDS(limit_lock, LimitObject, limit_reset_after)
LOCKED_FAST(limit_lock, LimitObject, limit_take_within)
LOCKED_FAST(limit_lock, LimitObject, limit_give)
LOCKED_FAST(limit_lock, LimitObject, limit_count)
LOCKED_ONE(limit_lock, LimitObject, limit_clear)
LOCKED_ONE(limit_lock, LimitObject, limit_uncount)
LOCKED_ONE(limit_lock, LimitObject, limit_state)

/* -- arguments --------------------------------------------------------------------------------- */

/* The seeds of this limit's keys, which nobody outside of the daemon knows. */
static wh_seldom bool limit_seed(LimitObject *l, uint64_t token)
{
    Py_ssize_t length;
    const char *text = text_utf8(l->name, &length, "name ");
    if (text == NULL)
        return false;
    l->seed = wh_hash_piece(wh_hash_add(token, 'l'), 'l', text, (size_t)length);
    l->other = wh_hash_piece(wh_hash_add(~token, 'L'), 'l', text, (size_t)length);
    l->token = token;
    return l->seeded = true;
}

/* May it be too long for a key of a timer? Else it is short. */
static bool key_may_be_long(PyObject *plain, Py_ssize_t most)
{
    if (PyUnicode_CheckExact(plain))
        return PyUnicode_GET_LENGTH(plain) > most;
    if (PyBytes_CheckExact(plain))
        return PyBytes_GET_SIZE(plain) > most;
    if (PyLong_CheckExact(plain)) {
        int beyond;
        (void)PyLong_AsLongLongAndOverflow(plain, &beyond);
        return beyond != 0;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(plain);
    bool may = n > 8; /* each up to 25 characters of up to 4 bytes, and 3 */
    for (Py_ssize_t i = 0; !may && i < n; i++)
        may = key_may_be_long(PyTuple_GET_ITEM(plain, i), 25);
    return may;
}

/* Add a key to both hashes. False: an error is set. */
static bool key_hash_object(PyObject *object, uint64_t *hash, uint64_t *other)
{
    bool simple = PyUnicode_CheckExact(object) || PyLong_CheckExact(object);
    if (wh_unlikely(!simple) && key_has_bool(object)) {
        raise_about(PyExc_TypeError, object,
                    "key {}: got a bool, which would be the same key as 0 or 1: use int() or "
                    "str()");
        return false;
    }
    PyObject *plain = wh_likely(simple)       ? Py_NewRef(object)
                      : PyTuple_Check(object) ? key_plain_tuple(object)
                                              : key_plain(object);
    EncodedKey encoded; /* tells whether it is too long, for all keys in the same way */
    bool fits = plain && (wh_likely(!key_may_be_long(plain, WH_LONG_KEY / 4 - 1)) ||
                          key_encode(plain, &encoded));
    bool hashed = fits && key_hash(plain, hash) && key_hash(plain, other);
    Py_XDECREF(plain);
    return hashed;
}

/* A call that may begin: its key, and the time. */
typedef struct {
    wh_word_key word;
    int64_t now;
} LimitCall;

static bool limit_key(LimitObject *l, PyObject *object, LimitCall *call)
{
    uint64_t hash = l->seed, other = l->other;
    if (object && object != Py_None && !key_hash_object(object, &hash, &other))
        return false;
    call->word = wh_words_key(hash, other, WH_WORD_LIMIT);
    return true;
}

/* After the arguments, whose own code may have closed the client. */
static bool limit_begin(LimitObject *l, PyObject *key, LimitCall *call)
{
    WorkerObject *w = l->worker;
    if (wh_unlikely(w == NULL)) {
        PyErr_SetString(PyExc_ValueError, "this limit was never initialised");
        return false;
    }
    if (!limit_key(l, key, call) || !worker_may_begin(w, false))
        return false;
    uint64_t token = w->client.wheel->head.token;
    if (wh_unlikely(token != l->token || !l->seeded) &&
        !(limit_seed(l, token) && limit_key(l, key, call)))
        return false;
    wh_words_prefetch(&w->keys, &call->word);
    if (wh_unlikely(!wh_words_there(&w->keys, &call->word)))
        return keys_refuse(w, key ? key : Py_None);
    call->now = wh_client_now(&w->client);
    return true;
}

static bool limit_parse_n(const LimitObject *l, PyObject *object, uint64_t *n)
{
    *n = 1;
    if (object && (PyBool_Check(object) || PyFloat_Check(object))) {
        raise_about(PyExc_TypeError, object, "n={}: expected an int");
        return false;
    }
    if (object && !parse_u64(object, n, "n"))
        return false;
    if (wh_likely(*n && *n <= l->most))
        return true;
    Py_ssize_t length = PyUnicode_GET_LENGTH(l->name); /* behind a NUL: which window it is */
    Py_ssize_t end = PyUnicode_FindChar(l->name, 0, 0, length, 1);
    PyObject *name = PyUnicode_Substring(l->name, 0, end < 0 ? length : end);
    if (name)
        raise_about(PyExc_ValueError, object ? object : Py_None,
                    "n={}: expected 1 to %llu, which is all that limit %R gives at once",
                    (unsigned long long)l->most, name);
    Py_XDECREF(name);
    return false;
}

/* f(n=1, *, key=None), or f(key=None) if `n` is NULL */
static bool limit_parse(LimitObject *l, const char *function, PyObject *const *args, Py_ssize_t n,
                        PyObject *kwnames, uint64_t *count, LimitCall *call)
{
    static const char *const both[] = {"n", "key", NULL};
    PyObject *values[2] = {0}, **key = count ? &values[1] : &values[0];
    if (wh_unlikely(n || kwnames) &&
        !parse_keywords(function, count ? both : both + 1, 1, args, n, kwnames, values))
        return false;
    return (count == NULL || limit_parse_n(l, values[0], count)) && limit_begin(l, *key, call);
}

static PyObject *limit_refuse(LimitObject *l, PyObject *key)
{
    raise_about(errors.keys_full, key ? key : l->name,
                "no room for the limit of {}: both sets of places that it may be in are full of "
                "keys in use (%u places in all), or /dev/shm is full; they are over in time, or "
                "start wheeld with a larger --capacity",
                wh_words_places(&l->worker->keys));
    return NULL;
}

/* -- calls ------------------------------------------------------------------------------------- */

typedef struct {
    int64_t wait; /* ns until it is there */
    uint64_t ticket; /* to give it back */
    uint64_t count; /* of a window: taken in it */
} LimitTaken;

static inline wh_log limit_log(const LimitObject *l, const LimitCall *call)
{
    return (wh_log){&call->word, (uint32_t)l->most, call->now, l->per};
}

static inline enum wh_limited limit_take_as_of(LimitObject *l, const LimitCall *call, uint64_t n,
                                               int64_t patience, LimitTaken *taken)
{
    wh_keys *k = &l->worker->keys;
    *taken = (LimitTaken){0};
    if (wh_likely(l->kind == LIMIT_RATE)) {
        enum wh_limited rated = wh_rate_take(k, &call->word, call->now, (int64_t)n * l->unit,
                                             (int64_t)l->most * l->unit, patience, &taken->wait);
        taken->ticket = (uint64_t)wh_time_add(call->now, taken->wait);
        return rated;
    }
    if (l->kind == LIMIT_LOG) {
        wh_log log = limit_log(l, call);
        return wh_log_take(k, &log, (uint32_t)n, patience, &taken->wait, &taken->ticket);
    }
    wh_window window = {0};
    enum wh_limited done = wh_window_take(k, &call->word, call->now, l->per, n, l->most, patience,
                                          &window, &taken->wait);
    taken->ticket = (uint64_t)window.ends;
    taken->count = window.count;
    return done;
}

/* Another worker's clock was read a moment later, and it has not yet got what it wrote down: then
 * what this one would wait for is there by now. */
static inline enum wh_limited limit_take(LimitObject *l, LimitCall *call, uint64_t n,
                                         int64_t patience, LimitTaken *taken)
{
    for (;;) {
        enum wh_limited done = limit_take_as_of(l, call, n, patience, taken);
        if (wh_likely(done != WH_LIMIT_REFUSED))
            return done;
        int64_t now = wh_client_now(&l->worker->client);
        if (wh_time_sub(now, call->now) < taken->wait)
            return done;
        call->now = now;
    }
}

static PyObject *limit_try_acquire(LimitObject *l, PyObject *const *args, Py_ssize_t count,
                                   PyObject *kwnames)
{
    uint64_t n;
    LimitCall call;
    LimitTaken taken;
    if (!limit_parse(l, "try_acquire", args, count, kwnames, &n, &call))
        return NULL;
    enum wh_limited done = limit_take(l, &call, n, 0, &taken);
    return wh_likely(done != WH_LIMIT_NO_ROOM) ? PyBool_FromLong(done == WH_LIMIT_TAKEN)
                                               : limit_refuse(l, NULL);
}

/* _take(n, key, patience_ns) -> (taken, ns to wait, ticket, count in a window) */
static PyObject *limit_take_within(LimitObject *l, PyObject *const *args, Py_ssize_t count)
{
    uint64_t n;
    LimitCall call;
    LimitTaken taken;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "_take() takes n, a key and a time");
    long long patience = PyLong_AsLongLong(args[2]);
    if ((patience == -1 && PyErr_Occurred()) || !limit_parse_n(l, args[0], &n) ||
        !limit_begin(l, args[1], &call))
        return NULL;
    enum wh_limited done = limit_take(l, &call, n, patience, &taken);
    if (done == WH_LIMIT_NO_ROOM)
        return limit_refuse(l, args[1]);
    return Py_BuildValue("NLKK", PyBool_FromLong(done == WH_LIMIT_TAKEN),
                         (long long)(taken.wait > 0 ? taken.wait : 0),
                         (unsigned long long)taken.ticket, (unsigned long long)taken.count);
}

/* _give(n, key, ticket) */
static PyObject *limit_give(LimitObject *l, PyObject *const *args, Py_ssize_t count)
{
    uint64_t n, ticket;
    LimitCall call;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "_give() takes n, a key and a ticket");
    if (!limit_parse_n(l, args[0], &n) || !parse_u64(args[2], &ticket, "ticket") ||
        !limit_begin(l, args[1], &call))
        return NULL;
    wh_keys *k = &l->worker->keys;
    wh_log log = limit_log(l, &call);
    if (l->kind == LIMIT_RATE)
        wh_rate_give(k, &call.word, call.now, (int64_t)n * l->unit, (int64_t)ticket);
    else if (l->kind == LIMIT_LOG)
        wh_log_give(k, &log, ticket, (uint32_t)n);
    else
        wh_window_give(k, &call.word, call.now, (int64_t)ticket, n);
    Py_RETURN_NONE;
}

typedef struct {
    uint64_t used;
    int64_t first, last; /* ns until the first of it is there again, and all */
} LimitState;

static LimitState limit_read(LimitObject *l, const LimitCall *call)
{
    wh_keys *k = &l->worker->keys;
    if (l->kind == LIMIT_LOG) {
        wh_log log = limit_log(l, call);
        wh_log_state state = wh_log_read(k, &log);
        return (LimitState){state.count, state.count ? state.oldest - call->now : 0,
                            state.count ? state.newest - call->now : 0};
    }
    if (l->kind == LIMIT_RATE) {
        int64_t used = wh_rate_used(k, &call->word, call->now);
        return (LimitState){(uint64_t)((used + l->unit - 1) / l->unit), used % l->unit, used};
    }
    int64_t all;
    wh_window window = wh_window_read(k, &call->word, call->now, l->per, &all);
    return (LimitState){window.count, window.count ? window.ends - call->now : 0, all - call->now};
}

/* test(n=1, *, key=None) */
static PyObject *limit_test(LimitObject *l, PyObject *const *args, Py_ssize_t count,
                            PyObject *kwnames)
{
    uint64_t n;
    LimitCall call;
    if (!limit_parse(l, "test", args, count, kwnames, &n, &call))
        return NULL;
    LimitState state = limit_read(l, &call);
    return PyBool_FromLong(state.used <= l->most && n <= l->most - state.used);
}

static PyObject *limit_remaining(LimitObject *l, PyObject *const *args, Py_ssize_t count,
                                 PyObject *kwnames)
{
    LimitCall call;
    if (!limit_parse(l, "remaining", args, count, kwnames, NULL, &call))
        return NULL;
    LimitState state = limit_read(l, &call);
    return PyLong_FromUnsignedLongLong(state.used < l->most ? l->most - state.used : 0);
}

static PyObject *limit_reset_after(LimitObject *l, PyObject *const *args, Py_ssize_t count,
                                   PyObject *kwnames)
{
    LimitCall call;
    if (!limit_parse(l, "reset_after", args, count, kwnames, NULL, &call))
        return NULL;
    return PyFloat_FromDouble((double)limit_read(l, &call).last / 1e9);
}

/* _state(key) -> (used, ns until the first of it is there again, ns until all is) */
static PyObject *limit_state(LimitObject *l, PyObject *key)
{
    LimitCall call;
    if (!limit_begin(l, key, &call))
        return NULL;
    LimitState state = limit_read(l, &call);
    return Py_BuildValue("KLL", (unsigned long long)state.used, (long long)state.first,
                         (long long)state.last);
}

/* _clear(key): all is there again */
static PyObject *limit_clear(LimitObject *l, PyObject *key)
{
    LimitCall call;
    if (!limit_begin(l, key, &call))
        return NULL;
    wh_keys *k = &l->worker->keys;
    if (l->kind == LIMIT_RATE)
        wh_rate_give(k, &call.word, call.now, WH_LIMIT_LATEST, INT64_MAX);
    else if (l->kind == LIMIT_LOG)
        wh_log_clear(k, &call.word, call.now);
    else
        wh_window_clear(k, &call.word, call.now);
    Py_RETURN_NONE;
}

/* _count(key, n, ns that it is kept, at most) -> (counted, count): a tally without a window */
static PyObject *limit_count(LimitObject *l, PyObject *const *args, Py_ssize_t count)
{
    uint64_t n, kept, most, found;
    LimitCall call;
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "_count() takes a key and three numbers");
    if (!parse_u64(args[1], &n, "n") || !parse_u64(args[2], &kept, "kept") ||
        !parse_u64(args[3], &most, "most") || !limit_begin(l, args[0], &call))
        return NULL;
    int64_t ends = wh_time_add(call.now, (int64_t)(kept < INT64_MAX ? kept : INT64_MAX));
    enum wh_limited done = WH_LIMIT_TAKEN;
    if (n)
        done = wh_tally_add(&l->worker->keys, &call.word, call.now,
                            ends < WH_LIMIT_LATEST / 2 ? ends : WH_LIMIT_LATEST / 2, n,
                            most < WH_LIMIT_MOST ? most : WH_LIMIT_MOST, &found);
    else
        found = WH_GET(TALLY_COUNT, wh_words_peek(&l->worker->keys, &call.word));
    if (done == WH_LIMIT_NO_ROOM)
        return limit_refuse(l, args[0]);
    return Py_BuildValue("NK", PyBool_FromLong(done == WH_LIMIT_TAKEN), (unsigned long long)found);
}

/* _uncount(key): of _count() */
static PyObject *limit_uncount(LimitObject *l, PyObject *key)
{
    LimitCall call;
    if (!limit_begin(l, key, &call))
        return NULL;
    wh_tally_clear(&l->worker->keys, &call.word);
    Py_RETURN_NONE;
}

/* -- the object -------------------------------------------------------------------------------- */

/* Limit(worker, name, kind, most, per_ns, unit_ns) */
static int limit_init(LimitObject *l, PyObject *args, PyObject *kwargs)
{
    PyObject *worker, *name;
    unsigned int kind;
    unsigned long long most;
    long long per, unit;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "O!UIKLL:Limit", worker_type, &worker, &name, &kind, &most, &per,
                          &unit))
        return -1;
    uint64_t room = kind == LIMIT_LOG ? WH_LOG_MOST : WH_LIMIT_MOST;
    bool fits =
        kind < LIMIT_KINDS && most && per > 0 && per < WH_LIMIT_LATEST / 8 && unit > 0 &&
        (kind == LIMIT_RATE ? most <= (uint64_t)(WH_LIMIT_LATEST / 8 / unit) : most <= room);
    if (l->worker || !fits) {
        PyErr_SetString(PyExc_ValueError, "limit: out of range, or already initialised");
        return -1;
    }
    l->worker = (WorkerObject *)Py_NewRef(worker);
    l->name = Py_NewRef(name);
    l->kind = (enum limit_kind)kind;
    l->most = most, l->per = per, l->unit = unit;
    return 0;
}

static int limit_traverse(LimitObject *l, visitproc visit, void *arg)
{
    Py_VISIT(l->worker);
    Py_VISIT(Py_TYPE(l));
    return 0;
}

static void limit_dealloc(LimitObject *l)
{
    PyObject_GC_UnTrack(l);
    Py_CLEAR(l->worker);
    Py_CLEAR(l->name);
    PyTypeObject *type = Py_TYPE(l);
    type->tp_free(l);
    Py_DECREF(type);
}

static PyMethodDef limit_methods[] = {
    {"try_acquire", FAST(LOCKED(limit_try_acquire)), METH_FASTCALL | METH_KEYWORDS,
     "try_acquire(n=1, *, key=None)\n--\n\n"
     "Take `n` if they are there now.\n\n"
     "Parameters\n----------\n"
     "n : int\n    1 to the limit, or to `burst`. All or nothing.\n"
     "key : str, bytes, int, or a flat tuple of those, optional\n"
     "    Whose: each has the whole limit. At most 1,024 bytes, encoded.\n\n"
     "Returns\n-------\nbool\n    False: nothing was taken.\n\n"
     "Raises\n------\nValueError, TypeError\n    `n` is out of range, or no int; it is not a key.\n"
     "KeysFull\n    There is no room for another key.\n"
     "DaemonNotRunning, ClientClosed, ForkedClient\n\n"
     "Notes\n-----\nLock-free, no system call. Any thread. Exact over processes, and under kills: a worker\n"
     "that dies in this call has taken all or nothing."},
    {"test", FAST(LOCKED(limit_test)), METH_FASTCALL | METH_KEYWORDS,
     "test(n=1, *, key=None)\n--\n\n"
     "Would `try_acquire` get them now? Takes nothing.\n\n"
     "Returns\n-------\nbool\n\nRaises\n------\nas try_acquire()"},
    {"remaining", FAST(LOCKED(limit_remaining)), METH_FASTCALL | METH_KEYWORDS,
     "remaining(key=None)\n--\n\n"
     "How many are there now.\n\n"
     "Returns\n-------\nint\n\nRaises\n------\nas try_acquire()"},
    {"reset_after", FAST(LOCKED(limit_reset_after)), METH_FASTCALL | METH_KEYWORDS,
     "reset_after(key=None)\n--\n\n"
     "Seconds until all of the limit is there again, if nobody takes any; 0.0: it is.\n\n"
     "Returns\n-------\nfloat\n\nRaises\n------\nas try_acquire()"},
    {"_take", FAST(LOCKED(limit_take_within)), METH_FASTCALL, NULL},
    {"_give", FAST(LOCKED(limit_give)), METH_FASTCALL, NULL},
    {"_count", FAST(LOCKED(limit_count)), METH_FASTCALL, NULL},
    {"_state", (PyCFunction)LOCKED(limit_state), METH_O, NULL},
    {"_clear", (PyCFunction)LOCKED(limit_clear), METH_O, NULL},
    {"_uncount", (PyCFunction)LOCKED(limit_uncount), METH_O, NULL},
    {NULL}};

static PyType_Slot limit_slots[] = {{Py_tp_new, PyType_GenericNew},
                                    {Py_tp_init, limit_init},
                                    {Py_tp_dealloc, limit_dealloc},
                                    {Py_tp_traverse, limit_traverse},
                                    {Py_tp_methods, limit_methods},
                                    {Py_tp_doc, "The native half of wheeld_client.RateLimit."},
                                    {0, NULL}};
static PyType_Spec limit_spec = {"wheeld_core._native.Limit", sizeof(LimitObject), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                 limit_slots};
