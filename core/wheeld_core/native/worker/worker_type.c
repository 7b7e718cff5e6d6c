/* The type of Worker: construction over mapped segments, close, the method table. */

static PyObject *worker_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs; /* of subclasses */
    WorkerObject *w = (WorkerObject *)type->tp_alloc(type, 0);
    if (w != NULL) {
        w->life = UNBOUND;
        w->page = &no_page;
        w->bell = w->clock_bell = w->daemon = wh_fd_of(-1);
    }
    return (PyObject *)w;
}

static int worker_traverse(WorkerObject *w, visitproc visit, void *arg)
{
    Py_VISIT(w->dtype);
    Py_VISIT(w->empty_events);
    Py_VISIT(w->sieve);
    Py_VISIT(w->numpy_empty);
    Py_VISIT(w->ended);
    Py_VISIT(w->beside);
    Py_VISIT(w->handles);
    Py_VISIT(Py_TYPE(w));
    return watching_traverse(w->watching, visit, arg);
}

/* Before anything is cleared, as destructors of operations run here. */
static void worker_finalize(PyObject *self)
{
    PyObject *pending = PyErr_Occurred() ? error_take() : NULL;
    Held held;
    worker_lock(&held, (WorkerObject *)self);
    watching_drop((WorkerObject *)self);
    lock_end(&held);
    if (pending)
        error_raise(pending);
}

static int worker_clear(WorkerObject *w)
{
    Held held;
    worker_lock(&held, w);
    watching_drop(w);
    lock_end(&held);
    Py_CLEAR(w->handles);
    Py_CLEAR(w->sieve);
    return 0;
}

/* Descriptors of our own: they stay open for a thread in poll() while another one closes. */
static bool worker_own_fds(WorkerObject *w, const int given[3])
{
    wh_fd *own[3] = {&w->clock_bell, &w->bell, &w->daemon};
    for (int i = 0; i < 3; i++) {
        int fd = given[i] < 0 ? -1 : fcntl(given[i], F_DUPFD_CLOEXEC, 3);
        if (fd < 0 && given[i] >= 0) {
            PyErr_SetFromErrno(PyExc_OSError);
            return false;
        }
        *own[i] = wh_fd_of(fd);
    }
    return true;
}

/* Tell a supervisor that may not hear us otherwise: nobody uses this worker any more. Not for a
 * parent. */
static void worker_say_goodbye(WorkerObject *w)
{
    if (worker_life(w) == OPEN || worker_life(w) == ENDED)
        wh_store_relaxed(&w->client.seg->goodbye, 1);
}

/* Give back what a bind has taken: the object's end, close(), a bind that failed, or a forked
 * child's first call. Dropping these references may release the GIL. */
static PyObject *worker_unbind(WorkerObject *w, enum life then)
{
    worker_drop_page(w);
    w->life = then;
    watching_drop(w);
    w->notify_always = w->heard.lost = w->heard.removed = false;
    w->sleepers = w->inside = 0;
    wh_client_free(&w->client);
    memset(&w->client, 0, sizeof w->client);
    wh_fd_close(&w->bell);
    wh_fd_close(&w->clock_bell);
    wh_fd_close(&w->daemon);
    mapping_drop(&w->wheel);
    mapping_drop(&w->slots);
    mapping_drop(&w->registry);
    mapping_drop(&w->worker);
    wh_keys_free(&w->keys);
    Py_CLEAR(w->keys_read[0]);
    Py_CLEAR(w->keys_read[1]);
    Py_CLEAR(w->known.name);
    mapping_drop(&w->keys_map);
    Py_CLEAR(w->dtype);
    Py_CLEAR(w->numpy_empty);
    Py_CLEAR(w->empty_events);
    Py_CLEAR(w->sieve);
    Py_CLEAR(w->beside);
    Py_CLEAR(w->ended);
    return NULL;
}

/* Where what stands follows from `config` alone: the heads of the others are not asked. */
static bool worker_map(WorkerObject *w, PyObject *const segments[5], unsigned int row,
                       wh_config *config)
{
    if (!mapping_get_wheel(&w->wheel, segments[0], false, config))
        return false;
    wh_geometry g = wh_geometry_of(config);
    if (row >= config->max_workers) {
        PyErr_Format(PyExc_ValueError, "row %u of a table of %u", row, config->max_workers);
        return false;
    }
    if (!mapping_get(&w->slots, segments[1], true, g.slots_bytes) ||
        !mapping_get(&w->registry, segments[2], false, g.registry_bytes) ||
        !mapping_get(&w->worker, segments[3], true, g.worker_bytes) ||
        !mapping_get(&w->keys_map, segments[4], true,
                     wh_keys_parts_of(config->max_workers, config->capacity).bytes))
        return false;
    w->rows = (wh_row *)((char *)w->registry.view.buf + g.rows_off);
    w->groups = (wh_group *)((char *)w->registry.view.buf + g.groups_off);
    w->row_count = config->max_workers;
    return true;
}

/* An array of no events. poll() fills an array by the size of an event in this wheel. */
static PyObject *events_none(WorkerObject *w)
{
    Py_buffer view;
    PyObject *events = events_new(w, 0, &view);
    if (events == NULL)
        return NULL;
    Py_ssize_t bytes = view.itemsize;
    PyBuffer_Release(&view);
    if (bytes == (Py_ssize_t)wh_event_bytes(&w->client))
        return events;
    Py_DECREF(events);
    return PyErr_Format(PyExc_ValueError, "events of %zd bytes, expected %zd for this wheel", bytes,
                        (Py_ssize_t)wh_event_bytes(&w->client));
}

/* _bind(wheel, slots, registry, worker, keys, row, incarnation, clock_bell, bell, daemon, dtype,
 *       numpy_empty, refork=False)
 * refork: after a fork the child has _refork() called, which binds once more. */
static PyObject *worker_bind(WorkerObject *w, PyObject *args)
{
    PyObject *segments[5], *dtype, *numpy_empty;
    unsigned int row;
    unsigned long long incarnation;
    int fds[3], refork = 0;
    wh_config config;
    enum life life = worker_life(w);
    /* in a forked child the parent's threads do not exist */
    if (life >= OPEN && (life != ENDED || w->sleepers || w->inside))
        return PyErr_Format(PyExc_TypeError, "this client is already connected");
    if (!PyArg_ParseTuple(args, "OOOOOIKiiiOO|p", &segments[0], &segments[1], &segments[2],
                          &segments[3], &segments[4], &row, &incarnation, &fds[0], &fds[1], &fds[2],
                          &dtype, &numpy_empty, &refork))
        return NULL;
    /* the parent's or ended binding; if the bind fails, the next call tries again */
    if (worker_is_bound(w))
        worker_unbind(w, life == FORKED ? DETACHED : UNBOUND);
    w->forks += w->life == DETACHED;
    w->dtype = Py_NewRef(dtype);
    w->numpy_empty = Py_NewRef(numpy_empty);
    if (!worker_map(w, segments, row, &config) || !worker_own_fds(w, fds))
        return worker_unbind(w, w->life);
    char *page = life_page();
    if (page == NULL) {
        PyErr_SetFromErrno(PyExc_OSError);
        return worker_unbind(w, w->life);
    }
    w->page = page;
    if (!wh_client_bind(&w->client, &config, w->wheel.view.buf, w->slots.view.buf,
                        w->worker.view.buf, row, incarnation, w->clock_bell.number) ||
        !wh_keys_bind(&w->keys, w->keys_map.view.buf, w->row_count, config.capacity,
                      w->client.states, w->client.slots, row)) {
        PyErr_NoMemory();
        return worker_unbind(w, w->life);
    }
    wh_client_populate(&w->client);
    if ((w->empty_events = events_none(w)) == NULL)
        return worker_unbind(w, w->life);
    w->client.row = &w->rows[row];
    w->client.control = w->daemon;
    w->client.waits = &worker_waits;
    w->client.keyed = keep_key;
    w->client.again = worker_note_again;
    w->client.sink = &worker_sink;
    worker_use_claims(w);
    w->refork = refork;
    worker_become(w, OPEN);
    Py_RETURN_NONE;
}

/* _connected(fd): the control socket from now on, -1: none any more (a forked child's). */
static PyObject *worker_connected(WorkerObject *w, PyObject *fd_object)
{
    long fd = PyLong_AsLong(fd_object);
    int own = -1;
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    if (!worker_is_bound(w) || worker_is_closed(w))
        Py_RETURN_NONE;
    if (fd >= 0 && (own = fcntl((int)fd, F_DUPFD_CLOEXEC, 3)) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    wh_fd_close(&w->daemon);
    w->daemon = w->client.control = wh_fd_of(own);
    w->connections++;
    w->heard.lost = false;
    w->given_up = 0;
    Py_RETURN_NONE;
}

/* _check(wait=False): as every call begins: raises, or connects a forked child anew, or to the next
 * daemon. */
static PyObject *worker_check(WorkerObject *w, PyObject *const *args, Py_ssize_t n)
{
    int wait = n > 0 ? PyObject_IsTrue(args[0]) : 0;
    return wait < 0 || !worker_may_begin(w, wait) ? NULL : Py_NewRef(Py_None);
}

static void worker_dealloc(WorkerObject *w)
{
    Held held;
    PyObject_GC_UnTrack(w);
    lock_with_gate(&held, NULL); /* there are no other references any more */
    worker_say_goodbye(w);
    worker_unbind(w, CLOSED);
    lock_end(&held);
    Py_CLEAR(w->handles);
    PyMem_RawFree(w->claims);
    PyTypeObject *type = Py_TYPE(w);
    type->tp_free(w);
    Py_DECREF(type);
}

static PyObject *worker_state(WorkerObject *w, void *unused)
{
    (void)unused;
    static const char *const names[] = {
        [FORKED] = "forked", [UNBOUND] = "unbound", [DETACHED] = "forked", [OPEN] = "open",
        [ENDED] = "ended",   [CLOSING] = "closed",  [CLOSED] = "closed"};
    return PyUnicode_FromString(names[worker_life(w)]);
}

/* Refuse all further calls, and give back memory and descriptors; if threads wait in poll(), they
 * are woken, and the last of them does. A thread that waits elsewhere touches neither when it comes
 * back. Returns the state that this call ended; None: another call has closed the client. */
static PyObject *worker_close(WorkerObject *w, PyObject *unused)
{
    (void)unused;
    if (worker_is_closed(w))
        Py_RETURN_NONE;
    PyObject *ended = worker_state(w, NULL);
    if (ended == NULL || (w->life == UNBOUND && !w->renews))
        return ended;
    worker_say_goodbye(w);
    if (w->sleepers && worker_life(w) != FORKED) { /* the parent's threads do not exist here */
        worker_become(w, CLOSING);
        worker_ring(w);
    } else {
        worker_unbind(w, CLOSED);
    }
    return ended;
}

/* Has the wheel ended, with the next one awaited? */
static PyObject *worker_get_renewing(WorkerObject *w, void *unused)
{
    (void)unused;
    return PyBool_FromLong(worker_is_renewable(w));
}

/* Will no call ever succeed again? Not while the supervisor is only away. */
static PyObject *worker_get_over(WorkerObject *w, void *unused)
{
    (void)unused;
    if (worker_is_renewable(w))
        Py_RETURN_FALSE;
    bool over = *w->page != OPEN || !wh_client_has_row(&w->client) ||
                wh_load_acquire(&w->client.wheel->daemon_state) == 2; /* pairs: daemon-state */
    return PyBool_FromLong(over);
}

static PyMethodDef worker_methods[] = {
    {"schedule", FAST(LOCKED(worker_schedule)), METH_FASTCALL | METH_KEYWORDS,
     "schedule(delay, cookie=0, *, payload=b'', key=None, on_conflict='raise', key_until='fired', "
     "interval=None, to=None, detached=False, keep=False, block=True, **policies)\n--\n\n"
     "Arm a timer and return its id.\n\n"
     "Parameters\n----------\n"
     "delay : float or timedelta\n    Seconds from now, finite and not negative.\n"
     "cookie : int\n    64 bits of your own, returned with the expiration.\n"
     "payload : bytes-like\n    At most the daemon's max_payload, returned with the expiration: payload_of().\n"
     "key : str, bytes, int or a flat tuple of those, optional\n    At most 1,024 bytes, encoded. Of all workers at most one pending timer has it.\n"
     "on_conflict : {'raise', 'keep', 'replace', 'later', 'earlier'}\n    If a pending timer has the key: raise `KeyInUse`; let it be; cancel it; or let its\n"
     "    deadline become the later or the earlier of the two.\n"
     "key_until : {'fired', 'acknowledged'}\n    When the key is free again: as the timer fires, or once the event that\n"
     "    `poll(hold=True)` returned is acknowledged.\n"
     "interval : float or timedelta, optional\n    Seconds; the timer fires again and again until cancelled.\n"
     "detached : bool\n    It belongs to no worker: it stays when this one dies or closes, whatever `on_death`\n"
     "    says, and its end waits for a receiver, for --keep-for. Needs `to`, which need not be\n"
     "    there yet.\n"
     "keep : bool\n    The end of a detached timer waits for a receiver without a limit.\n"
     "to : str, optional\n    Name of the worker that receives it, or 'group:NAME' for one of a\n"
     "    group's members; default: this one.\n"
     "block : bool\n    Whether it may wait for the clock process: when this worker's ring is full (up to\n"
     "    5 s) or no slot is free (until the clock has given back what it can). False: it never\n"
     "    sleeps.\n"
     "jitter : float or timedelta\n    Seconds; a delay of up to as many is added, drawn now.\n"
     "grace, grace_drop, coalesce, missed, times, until\n    Kept by this process: see\n"
     "    `wheeld_core.timer_options.PolicyOptions`. Not with `to`.\n\n"
     "Returns\n-------\nint\n    The timer's id; never 0, never reused. With a key that of the timer which has it\n"
     "    afterwards.\n\n"
     "Raises\n------\nInvalidDelay, PayloadTooLarge, TypeError, ValueError\n    Nothing was scheduled.\n"
     "KeyInUse\n    The key has a pending timer, the `id` of this error.\n"
     "WheelFull\n    No slot is free; the call works again as soon as one is. PayloadHeapFull, which is one\n"
     "    of these: the payloads of all workers leave no room for this one. So are KeysFull and\n"
     "    DetachedFull.\n"
     "RingFull\n    With block=False: the clock has not drained enough of what was submitted before.\n"
     "    Nothing was scheduled; try again in a moment.\n"
     "DaemonNotRunning\n    Also: the ring stayed full for 5 s.\n"
     "ClientClosed, ForkedClient\n\n"
     "Notes\n-----\nLock-free; makes a system call only when the clock must wake earlier. Any thread."},
    {"_schedule_ns", FAST(LOCKED(worker_schedule_ns)), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_arm_ns", FAST(LOCKED(worker_arm_ns)), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_schedule_into", FAST(LOCKED(worker_schedule_into)), METH_FASTCALL, NULL},
    {"_schedule_into_key", FAST(LOCKED(worker_schedule_into_key)), METH_FASTCALL, NULL},
    {"_schedule_waiter", FAST(LOCKED(worker_schedule_waiter)), METH_FASTCALL, NULL},
    {"_call_later", FAST(LOCKED(worker_call_later)), METH_FASTCALL, NULL},
    {"_schedule_batch", FAST(LOCKED(worker_schedule_batch)), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_cancel_batch", (PyCFunction)LOCKED(worker_cancel_batch), METH_VARARGS, NULL},
    {"_reschedule_batch", (PyCFunction)LOCKED(worker_reschedule_batch), METH_VARARGS, NULL},
    {"_schedule_at_batch", FAST(LOCKED(worker_schedule_at_batch)), METH_FASTCALL | METH_KEYWORDS,
     NULL},
    {"cancel", FAST(LOCKED(worker_cancel)), METH_FASTCALL | METH_KEYWORDS,
     "cancel(id=None, *, key=None, block=True)\n--\n\n"
     "Cancel a timer, by its id or its key, whichever worker scheduled it.\n\n"
     "Returns\n-------\nbool\n"
     "    True: it is never delivered. False: it was delivered, or will be exactly once, or was\n"
     "    cancelled before; or no timer has that id or key.\n\n"
     "Raises\n------\nRingFull\n    With block=False, when the call would have to wait for the clock. Nothing is decided:\n"
     "    the timer is as it was.\n"
     "DaemonNotRunning, ClientClosed, ForkedClient\n\n"
     "Notes\n-----\nWait-free, no system call. Any thread. A callback of `call_later` goes with its timer."},
    {"reschedule", FAST(LOCKED(worker_reschedule)), METH_FASTCALL | METH_KEYWORDS,
     "reschedule(id=None, delay=None, *, key=None, interval=None, block=True)\n--\n\n"
     "Move a timer, of any worker, to `delay` seconds from now; its id and key stay.\n\n"
     "Parameters\n----------\n"
     "id, key\n    One of both, which names the timer.\n"
     "delay : float or timedelta\n    Seconds from now.\n"
     "interval : float or timedelta, optional\n    The new period; default: as it is. A one-shot\n"
     "    timer becomes periodic.\n"
     "block : bool\n    As in `schedule`.\n\n"
     "Returns\n-------\nbool\n"
     "    True: it is due at the new time only. False: it has fired or was cancelled. If both happen\n"
     "    at the same moment, it may have fired at the new, earlier deadline; once in any case.\n\n"
     "Raises\n------\nInvalidDelay\n"
     "RingFull\n    With block=False, when the call would have to wait for the clock. The timer was not moved.\n"
     "DaemonNotRunning, ClientClosed, ForkedClient\n\n"
     "Notes\n-----\nMoving to later needs no message and no system call. Any thread. A periodic timer\n"
     "begins a new grid at the new time, and no tick of before is received any more. A paused\n"
     "timer goes on."},
    {"find", FAST(LOCKED(worker_find_record)), METH_FASTCALL | METH_KEYWORDS,
     "find(key)\n--\n\n"
     "The pending timer of a key, of any worker.\n\n"
     "Returns\n-------\nTimerRecord or None\n"
     "    What the timer was at one moment of this call. None: the key is free.\n\n"
     "Raises\n------\nTypeError, ValueError\n    It is not a key: see `schedule`.\n"
     "KeysFull\n    /dev/shm has no room for the part of the directory where the key would be.\n"
     "DaemonNotRunning, ClientClosed, ForkedClient\n\n"
     "Notes\n-----\nIt only reads: no system call, and nobody is woken. Any thread."},
    {"remaining", FAST(LOCKED(worker_remaining)), METH_FASTCALL | METH_KEYWORDS,
     "remaining(key)\n--\n\n"
     "Seconds until the pending timer of a key is due, of any worker.\n\n"
     "Returns\n-------\nfloat or None\n"
     "    0.0: it is due, and has not fired yet. None: the key is free.\n\n"
     "Raises\n------\nas find()"},
    {"_find_many", (PyCFunction)LOCKED(worker_find_records), METH_O, NULL},
    {"_schedule_keys", FAST(LOCKED(worker_schedule_keys)), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_cancel_keys", (PyCFunction)LOCKED(worker_cancel_keys), METH_VARARGS, NULL},
    {"_find", (PyCFunction)LOCKED(worker_find), METH_O, NULL},
    {"_extend", FAST(LOCKED(worker_extend)), METH_FASTCALL, NULL},
    {"_follow", FAST(LOCKED(worker_follow)), METH_FASTCALL, NULL},
    {"_period", (PyCFunction)LOCKED(worker_period), METH_O, NULL},
    {"_is_unread", (PyCFunction)LOCKED(worker_is_unread), METH_O, NULL},
    {"_claim", FAST(LOCKED(worker_claim)), METH_FASTCALL, NULL},
    {"_in_hand", (PyCFunction)LOCKED(worker_in_hand), METH_O, NULL},
    {"_key_of", (PyCFunction)LOCKED(worker_key_of), METH_O, NULL},
    {"pause", FAST(LOCKED(worker_pause_timer)), METH_FASTCALL | METH_KEYWORDS,
     "pause(id=None, *, key=None)\n--\n\n"
     "Let a timer, of any worker, wait until `resume`; it stays pending, and can be cancelled.\n\n"
     "Returns\n-------\nbool\n"
     "    True: it is paused, perhaps since before. False: it has fired or was cancelled.\n\n"
     "Raises\n------\nDaemonNotRunning, ClientClosed, ForkedClient\n\n"
     "Notes\n-----\nLock-free, no message and no system call. Any thread. Ticks of a periodic timer that\n"
     "nobody has received yet are dropped. `reschedule` ends a pause, too."},
    {"resume", FAST(LOCKED(worker_resume_timer)), METH_FASTCALL | METH_KEYWORDS,
     "resume(id=None, *, key=None, block=True)\n--\n\n"
     "Let a paused timer, of any worker, go on: it is due after the time that it had left when it\n"
     "was paused, up to 146 years. A periodic one is due at the next time of its grid; what it\n"
     "skipped does not count as missed.\n\n"
     "Returns\n-------\nbool\n"
     "    True: it goes on, perhaps since before. False: it has fired or was cancelled.\n\n"
     "Raises\n------\nRingFull\n    With block=False, when the call would have to wait for the clock. It is still paused.\n"
     "DaemonNotRunning, ClientClosed, ForkedClient"},
    {"poll", FAST(LOCKED(worker_poll)), METH_FASTCALL | METH_KEYWORDS,
     "poll(timeout=0.0, max_events=None, *, hold=False, visibility=None)\n--\n\n"
     "Receive expirations.\n\n"
     "Parameters\n----------\n"
     "timeout : float, timedelta or None\n    Seconds to wait for the first event; None: no limit.\n"
     "max_events : int, optional\n    At most this many; the rest comes with the next call.\n"
     "hold : bool\n    Keep them in shared memory until `acknowledge()`: if this worker dies first,\n"
     "    its successor (on_death=\"keep\") receives them again, in the same order. The next\n"
     "    call with hold continues after them; one without it is refused. One that was sent to a\n"
     "    group goes to another member.\n"
     "visibility : float or timedelta, optional\n    Seconds; an event for a group that is held for longer goes to another member, as\n"
     "    this one may hang. Default: held events stay with this worker as long as it lives.\n\n"
     "Returns\n-------\nnumpy.ndarray\n"
     "    Structured, shape (n,), dtype `timers.expiration_dtype`: timer_id u8, cookie u8,\n"
     "    deadline i8 ns, fired i8 ns, missed u4, payload_size u4, payload. `missed`\n"
     "    counts ticks of `interval` that came too late for an event of their own, up to\n"
     "    2**32 - 1; further events count the rest. With `hold` there is `attempts` u4, too: how\n"
     "    often an event for a group was delivered, with this time.\n\n"
     "Raises\n------\nInvalidDelay\n    `timeout` or `visibility` is NaN, infinite or negative.\nDaemonNotRunning\n"
     "    It has stopped, or been away for `reconnect_for` seconds. Armed timers stay armed; a\n"
     "    later call reconnects if the daemon is back.\n"
     "ValueError\n    Events are held and `hold` is not set; or it is set and this worker has\n"
     "    purgatories.\n\n"
     "Notes\n-----\nOne thread at a time should poll. Signals are handled while it waits. A callback of\n"
     "`call_later` whose expiration it returns is not called: `dispatch` calls."},
    {"acknowledge", FAST(LOCKED(worker_acknowledge)), METH_FASTCALL,
     "acknowledge(events=None, /)\n--\n\n"
     "Release events that poll(hold=True) returned: no successor sees them, no other member of their\n"
     "group gets them, and their slots can be reused. Never blocks.\n\n"
     "Parameters\n----------\n"
     "events : an event, events, an id or ids, optional\n    Only these, which were sent to a group; default: all that is held.\n\n"
     "Returns\n-------\nint or None\n    How many of `events` were still this worker's: less than all if it held one for longer\n"
     "    than its `visibility`, or had acknowledged it before. None without `events`.\n\n"
     "Raises\n------\nTypeError\n    Something is neither an event nor an id; nothing was acknowledged."},
    {"_nack", FAST(LOCKED(worker_nack)), METH_FASTCALL, NULL},
    {"_await_work", FAST(LOCKED(worker_await_work)), METH_FASTCALL | METH_KEYWORDS, NULL},
    {"_stands", FAST(LOCKED(worker_stands)), METH_FASTCALL, NULL},
    {"_wake", (PyCFunction)LOCKED(worker_wake), METH_NOARGS, NULL},
    {"_settle", (PyCFunction)LOCKED(worker_settle), METH_NOARGS, NULL},
    {"fileno", (PyCFunction)LOCKED(worker_fileno), METH_NOARGS,
     "fileno()\n--\n\n"
     "A descriptor that is readable when poll(0) would return events; for select and event loops."},
    {"_is_gone", (PyCFunction)LOCKED(worker_is_gone), METH_O, NULL},
    {"_clock_ns", (PyCFunction)LOCKED(worker_clock_ns), METH_O, NULL},
    {"now_ns", (PyCFunction)LOCKED(worker_now_ns), METH_NOARGS,
     "now_ns()\n--\n\nThe wheel's base clock, ns: CLOCK_MONOTONIC, or the virtual clock."},
    {"_counters", (PyCFunction)LOCKED(worker_counters), METH_NOARGS, NULL},
    {"_heap_bytes", (PyCFunction)LOCKED(worker_heap_bytes), METH_NOARGS, NULL},
    {"_histograms", (PyCFunction)LOCKED(worker_histograms), METH_NOARGS, NULL},
    {"_holders", (PyCFunction)LOCKED(worker_holders), METH_O, NULL},
    {"_set_quota", (PyCFunction)LOCKED(worker_set_quota), METH_O, NULL},
    {"_bind", (PyCFunction)LOCKED(worker_bind), METH_VARARGS, NULL},
    {"_connected", (PyCFunction)LOCKED(worker_connected), METH_O, NULL},
    {"_hear", (PyCFunction)LOCKED(worker_hear), METH_VARARGS, NULL},
    {"_end", (PyCFunction)LOCKED(worker_end), METH_O, NULL},
    {"_check", FAST(LOCKED(worker_check)), METH_FASTCALL, NULL},
    {"_renews", (PyCFunction)LOCKED(worker_renews), METH_NOARGS, NULL},
    {"_end_wheel", (PyCFunction)LOCKED(worker_end_wheel), METH_O, NULL},
    {"_armed", (PyCFunction)LOCKED(worker_armed), METH_NOARGS, NULL},
    {"_count_known", (PyCFunction)LOCKED(worker_count_known), METH_O, NULL},
    {"_close", (PyCFunction)LOCKED(worker_close), METH_NOARGS, NULL},
    {NULL}};

static PyGetSetDef worker_getset[] = {
    {"pending", (getter)LOCKED(worker_pending), NULL,
     "Number of armed timers that this worker scheduled, exact; reads each slot it holds.", NULL},
    {"backlogged", (getter)LOCKED(worker_backlogged), NULL,
     "Whether something waits for room in this worker's rings; receiving makes room.", NULL},
    {"_state", (getter)LOCKED(worker_state), NULL, NULL, NULL},
    {"_over", (getter)LOCKED(worker_get_over), NULL, NULL, NULL},
    {"_renewing", (getter)LOCKED(worker_get_renewing), NULL, NULL, NULL},
    {"_unsettled", (getter)LOCKED(worker_get_unsettled), NULL, NULL, NULL},
    {NULL}};

static PyMemberDef worker_members[] = {
    {"_patience_ns", T_LONGLONG, offsetof(WorkerObject, client.patience_ns), 0, NULL},
    {"_away", T_BOOL, offsetof(WorkerObject, heard.lost), 0, NULL},
    {"_given_up", T_ULONGLONG, offsetof(WorkerObject, given_up), 0, NULL},
    {"_handles", T_OBJECT_EX, offsetof(WorkerObject, handles), 0, NULL},
    {"_sieve", T_OBJECT_EX, offsetof(WorkerObject, sieve), 0, NULL},
    {"_empty_events", T_OBJECT_EX, offsetof(WorkerObject, empty_events), 0, NULL},
    {NULL}};

static PyType_Slot worker_slots[] = {{Py_tp_new, worker_new},
                                     {Py_tp_dealloc, worker_dealloc},
                                     {Py_tp_traverse, worker_traverse},
                                     {Py_tp_clear, worker_clear},
                                     {Py_tp_finalize, worker_finalize},
                                     {Py_tp_methods, worker_methods},
                                     {Py_tp_getset, worker_getset},
                                     {Py_tp_members, worker_members},
                                     {Py_tp_doc, "The native half of wheeld_client.Timers."},
                                     {0, NULL}};
static PyType_Spec worker_spec = {"wheeld_core._native.Worker", sizeof(WorkerObject), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                                  worker_slots};
