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
#define TIMER_NAMES "cookie", "payload", OPTION_NAMES
enum { COOKIE, PAYLOAD, TIMER_OPTIONS, TIMER_VALUES = TIMER_OPTIONS + OPTIONS };

static bool order_parse_timer(Order *o, PyObject *const *values)
{
    return (!values[PAYLOAD] ||
            PyObject_GetBuffer(values[PAYLOAD], &o->payload, PyBUF_SIMPLE) == 0) &&
           (!values[COOKIE] || parse_u64(values[COOKIE], &o->request.cookie, "cookie")) &&
           order_parse(o, values + TIMER_OPTIONS);
}

static PyObject *worker_schedule_kw(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                    PyObject *kwnames)
{
    static const char *const names[] = {"delay", TIMER_NAMES};
    PyObject *values[1 + TIMER_VALUES] = {0}, *id = NULL;
    Order o = {0};
    int64_t delay;
    if (!parse_keywords("schedule", names, 2, args, n, kwnames, values))
        return NULL;
    if (values[0] == NULL)
        return PyErr_Format(PyExc_TypeError, "schedule() needs a delay, in seconds");
    if (parse_delay(values[0], &delay, "delay") && order_parse_timer(&o, values + 1) &&
        worker_may_begin(w, o.wait) && order_place(&o, w)) {
        int64_t now = wh_client_now(&w->client);
        wh_request_made(&o.request, now);
        o.request.deadline = wh_time_add(now, delay);
        id = worker_arm(w, &o.request, o.request.deadline, o.wait);
    }
    PyBuffer_Release(&o.payload);
    return id;
}

/* _schedule_ns(deadline_ns, clock, cookie=0, *, payload, interval, to, block): schedule_at */
static PyObject *worker_schedule_ns(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                    PyObject *kwnames)
{
    static const char *const names[] = {"when", "clock", TIMER_NAMES};
    PyObject *values[2 + TIMER_VALUES] = {0}, *id = NULL;
    Order o = {0};
    if (!parse_keywords("schedule_at", names, 3, args, n, kwnames, values) ||
        !parse_needed("schedule_at", names, 2, values))
        return NULL;
    long long deadline = PyLong_AsLongLong(values[0]);
    if (!(deadline == -1 && PyErr_Occurred()) && order_parse_clock(&o, values[1]) &&
        order_parse_timer(&o, values + 2) && worker_may_begin(w, o.wait) && order_place(&o, w)) {
        int64_t now = wh_client_now(&w->client);
        int64_t own = wh_client_now_of(&w->client, wh_flags_clock(o.request.flags));
        int64_t rest = wh_time_sub(deadline, own);
        wh_request_made(&o.request, own);
        o.request.deadline = deadline;
        id = worker_arm(w, &o.request, wh_time_add(now, rest), o.wait);
    }
    PyBuffer_Release(&o.payload);
    return id;
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
static inline PyObject *worker_handles(const WorkerObject *w)
{
    PyObject *handles = w->handles;
    return handles && PyDict_CheckExact(handles) && PyDict_GET_SIZE(handles) ? Py_NewRef(handles)
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
    PyObject *handles = won > 0 ? worker_handles(w) : NULL;
    if (handles) {
        handle_drop(handles, id, true);
        Py_DECREF(handles);
    }
    return won < 0 ? NULL : PyBool_FromLong(won);
}

static wh_seldom PyObject *worker_cancel_kw(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                            PyObject *kwnames)
{
    bool wait;
    return parse_call("cancel", 1, args, n, kwnames, &wait) ? worker_cancel_one(w, args, wait)
                                                            : NULL;
}

static PyObject *worker_cancel(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                               PyObject *kwnames)
{
    if (wh_unlikely(n != 1 || kwnames != NULL))
        return worker_cancel_kw(w, args, n, kwnames);
    return worker_cancel_one(w, args, true);
}

static inline PyObject *worker_reschedule_one(WorkerObject *w, PyObject *const *args, bool wait)
{
    uint64_t id;
    int64_t delay;
    if (!parse_id(args[0], &id) || !parse_delay(args[1], &delay, "delay") ||
        !worker_may_begin(w, wait))
        return NULL;
    enum wh_call call = wh_call_reschedule(&w->client, id, delay, wait);
    if (wh_unlikely(call > WH_CALL_OVER)) {
        worker_raise(w, call);
        return NULL;
    }
    return PyBool_FromLong(call == WH_CALL_OK);
}

static wh_seldom PyObject *worker_reschedule_kw(WorkerObject *w, PyObject *const *args,
                                                Py_ssize_t n, PyObject *kwnames)
{
    bool wait;
    return parse_call("reschedule", 2, args, n, kwnames, &wait)
               ? worker_reschedule_one(w, args, wait)
               : NULL;
}

static PyObject *worker_reschedule(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                   PyObject *kwnames)
{
    if (wh_unlikely(n != 2 || kwnames != NULL))
        return worker_reschedule_kw(w, args, n, kwnames);
    return worker_reschedule_one(w, args, true);
}
