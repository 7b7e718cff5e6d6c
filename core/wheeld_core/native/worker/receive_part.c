/* Receiving: poll() and its relatives. */

static PyObject *worker_take_due(WorkerObject *w, PyObject *events); /* in watching_part.c */
static bool worker_has_work(WorkerObject *w);

static PyObject *empty_events(WorkerObject *w) { return Py_NewRef(w->empty_events); }

/* A new array for `n` events, and its memory. */
static PyObject *events_new(WorkerObject *w, uint64_t n, Py_buffer *view)
{
    PyObject *count = PyLong_FromUnsignedLongLong(n);
    if (count == NULL)
        return NULL;
    PyObject *args[2] = {count, w->dtype};
    PyObject *array = PyObject_Vectorcall(w->numpy_empty, args, 2, NULL);
    Py_DECREF(count);
    if (array && PyObject_GetBuffer(array, view, PyBUF_WRITABLE) < 0)
        Py_CLEAR(array);
    return array;
}

/* Announce that it may be rung from here on: true if the ring was empty after that. */
static void worker_stay_ready(WorkerObject *w)
{
    wh_client *c = &w->client;
    if (!wh_client_may_sleep(c))
        worker_ring(w); /* there is more already: the fd must be readable */
}

/* Into a Python dict. Without memory for that a tick is delivered all the same. */
static void note_tick(void *ticks, uint64_t id, uint32_t flags)
{
    PyObject *timer = PyLong_FromUnsignedLongLong(id), *mark = PyLong_FromUnsignedLong(flags);
    if (timer == NULL || mark == NULL || PyDict_SetItem(ticks, timer, mark) < 0)
        PyErr_Clear();
    Py_XDECREF(timer);
    Py_XDECREF(mark);
}

/* Things that belong to events and have no place in their records go beside the array: for each
 * name, which says what they are, a dict by the event's id. That dict, borrowed. NULL: there is no
 * memory, and no error is set. */
static PyObject *beside_dict(PyObject **beside, const char *name)
{
    if (*beside == NULL)
        *beside = PyDict_New();
    PyObject *things = *beside ? PyDict_GetItemString(*beside, name) : NULL;
    if (things == NULL && *beside && (things = PyDict_New()) != NULL) {
        int failed = PyDict_SetItemString(*beside, name, things);
        Py_DECREF(things); /* the other dict has it */
        if (failed)
            things = NULL;
    }
    if (things == NULL)
        PyErr_Clear();
    return things;
}

/* Room for a payload: a bytes object, which is beside the events once it is whole; its place there
 * is made now. */
static char *worker_payload_room(wh_client *c, uint64_t id, uint32_t size)
{
    WorkerObject *w = (WorkerObject *)((char *)c - offsetof(WorkerObject, client));
    PyObject *things = beside_dict(&w->beside, "payload");
    Py_XSETREF(w->arriving.payload, PyBytes_FromStringAndSize(NULL, size));
    Py_XSETREF(w->arriving.id, PyLong_FromUnsignedLongLong(id));
    if (things && w->arriving.payload && w->arriving.id &&
        PyDict_SetDefault(things, w->arriving.id, Py_None) != NULL)
        return PyBytes_AS_STRING(w->arriving.payload);
    PyErr_Clear();
    return NULL;
}

static void worker_payload_keep(wh_client *c, uint64_t id, uint32_t size)
{
    WorkerObject *w = (WorkerObject *)((char *)c - offsetof(WorkerObject, client));
    (void)id, (void)size;
    if (PyDict_SetItem(beside_dict(&w->beside, "payload"), w->arriving.id, w->arriving.payload) < 0)
        PyErr_Clear(); /* not for want of memory: its place is there */
}

/* How often a held event was delivered before. Without memory for that it is taken for a first. */
static void worker_note_again(wh_client *c, uint64_t id, uint32_t before)
{
    WorkerObject *w = (WorkerObject *)((char *)c - offsetof(WorkerObject, client));
    PyObject *things = beside_dict(&w->beside, "again");
    PyObject *timer = PyLong_FromUnsignedLongLong(id), *count = PyLong_FromUnsignedLong(before);
    if (!things || !timer || !count || PyDict_SetItem(things, timer, count) < 0)
        PyErr_Clear();
    Py_XDECREF(timer);
    Py_XDECREF(count);
}

static const wh_payload_sink worker_sink = {worker_payload_room, worker_payload_keep};

/* The events of a poll, with what belongs beside them. Takes both. */
static PyObject *events_with(WorkerObject *w, PyObject *events, PyObject *beside)
{
    PyObject *joined = NULL;
    if (events)
        joined = PyObject_CallMethod((PyObject *)w, "_with_beside", "OO", events, beside);
    Py_XDECREF(events);
    Py_DECREF(beside);
    return joined;
}

/* The same for events that were taken out of others. Takes `events`. */
static PyObject *events_beside_those(WorkerObject *w, PyObject *events, PyObject *others)
{
    if (wh_likely(Py_TYPE(others) == Py_TYPE(w->empty_events)))
        return events;
    PyObject *beside = PyObject_GetAttrString(others, "beside");
    return beside ? events_with(w, events, beside) : (Py_DECREF(events), NULL);
}

/* The request of a receiving call. */
typedef struct {
    uint64_t most;
    bool hold;       /* not to be consumed yet */
    int64_t visibility; /* how long those for a group are held, ns; 0: without a bound */
    PyObject *ticks; /* a dict for the ids and flags of ticks, or NULL */
} Wanted;

/* Before events are received that are not held. */
static bool worker_holds_nothing(wh_client *c)
{
    if (wh_likely(c->comp_acked == c->comp_head && c->stowed_count == 0))
        return true;
    uint64_t held = wh_client_held(c);
    if (held)
        PyErr_Format(PyExc_ValueError, "%llu completions are held: acknowledge() them first",
                     (unsigned long long)held);
    return held == 0;
}

/* The clock looks as often as the shortest bound of events that are held asks for; 0: none. */
static void worker_say_bound(wh_client *c, int64_t bound)
{
    uint64_t said = wh_load_relaxed(&c->seg->visibility);
    if (bound && (said == 0 || (uint64_t)bound < said))
        wh_store_relaxed(&c->seg->visibility, (uint64_t)bound);
}

/* Up to `most` events that are here now: a new array, NULL on error, or the empty one. */
static PyObject *worker_collect(WorkerObject *w, const Wanted *wanted)
{
    uint64_t most = wanted->most;
    bool hold = wanted->hold;
    wh_client *c = &w->client;
    if (!hold && !worker_holds_nothing(c))
        return NULL;
    bool rung = wh_client_may_be_rung(c) || w->heard.unread;
    if (rung && !worker_hears(w))
        return NULL;
    w->heard.unread = false;
    uint64_t n = wh_poll_begin(c, rung, w->bell.number), got = 0;
    PyObject *events = NULL, *beside = NULL;
    n = n < most ? n : most;
    if (n) {
        Py_buffer view;
        uint32_t forks = w->forks;
        w->inside++;
        events = events_new(w, n, &view);
        w->inside -= forks == w->forks;
        if (events == NULL)
            return NULL;
        if (!worker_still_usable(w)) { /* code run by the collector may have closed it */
            PyBuffer_Release(&view);
            Py_DECREF(events);
            return NULL;
        }
        if (hold) {
            c->visibility = wanted->visibility;
            worker_say_bound(c, wanted->visibility);
            got = wh_client_hold(c, view.buf, n);
            c->visibility = 0;
        } else if (wh_unlikely(wanted->ticks != NULL))
            got = wh_client_receive_noting(c, view.buf, n, note_tick, wanted->ticks);
        else
            got = wh_client_receive(c, view.buf, n);
        PyBuffer_Release(&view);
        beside = w->beside;
        w->beside = NULL;
        Py_CLEAR(w->arriving.payload);
        Py_CLEAR(w->arriving.id);
        if (wh_unlikely(c->stuck) && got == 0) {
            Py_XDECREF(beside);
            Py_DECREF(events);
            return PyErr_NoMemory();
        }
    }
    if (!wh_poll_end(c, got, w->notify_always || w->sleepers))
        worker_ring(w);
    if (got == 0) { /* nothing, or only ticks of cancelled timers */
        Py_XDECREF(events);
        Py_XDECREF(beside);
        return empty_events(w);
    }
    if (got != n) {
        PyObject *part = PySequence_GetSlice(events, 0, (Py_ssize_t)got);
        Py_SETREF(events, part);
    }
    return wh_likely(beside == NULL) ? events : events_with(w, events, beside);
}

/* Have the policies of timers sift events, whose reference it takes. */
static wh_seldom PyObject *worker_sift(WorkerObject *w, PyObject *events, const Wanted *wanted)
{
    PyObject *sieve = Py_NewRef(w->sieve), *hold = wanted->hold ? Py_True : Py_False;
    PyObject *ticks = wanted->ticks ? wanted->ticks : Py_None;
    PyObject *left = PyObject_CallFunctionObjArgs(sieve, events, hold, ticks, NULL);
    Py_DECREF(sieve);
    Py_DECREF(events);
    Py_ssize_t count = left ? PyObject_Length(left) : -1;
    if (count > 0)
        return left;
    Py_XDECREF(left);
    return count < 0 ? NULL : empty_events(w);
}

/* The events that are here now, less the timers of operations, and what policies drop. NULL: an
 * error is set. */
static PyObject *worker_collect_others(WorkerObject *w, const Wanted *wanted)
{
    PyObject *events = worker_collect(w, wanted);
    if (wh_likely(w->watching == NULL && w->sieve == NULL) || events == NULL ||
        events == w->empty_events)
        return events;
    if (w->watching) {
        PyObject *others = worker_take_due(w, events);
        Py_DECREF(events);
        events = others;
    }
    if (w->sieve == NULL || events == NULL || events == w->empty_events)
        return events;
    return worker_sift(w, events, wanted);
}

/* Without a daemon whoever makes the passes is our caller. */
static inline bool worker_lacks_rest(const WorkerObject *w)
{
    return w->daemon.number >= 0 && wh_client_lacks_rest(&w->client);
}

/* The argument `hold`. False: an error is set. */
static bool worker_may_hold(WorkerObject *w, bool hold)
{
    if (!hold || w->watching == NULL)
        return true;
    PyErr_SetString(PyExc_ValueError, "hold=True: this worker has purgatories, whose operations "
                                      "expire as they are received; use a worker of its own");
    return false;
}

/* How many events a call wants, and how long it waits: 0, or from its beginning; `until`:
 * INT64_MAX, without end. False: an error is set. */
static bool parse_wanted(WorkerObject *w, PyObject *const *values, bool heed, Wanted *wanted,
                         int64_t *timeout, int64_t *until)
{
    int hold = values[2] && !heed ? PyObject_IsTrue(values[2]) : 0;
    if (hold < 0)
        return false;
    *wanted = (Wanted){.most = UINT64_MAX, .hold = hold, .ticks = heed ? values[2] : NULL};
    if (values[0] == Py_None)
        *until = INT64_MAX;
    else if (values[0] && !parse_delay(values[0], timeout, "timeout"))
        return false;
    if (values[1] && values[1] != Py_None && !parse_u64(values[1], &wanted->most, "max_events"))
        return false;
    if (values[3] && values[3] != Py_None &&
        (!hold ? (PyErr_SetString(PyExc_ValueError, "visibility= is about held events: give "
                                                    "hold=True, too"),
                  true)
               : !parse_interval_as("visibility", values[3], &wanted->visibility)))
        return false;
    w->polls_held = hold;
    if (wanted->ticks && !PyDict_CheckExact(wanted->ticks)) {
        PyErr_SetString(PyExc_TypeError, "ticks: expected a dict");
        return false;
    }
    return true;
}

/* NULL, with an error set. */
static PyObject *worker_none(WorkerObject *w, int ready)
{
    if (ready == 0)
        worker_explain(w);
    return NULL;
}

/* poll(timeout=0.0, max_events=None, *, hold=False); `heed`: return, too, when there is work for
 * purgatories, and take the dict `ticks` in place of `hold`. */
static PyObject *worker_receive(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                PyObject *kwnames, bool heed)
{
    static const char *const poll_names[] = {"timeout", "max_events", "hold", "visibility", NULL};
    static const char *const await_names[] = {"timeout", "max_events", "ticks", NULL};
    PyObject *values[4] = {0};
    int64_t timeout = 0, until = 0;
    Wanted wanted;
    if (!parse_keywords("poll", heed ? await_names : poll_names, heed ? 3 : 2, args, n, kwnames,
                        values) ||
        !parse_wanted(w, values, heed, &wanted, &timeout, &until))
        return NULL;
    for (bool asked = false;; asked = true) {
        if (wh_unlikely(!worker_is_open(w))) {
            if (until == 0 && timeout != 0)
                until = wh_time_add(wh_clock_read(CLOCK_MONOTONIC), timeout);
            int ready = worker_ready(w, until);
            if (ready <= 0)
                return ready == 0 && worker_is_bound(w) ? empty_events(w) : worker_none(w, ready);
        }
        if (!asked && !worker_may_hold(w, wanted.hold))
            return NULL;
        PyObject *events = worker_collect_others(w, &wanted);
        if (wh_unlikely(events == w->empty_events && wanted.most && worker_lacks_rest(w))) {
            bool came;
            enum wh_call awaited = wh_call_await_rest(&w->client, &came);
            if (awaited == WH_CALL_STOPPED)
                Py_CLEAR(events);
            if (awaited == WH_CALL_GONE || (awaited == WH_CALL_OK && came)) {
                Py_DECREF(events);
                continue;
            }
        }
        if (events == NULL || events != w->empty_events || wanted.most == 0 ||
            (timeout == 0 && until == 0) || (heed && worker_has_work(w)))
            return wh_unlikely(w->heard.removed) && events == w->empty_events
                       ? worker_come_back(w, events)
                       : events;
        if (heed && w->heard.woken) {
            w->heard.woken = false;
            return events;
        }
        if (until == 0)
            until = wh_time_add(wh_clock_read(CLOCK_MONOTONIC), timeout);
        if (until != INT64_MAX && wh_clock_read(CLOCK_MONOTONIC) >= until)
            return events;
        Py_DECREF(events);
        if (!worker_sleep(w, until, heed))
            return NULL;
        /* it goes first; the byte can wait */
        if (heed && worker_is_open(w) && worker_is_marked(w)) {
            wh_client_awake(&w->client);
            w->heard.unread = true;
            return empty_events(w);
        }
    }
}

/* The claims that were made, for the client that is bound now. */
static void worker_use_claims(WorkerObject *w)
{
    wh_client *c = &w->client;
    c->claims = w->claims;
    c->claim_count = w->claim_count;
    for (uint32_t i = 0; i < w->claim_count; i++)
        worker_say_bound(c, w->claims[i].visibility);
}

/* _claim(cookie, visibility): events for a group with this cookie stay in hand once received, until
 * they are acknowledged, given back, or this worker has had them for `visibility` seconds, None:
 * without a bound. So it stays in forked children and on the next daemon. */
static PyObject *worker_claim(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    wh_claim claim = {0};
    if (n != 2)
        return PyErr_Format(PyExc_TypeError, "_claim() takes a cookie and a visibility");
    if (!parse_u64(args[0], &claim.cookie, "cookie") ||
        (args[1] != Py_None && !parse_interval_as("visibility", args[1], &claim.visibility)) ||
        !worker_usable(w))
        return NULL;
    uint32_t i = 0;
    while (i < w->claim_count && w->claims[i].cookie != claim.cookie)
        i++;
    if (i == w->claim_count) {
        wh_claim *more = PyMem_RawRealloc(w->claims, (i + 1) * sizeof *more);
        if (more == NULL)
            return PyErr_NoMemory();
        w->claims = more;
        w->claim_count++;
    }
    w->claims[i] = claim;
    worker_use_claims(w);
    Py_RETURN_NONE;
}

/* _in_hand(id): has this worker the event of a group in hand still? */
static PyObject *worker_in_hand(WorkerObject *w, PyObject *object)
{
    uint64_t id;
    if (!parse_id(object, &id) || !worker_usable(w))
        return NULL;
    return PyBool_FromLong(wh_id_given_slot(id) < w->client.capacity &&
                           wh_client_has_taken(&w->client, id));
}

/* Let claimed events wait for the next dispatch(). Takes `events`. */
static wh_seldom PyObject *worker_set_aside(WorkerObject *w, PyObject *events)
{
    PyObject *others = PyObject_CallMethod((PyObject *)w, "_set_aside", "O", events);
    Py_DECREF(events);
    return others;
}

static PyObject *worker_poll(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                             PyObject *kwnames)
{
    PyObject *events = worker_receive(w, args, n, kwnames, false);
    if (wh_unlikely(w->claim_count != 0) && events && events != w->empty_events && !w->polls_held)
        events = worker_set_aside(w, events);
    WaitingObject *handles = events && events != w->empty_events ? worker_handles(w) : NULL;
    if (handles) {
        handles_drop(handles, events);
        Py_DECREF(handles);
    }
    if (events && w->polls_held)
        Py_SETREF(events, PyObject_CallMethod((PyObject *)w, "_with_attempts", "O", events));
    return events;
}

/* Tell the policies what was acknowledged: ids, or None, all that was held. False: an error is
 * set. */
static wh_seldom bool worker_tell_policies(WorkerObject *w, PyObject *ids)
{
    PyObject *sieve = Py_NewRef(w->sieve);
    PyObject *done = PyObject_CallMethod(sieve, "acknowledged", "O", ids);
    Py_DECREF(sieve);
    Py_XDECREF(done);
    return done != NULL;
}

/* The ids of these events of groups, which are read before the first is acknowledged. NULL: an
 * error is set. */
static uint64_t *worker_read_ids(PyObject *rows)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(rows);
    uint64_t *ids = PyMem_New(uint64_t, count);
    if (ids == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; ids && i < count; i++)
        if (!parse_id(PySequence_Fast_GET_ITEM(rows, i), &ids[i])) {
            PyMem_Free(ids);
            return NULL;
        }
    return ids;
}

/* Acknowledge these events of groups. How many were still this worker's. */
static PyObject *worker_acknowledge_these(WorkerObject *w, PyObject *events)
{
    PyObject *rows = PyObject_CallMethod((PyObject *)w, "_ids_of", "(O)", events);
    uint64_t *ids = rows ? worker_read_ids(rows) : NULL, done = 0;
    bool begun = ids && worker_usable(w);
    for (Py_ssize_t i = 0; begun && i < PyList_GET_SIZE(rows); i++)
        done += wh_client_acknowledge_one(&w->client, ids[i]);
    PyMem_Free(ids);
    begun = begun && (wh_likely(w->sieve == NULL) || worker_tell_policies(w, rows));
    Py_XDECREF(rows);
    return begun ? PyLong_FromUnsignedLongLong(done) : NULL;
}

/* acknowledge(events), acknowledge(): all that is held */
static PyObject *worker_acknowledge(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    if (n == 1)
        return worker_acknowledge_these(w, args[0]);
    if (n > 1)
        return PyErr_Format(PyExc_TypeError, "acknowledge() takes events in one list: got %zd", n);
    if (!worker_usable(w))
        return NULL;
    if (w->client.comp_acked != w->client.comp_head || w->client.stowed_count)
        wh_client_acknowledge(&w->client);
    return w->sieve == NULL || worker_tell_policies(w, Py_None) ? Py_NewRef(Py_None) : NULL;
}

/* _nack(id, delay, block) */
static PyObject *worker_nack(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    uint64_t id;
    int64_t delay;
    bool wait;
    if (n != 3)
        return PyErr_Format(PyExc_TypeError, "_nack() takes an id, a delay and block");
    if (!parse_id(args[0], &id) || !parse_delay(args[1], &delay, "delay") ||
        !parse_block(args[2], &wait) || !worker_may_begin(w, wait))
        return NULL;
    enum wh_call call = wh_call_nack(&w->client, id, delay, wait);
    if (call <= WH_CALL_OVER)
        return PyBool_FromLong(call == WH_CALL_OK);
    worker_raise(w, call);
    return NULL;
}

/* _stands(id, flags): has nobody cancelled or moved it since a tick with these flags came? */
static PyObject *worker_stands(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    uint64_t id, flags;
    if (n != 2)
        return PyErr_Format(PyExc_TypeError, "_stands() takes an id and flags");
    if (!parse_id(args[0], &id) || !parse_u64(args[1], &flags, "flags"))
        return NULL;
    if (!worker_is_bound(w) || worker_is_forked(w) || wh_id_given_slot(id) >= w->client.capacity)
        Py_RETURN_TRUE;
    return PyBool_FromLong(wh_tick_stands(&w->client, id, (uint32_t)flags));
}

/* _wake(): have a thread in _await_work() return. */
static PyObject *worker_wake(WorkerObject *w, PyObject *unused)
{
    (void)unused;
    if (worker_life(w) == OPEN || worker_life(w) == ENDED) {
        w->heard.woken = true;
        worker_ring(w);
    }
    Py_RETURN_NONE;
}

static PyObject *worker_await_work(WorkerObject *w, PyObject *const *args, Py_ssize_t n,
                                   PyObject *kwnames)
{
    return worker_receive(w, args, n, kwnames, true);
}

static PyObject *worker_fileno(WorkerObject *w, PyObject *unused)
{
    (void)unused;
    if (!worker_usable(w))
        return NULL;
    if (!w->notify_always) {
        w->notify_always = true;
        wh_client_begin_to_receive(&w->client);
        worker_stay_ready(w);
    }
    return worker_hears(w) ? PyLong_FromLong(w->bell.number) : NULL;
}

static PyObject *worker_pending(WorkerObject *w, void *unused)
{
    (void)unused;
    if (!worker_usable(w))
        return NULL;
    return PyLong_FromUnsignedLongLong(wh_slabs_armed(&w->client.slabs));
}

static PyObject *worker_backlogged(WorkerObject *w, void *unused)
{
    (void)unused;
    return worker_usable(w) ? PyBool_FromLong(wh_client_backlogged(&w->client)) : NULL;
}

static PyObject *worker_counters(WorkerObject *w, PyObject *unused)
{
    (void)unused;
    if (!worker_usable(w))
        return NULL;
    wh_worker_seg *seg = w->client.seg;
#define COUNTER(name) #name, (unsigned long long)wh_load_relaxed(&seg->name)
    return Py_BuildValue("{sK sK sK sK sK sK sK}", COUNTER(scheduled), COUNTER(cancelled),
                         COUNTER(rescheduled), COUNTER(received), COUNTER(bells), COUNTER(fulls),
                         COUNTER(disbelieved));
#undef COUNTER
}

/* _heap_bytes(): bytes of the payloads of all workers in the heap. */
static PyObject *worker_heap_bytes(WorkerObject *w, PyObject *unused)
{
    (void)unused;
    if (!worker_usable(w))
        return NULL;
    return PyLong_FromUnsignedLongLong(wh_heap_bytes(&w->client.heap));
}

/* _histograms(): a copy of ours, as bytes. */
static PyObject *worker_histograms(WorkerObject *w, PyObject *unused)
{
    (void)unused;
    if (!worker_usable(w))
        return NULL;
    return PyBytes_FromStringAndSize((const char *)w->client.histograms,
                                     WH_COUNTS_OF_WORKER * (Py_ssize_t)sizeof(wh_histogram));
}

/* _is_gone(id): was it cancelled or acknowledged, or has its slot another tenant? Not if it has
 * fired, as nobody may have read that. */
static PyObject *worker_is_gone(WorkerObject *w, PyObject *object)
{
    uint64_t id;
    if (!parse_id(object, &id) || !worker_usable(w))
        return NULL;
    uint64_t slot = wh_id_given_slot(id);
    if (slot >= w->client.capacity)
        Py_RETURN_TRUE;
    uint64_t state = wh_load_acquire(&w->client.states[slot]); /* pairs: arm, cancel */
    return PyBool_FromLong(wh_state_gen(state) != wh_id_gen(id) ||
                           wh_state_phase(state) == WH_CANCELLED ||
                           wh_state_phase(state) == WH_DONE);
}

/* _clock_ns(clock): the time of one of the clocks, by its number. */
static PyObject *worker_clock_ns(WorkerObject *w, PyObject *clock)
{
    uint32_t kind;
    return parse_clock(clock, &kind) && worker_usable(w)
               ? PyLong_FromLongLong(wh_client_now_of(&w->client, kind))
               : NULL;
}

static PyObject *worker_now_ns(WorkerObject *w, PyObject *unused)
{
    (void)unused;
    return worker_usable(w) ? PyLong_FromLongLong(wh_client_now(&w->client)) : NULL;
}
