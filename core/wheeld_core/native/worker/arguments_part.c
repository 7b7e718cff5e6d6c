/* Arguments of the hot calls: from Python objects to a wh_request, or an error that says what was
 * got and what is expected.
 *
 * Reading an argument may run code of its own (__float__, __index__, __len__, a buffer's), and that
 * may close the client, or fork. So each call reads all of them first, then asks whether it may
 * begin (worker_usable), and runs no Python code from there on until it has written what it came to
 * write. The wheel's payload bytes and the names in the registry, by which arguments are checked,
 * are read after that look, too. */

/* Is it that name? */
static inline bool name_is(PyObject *name, const char *text)
{
    if (wh_unlikely(!PyUnicode_IS_COMPACT_ASCII(name)))
        return PyUnicode_CompareWithASCIIString(name, text) == 0;
    const char *own = (const char *)PyUnicode_1BYTE_DATA(name);
    const char *end = own + PyUnicode_GET_LENGTH(name);
    while (own < end && *own == *text)
        own++, text++;
    return own == end && *text == 0;
}

/* Sort the arguments of `function` by name; the first `positional` names may come by place. */
static bool parse_keywords(const char *function, const char *const *names, Py_ssize_t positional,
                           PyObject *const *args, Py_ssize_t n, PyObject *kwnames,
                           PyObject **values)
{
    if (n > positional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %zd positional argument%s: got %zd",
                     function, positional, positional == 1 ? "" : "s", n);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        values[i] = args[i];
    Py_ssize_t count = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, k);
        Py_ssize_t i = 0;
        while (names[i] && !name_is(name, names[i]))
            i++;
        if (names[i] == NULL || values[i] != NULL) {
            raise_about(PyExc_TypeError, name, "%s() got %s argument {}", function,
                        names[i] ? "twice the" : "an unexpected keyword");
            return false;
        }
        values[i] = args[n + k];
    }
    return true;
}

/* Check that the first `needed` arguments are given. False: an error is set. */
static bool parse_needed(const char *function, const char *const *names, Py_ssize_t needed,
                         PyObject *const *values)
{
    for (Py_ssize_t i = 0; i < needed; i++)
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() needs the argument '%s'", function, names[i]);
            return false;
        }
    return true;
}

/* The argument `block`, if it was given. False: an error is set. */
static bool parse_block(PyObject *object, bool *wait)
{
    int truth = object ? PyObject_IsTrue(object) : 1;
    *wait = truth != 0;
    return truth >= 0;
}

/* The seconds of an object that is no float: of another number, or of a timedelta, numpy's too,
 * which pretend to be numbers of their own unit. -1: an error may be set. */
static wh_apart double other_seconds(PyObject *object, const char *what)
{
    if (PyFloat_Check(object) || PyLong_Check(object))
        return PyFloat_AsDouble(object);
    PyObject *found = PyObject_CallFunction(errors.float_of, "Os", object, what);
    double seconds = found ? PyFloat_AsDouble(found) : -1.0;
    Py_XDECREF(found);
    return seconds;
}

static bool parse_seconds(PyObject *object, double *seconds, const char *what)
{
    *seconds = wh_likely(PyFloat_CheckExact(object)) ? PyFloat_AS_DOUBLE(object)
                                                     : other_seconds(object, what);
    if (wh_unlikely(*seconds == -1.0 && PyErr_Occurred())) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError))
            return false;
        PyErr_Clear(); /* an int that no float holds */
    }
    if (wh_likely(*seconds >= 0 && !isinf(*seconds)))
        return true;
    raise_about(errors.invalid_delay, object,
                "%s must be a finite number of seconds, 0 or more: got {}", what);
    return false;
}

static bool parse_delay(PyObject *object, int64_t *ns, const char *what)
{
    double seconds;
    if (!parse_seconds(object, &seconds, what))
        return false;
    *ns = wh_delay_ns(seconds);
    return true;
}

/* Any integer, numpy's too, as u64. False: an error is set; OverflowError: out of range. */
static bool integer_u64(PyObject *object, uint64_t *value, const char *what)
{
    if (wh_likely(PyLong_Check(object))) {
        *value = PyLong_AsUnsignedLongLong(object);
    } else {
        if (!PyIndex_Check(object))
            return raise_about(PyExc_TypeError, object, "%s: got {}, expected an int", what), false;
        PyObject *index = PyNumber_Index(object);
        if (index == NULL)
            return false;
        *value = PyLong_AsUnsignedLongLong(index);
        Py_DECREF(index);
    }
    return wh_likely(*value != (uint64_t)-1) || !PyErr_Occurred();
}

static bool parse_u64(PyObject *object, uint64_t *value, const char *what)
{
    if (integer_u64(object, value, what))
        return true;
    if (PyErr_ExceptionMatches(PyExc_OverflowError))
        raise_about(PyExc_ValueError, object, "%s must be from 0 to 2**64 - 1: got {}", what);
    return false;
}

/* The id of a timer; one that no timer has, when `object` is an int out of range. False: an error
 * is set, the same for all that is no int. */
static bool parse_id(PyObject *object, uint64_t *id)
{
    if (wh_unlikely(PyBool_Check(object) || !PyIndex_Check(object))) {
        raise_about(PyExc_TypeError, object,
                    "expected the id of a timer, an int as schedule() returns it, or as an event "
                    "has it in its field timer_id: got {}");
        return false;
    }
    if (wh_likely(integer_u64(object, id, "id")))
        return true;
    if (!PyErr_ExceptionMatches(PyExc_OverflowError))
        return false;
    PyErr_Clear();
    *id = 0;
    return true;
}

static const char prefix[] = "group:"; /* of a receiver that is a group */

/* The receiver: "group:NAME", or a worker's name. The caller has just looked whether the client is
 * open. */
static bool parse_target(WorkerObject *w, PyObject *name_object, uint32_t *target)
{
    Py_ssize_t length;
    const char *name = text_utf8(name_object, &length, "to=");
    if (name == NULL)
        return false;
    bool group = strncmp(name, prefix, sizeof prefix - 1) == 0;
    *target = 0;
    if (length == (Py_ssize_t)strlen(name)) /* no name has a NUL in it */
        *target = group ? wh_group_target(w->groups, name + sizeof prefix - 1)
                        : wh_worker_target(w->rows, w->row_count, name);
    if (*target)
        return true;
    raise_about(PyExc_ValueError, name_object, "to={}: %s; `wheeld status` lists them",
                group ? "no worker has joined a group of that name yet"
                      : "no worker of that name is connected");
    return false;
}

static bool parse_payload(WorkerObject *w, const Py_buffer *payload, wh_request *r)
{
    uint32_t most = wh_client_most_payload(&w->client);
    if ((uint64_t)payload->len > most) {
        PyErr_Format(errors.payload_too_large,
                     "payload has %zd bytes; this wheel holds %u per timer (wheeld start "
                     "--max-payload, --payload-bytes)",
                     payload->len, most);
        return false;
    }
    r->payload = payload->buf;
    r->payload_size = (uint32_t)payload->len;
    return true;
}

/* The options of every call that arms timers, one or many, behind arguments of its own. A field of
 * the timer that its user sets is one more of these: read here, stored by wh_client_arm(). */
#define OPTION_NAMES "interval", "to", "block", "detached", "keep", "key_until", NULL
enum { INTERVAL, TO, BLOCK, APART, KEEP, KEY_UNTIL, OPTIONS };

/* The order of such a call: all that is read before the client is checked. */
typedef struct {
    wh_request request;
    PyObject *to;
    Py_buffer payload; /* of each timer; no buffer: none */
    bool wait;
} Order;

static bool parse_interval_as(const char *what, PyObject *object, int64_t *ns)
{
    if (!parse_delay(object, ns, what))
        return false;
    if (*ns)
        return true;
    PyErr_Format(errors.invalid_delay, "%s must be above 0", what);
    return false;
}

/* A period; *interval stays as it is where there is none. False: an error is set. */
static bool parse_interval(PyObject *object, int64_t *interval)
{
    return object == NULL || object == Py_None || parse_interval_as("interval", object, interval);
}

/* The options `detached` and `keep`. False: an error is set. */
static bool order_parse_detached(Order *o, PyObject *const *options)
{
    int detached = options[APART] ? PyObject_IsTrue(options[APART]) : 0;
    int keep = options[KEEP] ? PyObject_IsTrue(options[KEEP]) : 0;
    if (detached < 0 || keep < 0)
        return false;
    if (keep && !detached) {
        PyErr_SetString(PyExc_ValueError, "keep=True is for detached timers: give detached=True");
        return false;
    }
    if (detached && o->to == NULL) {
        PyErr_SetString(PyExc_ValueError, "detached=True needs to=: the group (\"group:NAME\") or "
                                          "the worker that receives the timer");
        return false;
    }
    o->request.flags |= keep ? WH_LASTING : detached ? WH_DETACHED : 0;
    return true;
}

/* The option `key_until`; `keyed`: there is a key. False: an error is set. */
static bool order_parse_until(Order *o, PyObject *word, bool keyed)
{
    bool text = word && PyUnicode_Check(word);
    if (word == NULL || (text && PyUnicode_CompareWithASCIIString(word, "fired") == 0))
        return true;
    if (!text || PyUnicode_CompareWithASCIIString(word, "acknowledged") != 0) {
        raise_about(PyExc_ValueError, word,
                    "key_until={}: expected 'fired', when the key is free as the timer fires, or "
                    "'acknowledged'");
        return false;
    }
    o->request.flags |= WH_HELD;
    if (!keyed)
        PyErr_SetString(PyExc_ValueError, "key_until= is about the key: give key=, too");
    return keyed;
}

/* Read the options; of those by name what is absent is NULL. False: an error is set. */
static bool order_parse(Order *o, PyObject *const *options)
{
    o->to = options[TO] == Py_None ? NULL : options[TO];
    return parse_interval(options[INTERVAL], &o->request.interval) &&
           parse_block(options[BLOCK], &o->wait) && order_parse_detached(o, options);
}

static bool parse_clock(PyObject *object, uint32_t *kind)
{
    uint64_t number;
    if (!parse_u64(object, &number, "clock"))
        return false;
    *kind = (uint32_t)number;
    if (number < WH_CLOCK_KINDS)
        return true;
    PyErr_SetString(PyExc_ValueError, "no such clock");
    return false;
}

/* The same for a clock, by its number. */
static bool order_parse_clock(Order *o, PyObject *clock)
{
    uint32_t kind;
    if (!parse_clock(clock, &kind))
        return false;
    o->request.flags |= (uint32_t)WH_PUT(FLAGS_CLOCK, kind);
    return true;
}

/* The receiver of a timer whose end may wait, or is acknowledged on its own. That is always a
 * group: a worker is the only member of one that has its name behind a '='. 0: it is not known yet,
 * or nobody keeps such ends. -1: an error is set. */
static int order_address(Order *o, const WorkerObject *w, PyObject *to)
{
    Py_ssize_t length;
    const char *name = text_utf8(to, &length, "to=");
    char own[64] = "=";
    if (name == NULL)
        return -1;
    if (strncmp(name, prefix, sizeof prefix - 1) == 0)
        name += sizeof prefix - 1, length -= (Py_ssize_t)sizeof prefix - 1;
    else if (length + 2 <= (Py_ssize_t)sizeof own)
        name = memcpy(own + 1, name, (size_t)length + 1) - 1, length++;
    if (length != (Py_ssize_t)strlen(name) || wh_load_relaxed(&w->client.wheel->keeper) == 0)
        return 0;
    o->request.target = wh_group_target(w->groups, name);
    return o->request.target != 0;
}

/* The checks that need the client's memory: after worker_may_begin(). */
static bool order_place(Order *o, WorkerObject *w)
{
    if (o->to && !parse_target(w, o->to, &o->request.target))
        return false;
    return o->payload.buf == NULL || parse_payload(w, &o->payload, &o->request);
}
