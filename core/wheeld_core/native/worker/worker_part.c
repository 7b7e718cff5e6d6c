/* Worker: the client's hot calls, one native call each: arguments in, a call of calls.h, a result
 * or an error out. wheeld_client.Timers is its subclass. `wait`: it may wait for the clock. */

/* Arm a timer; returns its id. 0: an error is set. */
static uint64_t worker_arm_timer(WorkerObject *w, const wh_request *r, int64_t due, bool wait)
{
    uint64_t id = 0;
    enum wh_call call = wh_call_schedule(&w->client, r, due, wait, &id);
    if (wh_likely(call == WH_CALL_OK))
        return id;
    worker_raise(w, call);
    return 0;
}

static PyObject *worker_arm(WorkerObject *w, const wh_request *r, int64_t due, bool wait)
{
    uint64_t id = worker_arm_timer(w, r, due, wait);
    return wh_likely(id) ? PyLong_FromUnsignedLongLong(id) : NULL;
}

/* The arguments of a call that arms one timer: its options, and what else belongs to it. */
#define TIMER_NAMES "cookie", "payload", "key", "on_conflict", OPTION_NAMES
enum { COOKIE, PAYLOAD, KEY, ON_CONFLICT, TIMER_OPTIONS, TIMER_VALUES = TIMER_OPTIONS + OPTIONS };

/* Find the address of the order's receiver; the supervisor is asked for it once. */
static bool order_find_address(Order *o, WorkerObject *w, PyObject *to, bool wait)
{
    int found;
    for (bool asked = false;; asked = true) {
        if (!worker_may_begin(w, wait) || (found = order_address(o, w, to)) < 0)
            return false;
        if (found)
            return true;
        PyObject *done = asked ? NULL : PyObject_CallMethod((PyObject *)w, "_address", "O", to);
        if (done == NULL) {
            if (asked)
                raise_about(errors.wheel_error, to,
                            "to={}: the daemon has no room for detached "
                            "timers just now; see `wheeld status`");
            return false;
        }
        Py_DECREF(done);
    }
}

/* Begin a call that arms `n` timers: the client is usable, and all that the order needs is
 * there. 0: by keys; how many it arms is seen then. */
static bool order_begin(Order *o, WorkerObject *w, uint64_t n, bool wait)
{
    if (wh_likely(!(o->request.flags & (WH_DETACHED | WH_HELD))))
        return worker_may_begin(w, wait) && order_place(o, w);
    PyObject *to = o->to ? Py_NewRef(o->to) : PyObject_GetAttrString((PyObject *)w, "worker");
    bool found = to && order_find_address(o, w, to, wait);
    Py_XDECREF(to);
    if (!found)
        return false;
    bool detached = o->request.flags & WH_DETACHED;
    enum wh_call room = detached && n ? wh_client_detached_room(&w->client, n, wait) : WH_CALL_OK;
    if (room != WH_CALL_OK) {
        worker_raise(w, room);
        return false;
    }
    return o->payload.buf == NULL || parse_payload(w, &o->payload, &o->request);
}

static bool order_parse_timer(Order *o, PyObject *const *values)
{
    if (values[PAYLOAD] && PyObject_GetBuffer(values[PAYLOAD], &o->payload, PyBUF_SIMPLE) < 0) {
        if (PyErr_ExceptionMatches(PyExc_TypeError))
            raise_about(PyExc_TypeError, values[PAYLOAD],
                        "payload: got {}, expected bytes: encode a text");
        return false;
    }
    return (!values[COOKIE] || parse_u64(values[COOKIE], &o->request.cookie, "cookie")) &&
           order_parse(o, values + TIMER_OPTIONS) &&
           order_parse_until(o, values[TIMER_OPTIONS + KEY_UNTIL],
                             values[KEY] && values[KEY] != Py_None);
}

/* The arguments about a timer's key, read before the client is checked. */
typedef struct {
    PyObject *object; /* NULL: it has none */
    enum wh_conflict conflict;
    EncodedKey encoded;
} KeyOrder;

static bool order_parse_key(KeyOrder *k, PyObject *const *values)
{
    k->object = values[KEY] == Py_None ? NULL : values[KEY];
    k->conflict = WH_KEY_RAISE;
    if (values[ON_CONFLICT] && !parse_conflict(values[ON_CONFLICT], &k->conflict))
        return false;
    if (k->object)
        return key_encode(k->object, &k->encoded);
    if (values[ON_CONFLICT] == NULL || k->conflict == WH_KEY_RAISE)
        return true;
    PyErr_SetString(PyExc_ValueError, "on_conflict= is about the key: give key=, too");
    return false;
}

/* The time now, which is read while the places of the key are fetched. */
static int64_t worker_key_now(const WorkerObject *w, KeyOrder *k)
{
    if (k->object)
        key_hash_for(w, &k->encoded);
    return wh_client_now(&w->client);
}

/* Arm it, under its key if it has one; `rest`: ns from now until it is due. *stays: another timer
 * has the key still, and the id is that one's. */
static PyObject *worker_arm_order(WorkerObject *w, const Order *o, KeyOrder *k, int64_t now,
                                  int64_t rest, bool *stays)
{
    w->keys.now = now;
    if (k->object)
        return worker_arm_key(w, k->object, &k->encoded, k->conflict, &o->request, rest, o->wait,
                              stays);
    return worker_arm(w, &o->request, wh_time_add(now, rest), o->wait);
}

static void error_raise(PyObject *error);

/* After an error: options of schedule() that are the client's own make it a call of _schedule_as().
 * Theirs is the way of errors, for those who use none of them pay nothing. */
static wh_seldom PyObject *worker_schedule_as(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                              PyObject *kwnames)
{
    PyObject *error = error_take();
    PyObject *own = PyObject_GetAttrString((PyObject *)w, "_policy_names");
    int found = own ? 0 : -1;
    for (Py_ssize_t i = 0; kwnames && found == 0 && i < PyTuple_GET_SIZE(kwnames); i++)
        found = PySequence_Contains(own, PyTuple_GET_ITEM(kwnames, i));
    Py_XDECREF(own);
    if (found <= 0) {
        PyErr_Clear();
        error_raise(error);
        return NULL;
    }
    Py_XDECREF(error);
    PyObject *method = PyObject_GetAttrString((PyObject *)w, "_schedule_as");
    PyObject *id = method ? PyObject_Vectorcall(method, args, (size_t)n, kwnames) : NULL;
    Py_XDECREF(method);
    return id;
}

static PyObject *worker_schedule_kw(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                    PyObject *kwnames)
{
    static const char *const names[] = {"delay", TIMER_NAMES};
    PyObject *values[1 + TIMER_VALUES] = {0}, *id = NULL;
    Order o = {0};
    KeyOrder k;
    int64_t delay;
    if (!parse_keywords("schedule", names, 2, args, n, kwnames, values))
        return worker_schedule_as(w, args, n, kwnames);
    if (values[0] == NULL)
        return PyErr_Format(PyExc_TypeError, "schedule() needs a delay, in seconds");
    if (parse_delay(values[0], &delay, "delay") && order_parse_timer(&o, values + 1) &&
        order_parse_key(&k, values + 1) && order_begin(&o, w, k.object == NULL, o.wait)) {
        int64_t now = worker_key_now(w, &k);
        wh_request_made(&o.request, now);
        o.request.deadline = wh_time_add(now, delay);
        id = worker_arm_order(w, &o, &k, now, delay, &(bool){false});
    }
    PyBuffer_Release(&o.payload);
    return id;
}

static PyObject *worker_schedule_point(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                       PyObject *kwnames, bool *stays)
{
    static const char *const names[] = {"when", "clock", TIMER_NAMES};
    PyObject *values[2 + TIMER_VALUES] = {0}, *id = NULL;
    Order o = {0};
    KeyOrder k;
    if (!parse_keywords("schedule_at", names, 3, args, n, kwnames, values) ||
        !parse_needed("schedule_at", names, 2, values))
        return NULL;
    long long deadline = PyLong_AsLongLong(values[0]);
    if (!(deadline == -1 && PyErr_Occurred()) && order_parse_clock(&o, values[1]) &&
        order_parse_timer(&o, values + 2) && order_parse_key(&k, values + 2) &&
        order_begin(&o, w, k.object == NULL, o.wait)) {
        int64_t now = worker_key_now(w, &k);
        int64_t own = wh_client_now_of(&w->client, wh_flags_clock(o.request.flags));
        int64_t rest = wh_time_sub(deadline, own);
        wh_request_made(&o.request, own);
        o.request.deadline = deadline;
        id = worker_arm_order(w, &o, &k, now, rest, stays);
    }
    PyBuffer_Release(&o.payload);
    return id;
}

/* _schedule_ns(deadline_ns, clock, cookie=0, *, payload, interval, to, block): schedule_at */
static PyObject *worker_schedule_ns(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                    PyObject *kwnames)
{
    return worker_schedule_point(w, args, n, kwnames, &(bool){false});
}

/* _arm_ns(...): the same; (id, whether it is a new timer's) */
static PyObject *worker_arm_ns(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                               PyObject *kwnames)
{
    bool stays = false;
    PyObject *id = worker_schedule_point(w, args, n, kwnames, &stays);
    return id ? Py_BuildValue("NO", id, stays ? Py_False : Py_True) : NULL;
}

static PyObject *worker_schedule(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                 PyObject *kwnames)
{
    if (wh_unlikely(kwnames != NULL || n < 1 || n > 2))
        return worker_schedule_kw(w, args, n, kwnames);
    wh_request r = {0};
    int64_t delay;
    if (!parse_delay(args[0], &delay, "delay"))
        return NULL;
    if (n == 2 && !parse_u64(args[1], &r.cookie, "cookie"))
        return NULL;
    if (!worker_may_begin(w, true))
        return NULL;
    int64_t now = wh_client_now(&w->client);
    r.interval = wh_once_from(now);
    r.deadline = wh_time_add(now, delay);
    return worker_arm(w, &r, r.deadline, true);
}

/* The callbacks that wait for timers of this worker, as a new reference; NULL if there are none. */
static inline WaitingObject *worker_handles(const WorkerObject *w)
{
    PyObject *handles = w->handles;
    return handles && is_waiting(handles) && waiting_len((WaitingObject *)handles)
               ? (WaitingObject *)Py_NewRef(handles)
               : NULL;
}

/* 1: it is never delivered; 0: it was, or will be; -1: an error is set. */
static inline int worker_cancel_timer(WorkerObject *w, uint64_t id, bool wait)
{
    enum wh_call call = wh_call_cancel(&w->client, id, wait);
    if (wh_likely(call <= WH_CALL_OVER))
        return call == WH_CALL_OK;
    worker_raise(w, call);
    return -1;
}

static inline PyObject *worker_cancel_one(WorkerObject *w, PyObject *const *args, bool wait)
{
    uint64_t id;
    if (!parse_id(args[0], &id) || !worker_may_begin(w, wait))
        return NULL;
    int won = worker_cancel_timer(w, id, wait);
    WaitingObject *handles = won > 0 ? worker_handles(w) : NULL;
    if (handles) {
        handle_drop(handles, id, true);
        Py_DECREF(handles);
    }
    return won < 0 ? NULL : PyBool_FromLong(won);
}

static PyObject *worker_cancel_key(WorkerObject *w, PyObject *object, bool wait)
{
    EncodedKey e;
    uint64_t id;
    if (!worker_take_key(w, object, &e, wait))
        return NULL;
    enum wh_call call = wh_call_cancel_key(&w->client, &w->keys, &e.key, wait, &id);
    WaitingObject *handles = call == WH_CALL_OK ? worker_handles(w) : NULL;
    if (handles) {
        handle_drop(handles, id, true);
        Py_DECREF(handles);
    }
    return worker_by_key(w, object, call);
}

/* Sort id or key, and `block`, of a call; `values`: id, delay, key, block. `interval`: of a call
 * that takes a delay. */
static bool parse_by_key(const char *function, Py_ssize_t wanted, PyObject *const *args,
                         Py_ssize_t n, PyObject *kwnames, PyObject *values[4], int64_t *interval,
                         bool *wait)
{
    static const char *const both[] = {"id", "delay", "key", "block", "interval", NULL};
    static const char *const one[] = {"id", "key", "block", NULL};
    PyObject *found[5] = {0};
    if (!parse_keywords(function, wanted == 2 ? both : one, wanted, args, n, kwnames, found))
        return false;
    values[0] = found[0] == Py_None ? NULL : found[0];
    values[1] = wanted == 2 ? found[1] : NULL;
    values[2] = found[wanted] == Py_None ? NULL : found[wanted];
    values[3] = found[wanted + 1];
    if ((values[0] == NULL) == (values[2] == NULL)) {
        PyErr_Format(PyExc_TypeError, "%s() needs an id or a key, and not both", function);
        return false;
    }
    if (wanted == 2 && values[1] == NULL) {
        PyErr_Format(PyExc_TypeError, "%s() needs a delay, in seconds", function);
        return false;
    }
    return parse_interval(wanted == 2 ? found[4] : NULL, interval) && parse_block(values[3], wait);
}

/* cancel(id, *, block=True), cancel(key=, block=True) */
static wh_seldom PyObject *worker_cancel_kw(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                            PyObject *kwnames)
{
    bool wait;
    PyObject *values[4];
    if (!parse_by_key("cancel", 1, args, n, kwnames, values, NULL, &wait))
        return NULL;
    return values[2] ? worker_cancel_key(w, values[2], wait) : worker_cancel_one(w, values, wait);
}

static PyObject *worker_cancel(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                               PyObject *kwnames)
{
    if (wh_unlikely(n != 1 || kwnames != NULL))
        return worker_cancel_kw(w, args, n, kwnames);
    return worker_cancel_one(w, args, true);
}

/* True, or False for a timer that has ended; or an error. */
static inline PyObject *worker_said(WorkerObject *w, enum wh_call call)
{
    if (wh_likely(call <= WH_CALL_OVER))
        return PyBool_FromLong(call == WH_CALL_OK);
    worker_raise(w, call);
    return NULL;
}

static inline PyObject *worker_reschedule_one(WorkerObject *w, PyObject *const *args,
                                              int64_t interval, bool wait)
{
    uint64_t id;
    int64_t delay;
    if (!parse_id(args[0], &id) || !parse_delay(args[1], &delay, "delay") ||
        !worker_may_begin(w, wait))
        return NULL;
    return worker_said(w, wh_unlikely(interval)
                              ? wh_call_reschedule_every(&w->client, id, delay, interval, wait)
                              : wh_call_reschedule(&w->client, id, delay, wait));
}

static wh_seldom PyObject *worker_reschedule_kw(WorkerObject *w, PyObject *const *args,
                                                Py_ssize_t n, PyObject *kwnames)
{
    bool wait;
    int64_t delay, interval = 0;
    PyObject *values[4];
    if (!parse_by_key("reschedule", 2, args, n, kwnames, values, &interval, &wait))
        return NULL;
    if (values[2] == NULL)
        return worker_reschedule_one(w, values, interval, wait);
    return parse_delay(values[1], &delay, "delay")
               ? worker_reschedule_key(w, values[2], delay, interval, wait)
               : NULL;
}

static PyObject *worker_reschedule(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                   PyObject *kwnames)
{
    if (wh_unlikely(n != 2 || kwnames != NULL))
        return worker_reschedule_kw(w, args, n, kwnames);
    return worker_reschedule_one(w, args, 0, true);
}

/* pause(id), pause(key=) */
static PyObject *worker_pause_timer(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                    PyObject *kwnames)
{
    uint64_t id;
    bool wait;
    PyObject *values[4];
    if (!parse_by_key("pause", 1, args, n, kwnames, values, NULL, &wait))
        return NULL;
    if (values[2])
        return worker_pause_key(w, values[2]);
    return parse_id(values[0], &id) && worker_may_begin(w, false)
               ? worker_said(w, wh_call_pause(&w->client, id))
               : NULL;
}

/* resume(id, *, block=True), resume(key=, block=True) */
static PyObject *worker_resume_timer(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                     PyObject *kwnames)
{
    uint64_t id;
    bool wait;
    PyObject *values[4];
    if (!parse_by_key("resume", 1, args, n, kwnames, values, NULL, &wait))
        return NULL;
    if (values[2])
        return worker_resume_key(w, values[2], wait);
    return parse_id(values[0], &id) && worker_may_begin(w, wait)
               ? worker_said(w, wh_call_resume(&w->client, id, wait))
               : NULL;
}

/* _follow(id, ticked, block): let it be due a period from now, unless it was moved or paused since
 * its tick of that deadline. */
static PyObject *worker_follow(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    uint64_t id;
    bool wait;
    long long ticked = n == 3 ? PyLong_AsLongLong(args[1]) : 0;
    if (n != 3)
        return PyErr_Format(PyExc_TypeError, "_follow() takes an id, a deadline and block");
    if ((ticked == -1 && PyErr_Occurred()) || !parse_id(args[0], &id) ||
        !parse_block(args[2], &wait) || !worker_may_begin(w, wait))
        return NULL;
    return worker_said(w, wh_call_follow(&w->client, id, ticked, wait));
}

/* _period(id) -> the period of a pending timer, ns; 0: it is none, or has none */
static PyObject *worker_period(WorkerObject *w, PyObject *number)
{
    uint64_t id;
    if (!parse_id(number, &id) || !worker_may_begin(w, false))
        return NULL;
    bool pending = wh_client_is_armed(&w->client, id);
    int64_t word = pending ? wh_load_relaxed(&w->client.slots[wh_id_slot(id)].interval) : 0;
    return PyLong_FromLongLong(wh_client_is_armed(&w->client, id) ? wh_interval_ns(word) : 0);
}
